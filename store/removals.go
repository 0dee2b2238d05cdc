package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// Dependents returns the objects of clients that have an owner with the given uid in their ownerReferences.
func (s *Store) Dependents(uid string) (list []object.Object) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for ref := range s.table.dependents.of[uid] {
		if r := s.table.get(ref); r != nil {
			list = append(list, r.Object)
		}
	}
	slices.SortFunc(list, func(a, b object.Object) int {
		return strings.Compare(object.RefOf(a).String(), object.RefOf(b).String())
	})
	return list
}

// CollectGarbage removes objects of clients if all of their owners (metadata.ownerReferences) are gone, and then the dependents of these objects. It
// only considers objects that have lost an owner since the start. So an object stays if its owner has never existed here, as in a manifest exported
// from a cluster.
func (s *Store) CollectGarbage() error {
	for {
		writes := s.garbage()
		if len(writes) == 0 {
			return nil
		}
		results, err := s.Write(writes...)
		if err != nil {
			s.mu.Lock()
			for _, w := range writes {
				s.table.dependents.orphaned[w.Ref] = struct{}{} // it is tried again
			}
			s.mu.Unlock()
			return fmt.Errorf("remove what has lost its owners: %w", err)
		}
		var errs []error
		for i := range results {
			if e := results[i].Err; e != nil && !errors.Is(e, ErrNotFound) && !errors.Is(e, ErrStale) {
				errs = append(errs, fmt.Errorf("remove %s, which has lost its owners: %w", writes[i].Ref, e))
			}
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
}

// garbage empties the set of objects that have lost an owner, and returns deletions of those without any owner left.
func (s *Store) garbage() (writes []Write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.table.dependents.orphaned {
		delete(s.table.dependents.orphaned, ref)
		r := s.table.get(ref)
		if r == nil || r.Owner != (Owner{}) {
			continue
		}
		meta := r.Object.GetMeta()
		if meta.DeletionTimestamp == nil && len(meta.OwnerReferences) > 0 && !slices.ContainsFunc(meta.OwnerReferences, func(o object.OwnerReference) bool { return s.isThere(o, ref.Namespace) }) {
			writes = append(writes, Write{Ref: ref, Delete: true, UID: meta.UID, By: s.garbageBy(meta)})
		}
	}
	slices.SortFunc(writes, func(a, b Write) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return writes
}

// isThere reports whether the owner of an object in a namespace exists: in that namespace, or as an object without one.
func (s *Store) isThere(o object.OwnerReference, namespace string) bool {
	for _, in := range []string{namespace, ""} {
		r := s.table.get(object.Ref{Kind: o.Kind, Namespace: in, Name: o.Name})
		if r != nil && r.Object.GetMeta().UID == o.UID {
			return true
		}
	}
	return false
}

// garbageBy returns the Caller for deleting an object whose owners are gone: if a rollout has deleted one of them, the deletion is part of
// the rollout.
func (s *Store) garbageBy(meta *object.ObjectMeta) Caller {
	if s.pending.staged().Pending() {
		for _, before := range s.pending.staged().Before {
			if before != nil && slices.ContainsFunc(meta.OwnerReferences, func(o object.OwnerReference) bool { return o.UID == before.Object.GetMeta().UID }) {
				return garbageOf(s.pending.staged().ID)
			}
		}
	}
	return garbageCollector
}

// NamespacesInUse lists the namespaces that have objects of files or of clients.
type NamespacesInUse struct {
	// State is the argument of the next call of Namespaces.
	State uint64
	// Files are the namespaces with objects of files, and Clients those with objects of API clients, both sorted.
	Files, Clients []string
}

// Namespaces returns the namespaces in use now. since is the State of an earlier result, or 0. It returns false if neither the namespaces in use nor
// any Namespace have changed since then. Objects of controllers do not count.
func (s *Store) Namespaces(since uint64) (NamespacesInUse, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	use := &s.table.namespaces
	if use.state == since {
		return NamespacesInUse{State: since}, false
	}
	return NamespacesInUse{
		State:   use.state,
		Files:   slices.Sorted(maps.Keys(use.files)),
		Clients: slices.Sorted(maps.Keys(use.clients)),
	}, true
}

// A Namespace that is deleted stays, going, while there are objects in it, and goes with the
// last of them. Events are left behind: they pass by themselves, and more may come.

func namespaceRef(name string) object.Ref { return object.Ref{Kind: object.KindNamespace, Name: name} }

// isGoing reports whether a Namespace is being deleted, and exists only until the objects in it are removed.
func isGoing(r *record.Record) bool {
	if r == nil || r.Owner.File != "" {
		return false
	}
	meta := r.Object.GetMeta()
	return meta.DeletionTimestamp != nil && len(meta.Finalizers) == 0
}

// isPopulated reports whether a namespace has objects that keep its Namespace, after the changes settled so far.
func (t *transaction) isPopulated(namespace string) bool {
	left := t.s.table.namespaces.keeping[namespace]
	for ref := range t.last {
		if ref.Namespace == namespace && keepsNamespace(ref) {
			left += presence(t.record(ref)) - presence(t.s.table.get(ref))
		}
	}
	return left > 0
}

// endNamespaces returns removals of the Namespaces that are being deleted and from which changes remove the last objects. It is called after all
// other changes are prepared.
func (t *transaction) endNamespaces(changes []*change) ([]*change, error) {
	var ending []string
	for _, c := range changes {
		if c.remove && c.ref.Namespace != "" && isGoing(t.record(namespaceRef(c.ref.Namespace))) {
			ending = append(ending, c.ref.Namespace)
		}
	}
	if len(ending) == 0 {
		return nil, nil
	}
	slices.Sort(ending)
	ending = slices.Compact(ending) // to look into one takes as long as the transaction is
	for _, c := range changes {
		if c.revision != 0 {
			t.last[c.ref] = c
		}
	}
	var ends []*change
	for _, name := range ending {
		ref := namespaceRef(name)
		old := t.record(ref)
		if old == nil || t.isPopulated(name) {
			continue
		}
		end := &change{ref: ref, old: old, owner: old.Owner, remove: true}
		if err := t.encode(end); err != nil {
			return nil, err
		}
		t.last[ref] = end
		ends = append(ends, end)
	}
	return ends, nil
}

// namespaceUse counts the objects of files and of clients by namespace. Events do not count: they
// expire.
type namespaceUse struct {
	// state changes whenever a namespace gets its first object or loses its last one, and whenever a Namespace changes.
	state uint64
	// The numbers of objects by namespace: of files, of clients, and of all that keep a Namespace from being removed.
	files, clients, keeping map[string]int
}

func newNamespaceUse() namespaceUse {
	return namespaceUse{state: 1, files: map[string]int{}, clients: map[string]int{}, keeping: map[string]int{}}
}

// move updates the counts for a change of an object from old to now. old is nil for a new object, and now is nil for a removed one.
func (c *namespaceUse) move(ref object.Ref, old, now *record.Record) {
	if keepsNamespace(ref) && (old == nil) != (now == nil) {
		bump(c.keeping, ref.Namespace, presence(now)-presence(old))
	}
	if ref.Kind == object.KindNamespace {
		c.state++
	}
	if ref.Namespace == "" || !keepsNamespace(ref) || old != nil && now != nil && old.Owner == now.Owner {
		return
	}
	if counts := c.of(now); counts != nil && bump(counts, ref.Namespace, 1) == 1 {
		c.state++
	}
	if counts := c.of(old); counts != nil && bump(counts, ref.Namespace, -1) == 0 {
		c.state++
	}
}

// presence returns 1 for a record, 0 for nil.
func presence(r *record.Record) int {
	if r != nil {
		return 1
	}
	return 0
}

// bump adds n to a count and returns the sum. It deletes the count from the map if the sum is 0.
func bump(counts map[string]int, namespace string, n int) int {
	counts[namespace] += n
	left := counts[namespace]
	if left == 0 {
		delete(counts, namespace)
	}
	return left
}

// of returns the map that counts an object, c.files or c.clients. It returns nil for an object of a controller, and for a nil record.
func (c *namespaceUse) of(r *record.Record) map[string]int {
	switch {
	case r == nil || r.Owner.Controller != "":
		return nil
	case r.Owner.File != "":
		return c.files
	}
	return c.clients
}

func keepsNamespace(ref object.Ref) bool { return !object.StrategyOfKind(ref.Kind).Passing }

// garbageCollector is the Caller, in the journal, of deletions of objects that have lost their owners.
var garbageCollector = Caller{User: "system:svcctl", Manager: "garbage-collector", Verb: "delete"}

// dependents indexes the objects of clients by the uids of their owners (metadata.ownerReferences). It does not include objects of files and
// controllers, which are removed by other means.
type dependents struct {
	of map[string]map[object.Ref]struct{}
	// orphaned has the objects that lost an owner and have not been examined yet.
	orphaned map[object.Ref]struct{}
}

// move updates the index for a change of an object from before to after; either may be nil. The dependents of an object that is gone become
// orphaned.
func (d dependents) move(ref object.Ref, before, after *record.Record) {
	if before != nil && before.Owner == (Owner{}) {
		for _, owner := range before.Object.GetMeta().OwnerReferences {
			index.Drop(d.of, owner.UID, ref)
		}
	}
	if after != nil && after.Owner == (Owner{}) {
		for _, owner := range after.Object.GetMeta().OwnerReferences {
			index.Put(d.of, owner.UID, ref, struct{}{})
		}
	}
	if before == nil || after != nil && after.Object.GetMeta().UID == before.Object.GetMeta().UID {
		return
	}
	for dependent := range d.of[before.Object.GetMeta().UID] {
		d.orphaned[dependent] = struct{}{}
	}
}

// garbageOf returns the garbage collector as a Caller whose deletions are part of the rollout with an ID.
func garbageOf(id string) Caller { return pending.Staged.CallerOf(garbageCollector, id) }

// holdRemovals asks the guard about the removals in the transaction, and returns the objects that must not be removed, with the decisions.
func (t *transaction) holdRemovals(guard RemovalGuard) map[object.Ref]Decision {
	if guard == nil {
		return nil
	}
	removals := Removals{Files: map[string][]string{}, Total: t.s.table.served, Declared: t.s.table.declaredServices}
	var going []*change
	for _, c := range t.changes {
		if !c.remove {
			continue
		}
		going = append(going, c)
		services := removals.Files[c.old.Owner.File]
		switch c.ref.Kind {
		case object.KindService:
			services = append(services, c.ref.Key())
		case object.KindGateway: // its Service goes with it
			services = append(services, c.ref.String())
		case object.KindGatewayClass:
			services = append(services, t.gatewaysOf(c.old.Object.(*object.GatewayClass))...)
		}
		removals.Files[c.old.Owner.File] = services
	}
	t.bereft(going, removals.Files)
	decide := guard(removals)
	held := map[object.Ref]Decision{}
	for _, c := range going {
		if d := decide(c.old.Owner.File); d != Remove {
			c.remove = false
			c.keepStored(nil)
			held[c.ref] = d
		}
	}
	return held
}

// gatewaysOf returns the Gateways that nothing serves without a class, as in Removals.
func (t *transaction) gatewaysOf(class *object.GatewayClass) (gateways []string) {
	for _, o := range t.s.sorted(object.KindGateway) {
		if class.Spec.ControllerName == object.GatewayController && o.(*object.Gateway).Spec.GatewayClassName == class.Metadata.Name {
			gateways = append(gateways, object.RefOf(o).String())
		}
	}
	return gateways
}

// bereft adds to the list of each file (Removals.Files) the Services that lose their last endpoint through the given removals. Objects that
// controllers generate from other objects do not count, as they are removed with these.
func (t *transaction) bereft(going []*change, files map[string][]string) {
	gone := map[object.Ref]bool{}
	by := map[string]map[string]bool{} // the files of the endpoints that go, by Service
	for _, c := range going {
		gone[c.ref] = true
		switch o := c.old.Object.(type) {
		case *object.EndpointSlice, *object.Endpoints:
			if key := index.ServiceKey(o); key != "" && len(index.AddressesOf(o, nil)) > 0 {
				index.Put(by, key, c.old.Owner.File, true)
			}
		case *object.Pod:
			for _, key := range t.s.table.index.Selecting(o.Metadata.Namespace, o.Metadata.Labels, t.s.table.named) {
				index.Put(by, key, c.old.Owner.File, true)
			}
		}
	}
	stays := func(o object.Object) bool {
		ref := object.RefOf(o)
		r := t.s.table.records[ref]
		return !gone[ref] && r != nil && r.Owner.Controller == ""
	}
	for key, from := range by {
		svc, _, _ := t.s.table.service(key)
		if svc == nil || gone[object.RefOf(svc)] ||
			slices.ContainsFunc(t.behind(svc, stays), func(o object.Object) bool { return len(index.AddressesOf(o, svc.Spec.Selector)) > 0 }) {
			continue
		}
		for file := range from {
			files[file] = append(files[file], key)
		}
	}
}

// Removals lists the objects that SyncFiles is about to remove because no file declares
// them any more.
type Removals struct {
	// Files has the files to which the objects belong, each with the Services ("namespace/name") that are lost: those that are removed, and those
	// that lose their last endpoint. A removed Gateway ("Gateway namespace/name"), or one of a removed class, stands for the Service that is
	// generated from it.
	Files map[string][]string
	// Total counts all present Services, Declared those of them that belong to files, or are generated from Gateways of files.
	Total, Declared int
}

// Decision is the guard's decision about removing an object that no file declares any more.
type Decision uint8

// The values of Decision.
const (
	Remove Decision = iota
	Wait            // the object stays for now
	Keep            // it stays until an operator confirms the removal
)

// A RemovalGuard decides on removals of objects. Each SyncGuarded that would remove objects calls it. The function that it returns gives the decision
// on the objects of each file. If that is not Remove, the objects stay, and the next call asks about them again.
type RemovalGuard func(Removals) func(file string) Decision

// vanishedError means that a value is held by an object that vanished from the files and whose removal waits for confirmation.
type vanishedError struct{ error }

func (e vanishedError) Error() string {
	return e.error.Error() + ", which vanished from the manifests and is held: see `svcctl confirm --removals`"
}

func (e vanishedError) Unwrap() error { return e.error }
