package reread

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// A decoder decodes one JSON value into v, which is settable and zero. It reports whether the text was in the form
// that encoding/json writes.
type decoder func(r *reader, v reflect.Value) bool

// decoders caches the decoder of each type.
var decoders sync.Map // of reflect.Type to decoder

func decoderOf(t reflect.Type) decoder {
	if known, ok := decoders.Load(t); ok {
		return known.(decoder)
	}
	var maker maker
	d := maker.of(t)
	for t, d := range maker.made {
		decoders.LoadOrStore(t, *d)
	}
	return d
}

// maker makes the decoder of a type, and those of all types in it.
type maker struct{ made map[reflect.Type]*decoder }

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// of returns the decoder of a type. Types may be recursive.
func (m *maker) of(t reflect.Type) decoder {
	if known, ok := decoders.Load(t); ok {
		return known.(decoder)
	}
	if begun, ok := m.made[t]; ok {
		return func(r *reader, v reflect.Value) bool { return (*begun)(r, v) }
	}
	if m.made == nil {
		m.made = map[reflect.Type]*decoder{}
	}
	d := new(decoder)
	m.made[t] = d
	*d = m.make(t)
	return *d
}

func (m *maker) make(t reflect.Type) decoder {
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		return byItself
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		return byJSON
	case t == reflect.TypeFor[map[string]string]():
		return readTexts
	}
	switch t.Kind() {
	case reflect.String:
		return readText
	case reflect.Bool:
		return readBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return readInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return readUint
	case reflect.Interface:
		return readInterface
	case reflect.Pointer:
		return m.pointer(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return byJSON // base64
		}
		return m.slice(t)
	case reflect.Struct:
		return m.structure(t)
	}
	return byJSON
}

// byJSON decodes one value with encoding/json.
func byJSON(r *reader, v reflect.Value) bool {
	text, ok := r.value()
	return ok && json.Unmarshal(text, v.Addr().Interface()) == nil
}

// byItself decodes a value with the UnmarshalJSON of its type.
func byItself(r *reader, v reflect.Value) bool {
	text, ok := r.value()
	if !ok {
		return false
	}
	to, is := v.Addr().Interface().(json.Unmarshaler)
	return is && to.UnmarshalJSON(text) == nil
}

func readText(r *reader, v reflect.Value) bool {
	text, ok := r.text()
	if ok {
		v.SetString(text)
	}
	return ok
}

func readBool(r *reader, v reflect.Value) bool {
	value, ok := r.bool()
	v.SetBool(value)
	return ok
}

func readInt(r *reader, v reflect.Value) bool {
	negative := r.is('-')
	n, ok := r.digits()
	if negative {
		n = -n
	}
	if !ok || v.OverflowInt(n) {
		return false
	}
	v.SetInt(n)
	return true
}

func readUint(r *reader, v reflect.Value) bool {
	n, ok := r.digits()
	if !ok || v.OverflowUint(uint64(n)) {
		return false
	}
	v.SetUint(uint64(n))
	return true
}

// readInterface decodes into the value that a pointer in an interface points to.
func readInterface(r *reader, v reflect.Value) bool {
	if v.IsNil() || v.Elem().Kind() != reflect.Pointer || v.Elem().IsNil() {
		return false
	}
	to := v.Elem().Elem()
	return decoderOf(to.Type())(r, to)
}

// readTexts decodes a map[string]string, whose keys encoding/json sorts. Equal maps within one value share
// memory.
func readTexts(r *reader, v reflect.Value) bool {
	if r.isNull() {
		return true
	}
	if !r.is('{') {
		return false
	}
	r.pairs = r.pairs[:0]
	for !r.is('}') {
		if len(r.pairs) > 0 && !r.is(',') {
			return false
		}
		key, ok := r.text()
		if !ok || !r.is(':') || len(r.pairs) > 0 && r.pairs[len(r.pairs)-1].key >= key {
			return false
		}
		value, ok := r.text()
		if !ok {
			return false
		}
		r.pairs = append(r.pairs, pair{key, value})
	}
	v.Set(reflect.ValueOf(r.mapping()))
	return true
}

// pointer returns the decoder of a pointer type. Pointers to equal strings and bools are shared.
func (m *maker) pointer(t reflect.Type) decoder {
	switch t {
	case reflect.TypeFor[*string]():
		return func(r *reader, v reflect.Value) bool {
			if r.isNull() {
				return true
			}
			text, ok := r.textPointer()
			v.Set(reflect.ValueOf(text))
			return ok
		}
	case reflect.TypeFor[*bool]():
		return func(r *reader, v reflect.Value) bool {
			if r.isNull() {
				return true
			}
			value, ok := r.bool()
			v.Set(reflect.ValueOf(bools[value]))
			return ok
		}
	}
	to := m.of(t.Elem())
	return func(r *reader, v reflect.Value) bool {
		if r.isNull() {
			return true
		}
		v.Set(reflect.New(t.Elem()))
		return to(r, v.Elem())
	}
}

// bools has a shared pointer for each bool.
var bools = map[bool]*bool{false: new(bool), true: func() *bool { is := true; return &is }()}

// slice returns the decoder of a slice type. It decodes the elements into a reused buffer, and copies them to a slice of the exact length.
func (m *maker) slice(t reflect.Type) decoder {
	element := m.of(t.Elem())
	return func(r *reader, v reflect.Value) bool {
		if r.isNull() {
			return true
		}
		if !r.is('[') {
			return false
		}
		room := r.room(t)
		n := 0
		for !r.is(']') {
			if n > 0 && !r.is(',') {
				return false
			}
			if n == room.Len() {
				larger := reflect.MakeSlice(t, 2*n, 2*n)
				reflect.Copy(larger, room)
				room = larger
			}
			if !element(r, room.Index(n)) {
				return false
			}
			n++
		}
		list := reflect.MakeSlice(t, n, n)
		reflect.Copy(list, room)
		v.Set(list)
		room.Slice(0, n).Clear()
		r.leave(t, room)
		return true
	}
}

// field is a field of a struct with its JSON name and decoder.
type field struct {
	name  string
	index []int
	read  decoder
}

// structure returns the decoder of a struct type. A type with tags that need special treatment is left to encoding/json.
func (m *maker) structure(t reflect.Type) decoder {
	var fields []field
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct && f.Tag == "" && !reflect.PointerTo(f.Type).Implements(unmarshaler):
			continue // its fields are listed themselves
		case !f.Anonymous && (!f.IsExported() || f.Tag.Get("json") == "-"):
			continue
		case f.Anonymous || strings.Contains(options, "string"):
			return byJSON
		}
		name = cmp.Or(name, f.Name)
		if names[name] {
			return byJSON
		}
		names[name] = true
		fields = append(fields, field{name, f.Index, m.of(f.Type)})
	}
	return func(r *reader, v reflect.Value) bool {
		if !r.is('{') {
			return false
		}
		next := 0
		for first := true; !r.is('}'); first = false {
			if !first && !r.is(',') {
				return false
			}
			name, ok := r.name()
			if !ok {
				return false
			}
			for next < len(fields) && fields[next].name != string(name) {
				next++
			}
			if next == len(fields) {
				return false // unknown, or not in the order
			}
			f := &fields[next]
			if next++; !f.read(r, at(v, f.index)) {
				return false
			}
		}
		return true
	}
}

// at returns the field at an index path, which for most fields has one element.
func at(v reflect.Value, index []int) reflect.Value {
	if len(index) == 1 {
		return v.Field(index[0])
	}
	return v.FieldByIndex(index)
}
