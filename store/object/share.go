package object

import (
	"maps"
	"slices"
	"unique"
)

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
