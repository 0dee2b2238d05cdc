package write

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/store/object"
)

const (
	// AnnotationFrom is the annotation with the query to a provider that returns the endpoints: "consul:web?tag=prod".
	AnnotationFrom = object.ManagedByDiscover + "/from"
	// maxEndpoints is the largest number of endpoints of a slice, as in Kubernetes' controllers.
	maxEndpoints = 100
)

// Claim is a port of a Service with the provider query that returns its endpoints (From).
type Claim struct {
	Namespace, Service, UID string
	Port, Protocol          string
	From                    string
}

// Slice is an EndpointSlice written by svcctl discover.
type Slice struct {
	Claim
	Name string
	group
	// Endpoints is empty for a slice that is to be deleted, once its former endpoints are stored in other slices.
	Endpoints []provider.Endpoint
}

// group has the properties that all endpoints of a slice share.
type group struct {
	Family   string // address type
	Number   uint16 // port number
	Weight   uint16
	Priority uint8
}

func groupOf(e *provider.Endpoint) group {
	family := object.IPv4
	if addr, _ := netip.ParseAddr(e.Address); addr.Is6() {
		family = object.IPv6
	}
	return group{family, e.Port, e.Weight, e.Priority}
}

func compareGroups(a, b group) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Priority, b.Priority))
}

// Arrange returns the slices of a claim that must be written so that the slices hold the endpoints in want: changed slices, new slices, and all
// slices without endpoints. stored holds the present slices. An endpoint stays in its slice where possible.
func Arrange(of Claim, want []provider.Endpoint, stored []*Slice) (changed []*Slice) {
	waiting := map[group]map[string]provider.Endpoint{} // by address
	var order []group
	for i := range want {
		g := groupOf(&want[i])
		if waiting[g] == nil {
			waiting[g] = map[string]provider.Endpoint{}
			order = append(order, g)
		}
		waiting[g][want[i].Address] = want[i]
	}
	slices.SortFunc(order, compareGroups)
	stored = slices.SortedFunc(slices.Values(stored), func(a, b *Slice) int { return cmp.Compare(a.Name, b.Name) })
	names := map[string]bool{}
	kept := map[group][]*Slice{}
	for _, s := range stored {
		names[s.Name] = true
		now := &Slice{Claim: of, Name: s.Name, group: s.group}
		for _, e := range s.Endpoints {
			if is, here := waiting[s.group][e.Address]; here && len(now.Endpoints) < maxEndpoints {
				now.Endpoints = append(now.Endpoints, is)
				delete(waiting[s.group], e.Address)
			}
		}
		kept[s.group] = append(kept[s.group], now)
	}
	for _, g := range order {
		rest := slices.SortedFunc(maps.Values(waiting[g]), func(a, b provider.Endpoint) int { return cmp.Compare(a.Address, b.Address) })
		for _, s := range kept[g] {
			n := min(len(rest), maxEndpoints-len(s.Endpoints))
			s.Endpoints, rest = append(s.Endpoints, rest[:n]...), rest[n:]
		}
		for n := 0; len(rest) > 0; n++ {
			h := fnv.New64a()
			fmt.Fprintf(h, "%s %s %v %d", of.From, of.Port, g, n)
			name := of.Service + "-" + hex.EncodeToString(h.Sum(nil)[:4])
			if names[name] {
				continue
			}
			more := min(len(rest), maxEndpoints)
			kept[g] = append(kept[g], &Slice{Claim: of, Name: name, group: g, Endpoints: rest[:more:more]})
			rest = rest[more:]
		}
	}
	for _, g := range kept {
		for _, s := range g {
			i := slices.IndexFunc(stored, func(x *Slice) bool { return x.Name == s.Name })
			if i < 0 || !s.Equal(stored[i]) || len(s.Endpoints) == 0 {
				changed = append(changed, s)
			}
		}
	}
	slices.SortFunc(changed, func(a, b *Slice) int { return cmp.Compare(a.Name, b.Name) })
	return changed
}

// Equal reports whether two slices have the same name, properties and endpoints.
func (s *Slice) Equal(other *Slice) bool {
	return s.Claim == other.Claim && s.Name == other.Name && s.group == other.group && slices.Equal(s.Endpoints, other.Endpoints)
}

// Object returns the slice as an EndpointSlice to store.
func (s *Slice) Object() *object.EndpointSlice {
	o := &object.EndpointSlice{TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: "discovery.k8s.io/v1"}, AddressType: s.Family}
	o.Metadata.Name, o.Metadata.Namespace = s.Name, s.Namespace
	o.Metadata.Labels = map[string]string{object.LabelServiceName: s.Service, object.LabelManagedBy: object.ManagedByDiscover}
	o.Metadata.Annotations = map[string]string{AnnotationFrom: s.From}
	if s.Weight > 0 {
		o.Metadata.Annotations[object.AnnotationWeight] = strconv.Itoa(int(s.Weight))
	}
	if s.Priority > 0 {
		o.Metadata.Annotations[object.AnnotationPriority] = strconv.Itoa(int(s.Priority))
	}
	o.Metadata.OwnerReferences = []object.OwnerReference{{APIVersion: "v1", Kind: object.KindService, Name: s.Service, UID: s.UID}}
	port := int32(s.Number)
	o.Ports = []object.EndpointPort{{Name: &s.Port, Protocol: &s.Protocol, Port: &port}}
	o.Endpoints = make([]object.Endpoint, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		to := object.Endpoint{Addresses: []string{e.Address}}
		ready, serving, terminating := e.State == provider.Ready, e.State != provider.NotReady, e.State == provider.Terminating
		to.Conditions = object.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		if e.Node != "" {
			to.NodeName = &e.Node
		}
		if e.Zone != "" {
			to.Zone = &e.Zone
		}
		o.Endpoints[i] = to
	}
	return o
}

// Read returns the Slice for an EndpointSlice that svcctl discover wrote; nil for others.
func Read(o *object.EndpointSlice) *Slice {
	from := o.Metadata.Annotations[AnnotationFrom]
	if o.Metadata.Labels[object.LabelManagedBy] != object.ManagedByDiscover || from == "" {
		return nil
	}
	s := &Slice{Name: o.Metadata.Name, Claim: Claim{Namespace: o.Metadata.Namespace, Service: o.Metadata.Labels[object.LabelServiceName], From: from}}
	s.Family = o.AddressType
	for _, owner := range o.Metadata.OwnerReferences {
		s.UID = owner.UID
	}
	for _, p := range o.Ports {
		s.Port, s.Protocol = object.Deref(p.Name), object.Deref(p.Protocol)
		s.Number = uint16(object.Deref(p.Port))
	}
	s.Weight, _ = object.ParseWeight(o.Metadata.Annotations[object.AnnotationWeight])
	s.Priority, _ = object.ParsePriority(o.Metadata.Annotations[object.AnnotationPriority])
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		to := provider.Endpoint{Address: e.Addresses[0], Port: s.Number, Weight: s.Weight, Priority: s.Priority, Node: object.Deref(e.NodeName), Zone: object.Deref(e.Zone)}
		switch ready := e.Conditions.Ready; {
		case object.Deref(e.Conditions.Terminating):
			to.State = provider.Terminating
		case ready != nil && !*ready:
			to.State = provider.NotReady
		}
		s.Endpoints = append(s.Endpoints, to)
	}
	return s
}
