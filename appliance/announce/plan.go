package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/node"
)

// Auto stands for all links, in Config.L2.
const Auto = "auto"

// Range is a range of addresses; both ends belong to it.
type Range struct{ First, Last netip.Addr }

// parseRange reads "192.0.2.16-192.0.2.31".
func parseRange(text string) (r Range, err error) {
	first, last, _ := strings.Cut(text, "-")
	if r.First, err = netip.ParseAddr(first); err == nil {
		r.Last, err = netip.ParseAddr(last)
	}
	if err == nil && (r.First.BitLen() != r.Last.BitLen() || r.Last.Less(r.First)) {
		err = fmt.Errorf("%q is no range", text)
	}
	return r, err
}

func (r Range) contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// prefix returns the longest prefix that contains the range.
func (r Range) prefix() netip.Prefix {
	for bits := r.First.BitLen(); ; bits-- {
		if p := netip.PrefixFrom(r.First, bits).Masked(); p.Contains(r.Last) {
			return p
		}
	}
}

// selectLinks returns the links to announce on: those that are named, or all that are Ethernet and have an
// address of the ranges in one of their networks.
func selectLinks(links []node.Link, l2 []string, ranges []Range) map[int]node.Link {
	all := map[int]node.Link{}
	for _, l := range links {
		if l.MAC != nil && (slices.Contains(l2, l.Name) || slices.Contains(l2, Auto) && slices.ContainsFunc(ranges, func(r Range) bool { return r.overlaps(&l) })) {
			all[l.Index] = l
		}
	}
	return all
}

// overlaps reports whether an address of the range lies in a network of a link.
func (r Range) overlaps(l *node.Link) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool {
		return !p.IsSingleIP() && (p.Contains(r.First) || p.Contains(r.Last) || r.contains(p.Addr()))
	})
}

// missing lists configured interfaces that do not exist or cannot be used.
func missing(links []node.Link, l2 []string) (problems []string) {
	for _, name := range l2 {
		i := slices.IndexFunc(links, func(l node.Link) bool { return l.Name == name })
		switch {
		case name == Auto:
		case i < 0:
			problems = append(problems, fmt.Sprintf("nothing is announced on %s: there is no such interface, or it is down%s; it is used as soon as it is up: bring it up, or name another one with --l2 or in the L2Advertisement", name, thatAreUp(links)))
		case links[i].MAC == nil:
			problems = append(problems, fmt.Sprintf("nothing is announced on %s: it is no Ethernet; name another interface with --l2 or in the L2Advertisement", name))
		}
	}
	return problems
}

// thatAreUp lists the interfaces that can be announced on, for the end of a sentence.
func thatAreUp(links []node.Link) string {
	var names []string
	for _, l := range links {
		if l.MAC != nil {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (up are " + strings.Join(names, ", ") + ")"
}

// onLink reports whether the neighbors on a link ask for an address there: it lies in one of the link's
// networks, and is not the address of the network itself or, in IPv4, its broadcast address.
func onLink(a netip.Addr, l *node.Link) bool {
	return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool {
		if !p.Contains(a) || p.IsSingleIP() || p.Addr().IsLinkLocalUnicast() {
			return false
		}
		if a.BitLen()-p.Bits() < 2 { // RFC 3021, RFC 6164
			return true
		}
		network := p.Masked()
		last := a.Is4() && !network.Contains(a.Next())
		return a != network.Addr() && !last
	})
}

// hostAnswers reports whether the host answers for an address on a link itself: because the link has it,
// or, in IPv4, any link (arp_ignore is 0 by default).
func hostAnswers(a netip.Addr, on *node.Link, links []node.Link) bool {
	for i := range links {
		if l := &links[i]; a.Is4() || l.Index == on.Index {
			if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
				return true
			}
		}
	}
	return false
}
