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
var readers = sync.Pool{New: func() any { return &reader{rooms: map[reflect.Type]reflect.Value{}} }}

// A reader decodes JSON and consumes the text from its front.
type reader struct {
	left []byte // the unread rest
	// known caches the strings that were read last, by hash.
	known [1024]known
	pairs []pair
	// mappings has the last two maps that were read: often a Service's labels equal its selector.
	mappings [2]map[string]string
	rooms    map[reflect.Type]reflect.Value // reusable slices to decode lists into, by type
	buffer   []byte
}

// known is an interned string. at points to it, or is nil until a pointer is requested.
type known struct {
	text string
	at   *string
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
	if !r.is('"') {
		return nil, false
	}
	for i, c := range r.left {
		switch {
		case c == '"':
			text, r.left = r.left[:i], r.left[i+1:]
			return text, true
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return r.special(i)
		}
	}
	return nil, false
}

// special is raw for a string that has an escape, or another byte that raw does not accept, at index i.
func (r *reader) special(i int) (text []byte, ok bool) {
	r.buffer = append(r.buffer[:0], r.left[:i]...)
	for i < len(r.left) {
		c := r.left[i]
		i++
		switch {
		case c == '"':
			r.left = r.left[i:]
			return r.buffer, utf8.Valid(r.buffer)
		case c < ' ':
			return nil, false
		case c != '\\':
			r.buffer = append(r.buffer, c)
			continue
		case i == len(r.left):
			return nil, false
		}
		meant, size := unescaped(r.left[i:])
		if size == 0 {
			return nil, false
		}
		r.buffer = utf8.AppendRune(r.buffer, meant)
		i += size
	}
	return nil, false
}

// escapes maps the letter after a backslash to the character that it stands for.
var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescaped returns the character for an escape sequence, given the text after the backslash, and the length of the sequence. The length is 0 for a
// sequence that is not supported, such as a surrogate.
func unescaped(text []byte) (meant rune, size int) {
	const digits = 4
	if text[0] != 'u' {
		meant, ok := escapes[text[0]]
		if !ok {
			return 0, 0
		}
		return meant, 1
	}
	if len(text) < 1+digits {
		return 0, 0
	}
	for _, c := range text[1 : 1+digits] {
		switch {
		case c >= '0' && c <= '9':
			meant = meant<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			meant = meant<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			meant = meant<<4 | rune(c-'A'+10)
		default:
			return 0, 0
		}
	}
	if !utf8.ValidRune(meant) {
		return 0, 0
	}
	return meant, 1 + digits
}

// text reads a string, which shares memory with an equal one that was read recently.
func (r *reader) text() (string, bool) {
	raw, ok := r.raw()
	if !ok || len(raw) == 0 {
		return "", ok
	}
	return r.find(raw).text, true
}

// textPointer reads a string and returns a pointer, which equal strings may share.
func (r *reader) textPointer() (*string, bool) {
	raw, ok := r.raw()
	if !ok {
		return nil, false
	}
	k := r.find(raw)
	if k.at == nil {
		k.at = new(k.text)
	}
	return k.at, true
}

// find returns the entry of a string in the table of interned strings. It replaces an entry of another string with the same hash index.
func (r *reader) find(raw []byte) *known {
	k := &r.known[maphash.Bytes(seed, raw)%uint64(len(r.known))]
	if k.text != string(raw) {
		*k = known{text: string(raw)}
	}
	return k
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

// room returns a buffer, a slice of zero elements, to decode a list into.
func (r *reader) room(t reflect.Type) reflect.Value {
	const elements = 16
	if room, has := r.rooms[t]; has {
		delete(r.rooms, t) // a list may be inside of another one of its type
		return room
	}
	return reflect.MakeSlice(t, elements, elements)
}

// leave takes back a buffer that room returned, for reuse.
func (r *reader) leave(t reflect.Type, room reflect.Value) {
	const most = 4096
	if room.Len() <= most {
		r.rooms[t] = room
	}
}

// value consumes any JSON value and returns its text.
func (r *reader) value() (text []byte, ok bool) {
	end := valueEnd(r.left)
	text, r.left = r.left[:end], r.left[end:]
	return text, end > 0 && json.Valid(text)
}

// valueEnd returns the length of the JSON value at the beginning of a text; 0 if there is none.
func valueEnd(text []byte) int {
	for i, depth := 0, 0; i < len(text); i++ {
		switch c := text[i]; {
		case c <= ' ' && depth == 0:
			return 0 // not as encoding/json writes it
		case c == '"':
			size := textEnd(text[i+1:])
			if i += size; size == 0 {
				return 0
			}
		case c == '{' || c == '[':
			depth++
			continue
		case c == '}' || c == ']':
			depth--
		case depth > 0:
			continue
		}
		if depth == 0 && (i+1 == len(text) || bytes.IndexByte([]byte(",]}"), text[i+1]) >= 0) {
			return i + 1
		}
	}
	return 0
}

// textEnd returns the length of the rest of a quoted string, after the opening and including the closing quote; 0 if it is not closed.
func textEnd(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}
