package schema

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// FromObject converts an object to the parsed JSON that Decode would return for it, except
// that field sets stay json.RawMessage.
func (t *Type) FromObject(o object.Object) map[string]any {
	return t.fromStructure(reflect.ValueOf(o).Elem())
}

// entryList is the Type of metadata.managedFields, the same for every kind.
var entryList = sync.OnceValue(func() *Type {
	return Of(kind.All()[0]).Child("metadata").Child("managedFields")
})

// FromEntries returns metadata.managedFields in the form of FromObject; nil for none.
func FromEntries(entries []object.ManagedFieldsEntry) []any {
	list, _ := entryList().fromValue(reflect.ValueOf(entries)).([]any)
	return list
}

// ToEntries converts parsed metadata.managedFields to their Go type.
func ToEntries(list []any) (entries []object.ManagedFieldsEntry, err error) {
	err = entryList().toList(list, reflect.ValueOf(&entries).Elem())
	return entries, err
}

func (t *Type) fromStructure(v reflect.Value) map[string]any {
	o := map[string]any{}
	for _, f := range t.Fields {
		value := v.FieldByIndex(f.index)
		if f.OmitZero && isEmpty(value) {
			continue
		}
		if made := f.Type.fromValue(value); made != nil {
			o[f.Name] = made
		}
	}
	return o
}

// isEmpty reports whether encoding/json omits a value with omitempty or omitzero.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}

// fromValue converts a Go value to parsed JSON. It returns nil for a nil value.
func (t *Type) fromValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return t.fromValue(v.Elem())
	case reflect.Map, reflect.Slice:
		if v.IsNil() {
			return nil
		}
	}
	switch t.Form {
	case Structure:
		return t.fromStructure(v)
	case Map:
		o := make(map[string]any, v.Len())
		for entries := v.MapRange(); entries.Next(); {
			o[entries.Key().String()] = t.Elem.fromItem(entries.Value())
		}
		return o
	case List:
		items := make([]any, v.Len())
		for i := range items {
			items[i] = t.Elem.fromItem(v.Index(i))
		}
		return items
	case Text:
		return v.String()
	case Integer:
		return json.Number(strconv.FormatInt(v.Int(), 10))
	case Boolean:
		return v.Bool()
	}
	return fromSpecial(v.Interface())
}

// fromItem converts a value in a list or a map to parsed JSON. For a nil value it returns the zero value of the type, because an item cannot be
// omitted.
func (t *Type) fromItem(v reflect.Value) any {
	if made := t.fromValue(v); made != nil {
		return made
	}
	return t.zero()
}

// fromSpecial converts a value with a special JSON form, such as a time, to parsed JSON.
func fromSpecial(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case object.MicroTime:
		if v.IsZero() {
			return nil
		}
		text, _ := v.MarshalJSON() // of a time it is always the time in quotes
		return string(text[1 : len(text)-1])
	case object.IntOrString:
		if v.IsString {
			return v.Name
		}
		return json.Number(strconv.Itoa(int(v.Int)))
	case json.RawMessage:
		return v
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	}
	panic(fmt.Sprintf("schema: no form for a %T", v))
}

// ToObject decodes a pruned object into a new object of a Go type. It fails for a value
// that Prune accepts and the Go type cannot represent, such as a year of five digits.
func (t *Type) ToObject(content map[string]any, o object.Object) error {
	return t.toStructure(content, reflect.ValueOf(o).Elem())
}

func (t *Type) toStructure(content map[string]any, v reflect.Value) error {
	for name, value := range content {
		f, ok := t.fields[name]
		if !ok {
			return fmt.Errorf("%s has no field %s", t.Short, name)
		}
		if err := f.Type.toValue(value, v.FieldByIndex(f.index)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (t *Type) toValue(value any, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		if isNull(value) {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch value := value.(type) {
	case map[string]any:
		return t.toObject(value, v)
	case []any:
		return t.toList(value, v)
	case string:
		return t.toText(value, v)
	case json.Number:
		switch n, err := strconv.ParseInt(value.String(), 10, 64); {
		case err != nil:
			return err
		case t.Form == Integer && !v.OverflowInt(n):
			v.SetInt(n)
			return nil
		case t.Form == IntOrString && int64(int32(n)) == n:
			v.Set(reflect.ValueOf(object.FromInt(int32(n))))
			return nil
		}
	case bool:
		if t.Form == Boolean {
			v.SetBool(value)
			return nil
		}
	case json.RawMessage:
		if t.Form == FieldSet {
			v.SetBytes(value)
			return nil
		}
	case nil:
		return nil
	}
	return t.misfit(value)
}

// isNull reports whether a scalar value is encoded as null.
func isNull(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		return value == nil
	}
	return false
}

func (t *Type) misfit(value any) error {
	return fmt.Errorf("json: cannot unmarshal %s into Go value of type %s", describe(value), t.goName())
}

func (t *Type) toObject(content map[string]any, v reflect.Value) error {
	switch {
	case content == nil:
		return nil
	case t.Form == Structure:
		return t.toStructure(content, v)
	case t.Form == FieldSet:
		text, err := json.Marshal(content)
		v.SetBytes(text)
		return err
	case t.Form != Map:
		return t.misfit(content)
	}
	made := reflect.MakeMapWithSize(v.Type(), len(content))
	for key, value := range content {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := t.Elem.toValue(value, item); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		made.SetMapIndex(reflect.ValueOf(key), item)
	}
	v.Set(made)
	return nil
}

func (t *Type) toList(content []any, v reflect.Value) error {
	switch {
	case content == nil:
		return nil
	case t.Form != List:
		return t.misfit(content)
	}
	made := reflect.MakeSlice(v.Type(), len(content), len(content))
	for i, item := range content {
		if err := t.Elem.toValue(item, made.Index(i)); err != nil {
			return err
		}
	}
	v.Set(made)
	return nil
}

func (t *Type) toText(text string, v reflect.Value) error {
	switch t.Form {
	case Text:
		v.SetString(text)
	case IntOrString:
		v.Set(reflect.ValueOf(object.FromString(text)))
	case Bytes:
		b, err := base64.StdEncoding.DecodeString(text)
		v.SetBytes(b)
		return err
	case Time, MicroTime:
		// They are as strict as they are with JSON.
		return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON([]byte(`"` + text + `"`))
	default:
		return t.misfit(text)
	}
	return nil
}
