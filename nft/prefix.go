package nft

import (
	"cmp"
	"net/netip"
	"slices"
)

// mergePrefixes is mergeRanges of prefixes.
func mergePrefixes(prefixes []netip.Prefix, f Family) []Range {
	ranges := make([]Range, 0, len(prefixes))
	for _, p := range prefixes {
		first, last := PrefixRange(p)
		ranges = append(ranges, Range{first, last})
	}
	return mergeRanges(ranges, f)
}

// mergeRanges is the ranges of a family in order, without overlaps and without neighbors
// that touch: the kernel refuses overlapping ranges.
func mergeRanges(all []Range, f Family) []Range {
	ranges := slices.DeleteFunc(slices.Clone(all), func(r Range) bool { return FamilyOf(r.First) != f })
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 {
			prev := &merged[n-1]
			if next := prev.Last.Next(); !next.IsValid() || r.First.Compare(next) <= 0 {
				if r.Last.Compare(prev.Last) > 0 {
					prev.Last = r.Last
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
		if FamilyOf(p.Addr()) == f {
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

// PrefixRange is the first and the last address of a prefix: the two ends of its
// element in an interval set.
func PrefixRange(p netip.Prefix) (first, last netip.Addr) {
	first = p.Masked().Addr()
	end := first.AsSlice()
	for i := p.Bits(); i < len(end)*8; i++ {
		end[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(end)
	return first, last
}

// Range is a range of addresses of one family; both ends belong to it.
type Range struct{ First, Last netip.Addr }

// Contains reports whether an address lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}
