package conntrack

import (
	"cmp"
	"net/netip"
	"slices"
)

// sources are the prefixes of the only clients that may connect, in order and none within
// another; nil: everybody may.
type sources []netip.Prefix

// sourcesOf takes nft.Frontend.Sources, in which prefixes may overlap, and keeps those of
// the family.
func sourcesOf(prefixes []netip.Prefix, is4 bool) sources {
	if prefixes == nil {
		return nil
	}
	all := make(sources, 0, len(prefixes))
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

// admit reports whether a client may connect. Of prefixes that do not overlap, only the last
// one that starts at or before an address can contain it.
func (s sources) admit(client netip.Addr) bool {
	if s == nil {
		return true
	}
	i, found := slices.BinarySearchFunc(s, client, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && s[i-1].Contains(client)
}

// equal reports whether the same clients may connect, in the same words.
func (s sources) equal(o sources) bool { return (s == nil) == (o == nil) && slices.Equal(s, o) }

// either admits whom one of both does.
func (s sources) either(o sources) sources {
	if s == nil || o == nil {
		return nil
	}
	if s.equal(o) {
		return s
	}
	is4 := len(s) > 0 && s[0].Addr().Is4() || len(o) > 0 && o[0].Addr().Is4()
	return sourcesOf(slices.Concat(s, o), is4)
}
