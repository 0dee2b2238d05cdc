package announce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
)

// syncSegments opens and closes ports as the links require, and places all addresses.
func (a *announcer) syncSegments(ctx context.Context) error {
	links := selectLinks(a.segments.links, a.l2(), a.answerable())
	var macs []neighbor.MAC
	mine, follows := map[string]bool{}, false
	for _, l := range a.segments.links {
		follows = follows || slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.cfg.Follow })
		if l.MAC != nil {
			mine[l.MAC.String()] = true
			macs = append(macs, neighbor.MAC(l.MAC))
		}
	}
	for index, p := range a.segments.ports {
		l, still := links[index]
		if !still || l.Name != p.link.Name || !slices.Equal(l.MAC, p.link.MAC) {
			a.segments.stop(index)
			continue
		}
		back := l.Carrier && !p.link.Carrier
		p.link = l
		p.SetMine(macs)
		if back {
			p.Refresh()
		}
	}
	maps.DeleteFunc(a.segments.wrong, func(index int, _ string) bool { _, still := links[index]; return !still })
	if a.cfg.Follow.IsValid() {
		a.setPassive(!follows)
	}
	for index, l := range links {
		if a.segments.ports[index] != nil || len(a.ranges) == 0 {
			continue
		}
		if err := a.segments.open(ctx, l, a.answerable()); errors.Is(err, fs.ErrPermission) && len(a.cfg.L2) > 0 {
			return err
		} else if err != nil {
			if a.segments.failed(&l, err) {
				a.reports.soon()
			}
			continue
		}
		a.reports.everything() // of addresses on it
		a.segments.ports[index].SetMine(macs)
		if a.election != nil || a.cfg.Follow.IsValid() {
			a.segments.ports[index].SetPassive(a.passive)
		}
	}
	if a.election != nil {
		a.evaluate()
		if err := a.election.setLinks(ctx, links, mine); err != nil {
			return err
		}
	}
	for _, p := range a.segments.ports {
		for addr := range p.addrs {
			if !a.isWanted(addr) {
				a.place(addr)
			}
		}
	}
	for addr := range a.wanted {
		a.place(addr)
	}
	for _, addr := range a.cfg.Gateways {
		a.place(addr)
	}
	return nil
}

// isGateway reports whether an address is one of Config.Gateways. They are answered as soon as serve has sent its
// ranges: its rules are in force then.
func (a *announcer) isGateway(addr netip.Addr) bool { return slices.Contains(a.cfg.Gateways, addr) }

// answerable returns the ranges of all addresses that may be answered.
func (a *announcer) answerable() []Range {
	if len(a.cfg.Gateways) == 0 || len(a.ranges) == 0 {
		return a.ranges
	}
	all := slices.Clone(a.ranges)
	for _, addr := range a.cfg.Gateways {
		all = append(all, Range{addr, addr})
	}
	return all
}

// advertised yields the addresses that adverts of the election list or summarize.
func (a *announcer) advertised() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for addr := range a.wanted {
			if !yield(addr) {
				return
			}
		}
		for _, addr := range a.cfg.Gateways {
			if !yield(addr) {
				return
			}
		}
	}
}

// gatewayProblems lists the gateways that no port answers for.
func (a *announcer) gatewayProblems() (problems []string) {
	if len(a.ranges) == 0 {
		return nil
	}
	for _, addr := range a.cfg.Gateways {
		answered := slices.ContainsFunc(slices.Collect(maps.Values(a.segments.ports)), func(p *port) bool { return p.addrs[addr] })
		onHost := slices.ContainsFunc(a.segments.links, func(l node.Link) bool {
			return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
		})
		switch {
		case answered:
		case onHost:
			problems = append(problems, fmt.Sprintf("the gateway %s does not move with the election: an interface of this box has it, and the kernel answers; take it off the interface", addr))
		default:
			problems = append(problems, fmt.Sprintf("the gateway %s is not answered: it lies in no network of the interfaces of --l2; name the interface, or give it an address of that network", addr))
		}
	}
	return problems
}

// place adds an address to the ports that should announce it, and removes it from others. Whether this box answers there
// is decided by the election, if there is one.
func (a *announcer) place(addr netip.Addr) {
	where, wanted := a.wanted[addr]
	if a.isGateway(addr) {
		where, wanted = ad{Flags: true}, len(a.ranges) > 0
	}
	wanted = wanted && (!a.drained || a.election != nil || a.cfg.Follow.IsValid())
	for _, p := range a.segments.ports {
		want := wanted && where.on(p.link.Name, a.cfg.L2) && onLink(addr, &p.link) && !hostAnswers(addr, &p.link, a.segments.links)
		switch {
		case want && !p.addrs[addr]:
			p.addrs[addr] = true
			p.Add(addr, a.segments.known[addr])
			if a.segments.known[addr] {
				a.segments.unreported[addr] = true
			}
		case !want && p.addrs[addr]:
			delete(p.addrs, addr)
			p.Remove(addr)
		}
	}
	if a.segments.links != nil || !wanted { // before, there is no port to place it on
		delete(a.segments.known, addr) // the next port probes it
	}
}

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
