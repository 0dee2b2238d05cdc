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
	return copyOf(reflect.ValueOf(o), reflect.Pointer, unsharerOf(reflect.TypeOf(o).Elem())).Interface().(T)
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

// unshare replaces the references in v, a copy of another value, by references to copies.
func unshare(v reflect.Value) {
	if u := unsharerOf(v.Type()); u != nil {
		u(v)
	}
}

// An unsharer is unshare for the values of a type. It is made once, with those of the types within.
type unsharer func(v reflect.Value)

// unsharers has the unsharer of each type, nil for one without references: those of the most frequent types first, which need no
// reflection.
var unsharers = func() *sync.Map {
	var known sync.Map
	known.Store(reflect.TypeFor[time.Time](), unsharer(nil)) // its location is never changed
	known.Store(reflect.TypeFor[[]string](), direct(slices.Clone[[]string]))
	known.Store(reflect.TypeFor[map[string]string](), direct(maps.Clone[map[string]string]))
	known.Store(reflect.TypeFor[*string](), direct(func(p *string) *string { return new(*p) }))
	known.Store(reflect.TypeFor[*bool](), direct(func(p *bool) *bool { return new(*p) }))
	return &known
}()

func direct[T any](clone func(T) T) unsharer {
	return func(v reflect.Value) {
		if !v.IsNil() {
			p := v.Addr().Interface().(*T)
			*p = clone(*p)
		}
	}
}

// unsharerOf returns the unsharer of a type. No type contains itself.
func unsharerOf(t reflect.Type) unsharer {
	if known, is := unsharers.Load(t); is {
		return known.(unsharer)
	}
	var u unsharer
	switch kind := t.Kind(); kind {
	case reflect.Struct:
		fields, each := []int(nil), []unsharer(nil)
		for i := range t.NumField() {
			if of := unsharerOf(t.Field(i).Type); of != nil {
				fields, each = append(fields, i), append(each, of)
			}
		}
		if len(fields) > 0 {
			u = func(v reflect.Value) {
				for at, i := range fields {
					each[at](v.Field(i))
				}
			}
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		of := unsharerOf(t.Elem())
		u = func(v reflect.Value) {
			if !v.IsNil() {
				v.Set(copyOf(v, kind, of))
			}
		}
	}
	unsharers.Store(t, u)
	return u
}

// copyOf returns a copy of a pointer, slice or map, with of for each value in it; nil: these have no references.
func copyOf(v reflect.Value, kind reflect.Kind, of unsharer) (c reflect.Value) {
	switch t := v.Type(); kind {
	case reflect.Pointer:
		c = reflect.New(t.Elem())
		if c.Elem().Set(v.Elem()); of != nil {
			of(c.Elem())
		}
	case reflect.Slice:
		c = reflect.MakeSlice(t, v.Len(), v.Len())
		reflect.Copy(c, v)
		for i := 0; of != nil && i < c.Len(); i++ {
			of(c.Index(i))
		}
	default:
		c = reflect.MakeMapWithSize(t, v.Len())
		for key, value := range v.Seq2() {
			to := reflect.New(t.Elem()).Elem()
			if to.Set(value); of != nil {
				of(to)
			}
			c.SetMapIndex(key, to)
		}
	}
	return c
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
