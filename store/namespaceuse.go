package store

import "svcctl.io/svcctl/store/object"

// namespaceUse counts objects by namespace, of files and of clients. Events do not count: they
// expire.
type namespaceUse struct {
	// state is another number whenever a namespace comes into use or falls out of it, and
	// whenever a Namespace changes.
	state uint64
	// The counts are by namespace: of objects of files, of objects of clients, and of all that keep a
	// Namespace from going.
	files, clients, keeping map[string]int
}

func newNamespaceUse() namespaceUse {
	return namespaceUse{state: 1, files: map[string]int{}, clients: map[string]int{}, keeping: map[string]int{}}
}

// move counts an object that becomes another version; old is nil for a new one, now for one
// that goes.
func (c *namespaceUse) move(ref object.Ref, old, now *record) {
	if keepsNamespace(ref) && (old == nil) != (now == nil) {
		bump(c.keeping, ref.Namespace, presence(now)-presence(old))
	}
	if ref.Kind == object.KindNamespace {
		c.state++
	}
	if ref.Namespace == "" || !keepsNamespace(ref) || old != nil && now != nil && old.owner == now.owner {
		return
	}
	if counts := c.of(now); counts != nil && bump(counts, ref.Namespace, 1) == 1 {
		c.state++
	}
	if counts := c.of(old); counts != nil && bump(counts, ref.Namespace, -1) == 0 {
		c.state++
	}
}

// presence is 1 for an object that is there, else 0.
func presence(r *record) int {
	if r != nil {
		return 1
	}
	return 0
}

// bump changes a count, and returns it. A map has no counts of 0.
func bump(counts map[string]int, namespace string, n int) int {
	counts[namespace] += n
	left := counts[namespace]
	if left == 0 {
		delete(counts, namespace)
	}
	return left
}

// of returns the counts that an object is in; nil for none.
func (c *namespaceUse) of(r *record) map[string]int {
	switch {
	case r == nil || r.owner.Controller != "":
		return nil
	case r.owner.File != "":
		return c.files
	}
	return c.clients
}

func keepsNamespace(ref object.Ref) bool { return !object.StrategyOfKind(ref.Kind).Passing }
