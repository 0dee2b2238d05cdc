package announce

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/announce/neighbor"
)

// placeAll makes the ports those of the links, and places every address.
func (a *announcer) placeAll(ctx context.Context) error {
	links := meant(a.segments.links, a.l2(), a.ranges)
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
		if err := a.segments.open(ctx, l, a.ranges); errors.Is(err, fs.ErrPermission) && len(a.cfg.L2) > 0 {
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
		a.judge()
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
	return nil
}

// place has an address announced where it is to be. What comes of that is told by the ports.
func (a *announcer) place(addr netip.Addr) {
	where, wanted := a.wanted[addr]
	wanted = wanted && a.onSegments()
	for _, p := range a.segments.ports {
		want := wanted && where.on(p.link.Name, a.cfg.L2) && onLink(addr, &p.link) && !hostAnswers(addr, &p.link, a.segments.links)
		switch {
		case want && !p.addrs[addr]:
			p.addrs[addr] = true
			p.Add(addr, a.segments.known[addr])
		case !want && p.addrs[addr]:
			delete(p.addrs, addr)
			p.Remove(addr)
		}
	}
	delete(a.segments.known, addr) // it is ours from now on, or was not: that is not asked again
}
