package reread

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"reflect"
	"sync"
	"unicode/utf8"
)

// Into decodes JSON into the value that to points to. That value must be zero, except for interfaces that hold a pointer: Into decodes into the
// targets of these. It reports whether the text is in the form in which encoding/json writes such a value; if not, the value is unusable. The text is
// not retained.
func Into(text []byte, to any) bool {
	v := reflect.ValueOf(to).Elem()
	decode := decoderOf(v.Type())
	r := readers.Get().(*reader)
	defer r.free()
	r.left = text
	return decode(r, v) && len(r.left) == 0
}

// readers is a pool of readers, which intern strings of earlier values.
var readers = sync.Pool{New: func() any { return new(reader) }}

// A reader decodes JSON and consumes the text from its front.
type reader struct {
	left []byte // the unread rest
	// known caches the strings that were read last, by hash.
	known [1024]string
	pairs []pair
	// mappings has the last two maps that were read: often a Service's labels equal its selector.
	mappings [2]map[string]string
}

type pair struct{ key, value string }

var seed = maphash.MakeSeed()

// free returns a reader to the pool.
func (r *reader) free() {
	r.left, r.mappings = nil, [2]map[string]string{}
	clear(r.pairs[:cap(r.pairs)])
	readers.Put(r)
}

// is consumes a byte if it is the next one, and reports whether it was.
func (r *reader) is(c byte) bool {
	if len(r.left) == 0 || r.left[0] != c {
		return false
	}
	r.left = r.left[1:]
	return true
}

// word consumes a word if it is next, and reports whether it was.
func (r *reader) word(w string) bool {
	if len(r.left) < len(w) || string(r.left[:len(w)]) != w {
		return false
	}
	r.left = r.left[len(w):]
	return true
}

// isNull consumes null if it is next, and reports whether it was.
func (r *reader) isNull() bool { return len(r.left) > 0 && r.left[0] == 'n' && r.word("null") }

func (r *reader) bool() (value, ok bool) {
	if r.word("true") {
		return true, true
	}
	return false, r.word("false")
}

// digits reads an integer of at most 18 digits.
func (r *reader) digits() (n int64, ok bool) {
	const most = 18 // fits
	i := 0
	for i < len(r.left) && i <= most && r.left[i] >= '0' && r.left[i] <= '9' {
		n = 10*n + int64(r.left[i]-'0')
		i++
	}
	if i == 0 || i > most || i > 1 && r.left[0] == '0' {
		return 0, false
	}
	if r.left = r.left[i:]; len(r.left) > 0 && (r.left[0] == '.' || r.left[0] == 'e' || r.left[0] == 'E') {
		return 0, false
	}
	return n, true
}

// name reads the name of a field, and the colon behind it.
func (r *reader) name() (name []byte, ok bool) {
	if !r.is('"') {
		return nil, false
	}
	end := bytes.IndexByte(r.left, '"')
	if end < 0 || end+1 == len(r.left) || r.left[end+1] != ':' {
		return nil, false
	}
	name, r.left = r.left[:end], r.left[end+2:]
	return name, true
}

// raw reads a quoted string and returns its content, which is valid until the next call.
func (r *reader) raw() (text []byte, ok bool) {
	if len(r.left) == 0 || r.left[0] != '"' {
		return nil, false
	}
	for i, c := range r.left[1:] {
		switch {
		case c == '"':
			text, r.left = r.left[1:i+1], r.left[i+2:]
			return text, true
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf: // rare
			var meant string
			ok = json.Unmarshal(r.value(), &meant) == nil
			return []byte(meant), ok
		}
	}
	return nil, false
}

// text reads a string. If the string last read with the same hash index is equal, the result shares its memory; otherwise the new string replaces it.
func (r *reader) text() (string, bool) {
	raw, ok := r.raw()
	if !ok || len(raw) == 0 {
		return "", ok
	}
	known := &r.known[maphash.Bytes(seed, raw)%uint64(len(r.known))]
	if *known != string(raw) {
		*known = string(raw)
	}
	return *known, true
}

// mapping returns a map with the entries of r.pairs: one of the last two maps if it is equal, or else a new one.
func (r *reader) mapping() map[string]string {
	for _, m := range r.mappings {
		if len(m) == len(r.pairs) && len(m) > 0 && r.hasPairs(m) {
			return m
		}
	}
	m := make(map[string]string, len(r.pairs))
	for _, p := range r.pairs {
		m[p.key] = p.value
	}
	r.mappings[0], r.mappings[1] = m, r.mappings[0]
	return m
}

func (r *reader) hasPairs(m map[string]string) bool {
	for _, p := range r.pairs {
		if value, has := m[p.key]; !has || value != p.value {
			return false
		}
	}
	return true
}

// value consumes any JSON value and returns its text, or nil if there is none. The text is not validated.
func (r *reader) value() (text []byte) {
	quoted := false
	for i, depth := 0, 0; i < len(r.left); i++ {
		switch c := r.left[i]; {
		case quoted && c == '\\':
			i++
			continue
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c <= ' ' && depth == 0: // not as encoding/json writes it
			return nil
		}
		if !quoted && depth == 0 && (i+1 == len(r.left) || bytes.IndexByte([]byte(",:]}"), r.left[i+1]) >= 0) {
			text, r.left = r.left[:i+1], r.left[i+1:]
			return text
		}
	}
	return nil
}
