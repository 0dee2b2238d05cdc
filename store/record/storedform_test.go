package record

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/reread"
)

// fillIn gives everything in a value something.
func fillIn(v reflect.Value) {
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
			fillIn(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fillIn(v.Index(i))
		}
	case reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem()
		fillIn(item)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), item)
	case reflect.String:
		v.SetString("text <&> \"quoted\"\n")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	}
}

// Stored objects of every kind, with every field and with none, are read back the fast way, and come to the same as
// encoding/json makes of them. A new field that has another form would be noticed here.
func TestStoredFormsAreReadFast(t *testing.T) {
	kinds := 0
	for _, s := range object.Strategies() {
		if !s.Stored() {
			continue
		}
		kinds++
		full, empty := s.New(), s.New()
		fillIn(reflect.ValueOf(full).Elem())
		owner := Owner{}
		fillIn(reflect.ValueOf(&owner).Elem())
		for _, v := range []Record{{Object: empty}, {Owner: owner, Created: 1 << 50, Asked: map[string]uint64{"80/TCP": 7}, Object: full}} {
			entry, _, err := v.Encode()
			if err != nil {
				t.Fatal(err)
			}
			text := entry[engine.EntryHeader:]
			want, got := stored{Object: s.New()}, stored{Object: s.New()}
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			if !reread.Into(text, &got) {
				t.Errorf("%s is not read: %s", full.GetTypeMeta().Kind, text)
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("%s\ncomes to %+v\nwant     %+v", text, got.Object, want.Object)
			}
		}
	}
	if kinds < 10 {
		t.Errorf("only %d kinds", kinds)
	}
}

// What another program has written, in another order or with fields that are not known, is read too.
func TestOtherStoredForms(t *testing.T) {
	const key = ObjectPrefix + "Service/default/web"
	for _, text := range []string{
		`{"owner":{},"object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"default"},"spec":{"type":"ClusterIP"},"status":{"loadBalancer":{}}}}`,
		`{"object":{"apiVersion":"v1","kind":"Service","spec":{"type":"ClusterIP","later":[1]},"metadata":{"namespace":"default","name":"web"}},"later":true}`,
	} {
		r, err := Decode(engine.Pair{Key: key, Value: []byte(text), Revision: 1})
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if svc, is := r.Object.(*object.Service); !is || svc.Spec.Type != "ClusterIP" || svc.Metadata.Name != "web" {
			t.Errorf("%s comes to %+v", text, r.Object)
		}
	}
}
