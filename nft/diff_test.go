package nft

// Diff returns the transition from one ruleset to another. A table that cannot be changed into the wanted one, because a set or
// a base chain is defined otherwise, is replaced as a whole in the same transaction.
func Diff(have, want Ruleset) Transition {
	var tr Transition
	for _, f := range Families {
		diffTable(f, have[f], want[f].content(), &tr)
	}
	return tr
}

func (t *Table) content() *content {
	if t == nil {
		return nil
	}
	c := &content{sets: map[string]Set{}, chains: t.Chains, timeouts: t.Timeouts, counters: t.Counters, counts: map[string]int{}}
	for name, s := range t.Sets {
		c.sets[name], c.counts[name] = s.Set, len(s.Elements)
	}
	c.elements = func(yield func(string, Element) bool) {
		for name, s := range t.Sets {
			for key, data := range s.Elements {
				if !s.Dynamic && !yield(name, Element{key, data}) {
					return
				}
			}
		}
	}
	return c
}
