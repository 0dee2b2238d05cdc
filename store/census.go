package store

import (
	"maps"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// census counts who has objects in which namespaces. Events count for nobody: they pass.
type census struct {
	// state is another number whenever a namespace comes into use or falls out of it, and
	// whenever a Namespace changes.
	state   uint64
	files   map[string]int // by namespace
	clients map[string]int
}

func newCensus() census {
	return census{state: 1, files: map[string]int{}, clients: map[string]int{}}
}

// move counts an object that becomes another version; old is nil for a new one, now for one
// that goes.
func (c *census) move(ref object.Ref, old, now *record) {
	if ref.Kind == object.KindNamespace {
		c.state++
	}
	if ref.Namespace == "" || ref.Kind == object.KindEvent || old != nil && now != nil && old.owner == now.owner {
		return
	}
	if counts := c.of(now); counts != nil {
		if counts[ref.Namespace]++; counts[ref.Namespace] == 1 {
			c.state++
		}
	}
	if counts := c.of(old); counts != nil {
		if counts[ref.Namespace]--; counts[ref.Namespace] == 0 {
			delete(counts, ref.Namespace)
			c.state++
		}
	}
}

// of is where the object counts; nil for nowhere.
func (c *census) of(r *record) map[string]int {
	switch {
	case r == nil || r.owner.Controller != "":
		return nil
	case r.owner.File != "":
		return c.files
	}
	return c.clients
}

// Census tells who uses which namespaces.
type Census struct {
	// State is to be given to the next call of Namespaces.
	State uint64
	// Files are the namespaces in which files have objects, Clients those in which clients
	// of the API have some; sorted.
	Files, Clients []string
}

// Namespaces is the present Census; false when neither it nor any Namespace has changed
// since the one that had the state since. What controllers make counts for nobody.
func (s *Store) Namespaces(since uint64) (Census, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.census.state == since {
		return Census{State: since}, false
	}
	return Census{
		State:   s.census.state,
		Files:   slices.Sorted(maps.Keys(s.census.files)),
		Clients: slices.Sorted(maps.Keys(s.census.clients)),
	}, true
}
