package object

import (
	_ "embed"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// DeepCopy returns a copy of an object that shares nothing with it.
func DeepCopy[T Object](o T) T {
	return copyOf(reflect.ValueOf(o), reflect.Pointer, unsharerOf(reflect.TypeOf(o).Elem())).Interface().(T)
}

// Draft returns a copy of an object that can be defaulted (Default, DefaultFamilies), given
// allocated values and published, while others read the original. It copies only the parts
// that these steps change, and shares the rest, which must not be changed.
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

// unshare replaces the pointers, slices and maps in v, a shallow copy of another value, by copies.
func unshare(v reflect.Value) {
	if u := unsharerOf(v.Type()); u != nil {
		u(v)
	}
}

// An unsharer does what unshare does, for values of one type.
type unsharer func(v reflect.Value)

// unsharers has the unsharer of each type that was needed, nil for a type without references. The most frequent types have one that
// needs no reflection.
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

// copyOf returns a copy of a pointer, slice or map, and applies of to each value in it; a nil of means that these have no references.
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

// fieldTexts has the descriptions of all types and fields: a name on a line of its own, then
// its text, indented.
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
