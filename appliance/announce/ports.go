package announce

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
)

// placeAll makes the ports those of the links, and places every address.
func (a *announcer) placeAll(ctx context.Context) error {
	links := meant(a.links, a.cfg.L2, a.ranges)
	var macs []neighbor.MAC
	mine, follows := map[string]bool{}, false
	for _, l := range a.links {
		follows = follows || slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.cfg.Follow })
		if l.MAC != nil {
			mine[l.MAC.String()] = true
			macs = append(macs, neighbor.MAC(l.MAC))
		}
	}
	for index, p := range a.ports {
		l, still := links[index]
		if !still || l.Name != p.link.Name || !slices.Equal(l.MAC, p.link.MAC) {
			a.stop(index)
			continue
		}
		back := l.Carrier && !p.link.Carrier
		p.link = l
		p.SetMine(macs)
		if back {
			p.Refresh()
		}
	}
	if a.cfg.Follow.IsValid() {
		a.setPassive(!follows)
	}
	for index, l := range links {
		if a.ports[index] != nil || len(a.ranges) == 0 {
			continue
		}
		if err := a.open(ctx, l); errors.Is(err, fs.ErrPermission) {
			return err
		} else if err != nil {
			a.log.Warn("nothing is announced on an interface for now", "interface", l.Name, "err", err)
			a.later(&a.retry, retryPorts)
			continue
		}
		a.ports[index].SetMine(macs)
		if a.election != nil || a.cfg.Follow.IsValid() {
			a.ports[index].SetPassive(a.passive)
		}
	}
	if a.election != nil {
		a.judge()
		if err := a.election.setLinks(ctx, links, mine); err != nil {
			return err
		}
	}
	for _, p := range a.ports {
		for addr := range p.addrs {
			if !a.wanted[addr] {
				a.place(addr)
			}
		}
	}
	for addr := range a.wanted {
		a.place(addr)
	}
	return nil
}

// open starts to announce on a link.
func (a *announcer) open(ctx context.Context, l node.Link) error {
	prefixes := make([]netip.Prefix, 0, len(a.ranges))
	for _, r := range a.ranges {
		prefixes = append(prefixes, r.prefix())
	}
	p := &port{link: l, addrs: map[netip.Addr]bool{}, mark: make(chan struct{}, 1)}
	var err error
	p.Port, err = neighbor.Open(&net.Interface{Index: l.Index, Name: l.Name, HardwareAddr: l.MAC}, prefixes, a.log, func() {
		select {
		case p.mark <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	ctx, p.stop = context.WithCancel(ctx)
	a.ports[l.Index] = p
	a.tasks.Go(func() error {
		err := p.Run(ctx)
		p.Close()
		select {
		case a.ended <- ended{l.Index, p, err}:
		case <-ctx.Done():
		}
		return nil
	})
	a.tasks.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-p.mark:
			}
			select {
			case <-ctx.Done():
				return nil
			case a.changed <- l.Index:
			}
		}
	})
	a.log.Info("announcing on an interface", "interface", l.Name, "mac", l.MAC)
	return nil
}

// stop ends a port; what it announced is forgotten.
func (a *announcer) stop(index int) {
	p := a.ports[index]
	c := p.Counters()
	a.past.Answers, a.past.Announcements, a.past.Conflicts = a.past.Answers+c.Answers, a.past.Announcements+c.Announcements, a.past.Conflicts+c.Conflicts
	delete(a.ports, index)
	p.stop()
	for addr := range p.addrs {
		delete(a.states[addr], index)
		a.mark(addr)
	}
}

func (a *announcer) stopAll() {
	for index := range a.ports {
		a.stop(index)
	}
}

// keepKnown has what is announced be announced by other ports without asking first.
func (a *announcer) keepKnown() {
	for addr, at := range a.states {
		for _, s := range at {
			if s.State == neighbor.Announced {
				a.known[addr] = true
			}
		}
	}
}

// gone is called for a port that ended by itself.
func (a *announcer) gone(end ended) {
	if a.ports[end.index] == end.p {
		a.log.Warn("nothing is announced on an interface any more", "interface", end.p.link.Name, "err", end.err)
		a.stop(end.index)
		a.later(&a.retry, retryPorts)
	}
}

// place has an address announced where it is to be.
func (a *announcer) place(addr netip.Addr) {
	for _, p := range a.ports {
		want := a.wanted[addr] && onLink(addr, &p.link)
		host := want && hostAnswers(addr, &p.link, a.links)
		switch {
		case want && !host && !p.addrs[addr]:
			p.addrs[addr] = true
			p.Add(addr, a.known[addr])
		case (!want || host) && p.addrs[addr]:
			delete(p.addrs, addr)
			p.Remove(addr)
		}
	}
	delete(a.known, addr) // it is ours from now on, or was not: that is not asked again
	a.mark(addr)
}
