package fake

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
)

// reference is a set, chain or counter that a rule refers to.
type reference struct {
	name    string
	chain   bool // a chain, not a set
	counter bool // a counter
}

// isIn reports whether a table has what is referred to.
func (r reference) isIn(t *nft.Table) bool {
	switch {
	case r.chain:
		return t.Chains[r.name] != nil
	case r.counter:
		return slices.Contains(t.Counters, r.name)
	}
	return t.Sets[r.name] != nil
}

func references(r nft.Rule) []reference {
	var refs []reference
	for _, s := range r {
		switch s := s.(type) {
		case nft.MatchSet:
			refs = append(refs, reference{name: s.Set})
		case nft.VerdictMap:
			refs = append(refs, reference{name: s.Map})
		case nft.Counter:
			refs = append(refs, reference{name: s.Name, counter: true})
		case nft.DNAT:
			refs = append(refs, reference{name: s.Map})
		case nft.Update:
			refs = append(refs, reference{name: s.Map})
		case nft.Verdict:
			if s.Chain != "" {
				refs = append(refs, reference{name: s.Chain, chain: true})
			}
		}
	}
	return refs
}

// target returns the chain in the data of a verdict map.
func target(data string) (chain string, ok bool) {
	for _, word := range []string{"goto ", "jump "} {
		if chain, ok = strings.CutPrefix(data, word); ok {
			return chain, true
		}
	}
	return "", false
}

func isVerdictMap(s *nft.SetContent) bool { return slices.Equal(s.Data, []nft.Type{nft.TypeVerdict}) }

// userOf names a user of a set or chain, "" if there is none.
func userOf(t *nft.Table, ref reference) string {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if slices.Contains(references(r), ref) {
				return "a rule of chain " + c.Name
			}
		}
	}
	if !ref.chain {
		return ""
	}
	for _, s := range t.Sets {
		if !isVerdictMap(s) {
			continue
		}
		for _, data := range s.Elements {
			if chain, ok := target(data); ok && chain == ref.name {
				return "an element of map " + s.Name
			}
		}
	}
	return ""
}
