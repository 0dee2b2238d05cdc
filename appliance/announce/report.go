package announce

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/neighbor"
)

// counters are those of all ports.
func (a *announcer) counters() wire.AnnouncerCounters {
	sum := a.past
	for _, p := range a.ports {
		c := p.Counters()
		sum.Answers, sum.Announcements, sum.Conflicts = sum.Answers+c.Answers, sum.Announcements+c.Announcements, sum.Conflicts+c.Conflicts
	}
	return sum
}

// tell reports to serve, if it is there; one report at a time.
func (a *announcer) tell(ctx context.Context) {
	if a.busy || !a.fresh {
		return
	}
	r := wire.AnnouncerReport{
		All: a.all, Items: []wire.AnnouncedAddress{}, Problems: append(missing(a.links, a.cfg.L2), a.peers.problems()...),
		Counters: a.counters(), Peers: a.peers.states(),
	}
	addrs := a.dirty
	if a.all {
		addrs = map[netip.Addr]struct{}{}
		for addr := range a.wanted {
			addrs[addr] = struct{}{}
		}
	}
	for addr := range addrs {
		r.Items = append(r.Items, wire.AnnouncedAddress{Address: addr.String(), Places: a.placesOf(addr)})
	}
	a.dirty, a.all, a.busy, a.counted = map[netip.Addr]struct{}{}, false, true, r.Counters
	a.tasks.Go(func() error {
		err := a.client.ReportAnnouncements(ctx, r)
		select {
		case a.reported <- err:
		case <-ctx.Done():
		}
		return nil
	})
}

// told goes on after a report: with what changed meanwhile, or with everything after a failure.
func (a *announcer) told(err error) {
	a.busy = false
	if err != nil {
		a.all = true // with the next connection
		if a.fresh {
			a.log.Warn("svcctl serve does not take what became of its announcements", "err", err)
			a.later(&a.report, time.Second)
		}
		return
	}
	if a.all || len(a.dirty) > 0 {
		a.later(&a.report, reportPause)
	}
}

// placesOf are the places where an address is announced, or should be.
func (a *announcer) placesOf(addr netip.Addr) []wire.Place {
	places := []wire.Place{}
	for _, index := range slices.Sorted(maps.Keys(a.ports)) {
		p := a.ports[index]
		by := "l2 " + p.link.Name
		if s, is := a.states[addr][index]; is && p.addrs[addr] {
			place := wire.Place{By: by, State: s.State.String(), Since: s.Since.UTC()}
			if s.State == neighbor.Conflict {
				place.With = s.Rival.String()
			}
			if s.State == neighbor.Standby && a.master.IsValid() {
				place.With = a.master.String()
			}
			places = append(places, place)
		} else if a.wanted[addr] && onLink(addr, &p.link) && hostAnswers(addr, &p.link, a.links) {
			places = append(places, wire.Place{By: by, State: "host"})
		}
	}
	if a.wanted[addr] {
		places = append(places, a.peers.placesOf(addr)...)
	}
	return places
}
