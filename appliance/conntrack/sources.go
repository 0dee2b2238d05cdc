package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// sources decide which clients may connect: those that one of them admits; nil: all.
type sources []admission

// admission has the clients that may connect to a frontend, as nft.Frontend has them.
type admission struct {
	// ranges are in order and none within another; ranged reports that there are any in one of
	// the families, so that other clients may not connect.
	ranges      []netip.Prefix
	ranged      bool
	allow, deny []*nft.SourceSet
}

// sourcesOf returns the clients that may connect to a frontend; nil: all.
func sourcesOf(fe *nft.Frontend, is4 bool) sources {
	if fe.Sources == nil && fe.Sets == nil {
		return nil
	}
	a := admission{ranges: tidyPrefixes(fe.Sources, is4), ranged: fe.Sources != nil}
	if fe.Sets != nil {
		a.allow, a.deny = fe.Sets.Allow, fe.Sets.Deny
	}
	return sources{a}
}

// tidyPrefixes keeps the prefixes of a family that lie in no other one, in order.
func tidyPrefixes(prefixes []netip.Prefix, is4 bool) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			all = append(all, p.Masked())
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := all[:0]
	for _, p := range all {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// admit reports whether a client may connect.
func (s sources) admit(client netip.Addr) bool {
	return s == nil || slices.ContainsFunc(s, func(a admission) bool { return a.admit(client) })
}

func (a *admission) admit(client netip.Addr) bool {
	has := func(s *nft.SourceSet) bool { return s.Contains(client) }
	switch {
	case slices.ContainsFunc(a.deny, has):
		return false
	case !a.ranged && len(a.allow) == 0, slices.ContainsFunc(a.allow, has):
		return true
	}
	// Of prefixes that do not overlap, only the last one that starts at or before an address can
	// contain it.
	i, found := slices.BinarySearchFunc(a.ranges, client, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && a.ranges[i-1].Contains(client)
}

// equal reports whether the same clients may connect, in the same words.
func (s sources) equal(o sources) bool {
	return (s == nil) == (o == nil) && slices.EqualFunc(s, o, func(a, b admission) bool {
		return a.ranged == b.ranged && slices.Equal(a.ranges, b.ranges) && slices.Equal(a.allow, b.allow) && slices.Equal(a.deny, b.deny)
	})
}

// mergeSources returns sources that admit the clients of both.
func (s sources) mergeSources(o sources) sources {
	if s == nil || o == nil {
		return nil
	}
	if s.equal(o) {
		return s
	}
	return slices.Concat(s, o)
}
