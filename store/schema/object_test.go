package schema

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// mustAgree holds FromObject against the way over JSON.
func mustAgree(t *testing.T, o object.Object, k kind.Kind) {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := Decode(b, Of(k))
	if err != nil {
		t.Fatal(err)
	}
	// Sets of fields are a text here and a tree there.
	text, err := json.Marshal(Of(k).FromObject(o))
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Parse(text)
	if err != nil || !reflect.DeepEqual(got, any(want)) {
		t.Fatalf("%s: %s comes to %s", k.Name, b, text)
	}
}

// The zero value of everything is told as JSON tells it.
func TestFromObject(t *testing.T) {
	for _, k := range kind.All() {
		mustAgree(t, k.New(), k)
		full := k.New()
		fill(reflect.ValueOf(full).Elem())
		mustAgree(t, full, k)
		again := k.New()
		if err := Of(k).ToObject(Of(k).FromObject(full), again); err != nil || !reflect.DeepEqual(again, full) {
			t.Errorf("%s: %+v comes to %+v (%v)", k.Name, full, again, err)
		}
	}
}

// fill gives every field a value that is not its zero value.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return
	case object.MicroTime:
		v.Set(reflect.ValueOf(object.MicroTime{Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}))
		return
	case object.IntOrString:
		v.Set(reflect.ValueOf(object.FromString("web")))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"f:spec":{}}`))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem()
		fill(item)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), item)
	case reflect.String:
		v.SetString("text <&>")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	}
}
