package schema

// A Form is what values of a Type look like in JSON.
type Form int

// The forms.
const (
	Structure   Form = iota // an object with fields of fixed names
	Map                     // an object with any keys; the values are of type Elem
	List                    // an array; the items are of type Elem
	Text                    // a string
	Integer                 // a number without a fraction, of Bits bits
	Boolean                 // true or false
	Time                    // a string as in RFC 3339, to the second
	MicroTime               // a string as in RFC 3339, to the microsecond
	IntOrString             // a number or a string
	Bytes                   // a string in base64 (RFC 4648 section 4)
	FieldSet                // an object in the form FieldsV1
)

// A Type is the shape of a value. Types are shared and never change.
type Type struct {
	Form Form
	// Name is what a Structure is called in OpenAPI: "io.k8s.api.core.v1.ServiceSpec".
	Name string
	// Short is what a Structure is called in messages: "ServiceSpec".
	Short string
	// Go is what the Structure is called in store/object; it is Short but for types that
	// two groups call the same.
	Go  string
	Doc string
	// Fields are those of a Structure, in the order in which they are written.
	Fields []*Field
	// Open says that a Structure may have more fields, which are dropped.
	Open bool
	// Enum are the values that a Text may have, sorted; nil is any.
	Enum []string
	Bits int   // of an Integer: 32 or 64
	Elem *Type // of a List or a Map

	// Atomic says that a List, Map or Structure is one value to server-side apply: one
	// manager owns all of it. A List is atomic, or Set, or has Keys.
	Atomic bool
	// Set says that the items of a List are scalars that each occur once.
	Set bool
	// Keys are the fields of its items that tell them apart in a List, sorted.
	Keys []string
	// Merge says that a strategic merge patch merges a List item by item.
	Merge bool
	// MergeKey is the field by which items are then told apart; "" for scalars.
	MergeKey string

	fields  map[string]*Field
	byName  []*Field
	ignored []string
}

// A Field is one of a Structure.
type Field struct {
	Name string
	Doc  string
	Type *Type
	// Required says that an object without the field is refused by validation.
	Required bool
	// OmitZero says that the zero value is written as no field at all.
	OmitZero bool
	// Always says that there is no difference between no field and one with the zero
	// value: Kubernetes writes the field in any case.
	Always bool
	// Default is what an absent field counts as where it is a key of a List; nil is none.
	Default any

	index []int // of the field in the Go type
}

// Field is the field of a name.
func (t *Type) Field(name string) (*Field, bool) {
	f, ok := t.fields[name]
	return f, ok
}

// Child is the type of what stands under a name: of a field of a Structure, or of any
// value of a Map. It is nil for what does not exist.
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

// ListType is how server-side apply takes a List: "atomic", "set" or "map".
func (t *Type) ListType() string {
	switch {
	case t.Set:
		return "set"
	case len(t.Keys) > 0:
		return "map"
	}
	return "atomic"
}
