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
	c := reflect.New(reflect.TypeOf(o)).Elem()
	c.Set(reflect.ValueOf(o))
	unshare(c)
	return c.Interface().(T)
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
	t, kind := v.Type(), v.Kind()
	if kind == reflect.Struct && t != reflect.TypeFor[time.Time]() { // its location is never changed
		for i := range t.NumField() {
			unshare(v.Field(i))
		}
	}
	if kind != reflect.Pointer && kind != reflect.Slice && kind != reflect.Map || v.IsNil() {
		return
	}
	switch kind {
	case reflect.Pointer:
		c := reflect.New(t.Elem())
		c.Elem().Set(v.Elem())
		unshare(c.Elem())
		v.Set(c)
	case reflect.Slice:
		c := reflect.MakeSlice(t, v.Len(), v.Len())
		reflect.Copy(c, v)
		if of := t.Elem().Kind(); of > reflect.Complex128 && of != reflect.String { // no scalars
			for i := range c.Len() {
				unshare(c.Index(i))
			}
		}
		v.Set(c)
	case reflect.Map:
		if texts, is := v.Interface().(map[string]string); is {
			v.Set(reflect.ValueOf(maps.Clone(texts)))
			return
		}
		c := reflect.MakeMapWithSize(t, v.Len())
		for key, value := range v.Seq2() {
			to := reflect.New(t.Elem()).Elem()
			to.Set(value)
			unshare(to)
			c.SetMapIndex(key, to)
		}
		v.Set(c)
	}
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
