package announce

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/neighbor"
	"svcctl.io/svcctl/appliance/node"
)

// reports sends the state of addresses to serve, one report at a time: what changed since the last one, or
// everything.
type reports struct {
	client *client.Client
	log    *slog.Logger
	tasks  *errgroup.Group

	connected bool // serve sent everything on this connection
	dirty     map[netip.Addr]struct{}
	all       bool // the next report has all addresses
	due       <-chan time.Time
	busy      bool                   // a report is under way
	made      chan error             // its result
	counted   wire.AnnouncerCounters // those of the last report
}

func newReports(serve *client.Client, log *slog.Logger, tasks *errgroup.Group) *reports {
	return &reports{client: serve, log: log, tasks: tasks, dirty: map[netip.Addr]struct{}{}, made: make(chan error, 1)}
}

// soon schedules a report.
func (r *reports) soon() { later(&r.due, reportPause) }

// add adds an address to the next report.
func (r *reports) add(addr netip.Addr) {
	r.dirty[addr] = struct{}{}
	r.soon()
}

// everything adds all addresses to the next report.
func (r *reports) everything() {
	r.all = true
	r.soon()
}

// send begins to send a report.
func (r *reports) send(ctx context.Context, report wire.AnnouncerReport) {
	r.dirty, r.all, r.busy, r.counted = map[netip.Addr]struct{}{}, false, true, report.Counters
	r.tasks.Go(func() error {
		err := r.client.ReportAnnouncements(ctx, report)
		select {
		case r.made <- err:
		case <-ctx.Done():
		}
		return nil
	})
}

// sent takes the result of a report. The next one has the changes since, or everything after a failure.
func (r *reports) sent(err error) {
	r.busy = false
	if err != nil {
		r.all = true // with the next connection
		if r.connected {
			r.log.Warn("svcctl serve does not take what became of its announcements", "err", err)
			later(&r.due, time.Second)
		}
		return
	}
	if r.all || len(r.dirty) > 0 {
		r.soon()
	}
}

// report sends a report to serve, if it is connected.
func (a *announcer) report(ctx context.Context) {
	if a.reports.busy || !a.reports.connected {
		return
	}
	election := a.election.problems()
	disputes := a.segments.disputes()
	if len(election) > 0 {
		disputes = nil // the election names the cause
	}
	r := wire.AnnouncerReport{
		All: a.reports.all, Items: []wire.AnnouncedAddress{},
		Problems: slices.Concat(missing(a.segments.links, a.l2()), a.segments.problems(), a.segments.silent(), disputes, election, a.segments.unanswered(a.master), a.gatewayProblems(), a.peers.problems()),
		Counters: a.segments.counters(), Peers: a.peers.states(), Group: a.election.group(),
	}
	for _, index := range slices.Sorted(maps.Keys(a.segments.ports)) {
		r.Segments = append(r.Segments, segmentText(&a.segments.ports[index].link))
	}
	addrs := maps.Keys(a.reports.dirty)
	if r.All {
		addrs = maps.Keys(a.wanted)
	}
	for addr := range addrs {
		r.Items = append(r.Items, wire.AnnouncedAddress{Address: addr.String(), Places: a.placesOf(addr)})
	}
	a.reports.send(ctx, r)
}

// segmentText returns "eth0 (192.0.2.1/24, 2001:db8::1/64)", without link-local networks.
func segmentText(l *node.Link) string {
	var networks []string
	for _, p := range l.Addresses {
		if !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() {
			networks = append(networks, p.String())
		}
	}
	return fmt.Sprintf("%s (%s)", l.Name, strings.Join(networks, ", "))
}

// placesOf returns the places where an address is announced, or should be.
func (a *announcer) placesOf(addr netip.Addr) []wire.Place {
	places := []wire.Place{}
	for _, index := range slices.Sorted(maps.Keys(a.segments.ports)) {
		p := a.segments.ports[index]
		by := "l2 " + p.link.Name
		if s, is := a.segments.states[addr][index]; is && p.addrs[addr] {
			place := wire.Place{By: by, State: s.State.String(), Since: s.Since.UTC()}
			if s.State == neighbor.Conflict {
				place.With = s.Rival.String()
			}
			if s.State == neighbor.Standby && a.master.IsValid() {
				place.With = a.master.String()
			}
			switch {
			case s.State == neighbor.Announced && !p.link.Carrier:
				place.State, place.Why = "down", "the interface has no carrier"
			case s.Contested:
				place.Why = "the host with the Ethernet address " + s.Rival.String() + " answers as well"
			}
			places = append(places, place)
		} else if a.isWanted(addr) && a.wanted[addr].on(p.link.Name, a.cfg.L2) && onLink(addr, &p.link) && hostAnswers(addr, &p.link, a.segments.links) {
			places = append(places, wire.Place{By: by, State: "host"})
		}
	}
	if a.isWanted(addr) {
		places = append(places, a.peers.statusesOf(addr)...)
	}
	return places
}

// The waits before the feed connects again: the first, and the longest.
const (
	reconnectFirst = 50 * time.Millisecond
	reconnectLast  = time.Second
)

// feed keeps a watch of serve's announcements, and passes on its events. A nil event means that the connection ended.
type feed struct {
	client *client.Client
	log    *slog.Logger
	events chan *wire.AnnouncementsEvent
}

func (f *feed) run(ctx context.Context) error {
	wait, connected, warned := reconnectFirst, false, false
	for ctx.Err() == nil {
		err := f.client.WatchAnnouncements(ctx, func(e wire.AnnouncementsEvent) error {
			if !connected {
				connected, warned, wait = true, false, reconnectFirst
				f.log.Info("connected to svcctl serve", "socket", f.client.Place())
			}
			return f.give(ctx, &e)
		})
		if ctx.Err() != nil {
			break
		}
		if connected || !warned {
			f.log.Warn("svcctl serve does not answer: the addresses that it sent last stay announced", "err", err)
			warned = true
		}
		if connected {
			connected = false
			_ = f.give(ctx, nil)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, reconnectLast)
	}
	return nil
}

func (f *feed) give(ctx context.Context, e *wire.AnnouncementsEvent) error {
	select {
	case f.events <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stale is the absence of serve after which another box should take over.
const stale = 30 * time.Second

// absence is the time without serve.
type absence struct {
	since time.Time        // zero: serve is connected, or was not yet
	late  <-chan time.Time // fires when it is too long
}

// isStale reports whether another box should take over for it.
func (s *absence) isStale() bool { return !s.since.IsZero() && time.Since(s.since) >= stale }
