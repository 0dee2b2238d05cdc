package nft

import (
	"cmp"
	"net/netip"
	"slices"
)

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// addrRange is a range of addresses, both ends inclusive.
type addrRange struct{ first, last netip.Addr }

// mergePrefixes is the prefixes of a family as ranges, in order, without overlaps
// and without neighbors that touch: the kernel refuses overlapping ranges.
func mergePrefixes(prefixes []netip.Prefix, f Family) []addrRange {
	var ranges []addrRange
	for _, p := range prefixes {
		if familyOf(p.Addr()) == f {
			first, last := prefixRange(p)
			ranges = append(ranges, addrRange{first, last})
		}
	}
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 {
			prev := &merged[n-1]
			if next := prev.last.Next(); !next.IsValid() || r.first.Compare(next) <= 0 {
				if r.last.Compare(prev.last) > 0 {
					prev.last = r.last
				}
				continue
			}
		}
		merged = append(merged, r)
	}
	return merged
}

// mergedPrefixes is the prefixes of a family in order, without those that lie in another.
func mergedPrefixes(prefixes []netip.Prefix, f Family) []netip.Prefix {
	var merged []netip.Prefix
	for _, p := range prefixes {
		if familyOf(p.Addr()) == f {
			merged = append(merged, p.Masked())
		}
	}
	// One that holds others comes before them.
	slices.SortFunc(merged, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := merged[:0]
	for _, p := range merged {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// prefixRange is the first and the last address of a prefix.
func prefixRange(p netip.Prefix) (first, last netip.Addr) {
	p = p.Masked()
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(bytes)
	return p.Addr(), last
}
