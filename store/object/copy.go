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

// DeepCopy returns a copy of an object that shares nothing with it.
func DeepCopy[T Object](o T) T {
	return copyOf(reflect.ValueOf(o)).Interface().(T)
}

// Draft is a copy that can be defaulted (Default, DefaultFamilies), given values and
// published, while the original is read by others: only what these change is copied, and
// the rest, which is most of an object, is held once. Nothing else of it may be changed.
func Draft(o Object) Object {
	switch o := o.(type) {
	case *Service:
		c := *o
		c.Spec.Selector = nil // held once
		unshare(reflect.ValueOf(&c.Spec).Elem())
		unshare(reflect.ValueOf(&c.Status).Elem())
		c.Spec.Selector = o.Spec.Selector
		return &c
	case *EndpointSlice:
		c := *o
		c.Ports = slices.Clone(o.Ports)
		return &c
	}
	return DeepCopy(o)
}

// copyOf returns a pointer to a copy of the value that p points to.
func copyOf(p reflect.Value) reflect.Value {
	c := reflect.New(p.Type().Elem())
	c.Elem().Set(p.Elem())
	unshare(c.Elem())
	return c
}

// unshare replaces the references in v, a copy of another value, by references to copies.
func unshare(v reflect.Value) {
	switch p := v.Addr().Interface().(type) { // the most frequent types, without an allocation for their headers
	case *[]string:
		*p = slices.Clone(*p)
		return
	case *map[string]string:
		*p = maps.Clone(*p)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			v.Set(copyOf(v))
		}
	case reflect.Struct:
		for _, i := range referring(v.Type()) {
			unshare(v.Field(i))
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(list, v)
		if refers(v.Type().Elem()) {
			for i := range list.Len() {
				unshare(list.Index(i))
			}
		}
		v.Set(list)
	case reflect.Map:
		if v.IsNil() {
			return
		}
		m := reflect.MakeMapWithSize(v.Type(), v.Len())
		for key, of := range v.Seq2() {
			value := reflect.New(of.Type()).Elem()
			value.Set(of)
			unshare(value)
			m.SetMapIndex(key, value)
		}
		v.Set(m)
	}
}

// refers reports whether values of a type have references.
func refers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return true
	case reflect.Struct:
		return len(referring(t)) > 0
	}
	return false
}

var referringFields sync.Map // of []int, by reflect.Type

// referring returns the fields of a struct that have references. The location of a time.Time is never changed.
func referring(t reflect.Type) []int {
	if known, is := referringFields.Load(t); is {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if t != reflect.TypeFor[time.Time]() && refers(t.Field(i).Type) {
			fields = append(fields, i)
		}
	}
	referringFields.Store(t, fields)
	return fields
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
		switch text := strings.TrimSpace(line); {
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
