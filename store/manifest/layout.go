package manifest

import (
	"encoding/binary"
	"strconv"
	"unique"
)

// layout has the positions of the fields of one object, relative to its first line. Most manifests
// are written alike, and those that are share one.
type layout struct {
	// packed has a place for each node, in the order of the text, each followed by those
	// inside of it. A place is four numbers, as varints: lines below the one before, column,
	// how many places it and those inside of it are, and what it is; a name that is not
	// among fieldNames follows.
	packed unique.Handle[string]
}

// What a place is: an item of a list, a field of an own name (that of a label, for
// instance), or, from firstName on, one of fieldNames.
const (
	itemPlace = iota
	ownPlace
	firstName
)

// layoutOf records the places of a node's fields. Those of mapping entries are the
// keys', not the values'.
func layoutOf(root *node) layout { return new(layoutWriter).of(root) }

// of is layoutOf, and reuses the memory of its earlier call.
func (w *layoutWriter) of(root *node) layout {
	w.packed, w.line = w.packed[:0], root.line
	w.item(root)
	return layout{unique.Make(string(w.packed))}
}

// fieldNumbers are the places of fieldNames.
var fieldNumbers = func() map[string]int {
	numbers := make(map[string]int, len(fieldNames))
	for i, name := range fieldNames {
		numbers[name] = i
	}
	return numbers
}()

type layoutWriter struct {
	packed []byte
	line   int // of the place before
}

func (w *layoutWriter) item(n *node) {
	w.place(n.line, n.column, placesIn(n))
	w.packed = binary.AppendUvarint(w.packed, itemPlace)
	w.inside(n)
}

func (w *layoutWriter) field(f *field) {
	w.place(f.line, f.column, placesIn(f.value))
	if i, ok := fieldNumbers[f.key]; ok {
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

// placesIn counts the places of a node. Its size is no fewer, but more where something is
// wrong with it.
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

// place is the place of a field or an item, as a layout has it in packed form.
type place struct {
	line, column int // the line counts from the object's first one, which is 0
	size         int
	isItem       bool
	name         string
}

// places unpacks the places of all fields and items, in the order of the text.
func (l layout) places() (all []place) {
	packed, line := []byte(l.packed.Value()), 0
	number := func() int {
		value, n := binary.Uvarint(packed)
		packed = packed[n:]
		return int(value)
	}
	for len(packed) > 0 {
		below, n := binary.Varint(packed)
		packed = packed[n:]
		line += int(below)
		p := place{line: line, column: number(), size: number()}
		switch what := number(); what {
		case itemPlace:
			p.isItem = true
		case ownPlace:
			length := number()
			p.name, packed = string(packed[:length]), packed[length:]
		default:
			p.name = fieldNames[what-firstName]
		}
		all = append(all, p)
	}
	return all
}

// find is the place of a field, or of its nearest ancestor.
func (l layout) find(field string) (below, column int) {
	places := l.places()
	at := 0
	for field != "" {
		var first string
		first, field = cutStep(field)
		child := childOf(places, at, first)
		if child < 0 {
			break
		}
		at = child
	}
	return places[at].line, places[at].column
}

// childOf is the index of a place inside of another, or -1.
func childOf(places []place, at int, step string) int {
	index := 0
	for i := at + 1; i < at+places[at].size; i += places[i].size {
		if places[i].isItem {
			if n, err := strconv.Atoi(step); err == nil && n == index {
				return i
			}
			index++
		} else if places[i].name == step {
			return i
		}
	}
	return -1
}
