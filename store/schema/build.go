package schema

import (
	"cmp"
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

// metaHome is the prefix of OpenAPI names for the structures that all API groups share.
const metaHome = "io.k8s.apimachinery.pkg.apis.meta.v1"

// plan has the Types of all kinds, and all Types in them.
type plan struct {
	kinds         map[name]*Type
	deleteOptions *Type
	structures    map[structure]*Type
}

// name is the key of a kind in plan: its API group, version and kind.
type name struct{ group, version, kind string }

func nameOf(k kind.Kind) name { return name{k.Group, k.Version, k.Name} }

// structure is the key of a Type in plan. of is the Go type. home is the prefix of OpenAPI names, which depends on the API group. open is set if
// unknown fields are dropped silently.
type structure struct {
	of   reflect.Type
	home string
	open bool
}

// all builds the Types of all kinds at its first call.
var all = sync.OnceValue(func() *plan {
	p := &plan{kinds: map[name]*Type{}, structures: map[structure]*Type{}}
	for _, k := range kind.All() {
		of := reflect.TypeOf(k.New()).Elem()
		p.kinds[nameOf(k)] = p.structure(structure{of, homeOf(k), k.Open})
	}
	p.deleteOptions = p.structure(structure{reflect.TypeFor[object.DeleteOptions](), metaHome, false})
	return p
})

// Of returns the Type of the objects of a kind.
func Of(k kind.Kind) *Type {
	t, ok := all().kinds[nameOf(k)]
	if !ok {
		panic(fmt.Sprintf("schema: no kind %s of %s", k.Name, k.APIVersion()))
	}
	return t
}

// DeleteOptions returns the Type of the body of a DELETE request.
func DeleteOptions() *Type { return all().deleteOptions }

// homeOf returns the prefix of OpenAPI names for a kind's structures: "io.k8s.api.core.v1", or for custom
// kinds "io.metallb.v1beta1".
func homeOf(k kind.Kind) string {
	if k.Custom {
		parts := strings.Split(k.Group, ".")
		slices.Reverse(parts)
		return strings.Join(append(parts, k.Version), ".")
	}
	group, _, _ := strings.Cut(k.Group, ".")
	group = cmp.Or(group, "core")
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
		is := traitOf(f.Tag.Get("schema"))
		made := &Field{
			Name: name, Doc: object.Doc(owner + "." + name), Type: p.typeOf(f.Type, s, is), Required: is.required, Default: is.fallback,
			OmitZero: strings.Contains(options, "omit") && f.Type.Kind() != reflect.Pointer,
			Always:   f.Type.Kind() == reflect.Struct || !strings.Contains(options, "omit") && f.Type.Kind() != reflect.Pointer,
			index:    f.Index,
		}
		if is.enum != nil {
			made.Type.setEnum(is.enum)
		}
		if tags, has := object.TagsOf(s.of, name); has {
			made.Required, made.Type.Set = tags.Required, tags.Set
			if tags.Key != "" {
				made.Type.Keys = []string{tags.Key}
			}
			made.Type.Atomic = made.Type.Form == List && !tags.Set && tags.Key == ""
			if tags.Enum != nil {
				made.Type.setEnum(tags.Enum)
			}
		}
		t.Fields = append(t.Fields, made)
		t.fields[name] = made
	}
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

// Form is the JSON form of the values of a Type.
type Form int

// The values of Form.
const (
	Structure   Form = iota // an object with fixed field names
	Map                     // an object with arbitrary keys and values of type Elem
	List                    // an array with items of type Elem
	Text                    // a string
	Integer                 // a number without a fraction, of Bits bits
	Boolean                 // true or false
	Time                    // a string as in RFC 3339, to the second
	MicroTime               // a string as in RFC 3339, to the microsecond
	IntOrString             // a number or a string
	Bytes                   // a string in base64 (RFC 4648 section 4)
	FieldSet                // an object in the form FieldsV1
)

// Type describes the values of a field. Types are shared and immutable. It has more than 15 fields: those of an
// OpenAPI schema with the extensions of Kubernetes, of which each form uses some.
type Type struct {
	Form Form
	// Name is the OpenAPI name of a Structure: "io.k8s.api.core.v1.ServiceSpec".
	Name string
	// Short is the name of a Structure in messages: "ServiceSpec".
	Short string
	// Go is the name of the Go type of the Structure in package object. It differs from Short if two API groups have types of the same name.
	Go  string
	Doc string
	// Fields are the fields of a Structure in the order of serialization.
	Fields []*Field
	// Open means that unknown fields of a Structure are dropped without a warning.
	Open bool
	// Enum are the allowed values of a Text, sorted; nil allows any.
	Enum []string
	Bits int   // size of an Integer: 32 or 64
	Elem *Type // type of the items of a List, or of the values of a Map

	// Atomic means that server-side apply treats a List, Map or Structure as one value
	// with one owner. A List is atomic, or Set, or has Keys.
	Atomic bool
	// Set means that the items of a List are unique scalars.
	Set bool
	// Keys are the key fields of the items of a List, sorted.
	Keys []string
	// Merge means that a strategic merge patch merges a List item by item.
	Merge bool
	// MergeKey is the field that identifies the items of a List with Merge; "" if the items are scalars.
	MergeKey string

	fields  map[string]*Field
	ignored []string
}

// Field is a field of a Structure.
type Field struct {
	Name string
	Doc  string
	Type *Type
	// Required means that validation refuses an object without the field.
	Required bool
	// OmitZero means that the zero value is not serialized.
	OmitZero bool
	// Always means that Kubernetes serializes the field even if it is zero, so an absent field equals the zero value.
	Always bool
	// Default is the value of the field, as a key of list items, if it is absent; nil if there is none.
	Default any

	index []int // index path of the field in the Go type
}

// Field returns the field with a name.
func (t *Type) Field(name string) (*Field, bool) {
	f, ok := t.fields[name]
	return f, ok
}

// Child returns the type of a field of a Structure, or of the values of a Map; nil if
// there is none, or t is nil.
func (t *Type) Child(name string) *Type {
	switch {
	case t == nil:
	case t.Form == Map:
		return t.Elem
	default:
		if f := t.fields[name]; f != nil { // of a Structure
			return f.Type
		}
	}
	return nil
}

// ListType returns the x-kubernetes-list-type of a List: "atomic", "set" or "map".
func (t *Type) ListType() string {
	switch {
	case t.Set:
		return "set"
	case len(t.Keys) > 0:
		return "map"
	}
	return "atomic"
}

// trait has the properties of a field that its Go type does not express, as words of the struct tag schema. They are those of the API of
// Kubernetes 1.36 (the tags patchStrategy and patchMergeKey of k8s.io/api and the markers listType, listMapKey, mapType and enum). Only
// ports of a Service have different keys for strategic merge patch and for apply: to the former, 53/TCP and 53/UDP are the same port.
type trait struct {
	required bool     // validation refuses an object without the field
	keys     []string // x-kubernetes-list-map-keys
	set      bool     // list type "set"
	atomic   bool     // the map is atomic; a list is atomic unless it has keys or is a set
	merge    bool     // patch strategy "merge"
	mergeKey string   // patch merge key
	enum     []string // the allowed values; nil allows any
	fallback any      // the value of an absent field that is a key of list items
}

func traitOf(tag string) (is trait) {
	for word := range strings.FieldsSeq(tag) {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "required":
			is.required = true
		case "keys":
			is.keys = strings.Split(value, ",")
		case "set":
			is.set = true
		case "atomic":
			is.atomic = true
		case "merge":
			is.merge, is.mergeKey = true, value
		case "enum":
			is.enum = strings.Split(value, "|")
		case "default":
			is.fallback = value
		default:
			panic("schema: no trait " + word)
		}
	}
	return is
}

// atomicTypes are the structures with x-kubernetes-map-type atomic.
var atomicTypes = []string{"ObjectReference", "OwnerReference"}

// ignored lists fields of Kubernetes that clients may send and that have no effect here.
// They are dropped without a warning.
var ignored = map[string][]string{
	"ObjectMeta":         {"selfLink", "deletionGracePeriodSeconds"},
	"DeleteOptions":      {"ignoreStoreReadErrorWithClusterBreakingPotential"},
	"ResourceAttributes": {"fieldSelector", "labelSelector"},
}

// renamed maps the Go names of structures to their names in the API, where these differ. Most differ because two API groups have a structure of the
// same name.
var renamed = map[string]string{
	"EventView": "Event", "ParentRef": "ParentReference", "RouteHeader": "HTTPHeader", "CAReference": "ObjectReference", "GatewayAddress": "GatewaySpecAddress",
}

// metaTypes are the structures that all groups share.
var metaTypes = []string{"ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "Condition", "DeleteOptions", "Preconditions", "LabelSelector", "LabelSelectorRequirement"}

// coreTypes are the structures of the core group that other groups use.
var coreTypes = []string{"ObjectReference", "EventSource", "SecretReference"}
