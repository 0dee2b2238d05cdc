package manifest

// nodeStock allocates the nodes of a document. They are needed until it is decoded and no longer,
// so the next document reuses their memory.
type nodeStock struct {
	nodes   stock[node]
	entries stock[field]
	members stock[*node]
	// What belongs to the mappings and lists that are not finished, the outer ones first.
	openEntries []field
	openMembers []*node
}

// reset takes all nodes back.
func (s *nodeStock) reset() {
	s.nodes.used, s.entries.used, s.members.used = 0, 0, 0
	s.openEntries, s.openMembers = s.openEntries[:0], s.openMembers[:0]
}

// size is for how many nodes there is memory.
func (s *nodeStock) size() int { return len(s.nodes.values) }

func (s *nodeStock) new(n node) *node {
	out := &s.nodes.take(1)[0]
	*out = n
	return out
}

// openFields begins a mapping, whose fields follow with addField until closeFields gives
// them; fields are those so far. In between other mappings may begin and end.
func (s *nodeStock) openFields() (first int)  { return len(s.openEntries) }
func (s *nodeStock) addField(f field)         { s.openEntries = append(s.openEntries, f) }
func (s *nodeStock) fields(first int) []field { return s.openEntries[first:] }
func (s *nodeStock) closeFields(first int) []field {
	out := s.entries.take(len(s.openEntries) - first)
	copy(out, s.openEntries[first:])
	s.openEntries = s.openEntries[:first]
	return out
}

// openItems, addItem and closeItems are the same for lists.
func (s *nodeStock) openItems() (first int) { return len(s.openMembers) }
func (s *nodeStock) addItem(n *node)        { s.openMembers = append(s.openMembers, n) }
func (s *nodeStock) closeItems(first int) []*node {
	out := s.members.take(len(s.openMembers) - first)
	copy(out, s.openMembers[first:])
	s.openMembers = s.openMembers[:first]
	return out
}

// stock is memory for values of one type that are given back all at once.
type stock[T any] struct {
	values []T
	used   int
}

// fewest is the number of values that a stock begins with.
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
