package object

import (
	_ "embed"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"
)

// clone is a pointer to a copy of what p points to; nil stays nil. Only for types
// that hold no further references.
func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// cloneEach is a copy of a list, each item made by one; nil stays nil.
func cloneEach[T any](list []T, one func(T) T) []T {
	out := slices.Clone(list)
	for i := range out {
		out[i] = one(out[i])
	}
	return out
}

// DeepCopy implements Object.
func (o *Service) DeepCopy() Object {
	c := *o
	c.Metadata = o.Metadata.deepCopy()
	c.Spec = o.Spec.deepCopy()
	c.Status = o.Status.deepCopy()
	return &c
}

func (s ServiceStatus) deepCopy() ServiceStatus {
	s.LoadBalancer.Ingress = cloneEach(s.LoadBalancer.Ingress, LoadBalancerIngress.deepCopy)
	s.Conditions = slices.Clone(s.Conditions)
	return s
}

// DeepCopy implements Object.
func (o *Endpoints) DeepCopy() Object {
	c := *o
	c.Metadata = o.Metadata.deepCopy()
	c.Subsets = cloneEach(o.Subsets, func(s EndpointSubset) EndpointSubset {
		s.Addresses = cloneEach(s.Addresses, EndpointAddress.deepCopy)
		s.NotReadyAddresses = cloneEach(s.NotReadyAddresses, EndpointAddress.deepCopy)
		s.Ports = cloneEach(s.Ports, EndpointPort.deepCopy)
		return s
	})
	return &c
}

// DeepCopy implements Object.
func (o *EndpointSlice) DeepCopy() Object {
	c := *o
	c.Metadata = o.Metadata.deepCopy()
	c.Endpoints = cloneEach(o.Endpoints, Endpoint.deepCopy)
	c.Ports = cloneEach(o.Ports, EndpointPort.deepCopy)
	return &c
}

// Draft is a copy that can be defaulted (Default, DefaultFamilies), given values and
// published, while the original is read by others: only what these change is copied, and
// the rest, which is most of an object, is held once. Nothing else of it may be changed.
func Draft(o Object) Object {
	switch o := o.(type) {
	case *Service:
		c := *o
		c.Spec.Selector = nil // held once
		c.Spec, c.Status = c.Spec.deepCopy(), o.Status.deepCopy()
		c.Spec.Selector = o.Spec.Selector
		return &c
	case *EndpointSlice:
		c := *o
		c.Ports = slices.Clone(o.Ports)
		return &c
	}
	return o.DeepCopy()
}

func (m ObjectMeta) deepCopy() ObjectMeta {
	m.CreationTimestamp = clone(m.CreationTimestamp)
	m.DeletionTimestamp = clone(m.DeletionTimestamp)
	m.Labels = maps.Clone(m.Labels)
	m.Annotations = maps.Clone(m.Annotations)
	m.OwnerReferences = cloneEach(m.OwnerReferences, func(r OwnerReference) OwnerReference {
		r.Controller = clone(r.Controller)
		r.BlockOwnerDeletion = clone(r.BlockOwnerDeletion)
		return r
	})
	m.Finalizers = slices.Clone(m.Finalizers)
	m.ManagedFields = cloneEach(m.ManagedFields, func(e ManagedFieldsEntry) ManagedFieldsEntry {
		e.Time = clone(e.Time)
		e.FieldsV1 = slices.Clone(e.FieldsV1)
		return e
	})
	return m
}

func (s ServiceSpec) deepCopy() ServiceSpec {
	s.Ports = cloneEach(s.Ports, func(p ServicePort) ServicePort {
		p.AppProtocol = clone(p.AppProtocol)
		return p
	})
	s.Selector = maps.Clone(s.Selector)
	s.ClusterIPs = slices.Clone(s.ClusterIPs)
	s.IPFamilies = slices.Clone(s.IPFamilies)
	s.IPFamilyPolicy = clone(s.IPFamilyPolicy)
	s.ExternalIPs = slices.Clone(s.ExternalIPs)
	s.LoadBalancerSourceRanges = slices.Clone(s.LoadBalancerSourceRanges)
	s.LoadBalancerClass = clone(s.LoadBalancerClass)
	s.AllocateLoadBalancerNodePorts = clone(s.AllocateLoadBalancerNodePorts)
	if s.SessionAffinityConfig != nil {
		config := &SessionAffinityConfig{ClientIP: clone(s.SessionAffinityConfig.ClientIP)}
		if config.ClientIP != nil {
			config.ClientIP.TimeoutSeconds = clone(config.ClientIP.TimeoutSeconds)
		}
		s.SessionAffinityConfig = config
	}
	s.InternalTrafficPolicy = clone(s.InternalTrafficPolicy)
	s.TrafficDistribution = clone(s.TrafficDistribution)
	return s
}

func (i LoadBalancerIngress) deepCopy() LoadBalancerIngress {
	i.IPMode = clone(i.IPMode)
	i.Ports = cloneEach(i.Ports, func(p PortStatus) PortStatus {
		p.Error = clone(p.Error)
		return p
	})
	return i
}

func (a EndpointAddress) deepCopy() EndpointAddress {
	a.NodeName = clone(a.NodeName)
	a.TargetRef = clone(a.TargetRef)
	return a
}

func (p EndpointPort) deepCopy() EndpointPort {
	return EndpointPort{
		Name:        clone(p.Name),
		Protocol:    clone(p.Protocol),
		Port:        clone(p.Port),
		AppProtocol: clone(p.AppProtocol),
	}
}

func (e Endpoint) deepCopy() Endpoint {
	e.Addresses = slices.Clone(e.Addresses)
	e.Conditions = EndpointConditions{
		Ready:       clone(e.Conditions.Ready),
		Serving:     clone(e.Conditions.Serving),
		Terminating: clone(e.Conditions.Terminating),
	}
	e.Hostname = clone(e.Hostname)
	e.TargetRef = clone(e.TargetRef)
	e.DeprecatedTopology = maps.Clone(e.DeprecatedTopology)
	e.NodeName = clone(e.NodeName)
	e.Zone = clone(e.Zone)
	if e.Hints != nil {
		e.Hints = &EndpointHints{
			ForZones: slices.Clone(e.Hints.ForZones),
			ForNodes: slices.Clone(e.Hints.ForNodes),
		}
	}
	return e
}

// deepCopy copies an object of a kind that changes too seldom to have a copy written by
// hand: it walks the fields.
func deepCopy[T any](o *T) *T {
	var c T
	copyInto(reflect.ValueOf(&c).Elem(), reflect.ValueOf(o).Elem())
	return &c
}

// copyInto sets to to a copy of from that shares nothing with it.
func copyInto(to, from reflect.Value) {
	switch from.Kind() {
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			copyInto(to.Elem(), from.Elem())
		}
	case reflect.Struct:
		if from.Type() == reflect.TypeFor[time.Time]() {
			to.Set(from)
			return
		}
		for i := range from.NumField() {
			copyInto(to.Field(i), from.Field(i))
		}
	case reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
			for i := range from.Len() {
				copyInto(to.Index(i), from.Index(i))
			}
		}
	case reflect.Map:
		if !from.IsNil() {
			to.Set(reflect.MakeMapWithSize(from.Type(), from.Len()))
			for _, key := range from.MapKeys() {
				value := reflect.New(from.Type().Elem()).Elem()
				copyInto(value, from.MapIndex(key))
				to.SetMapIndex(key, value)
			}
		}
	default:
		to.Set(from)
	}
}

// Share has texts that many objects have, as "TCP" and the keys of labels, and those that the object itself has
// several times, as its name, be held once. It is for objects that were just decoded: the caller is the only owner.
func Share(o Object) {
	kind := o.GetTypeMeta()
	often(&kind.Kind)
	often(&kind.APIVersion)
	meta := o.GetMeta()
	s := sharing{}
	s.meta(meta)
	switch o := o.(type) {
	case *Service:
		s.service(&o.Spec)
		if len(o.Spec.Selector) > 0 && maps.Equal(o.Metadata.Labels, o.Spec.Selector) {
			o.Spec.Selector = o.Metadata.Labels
		}
	case *EndpointSlice:
		s.slice(o)
	}
}

// often replaces a text that many objects have.
func often(text *string) {
	if *text != "" {
		*text = unique.Make(*text).Value()
	}
}

func oftenAt(text *string) {
	if text != nil {
		often(text)
	}
}

func oftenEach(texts []string) {
	for i := range texts {
		often(&texts[i])
	}
}

// sharing are texts of an object, found by their length and ends.
type sharing struct{ own [16]string }

// here replaces a text that the object has elsewhere, too.
func (s *sharing) here(text *string) {
	if *text == "" {
		return
	}
	t := *text
	at := &s.own[(len(t)+7*int(t[0])+31*int(t[len(t)-1]))%len(s.own)]
	if *at != t {
		*at = t
	}
	*text = *at
}

func (s *sharing) meta(m *ObjectMeta) {
	often(&m.Namespace)
	s.here(&m.Name)
	s.texts(m.Labels)
	s.texts(m.Annotations)
	for i := range m.OwnerReferences {
		owner := &m.OwnerReferences[i]
		often(&owner.APIVersion)
		often(&owner.Kind)
		s.here(&owner.Name)
	}
}

// texts shares those of a map: assigning to a key that is there replaces its text.
func (s *sharing) texts(m map[string]string) {
	for key, value := range m {
		often(&key)
		s.here(&value)
		m[key] = value
	}
}

func (s *sharing) service(spec *ServiceSpec) {
	for _, text := range []*string{&spec.Type, &spec.SessionAffinity, &spec.ExternalTrafficPolicy} {
		often(text)
	}
	for _, text := range []*string{spec.IPFamilyPolicy, spec.InternalTrafficPolicy, spec.TrafficDistribution, spec.LoadBalancerClass} {
		oftenAt(text)
	}
	oftenEach(spec.IPFamilies)
	for i := range spec.Ports {
		often(&spec.Ports[i].Name)
		often(&spec.Ports[i].Protocol)
		often(&spec.Ports[i].TargetPort.Name)
		oftenAt(spec.Ports[i].AppProtocol)
	}
	s.texts(spec.Selector)
	s.here(&spec.ClusterIP)
	for i := range spec.ClusterIPs {
		s.here(&spec.ClusterIPs[i])
	}
}

func (s *sharing) slice(o *EndpointSlice) {
	often(&o.AddressType)
	o.Endpoints = exact(o.Endpoints)
	for i := range o.Ports {
		for _, text := range []*string{o.Ports[i].Name, o.Ports[i].Protocol, o.Ports[i].AppProtocol} {
			oftenAt(text)
		}
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		oftenAt(e.NodeName)
		oftenAt(e.Zone)
		if ref := e.TargetRef; ref != nil {
			often(&ref.Kind)
			often(&ref.APIVersion)
			often(&ref.Namespace)
		}
	}
}

// exact is a list without room for more: it may be half of what was decoded.
func exact[T any](list []T) []T {
	if len(list) == cap(list) {
		return list
	}
	return slices.Clone(list)
}

// fieldTexts documents every type and field: a name on a line of its own, then its text,
// indented.
//
//go:embed fields.txt
var fieldTexts string

var docs = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	name := ""
	for line := range strings.Lines(fieldTexts) {
		text := strings.TrimSpace(line)
		switch {
		case text == "":
		case !strings.HasPrefix(line, " "):
			name = text
		case texts[name] != "":
			texts[name] += " " + text
		default:
			texts[name] = text
		}
	}
	return texts
})

// Doc returns the description of a type ("ServiceSpec") or a field of it ("ServiceSpec.type") on
// this appliance, for `kubectl explain` and its like; "" for unknown names.
func Doc(name string) string { return docs()[name] }
