package manifest

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unique"

	"svcctl.io/svcctl/store/object"
)

// kind is the type of a node: one of the types of JSON, with integers separate from floats.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindMap
	kindList
)

// A node is a value of a YAML or JSON document after anchors, merge keys and tags are resolved. Lines and columns count from 1.
type node struct {
	kind kind
	// oldBool marks an unquoted yes, no, on, off, y or n: text to YAML 1.2, a bool to
	// YAML 1.1 and so to kubectl.
	oldBool      bool
	line, column int
	// size is the number of nodes in this value, including itself. height is the greatest nesting depth of mappings and lists in it.
	size, height int

	text   string // the text of a scalar as written, without quotes
	fields []field
	items  []*node
}

// A field is one entry of a mapping; keys are unique and in the order of the text.
type field struct {
	key          string
	line, column int
	value        *node
}

// contain adds a child to the size and height of a node.
func (n *node) contain(child *node) {
	n.size += child.size
	n.height = max(n.height, child.height+1)
}

// get returns the value of a key in a mapping, or nil.
func (n *node) get(key string) *node {
	for i := range n.fields {
		if n.fields[i].key == key {
			return n.fields[i].value
		}
	}
	return nil
}

// what describes the node for a message of the form "expected ..., got ...".
func (n *node) what() string {
	switch n.kind {
	case kindNull:
		return "nothing"
	case kindBool:
		return "the bool " + n.text
	case kindInt, kindFloat:
		return "the number " + n.text
	case kindString:
		return "the text " + excerpt(n.text)
	case kindMap:
		return "a mapping"
	default:
		return "a list"
	}
}

// A flaw is a mistake in a document that the parser found. Unless it is a warning, the
// document is not used.
type flaw struct {
	line, column int
	path         path
	reason       string
	message      string
	warning      bool
}

// A refusal is an error that ends the decoding of a whole file.
type refusal struct {
	line, column int
	reason       string
	message      string
}

func (r *refusal) Error() string { return r.message }

func refuse(line, column int, reason, format string, args ...any) *refusal {
	return &refusal{line: line, column: column, reason: reason, message: fmt.Sprintf(format, args...)}
}

// keySet detects duplicate keys in one mapping. For the few keys that most mappings
// have, a linear search is cheaper than a hash.
type keySet struct{ index map[string]int }

// fewKeys is the number of keys above which a hash is faster.
const fewKeys = 24

// find returns the index of key among fields, or -1. It must be called before each append to fields.
func (s *keySet) find(fields []field, key string) int {
	if len(fields) <= fewKeys {
		for i := range fields {
			if fields[i].key == key {
				return i
			}
		}
		return -1
	}
	if s.index == nil {
		s.index = make(map[string]int, 2*fewKeys)
	}
	for i := len(s.index); i < len(fields); i++ {
		s.index[fields[i].key] = i
	}
	if i, ok := s.index[key]; ok {
		return i
	}
	return -1
}

// nodeStock allocates the nodes of a document. The next document reuses the memory.
type nodeStock struct {
	nodes   stock[node]
	entries pile[field]
	members pile[*node]
}

// reset makes the memory of all nodes available again.
func (s *nodeStock) reset() {
	s.nodes.used, s.entries.used, s.members.used = 0, 0, 0
	s.entries.open, s.members.open = s.entries.open[:0], s.members.open[:0]
}

func (s *nodeStock) new(n node) *node {
	out := &s.nodes.take(1)[0]
	*out = n
	return out
}

// pile is a stock of the values of mappings, or of lists. open has the values of those that are not finished; those of outer ones come first.
type pile[T any] struct {
	stock[T]
	open []T
}

// begin begins a mapping or list. It returns the index of its first value, which is passed to since and end. add adds a value to the innermost open
// one, since returns the values added so far, and end ends it and returns all of its values.
func (p *pile[T]) begin() (first int)  { return len(p.open) }
func (p *pile[T]) add(value T)         { p.open = append(p.open, value) }
func (p *pile[T]) since(first int) []T { return p.open[first:] }
func (p *pile[T]) end(first int) []T {
	out := p.take(len(p.open) - first)
	copy(out, p.open[first:])
	p.open = p.open[:first]
	return out
}

// stock allocates values of one type. All of them are freed together.
type stock[T any] struct {
	values []T
	used   int
}

// fewest is the number of values that a stock allocates first.
const fewest = 32

// take returns n values with undefined content.
func (s *stock[T]) take(n int) []T {
	if s.values == nil || s.used+n > len(s.values) {
		// Values that were taken keep their memory, which the stock drops.
		s.values, s.used = make([]T, max(fewest, n, 2*len(s.values))), 0
	}
	out := s.values[s.used : s.used+n : s.used+n]
	s.used += n
	return out
}

// The values of Problem.Reason, which do not change between versions.
const (
	ReasonSyntax             = "Syntax"             // not YAML or JSON
	ReasonEncoding           = "Encoding"           // not UTF-8, or control characters
	ReasonLimit              = "LimitExceeded"      // the file exceeds one of the Limits
	ReasonDuplicateKey       = "DuplicateKey"       // a key twice in one mapping
	ReasonUnknownField       = "UnknownField"       // the kind has no such field
	ReasonWrongType          = "WrongType"          // a value has the wrong type, such as a string instead of a number
	ReasonRequired           = "Required"           // kind, apiVersion or name is missing
	ReasonUnsupportedVersion = "UnsupportedVersion" // a served kind, in an API version that is not served
	ReasonNotServed          = "NotServed"          // warning: a kind that is not served here
	ReasonAmbiguous          = "AmbiguousText"      // warning: unquoted yes, no, on, off
	ReasonIgnoredField       = "IgnoredField"       // warning: a Kubernetes field that has no effect in svcctl
)

// Problem is something wrong in a file.
type Problem = object.Problem

// excerpt returns the beginning of a text from a file, quoted, for a message.
func excerpt(s string) string {
	const most = 40 // bytes; enough to recognize a value by
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strconv.Quote(s)
}

// ReasonHost is the Reason of problems with the host, not with an object or a file.
const ReasonHost = "Host"

// layout holds the positions of an object's fields, relative to its first line. Objects with the same layout of fields share it.
type layout struct {
	// packed has one entry, called a place, for each node in the order of the text; the places of inner nodes follow that of the outer node. A place
	// consists of four varints: the number of lines since the previous place, the column, the number of places in the node including its own, and one
	// of itemPlace, ownPlace and the numbers from firstName on. After ownPlace, the length and the text of the field name follow.
	packed unique.Handle[string]
}

// These are the values of the last number of a place in a layout. itemPlace stands for a list item. ownPlace stands for a field whose name follows,
// such as a label. The numbers from firstName on stand for the field names that structures returns: firstName plus the index of the name.
const (
	itemPlace = iota
	ownPlace
	firstName
)

// layoutOf returns the positions of the fields in a node. The position of a mapping entry is that of its key.
func layoutOf(root *node) layout { return new(layoutWriter).of(root) }

// of is like layoutOf, but reuses the memory of the previous call.
func (w *layoutWriter) of(root *node) layout {
	w.packed, w.line = w.packed[:0], root.line
	w.item(root)
	return layout{unique.Make(string(w.packed))}
}

type layoutWriter struct {
	packed []byte
	line   int // line of the previous place
}

func (w *layoutWriter) item(n *node) {
	w.place(n.line, n.column, placesIn(n))
	w.packed = binary.AppendUvarint(w.packed, itemPlace)
	w.inside(n)
}

func (w *layoutWriter) field(f *field) {
	w.place(f.line, f.column, placesIn(f.value))
	if i, ok := structures().places[f.key]; ok {
		w.packed = binary.AppendUvarint(w.packed, uint64(firstName+i))
	} else {
		w.packed = binary.AppendUvarint(w.packed, ownPlace)
		w.packed = binary.AppendUvarint(w.packed, uint64(len(f.key)))
		w.packed = append(w.packed, f.key...)
	}
	w.inside(f.value)
}

func (w *layoutWriter) place(line, column, size int) {
	w.packed = binary.AppendVarint(w.packed, int64(line-w.line)) // what an anchor stands for is further up
	w.packed = binary.AppendUvarint(w.packed, uint64(column))
	w.packed = binary.AppendUvarint(w.packed, uint64(size))
	w.line = line
}

// placesIn returns the number of places in a node, itself included. node.size is an upper
// bound of it.
func placesIn(n *node) int {
	places := 1
	for i := range n.fields {
		places += placesIn(n.fields[i].value)
	}
	for _, child := range n.items {
		places += placesIn(child)
	}
	return places
}

func (w *layoutWriter) inside(n *node) {
	for i := range n.fields {
		w.field(&n.fields[i])
	}
	for _, child := range n.items {
		w.item(child)
	}
}

// find returns the line and column of a field, or of its nearest ancestor in the layout. Lines count from 0, which is the first line of the object.
// find scans packed once and skips branches that do not contain the field.
func (l layout) find(field string) (line, column int) {
	packed, below := []byte(l.packed.Value()), 0
	number := func() uint64 {
		value, size := binary.Uvarint(packed)
		packed = packed[size:]
		return value
	}
	step, root := "", true
	index, skip := 0, 0 // of the next item of the list; places to pass over
	for left := 1; left > 0 && len(packed) > 0; left-- {
		down, size := binary.Varint(packed)
		packed = packed[size:]
		below += int(down)
		at, places, what := int(number()), int(number()), number()
		name := ""
		switch {
		case what == ownPlace:
			length := number()
			name, packed = string(packed[:length]), packed[length:]
		case what != itemPlace:
			name = structures().names[what-firstName]
		}
		if skip > 0 {
			skip--
			continue
		}
		found := root || name == step && what != itemPlace
		if what == itemPlace && !found {
			n, err := strconv.Atoi(step)
			found = err == nil && n == index
			index++
		}
		if !found {
			skip = places - 1
			continue
		}
		line, column, root = below, at, false
		if field == "" {
			break
		}
		step, field = cutStep(field)
		left, index = places, 0
	}
	return line, column
}
