package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// metaHome is the OpenAPI namespace of the structures that all groups share.
const metaHome = "io.k8s.apimachinery.pkg.apis.meta.v1"

// plan collects all types.
type plan struct {
	kinds         map[name]*Type
	deleteOptions *Type
	structures    map[structure]*Type
}

// name identifies a kind.
type name struct{ group, version, kind string }

func nameOf(k kind.Kind) name { return name{k.Group, k.Version, k.Name} }

// structure identifies a type made from a Go type: those of two groups differ, and open
// ones differ from closed ones.
type structure struct {
	of   reflect.Type
	home string
	open bool
}

// all makes every type once.
var all = sync.OnceValue(func() *plan {
	p := &plan{kinds: map[name]*Type{}, structures: map[structure]*Type{}}
	for _, k := range kind.All() {
		of := reflect.TypeOf(k.New()).Elem()
		p.kinds[nameOf(k)] = p.structure(structure{of, homeOf(k), k.Open})
	}
	p.deleteOptions = p.structure(structure{reflect.TypeFor[object.DeleteOptions](), metaHome, false})
	return p
})

// Of returns the type of a kind's objects.
func Of(k kind.Kind) *Type {
	t, ok := all().kinds[nameOf(k)]
	if !ok {
		panic(fmt.Sprintf("schema: no kind %s of %s", k.Name, k.APIVersion()))
	}
	return t
}

// DeleteOptions is the type of the body of a DELETE.
func DeleteOptions() *Type { return all().deleteOptions }

// homeOf returns the OpenAPI namespace of a kind's structures: "io.k8s.api.core.v1", or of groups
// of others "io.metallb.v1beta1".
func homeOf(k kind.Kind) string {
	if k.Group != "" && !strings.HasSuffix(k.Group, ".k8s.io") {
		parts := strings.Split(k.Group, ".")
		slices.Reverse(parts)
		return strings.Join(append(parts, k.Version), ".")
	}
	group, _, _ := strings.Cut(k.Group, ".")
	if group == "" {
		group = "core"
	}
	return "io.k8s.api." + group + "." + k.Version
}

func (p *plan) structure(s structure) *Type {
	name := s.of.Name()
	switch {
	case slices.Contains(metaTypes, name):
		s.home, s.open = metaHome, false
	case slices.Contains(coreTypes, name):
		s.home, s.open = "io.k8s.api.core.v1", false
	}
	if t := p.structures[s]; t != nil {
		return t
	}
	t := &Type{
		Form: Structure, Short: name, Go: name, Doc: object.Doc(name), Open: s.open,
		Atomic: slices.Contains(atomicTypes, name), fields: map[string]*Field{}, ignored: ignored[name],
	}
	if other, ok := renamed[name]; ok {
		t.Short = other
	}
	t.Name = s.home + "." + t.Short
	p.structures[s] = t
	p.addFields(t, s)
	return t
}

func (p *plan) addFields(t *Type, s structure) {
	for _, f := range reflect.VisibleFields(s.of) {
		if f.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		owner := t.Go
		if len(f.Index) > 1 {
			owner = "TypeMeta"
		}
		path := owner + "." + name
		made := &Field{
			Name: name, Doc: object.Doc(path), Type: p.typeOf(f.Type, s, traits[path]), Default: defaults[path],
			Required: slices.Contains(required[t.Go], name),
			OmitZero: strings.Contains(options, "omit") && f.Type.Kind() != reflect.Pointer,
			Always:   f.Type.Kind() == reflect.Struct || !strings.Contains(options, "omit") && f.Type.Kind() != reflect.Pointer,
			index:    f.Index,
		}
		if values, few := enums[path]; few {
			made.Type.setEnum(values)
		}
		t.Fields = append(t.Fields, made)
		t.fields[name] = made
	}
	t.byName = slices.SortedFunc(slices.Values(t.Fields), func(a, b *Field) int { return strings.Compare(a.Name, b.Name) })
}

// setEnum sets the allowed values of a new type, or of its items.
func (t *Type) setEnum(values []string) {
	if t.Elem != nil {
		t = t.Elem
	}
	t.Enum = slices.Sorted(slices.Values(values))
}

func (p *plan) typeOf(of reflect.Type, in structure, is trait) *Type {
	switch of {
	case reflect.TypeFor[time.Time]():
		return &Type{Form: Time}
	case reflect.TypeFor[object.MicroTime]():
		return &Type{Form: MicroTime}
	case reflect.TypeFor[object.IntOrString]():
		return &Type{Form: IntOrString}
	case reflect.TypeFor[json.RawMessage]():
		return &Type{Form: FieldSet}
	case reflect.TypeFor[[]byte]():
		return &Type{Form: Bytes}
	}
	switch of.Kind() {
	case reflect.Pointer:
		return p.typeOf(of.Elem(), in, is)
	case reflect.Struct:
		return p.structure(structure{of, in.home, in.open})
	case reflect.Slice:
		return &Type{
			Form: List, Elem: p.typeOf(of.Elem(), in, trait{}), Keys: is.keys, Set: is.set,
			Atomic: !is.set && is.keys == nil, Merge: is.merge, MergeKey: is.mergeKey,
		}
	case reflect.Map:
		return &Type{Form: Map, Elem: p.typeOf(of.Elem(), in, trait{}), Atomic: is.atomic}
	case reflect.String:
		return &Type{Form: Text}
	case reflect.Bool:
		return &Type{Form: Boolean}
	case reflect.Int32, reflect.Int64:
		return &Type{Form: Integer, Bits: of.Bits()}
	}
	panic("schema: no form for a field of type " + of.String())
}
