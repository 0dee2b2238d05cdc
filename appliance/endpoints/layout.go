package endpoints

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// maxEndpoints is the most endpoints of one slice: the default of the endpointslice
// controller of Kubernetes (--max-endpoints-per-slice), beyond which proxies would have
// to read much for every small change.
const maxEndpoints = 100

// slice is an EndpointSlice that is ours.
type slice struct {
	name      string
	group     group
	ports     []object.EndpointPort
	endpoints []object.Endpoint
	// own is set when endpoints may be changed, because their memory is not shared.
	own     bool
	touched bool
	// object is as it was last seen in the store, or given away to be stored; nil for a
	// new one.
	object *object.EndpointSlice
}

// layout distributes the endpoints of a Service over slices. An endpoint has an id, and a slice for
// each family. The maps are made with their first entry: for most Services they stay nil.
type layout struct {
	mirrors bool              // of an Endpoints object, not of Pods
	slices  map[string]*slice // by name
	places  map[string]*[len(families)]*slice
	waiting map[group][]arrival
}

// arrival is an endpoint that has no slice yet.
type arrival struct {
	id string
	placed
}

// id returns the id of an endpoint in a slice: of one that a selector found, the name of its Pod; of a mirrored one its
// address, and the ports of its slice, for an address may be in several subsets. It is "" for one that has neither.
func (l *layout) id(s *slice, e *object.Endpoint) string {
	switch {
	case l.mirrors && len(e.Addresses) > 0:
		return e.Addresses[0] + " " + s.group.ports
	case l.mirrors, e.TargetRef == nil, e.TargetRef.Kind != object.KindPod:
		return ""
	}
	return e.TargetRef.Name
}

// put sets a key of a map that may not be made yet.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// adopt takes in a slice that is stored. Endpoints that are in another slice already, or
// that have no id, are taken out of it.
func (l *layout) adopt(o *object.EndpointSlice) {
	ports := slices.Clone(o.Ports)
	sortPorts(ports)
	s := &slice{
		name: o.Metadata.Name, group: group{family: o.AddressType, ports: textOfPorts(ports)}.shareOf(&o.Metadata),
		ports: o.Ports, endpoints: o.Endpoints, object: o,
	}
	family := slices.Index(families[:], o.AddressType)
	put(&l.slices, s.name, s)
	var kept []object.Endpoint
	for i := range o.Endpoints {
		id := l.id(s, &o.Endpoints[i])
		if family < 0 || id == "" || l.in(id, family) != nil {
			continue
		}
		l.place(id, family, s)
		kept = append(kept, o.Endpoints[i])
	}
	if len(kept) < len(o.Endpoints) {
		s.endpoints, s.own, s.touched = kept, true, true
	}
}

// in is the slice that an endpoint is in.
func (l *layout) in(id string, family int) *slice {
	if places := l.places[id]; places != nil {
		return places[family]
	}
	return nil
}

// place notes the slice that an endpoint is in; nil: none.
func (l *layout) place(id string, family int, s *slice) {
	places := l.places[id]
	if places == nil {
		places = &[len(families)]*slice{}
		put(&l.places, id, places)
	}
	places[family] = s
	if *places == [len(families)]*slice{} {
		delete(l.places, id)
	}
}

// set records the present form of an endpoint in each family; nil: none in that family. One that
// stays in its group stays where it is; one that is new there waits for settle.
func (l *layout) set(id string, wanted [len(families)]*placed) {
	for family, want := range wanted {
		s := l.in(id, family)
		if s != nil && want != nil && s.group == want.group {
			s.replace(l.find(s, id), want.endpoint)
			continue
		}
		if s != nil {
			s.remove(l.find(s, id))
			l.place(id, family, nil)
		}
		if want != nil {
			put(&l.waiting, want.group, append(l.waiting[want.group], arrival{id, *want}))
		}
	}
}

func (l *layout) find(s *slice, id string) int {
	return slices.IndexFunc(s.endpoints, func(e object.Endpoint) bool { return l.id(s, &e) == id })
}

// settle gives every endpoint that waits a slice, by the rules of Kubernetes' controller:
// first into slices that change anyway; the others go together into the fullest slice
// that has room for all of it; where none has, into new slices. newName makes the name of
// a new slice.
func (l *layout) settle(newName func(group) string) {
	for _, g := range slices.SortedFunc(maps.Keys(l.waiting), compareGroups) {
		arrivals := l.waiting[g]
		slices.SortFunc(arrivals, func(a, b arrival) int { return strings.Compare(a.id, b.id) })
		for _, s := range l.changing(g) {
			arrivals = l.fill(s, arrivals)
		}
		for len(arrivals) > 0 {
			s := l.roomy(g, len(arrivals))
			if s == nil {
				s = &slice{name: newName(g), group: g, ports: arrivals[0].ports, own: true}
				put(&l.slices, s.name, s)
			}
			arrivals = l.fill(s, arrivals)
		}
	}
	l.waiting = nil
}

func compareGroups(a, b group) int {
	return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.ports, b.ports), cmp.Compare(a.weight, b.weight), cmp.Compare(a.priority, b.priority))
}

// fill puts as many of the arrivals into a slice as it has room for, and gives the rest.
func (l *layout) fill(s *slice, arrivals []arrival) []arrival {
	n := min(len(arrivals), maxEndpoints-len(s.endpoints))
	if n <= 0 {
		return arrivals
	}
	family := slices.Index(families[:], s.group.family)
	s.touch()
	for i := range arrivals[:n] {
		s.endpoints = append(s.endpoints, arrivals[i].endpoint)
		l.place(arrivals[i].id, family, s)
	}
	return arrivals[n:]
}

// changing are the slices of a group that change anyway, the fullest first.
func (l *layout) changing(g group) []*slice {
	var found []*slice
	for _, s := range l.slices {
		if s.group == g && s.touched {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, compareFull)
	return found
}

// roomy is the fullest slice of a group that has room for n more endpoints.
func (l *layout) roomy(g group, n int) *slice {
	var best *slice
	for _, s := range l.slices {
		if s.group == g && len(s.endpoints)+n <= maxEndpoints && (best == nil || compareFull(s, best) < 0) {
			best = s
		}
	}
	return best
}

func compareFull(a, b *slice) int {
	return cmp.Or(cmp.Compare(len(b.endpoints), len(a.endpoints)), cmp.Compare(a.name, b.name))
}

// keep removes the slices that nothing is in any more, but for one of each of these
// families when it has no other: an empty slice stands for a Service without endpoints. It
// returns the names of those that were removed.
func (l *layout) keep(served []string, newName func(group) string) (removed []string) {
	for _, family := range families {
		var empty []*slice
		filled := false
		for _, s := range l.slices {
			switch {
			case s.group.family != family:
			case len(s.endpoints) > 0:
				filled = true
			default:
				empty = append(empty, s)
			}
		}
		placeholder := group{family: family}
		if !filled && slices.Contains(served, family) {
			slices.SortFunc(empty, compareFull)
			at := slices.IndexFunc(empty, func(s *slice) bool { return s.group == placeholder })
			if at >= 0 {
				empty = slices.Delete(empty, at, at+1)
			} else {
				s := &slice{name: newName(placeholder), group: placeholder, own: true, touched: true}
				put(&l.slices, s.name, s)
			}
		}
		for _, s := range empty {
			delete(l.slices, s.name)
			removed = append(removed, s.name)
		}
	}
	return removed
}

// touch makes the endpoints of a slice its own, to be changed.
func (s *slice) touch() {
	s.touched = true
	if !s.own {
		s.endpoints, s.own = slices.Clone(s.endpoints), true
	}
}

func (s *slice) replace(at int, endpoint object.Endpoint) {
	if equalEndpoints(&s.endpoints[at], &endpoint) {
		return
	}
	s.touch()
	s.endpoints[at] = endpoint
}

func (s *slice) remove(at int) {
	s.touch()
	s.endpoints = slices.Delete(s.endpoints, at, at+1)
}
