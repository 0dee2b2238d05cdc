package announce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// BGP configures the sessions with routers.
type BGP struct {
	Peers []Peer
	// Attributes are those of every route.
	Attributes bgp.Attributes
	// BFD, when not nil, has every peer watched.
	BFD *bfd.Timers
	// BFDMinTTL is the least TTL of BFD packets of peers that are several hops away.
	BFDMinTTL int
}

// Peer is a router.
type Peer struct {
	Name string
	bgp.Peer
}

// leaveAtMost bounds how long a stop waits for the peers; leaving takes 3 s.
const leaveAtMost = 5 * time.Second

// peers are the sessions with all routers. Each has a goroutine of its own, so that nothing that the
// announcer is busy with delays what BFD finds. The methods are for the announcer's goroutine.
type peers struct {
	attributes *bgp.Attributes
	list       []*peering
	since      map[netip.Addr]time.Time // of the routes
	changed    chan struct{}            // capacity 1: a session has another state
	left       chan struct{}            // while they are left: closed when that is over

	damper  damper
	damped  map[netip.Addr]time.Time // wanted routes that wait, and until when
	ripe    <-chan time.Time         // when one of them is to be announced
	drained bool
	avoided <-chan time.Time // when routers that were asked to avoid our routes use others
}

// newPeers has a session for each peer, which begins with the routes to the wanted addresses: a graceful
// restart is over when the first ones were sent.
func newPeers(cfg *BGP, wanted map[netip.Addr]bool, drained bool, log *slog.Logger) (*peers, error) {
	ps := &peers{
		since: map[netip.Addr]time.Time{}, changed: make(chan struct{}, 1), damper: newDamper(), damped: map[netip.Addr]time.Time{}, drained: drained,
	}
	if cfg == nil {
		return ps, nil
	}
	ps.attributes = &cfg.Attributes
	routes := map[netip.Prefix]*bgp.Attributes{}
	for addr := range wanted {
		if !drained {
			routes[hostRoute(addr)] = ps.attributes
			ps.since[addr] = time.Now()
		}
	}
	hub := bfd.NewHub(log)
	for _, peer := range cfg.Peers {
		p := &peering{Peer: peer, hub: hub, timers: cfg.BFD, minTTL: cfg.BFDMinTTL, log: log, news: make(chan struct{}, 1), changed: ps.changed}
		var err error
		if p.speaker, err = bgp.New(peer.Peer, log, func() { signal(p.news) }); err == nil {
			err = p.speaker.Set(routes)
		}
		if err != nil {
			return nil, err
		}
		ps.list = append(ps.list, p)
	}
	ps.look()
	return ps, nil
}

// hostRoute is the prefix of an address alone.
func hostRoute(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// signal makes sure that the next receive from a channel of capacity 1 succeeds.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// start runs the sessions until ctx is done, or they are left.
func (ps *peers) start(ctx context.Context, tasks *errgroup.Group) {
	for _, p := range ps.list {
		tasks.Go(func() error { p.speaker.Run(ctx); return nil })
		tasks.Go(func() error { p.watch(ctx); return nil })
	}
}

// update follows addresses of which some are wanted now and the others are not. A route that was
// withdrawn a moment ago comes back later.
func (ps *peers) update(touched []netip.Addr, wanted map[netip.Addr]bool) {
	if len(ps.list) == 0 || len(touched) == 0 {
		return
	}
	now := time.Now()
	announce, withdraw := map[netip.Prefix]*bgp.Attributes{}, []netip.Prefix{}
	for _, addr := range touched {
		_, is := ps.since[addr]
		switch back := ps.damper.notBefore(addr); {
		case !wanted[addr]:
			delete(ps.damped, addr)
			if is {
				delete(ps.since, addr)
				ps.damper.withdrawn(addr, now)
			}
			withdraw = append(withdraw, hostRoute(addr))
		case ps.drained || is:
		case now.Before(back):
			ps.damped[addr] = back
		default:
			announce[hostRoute(addr)] = ps.attributes
			ps.since[addr] = now
		}
	}
	ps.wait(now)
	for _, p := range ps.list {
		_ = p.speaker.Update(announce, withdraw) // the attributes are those that Set took
	}
}

// wait starts the timer of the damped route that is first to be announced.
func (ps *peers) wait(now time.Time) {
	ps.ripe = nil
	var first time.Time
	for _, at := range ps.damped {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if !first.IsZero() {
		ps.ripe = time.After(first.Sub(now))
	}
}

// ripen announces the damped routes whose time has come, and returns their addresses.
func (ps *peers) ripen(now time.Time, wanted map[netip.Addr]bool) (ripe []netip.Addr) {
	for addr, at := range ps.damped {
		if !now.Before(at) {
			delete(ps.damped, addr)
			ripe = append(ripe, addr)
		}
	}
	ps.update(ripe, wanted)
	ps.wait(now)
	return ripe
}

// avoidance is for how long routers may look for other paths before routes are withdrawn.
const avoidance = 2 * time.Second

// setDrained asks all routers to prefer other paths (community GRACEFUL_SHUTDOWN, RFC 8326), after which withdrawAll is
// to be called, or announces all wanted addresses again.
func (ps *peers) setDrained(drained bool, wanted map[netip.Addr]bool) {
	ps.drained, ps.avoided = drained, nil
	if len(ps.list) == 0 {
		return
	}
	routes := map[netip.Prefix]*bgp.Attributes{}
	if drained {
		leaving := ps.attributes.Leaving()
		for addr := range ps.since {
			routes[hostRoute(addr)] = leaving
		}
		clear(ps.damped)
		ps.ripe, ps.avoided = nil, time.After(avoidance)
	} else {
		for addr := range wanted {
			routes[hostRoute(addr)] = ps.attributes
			ps.since[addr] = time.Now()
		}
	}
	for _, p := range ps.list {
		_ = p.speaker.Set(routes) // the attributes are those that Set took, and a community
	}
}

// withdrawAll has no router lead to this box any more; the sessions stay.
func (ps *peers) withdrawAll() {
	ps.avoided = nil
	clear(ps.since)
	for _, p := range ps.list {
		_ = p.speaker.Set(nil)
	}
}

// leave begins to ask every peer to prefer other paths and to forget ours; left is closed when they did.
func (ps *peers) leave(ctx context.Context) {
	if len(ps.list) == 0 {
		return
	}
	left := make(chan struct{})
	ps.left = left
	go func() {
		defer close(left)
		ctx, cancel := context.WithTimeout(ctx, leaveAtMost)
		defer cancel()
		var all errgroup.Group
		for _, p := range ps.list {
			all.Go(func() error { return p.speaker.Leave(ctx) })
		}
		_ = all.Wait() // a peer that does not take our words notices the end
	}()
}

// look notes the sessions' states, and reports whether what becomes of addresses is another with any.
func (ps *peers) look() (others bool) {
	for _, p := range ps.list {
		p.state = p.speaker.State()
		now := summary{p.state.Phase == bgp.Established, p.state.Counters.Established, p.summary.sent, p.state.CannotIPv4, p.state.CannotIPv6}
		if !now.established || now.sessions != p.summary.sessions {
			now.sent = false
		}
		now.sent = now.established && (now.sent || !p.state.Pending)
		others = others || now != p.summary
		p.summary = now
	}
	return others
}

// placesOf gives the state of a wanted address with each peer.
func (ps *peers) placesOf(addr netip.Addr) []wire.Place {
	var places []wire.Place
	for _, p := range ps.list {
		place := wire.Place{By: "bgp " + p.Name, State: "announced", Since: p.state.Since.UTC()}
		if since := ps.since[addr]; since.After(p.state.Since) {
			place.Since = since.UTC()
		}
		cannot := p.state.CannotIPv4
		if addr.Is6() {
			cannot = p.state.CannotIPv6
		}
		_, isRoute := ps.since[addr]
		switch at, damped := ps.damped[addr]; {
		case ps.drained && isRoute:
			place.State = "leaving"
		case ps.drained:
			place.State = "drained"
		case !p.summary.established:
			place.State = "down"
		case damped:
			place.State, place.Why = "damped", "it came and went, and is announced again at "+at.UTC().Format(time.RFC3339)
		case cannot != "":
			place.State, place.Why = "unsent", cannot
		case !p.summary.sent:
			place.State = "sending"
		}
		places = append(places, place)
	}
	return places
}

// states are all peers, for serve.
func (ps *peers) states() []wire.Peer {
	var all []wire.Peer
	for _, p := range ps.list {
		all = append(all, wire.Peer{
			Name: p.Name, At: p.Peer.String(), AS: max(p.RemoteAS, p.state.Agreed.RemoteAS), State: string(p.state.Phase), Since: p.state.Since.UTC(),
			Routes: p.state.Routes, Updates: p.state.Counters.Updates, LastDown: p.state.LastDown, DownAt: p.state.DownAt.UTC(), BFD: p.bfdState().phase,
		})
	}
	return all
}

// problems says why BFD does not run, for each peer where it should.
func (ps *peers) problems() (all []string) {
	for _, p := range ps.list {
		if words := p.bfdState().problem; words != "" {
			all = append(all, fmt.Sprintf("BFD does not watch the peer %s: %s", p.Name, words))
		}
	}
	return all
}
