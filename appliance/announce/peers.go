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
}

// newPeers has a session for each peer, which begins with the routes to the wanted addresses: a graceful
// restart is over when the first ones were sent.
func newPeers(cfg *BGP, wanted map[netip.Addr]bool, log *slog.Logger) (*peers, error) {
	ps := &peers{since: map[netip.Addr]time.Time{}, changed: make(chan struct{}, 1)}
	if cfg == nil {
		return ps, nil
	}
	ps.attributes = &cfg.Attributes
	routes := map[netip.Prefix]*bgp.Attributes{}
	for addr := range wanted {
		routes[hostRoute(addr)] = ps.attributes
		ps.since[addr] = time.Now()
	}
	hub := bfd.NewHub(log)
	for _, peer := range cfg.Peers {
		p := &peering{Peer: peer, hub: hub, timers: cfg.BFD, log: log, news: make(chan struct{}, 1), changed: ps.changed}
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

// update follows addresses of which some are wanted now and the others are not.
func (ps *peers) update(touched []netip.Addr, wanted map[netip.Addr]bool) {
	if len(ps.list) == 0 || len(touched) == 0 {
		return
	}
	announce, withdraw := map[netip.Prefix]*bgp.Attributes{}, []netip.Prefix{}
	for _, addr := range touched {
		if wanted[addr] {
			announce[hostRoute(addr)] = ps.attributes
			ps.since[addr] = time.Now()
		} else {
			withdraw = append(withdraw, hostRoute(addr))
			delete(ps.since, addr)
		}
	}
	for _, p := range ps.list {
		_ = p.speaker.Update(announce, withdraw) // the attributes are those that Set took
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
		switch {
		case !p.summary.established:
			place.State = "down"
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
			Routes: p.state.Routes, LastDown: p.state.LastDown, DownAt: p.state.DownAt.UTC(), BFD: p.bfdState().phase,
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
