package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// maxEndpoints is the largest number of endpoints of one slice: the default of Kubernetes' endpointslice controller
// (--max-endpoints-per-slice). With larger slices proxies would read much for every small change.
const maxEndpoints = 100

// slice is an EndpointSlice that this controller generates.
type slice struct {
	name      string
	group     group
	ports     []object.EndpointPort
	endpoints []object.Endpoint
	// own is set when endpoints does not share memory with the stored object, and so may be modified.
	own     bool
	touched bool
	// object is the version last read from the store or passed to it; nil for a new slice.
	object *object.EndpointSlice
}

// layout distributes the endpoints of a Service over slices. Each endpoint has an id, and is in at most one slice of each family. The maps are
// allocated with their first entry, since most Services do not need all of them.
type layout struct {
	mirrors bool              // the slices mirror an Endpoints object
	slices  map[string]*slice // by name
	places  map[string]*[len(families)]*slice
	waiting map[group][]arrival
}

// arrival is an endpoint that is not in a slice yet.
type arrival struct {
	id string
	placed
}

// id returns the id of an endpoint in a slice, or "" if it has none. For a Service with a selector the id is the name of the Pod. For a mirror it is
// the address with the ports of the slice, since an address may be in several subsets.
func (l *layout) id(s *slice, e *object.Endpoint) string {
	switch {
	case l.mirrors && len(e.Addresses) > 0:
		return e.Addresses[0] + " " + s.group.ports
	case l.mirrors, e.TargetRef == nil, e.TargetRef.Kind != object.KindPod:
		return ""
	}
	return e.TargetRef.Name
}

// put sets a key of a map. It allocates the map if it is nil.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// adopt adds a stored slice to the layout. Endpoints that are in another slice already, or that have no id, are removed from it.
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

// in returns the slice of a family that has an endpoint; nil if none has it.
func (l *layout) in(id string, family int) *slice {
	if places := l.places[id]; places != nil {
		return places[family]
	}
	return nil
}

// place records the slice of a family that has an endpoint; nil if none has it.
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

// set replaces an endpoint in each family; nil removes it from the family. The endpoint stays in its slice if its group is unchanged. Otherwise it
// waits for settle to choose a slice.
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

// settle puts each waiting endpoint into a slice, by the rules of Kubernetes' controller. It first fills slices that must be written anyway, then
// puts all remaining endpoints into the fullest slice with enough room, and creates new slices if there is none. newName returns the name of a new
// slice.
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

// fill puts as many of the arrivals into a slice as it has room for, and returns the rest.
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

// changing returns the slices of a group that must be written anyway, the fullest first.
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

// roomy returns the fullest slice of a group that has room for n more endpoints, or nil if none has.
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

// keep removes empty slices and returns their names. Each family in served that has no endpoints is left with one empty slice, an existing or a new
// one, which represents a Service without endpoints.
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

// touch marks a slice as changed, and copies its endpoints so that they can be modified.
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

// A label of generated Endpoints objects (core/v1), with its value.
const (
	labelManagedEndpoints = "endpoints.kubernetes.io/managed-by"
	managedEndpoints      = "endpoints-controller.svcctl.io"
)

// endpointsObject returns the Endpoints object of a Service with a selector. It has the endpoints of its slices of the primary family, at
// most 1,000 addresses, ready ones first.
func (s *service) endpointsObject() *object.Endpoints {
	namespace, name := cutKey(s.key)
	o := &object.Endpoints{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpoints, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Namespace: namespace, Labels: s.labels(s.object.Metadata.Labels)},
	}
	o.Metadata.Labels[labelManagedEndpoints] = managedEndpoints
	o.Fill(s.primarySlices(), false)
	return o
}

// primarySlices returns the slices for the Endpoints object: the slices of the primary family, sorted by ports and name. It leaves out slices of Pods
// that have none of the Service's ports.
func (s *service) primarySlices() []*object.EndpointSlice {
	var parts []*slice
	for _, part := range s.layout.slices {
		headlessWithoutPorts := len(s.object.Spec.Ports) == 0
		if part.group.family == s.object.Spec.IPFamilies[0] && (part.group.ports != "" || headlessWithoutPorts) {
			parts = append(parts, part)
		}
	}
	slices.SortFunc(parts, func(a, b *slice) int {
		return cmp.Or(compareGroups(a.group, b.group), strings.Compare(a.name, b.name))
	})
	primary := make([]*object.EndpointSlice, len(parts))
	for i, part := range parts {
		primary[i] = &object.EndpointSlice{Ports: part.ports, Endpoints: part.endpoints}
		if i > 0 && part.group.ports == parts[i-1].group.ports {
			primary[i].Ports = primary[i-1].Ports // the stored ones may be in another order
		}
	}
	return primary
}

func isReady(e *object.Endpoint) bool { return object.Deref(e.Conditions.Ready) }

// sameEndpoints reports whether two versions of an Endpoints object have the same content; nil stands for a missing one.
func sameEndpoints(a, b *object.Endpoints) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return sameMeta(&a.Metadata, &b.Metadata) && len(a.Subsets) == len(b.Subsets) &&
		(len(a.Subsets) == 0 || reflect.DeepEqual(a.Subsets, b.Subsets))
}

const (
	// labelSkipMirror is LabelSkipMirror of discovery/v1: Endpoints with this label are not mirrored.
	labelSkipMirror = "endpointslice.kubernetes.io/skip-mirror"
	// maxMirrored is the largest number of addresses of a subset that are mirrored (the default of --mirroring-max-endpoints-per-subset in
	// Kubernetes).
	maxMirrored = 1000
)

// setMirrored puts the addresses of the Endpoints object that a user wrote into the slices of its Service.
func (c *Controller) setMirrored(s *service) {
	wanted := map[string][len(families)]*placed{}
	var problems []string
	var addrs []netip.Addr
	for i := range s.foreign.Subsets {
		subset := &s.foreign.Subsets[i]
		ports := mirroredPorts(subset.Ports)
		text := textOfPorts(ports)
		addresses := slices.Concat(subset.Addresses, subset.NotReadyAddresses)
		for j := range addresses[:min(len(addresses), maxMirrored)] {
			a := &addresses[j]
			addr, err := netip.ParseAddr(a.IP)
			if err != nil {
				continue // refused by validation
			}
			addrs = append(addrs, addr)
			family := slices.IndexFunc(families[:], func(f string) bool { return (f == object.IPv4) == addr.Is4() })
			if why := c.refusal(addr); why != "" {
				problems = append(problems, fmt.Sprintf("endpoint %s is left out: %s", addr, why))
				continue
			}
			places := wanted[a.IP+" "+text]
			ready := j < len(subset.Addresses)
			if places[family] != nil && (!ready || isReady(&places[family].endpoint)) {
				continue // an address that is there twice is ready when it is ready once
			}
			in := group{family: families[family], ports: text}.shareOf(&s.foreign.Metadata)
			places[family] = &placed{in, ports, mirroredEndpoint(a, ready)}
			wanted[a.IP+" "+text] = places
		}
		if more := len(addresses) - maxMirrored; more > 0 {
			problems = append(problems, fmt.Sprintf("subsets[%d] has %d addresses, of which the first %d are used: put the others into EndpointSlices", i, len(addresses), maxMirrored))
		}
	}
	for id := range s.layout.places {
		if _, still := wanted[id]; !still {
			s.layout.set(id, [len(families)]*placed{})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		s.layout.set(id, wanted[id])
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	c.mirrored.set(s.key, slices.Compact(addrs))
	if len(problems) == 0 {
		c.note("mirror/"+s.key, nil)
		return
	}
	c.note("mirror/"+s.key, &Problem{
		Object: object.RefOf(s.foreign), Field: "subsets", Reason: "NotMirrored",
		Message: strings.Join(problems, "; "), Warning: true,
	})
}

func mirroredEndpoint(a *object.EndpointAddress, ready bool) object.Endpoint {
	endpoint := object.Endpoint{
		Addresses:  []string{a.IP},
		Conditions: object.EndpointConditions{Ready: &ready},
		TargetRef:  a.TargetRef,
		NodeName:   a.NodeName,
	}
	if a.Hostname != "" {
		endpoint.Hostname = &a.Hostname
	}
	return endpoint
}

func mirroredPorts(ports []object.EndpointPort) []object.EndpointPort {
	out := slices.Clone(ports)
	for i := range out {
		if out[i].Name == nil {
			out[i].Name = new(string)
		}
	}
	sortPorts(out)
	return out
}

// mirroredAnnotations returns the annotations for mirrored slices: all except those that are about the Endpoints object itself.
func mirroredAnnotations(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	for _, key := range []string{object.AnnotationLastApplied, "endpoints.kubernetes.io/last-change-trigger-time", object.AnnotationOverCapacity} {
		delete(out, key)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
