package manifest

import (
	"math"
	"slices"
	"strconv"
)

// positions is where the fields of one object are: its nodes in the order of the
// text, each followed by its children, in 12 bytes each. The nodes themselves are ten
// times as large and are not kept.
type positions struct {
	entries []position
	// keys are the names that fieldNames does not have: keys of labels and the like.
	keys []string
}

type position struct {
	line   uint32
	column uint16
	// name is an index into fieldNames, then into keys; or item, or lost.
	name uint16
	// next is the index of the next entry that is not inside of this one.
	next uint32
}

const (
	item = math.MaxUint16     // an item of a list
	lost = math.MaxUint16 - 1 // a key beyond the 65,000th
)

// positionsOf records the places of a node's fields. Those of mapping entries are the
// keys', not the values'.
func positionsOf(root *node) *positions {
	p := &positions{entries: make([]position, 0, root.size)}
	p.record(root, root.line, root.column, item)
	return p
}

func (p *positions) record(n *node, line, column int, name uint16) {
	at := len(p.entries)
	p.entries = append(p.entries, position{line: uint32(line), column: uint16(min(column, math.MaxUint16)), name: name})
	for _, f := range n.fields {
		p.record(f.value, f.line, f.column, p.nameOf(f.key))
	}
	for _, child := range n.items {
		p.record(child, child.line, child.column, item)
	}
	p.entries[at].next = uint32(len(p.entries))
}

func (p *positions) nameOf(key string) uint16 {
	if i, ok := slices.BinarySearch(fieldNames, key); ok {
		return uint16(i)
	}
	if len(fieldNames)+len(p.keys) >= lost {
		return lost
	}
	p.keys = append(p.keys, key)
	return uint16(len(fieldNames) + len(p.keys) - 1)
}

func (p *positions) is(name uint16, key string) bool {
	switch {
	case name >= lost:
		return false
	case int(name) < len(fieldNames):
		return fieldNames[name] == key
	default:
		return p.keys[int(name)-len(fieldNames)] == key
	}
}

// find is the place of a field, or of its nearest ancestor.
func (p *positions) find(field string) (line, column int) {
	at := 0
	for field != "" {
		var first string
		first, field = cutStep(field)
		child := p.child(at, first)
		if child < 0 {
			break
		}
		at = child
	}
	return int(p.entries[at].line), int(p.entries[at].column)
}

func (p *positions) child(at int, step string) int {
	index := 0
	for i := at + 1; i < int(p.entries[at].next); i = int(p.entries[i].next) {
		if p.entries[i].name == item {
			if n, err := strconv.Atoi(step); err == nil && n == index {
				return i
			}
			index++
		} else if p.is(p.entries[i].name, step) {
			return i
		}
	}
	return -1
}
