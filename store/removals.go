package store

import (
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// holdRemovals asks whether what was examined may be removed, and gives what may not.
func (t *transaction) holdRemovals(guard RemovalGuard) map[object.Ref]Decision {
	if guard == nil {
		return nil
	}
	removals := Removals{Files: map[string][]string{}, Total: t.s.table.index.Count(), Declared: t.s.table.declaredServices}
	var going []*change
	for _, c := range t.changes {
		if !c.remove {
			continue
		}
		going = append(going, c)
		file := c.old.Owner.File
		services := removals.Files[file]
		if c.ref.Kind == object.KindService {
			services = append(services, c.ref.Key())
		}
		removals.Files[file] = services
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

// bereft adds to each file the Services that have no endpoints left without its objects. What
// controllers make of other objects does not count: it goes with them.
func (t *transaction) bereft(going []*change, files map[string][]string) {
	gone := map[object.Ref]bool{}
	by := map[string]map[string]bool{} // the files of the endpoints that go, by Service
	note := func(service, file string) {
		if by[service] == nil {
			by[service] = map[string]bool{}
		}
		by[service][file] = true
	}
	for _, c := range going {
		gone[c.ref] = true
		switch o := c.old.Object.(type) {
		case *object.EndpointSlice, *object.Endpoints:
			if key := index.ServiceKey(o); key != "" && len(index.AddressesOf(o, nil)) > 0 {
				note(key, c.old.Owner.File)
			}
		case *object.Pod:
			for _, key := range t.s.table.index.Selecting(o.Metadata.Namespace, o.Metadata.Labels) {
				note(key, c.old.Owner.File)
			}
		}
	}
	if len(by) == 0 {
		return
	}
	coming := map[string][]object.Object{} // by Service, or namespace of Pods
	for _, c := range t.changes {
		if c.wanted == nil || c.old != nil && c.old.Object == c.wanted {
			continue
		}
		if pod, is := c.wanted.(*object.Pod); is {
			coming[podsOf+pod.Metadata.Namespace] = append(coming[podsOf+pod.Metadata.Namespace], pod)
		} else if key := index.ServiceKey(c.wanted); key != "" && c.ref.Kind != object.KindService {
			coming[key] = append(coming[key], c.wanted)
		}
	}
	for key, from := range by {
		if svc, _, _ := t.s.table.service(key); svc == nil || gone[object.RefOf(svc)] || t.backed(svc, gone, coming) {
			continue
		}
		for file := range from {
			files[file] = append(files[file], key)
		}
	}
}

// backed reports whether a Service has an endpoint, or a Pod that it selects, that is not among
// those that go.
func (t *transaction) backed(svc *object.Service, gone map[object.Ref]bool, coming map[string][]object.Object) bool {
	key, selector := index.ServiceKey(svc), svc.Spec.Selector
	_, slices, endpoints := t.s.table.service(key)
	stays := func(o object.Object) bool {
		ref := object.RefOf(o)
		r := t.s.table.records[ref]
		return !gone[ref] && r != nil && r.Owner.Controller == "" && len(index.AddressesOf(o, selector)) > 0
	}
	for _, slice := range slices {
		if stays(slice) {
			return true
		}
	}
	if endpoints != nil && stays(endpoints) {
		return true
	}
	for _, o := range coming[key] {
		if len(index.AddressesOf(o, nil)) > 0 {
			return true
		}
	}
	if len(selector) == 0 {
		return false
	}
	for _, pod := range t.s.table.index.Selected(svc.Metadata.Namespace, selector) {
		if stays(pod) {
			return true
		}
	}
	for _, pod := range coming[podsOf+svc.Metadata.Namespace] {
		if len(index.AddressesOf(pod, selector)) > 0 {
			return true
		}
	}
	return false
}

// Removals are the objects that a SyncFiles is about to remove, because no file has a
// document for them any more.
type Removals struct {
	// Files has the files that the objects came from, each with the Services ("namespace/name")
	// that are lost with it: those that vanish, and those that stay without an endpoint.
	Files map[string][]string
	// Total counts all present Services, Declared those of them that belong to files.
	Total, Declared int
}

// Decision is whether an object that no file has a document for any more is removed.
type Decision uint8

// The decisions about removals.
const (
	Remove Decision = iota
	Wait            // it stays for a moment
	Keep            // it stays until an operator confirms the removal
)

// A RemovalGuard gives what becomes of the objects of each file. It is asked in every SyncGuarded about the
// objects that it would remove, if any. Those that are not removed stay as they are, and are asked about again
// in the next one.
type RemovalGuard func(Removals) func(file string) Decision

// vanishedError means that the holder of a value vanished from the files, and is held.
type vanishedError struct{ error }

func (e vanishedError) Error() string {
	return e.error.Error() + ", which vanished from the manifests and is held: see `svcctl confirm --removals`"
}

func (e vanishedError) Unwrap() error { return e.error }
