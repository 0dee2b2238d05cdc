package schema

// Form is the JSON form of the values of a Type.
type Form int

// The forms.
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
	// Go is the name of the Structure in store/object. It differs from Short for types of
	// the same name in two groups.
	Go  string
	Doc string
	// Fields are the fields of a Structure in the order of serialization.
	Fields []*Field
	// Open means that unknown fields of a Structure are dropped without a warning.
	Open bool
	// Enum are the allowed values of a Text, sorted; nil allows any.
	Enum []string
	Bits int   // of an Integer: 32 or 64
	Elem *Type // of a List or a Map

	// Atomic means that server-side apply treats a List, Map or Structure as one value
	// with one owner. A List is atomic, or Set, or has Keys.
	Atomic bool
	// Set means that the items of a List are unique scalars.
	Set bool
	// Keys are the key fields of the items of a List, sorted.
	Keys []string
	// Merge means that a strategic merge patch merges a List item by item.
	Merge bool
	// MergeKey is the field that identifies items for it; "" for scalars.
	MergeKey string

	fields  map[string]*Field
	byName  []*Field
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
	// Always means that an absent field equals the zero value: Kubernetes always
	// serializes the field.
	Always bool
	// Default is the value of an absent field in a list key; nil: none.
	Default any

	index []int // of the field in the Go type
}

// Field returns the field with a name.
func (t *Type) Field(name string) (*Field, bool) {
	f, ok := t.fields[name]
	return f, ok
}

// Child returns the type of a field of a Structure, or of the values of a Map; nil if
// there is none.
func (t *Type) Child(name string) *Type {
	switch t.Form {
	case Structure:
		if f, ok := t.fields[name]; ok {
			return f.Type
		}
	case Map:
		return t.Elem
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
