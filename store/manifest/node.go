package manifest

import "fmt"

// kind is the type of a node, in the words of JSON.
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

// A node is a value of a document after anchors, merge keys and tags are resolved:
// what YAML and JSON have in common. Lines and columns count from 1.
type node struct {
	kind kind
	// oldBool marks an unquoted yes, no, on, off, y or n: text to YAML 1.2, a bool to
	// YAML 1.1 and so to kubectl.
	oldBool      bool
	line, column int
	// size is the number of nodes in this value, itself included; height how many
	// mappings and lists are inside each other in it.
	size, height int

	text   string // scalars: as written, without quotes
	fields []field
	items  []*node
}

// A field is one entry of a mapping; keys are unique and in the order of the text.
type field struct {
	key          string
	line, column int
	value        *node
}

// contain counts a child in.
func (n *node) contain(child *node) {
	n.size += child.size
	n.height = max(n.height, child.height+1)
}

// get is the value of a key, or nil.
func (n *node) get(key string) *node {
	for i := range n.fields {
		if n.fields[i].key == key {
			return n.fields[i].value
		}
	}
	return nil
}

// what describes the node for "expected ..., got ...".
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

// A flaw is a mistake found while nodes are built; the document is not used, or, as a
// warning, is.
type flaw struct {
	line, column int
	path         path
	reason       string
	message      string
	warning      bool
}

// A refusal ends the reading of a file.
type refusal struct {
	line, column int
	reason       string
	message      string
}

func (r *refusal) Error() string { return r.message }

func refuse(line, column int, reason, format string, args ...any) *refusal {
	return &refusal{line: line, column: column, reason: reason, message: fmt.Sprintf(format, args...)}
}

// keySet finds duplicate keys of one mapping. Most mappings have a handful of keys,
// where looking through them is cheaper than a hash.
type keySet struct{ index map[string]int }

// fewKeys is the number of keys above which a hash is faster.
const fewKeys = 24

// find returns the place of key among fields, or -1. Call it before each append.
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
