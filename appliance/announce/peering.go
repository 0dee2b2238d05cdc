package announce

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// bfdSettles is the time for which BFD must be Up during a BGP session before it can end that: some routers
// restart BFD when the BGP session comes up.
const bfdSettles = time.Second

// peering is the BGP session with a router, and its BFD session.
type peering struct {
	Peer
	speaker *bgp.Speaker
	hub     *bfd.Hub
	bfd     *bfd.Config // without addresses; nil: no BFD
	config  *wire.PeerConfig
	started bool
	stop    func() // ends a session that was started
	log     *slog.Logger
	updated chan struct{} // capacity 1: one of both sessions changed
	changed chan struct{} // of all peers

	// For the announcer's goroutine, of the last refreshStates.
	state   bgp.State
	summary summary

	mu      sync.Mutex
	watched watched
}

// peeringOf returns a session with a peer of an object.
func peeringOf(c *wire.PeerConfig) (p *peering, err error) {
	p = &peering{config: c, stop: func() {}, Peer: Peer{Name: c.Name, Peer: bgp.Peer{
		Interface: c.Interface, LocalAS: c.LocalAS, RemoteAS: c.RemoteAS, Dynamic: bgp.Dynamic(c.Dynamic), IPv4: c.IPv4, IPv6: c.IPv6,
		Timers:   bgp.Timers{Hold: c.Hold, Keepalive: c.Keepalive, Connect: c.Connect, Restart: c.Restart},
		Password: c.Password, MultiHop: c.MultiHop, TTLSecurity: c.TTLSecurity,
	}}}
	if c.Address != "" {
		if p.Addr, err = netip.ParseAddrPort(c.Address); err != nil {
			return nil, err
		}
	}
	for text, addr := range map[string]*netip.Addr{c.Source: &p.Source, c.RouterID: &p.RouterID} {
		if text == "" {
			continue
		}
		if *addr, err = netip.ParseAddr(text); err != nil {
			return nil, err
		}
	}
	if b := c.BFD; b != nil {
		p.bfd = &bfd.Config{Timers: bfd.Timers{Transmit: b.Transmit, Receive: b.Receive, Multiplier: b.Multiplier}, MultiHop: c.MultiHop, MinTTL: b.MinTTL, Passive: b.Passive}
		err = p.bfd.Timers.Check()
	}
	return p, err
}

// summary has the properties of a session that the states of addresses depend on.
type summary struct {
	established bool
	sessions    uint64
	sent        bool // all routes from the begin of the session were sent
	cannot4     string
	cannot6     string
}

// watched has the phase of the BFD session, and the reason why it cannot run.
type watched struct{ phase, problem string }

func (p *peering) bfdState() watched {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watched
}

// watch follows the BGP session, and ends it when BFD loses the peer. BFD begins with the first BGP session,
// which has both addresses, and continues after it.
func (p *peering) watch(ctx context.Context) {
	var (
		session       *bfd.Session
		stop          = func() {}
		local, remote netip.Addr
		g             guard
	)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.updated:
		}
		now := p.speaker.State()
		if p.bfd != nil && now.Phase == bgp.Established && (now.Local.Addr() != local || now.Remote.Addr() != remote) {
			stop()
			local, remote, g = now.Local.Addr(), now.Remote.Addr(), guard{}
			session, stop = p.runBFD(ctx, local, remote)
		}
		if session != nil {
			state := session.State()
			if g.lost(now, state) {
				p.speaker.Reset("BFD lost the peer: " + state.Diagnostic.String())
			}
			p.mu.Lock()
			p.watched = watched{state.Phase.String(), state.Problem}
			p.mu.Unlock()
		}
		signal(p.changed)
	}
}

// runBFD starts a BFD session between two addresses, until stop.
func (p *peering) runBFD(ctx context.Context, local, remote netip.Addr) (session *bfd.Session, stop func()) {
	cfg := *p.bfd
	cfg.Local, cfg.Peer = local, remote
	session, err := p.hub.Session(cfg, func() { signal(p.updated) })
	if err != nil {
		p.log.Error("BFD does not watch a peer", "peer", p.Name, "err", err)
		p.mu.Lock()
		p.watched = watched{problem: err.Error()}
		p.mu.Unlock()
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); session.Run(ctx) }()
	return session, func() { cancel(); <-done }
}

// guard decides when BFD ends a BGP session.
type guard struct {
	up       time.Time // the time at which BFD came Up; zero: it is not Up
	failures uint64
}

// lost reports, after a change of one of both sessions, whether the peer was lost: BFD was Up for a while
// during the BGP session, and failed. A neighbor that shut BFD down is not lost.
func (g *guard) lost(session bgp.State, watch bfd.State) bool {
	up, failed := g.up, watch.Failures > g.failures
	g.up, g.failures = time.Time{}, watch.Failures
	if watch.Phase == bfd.Up {
		g.up = watch.Since
	}
	onPurpose := watch.Diagnostic == bfd.NeighborDown && watch.RemotePhase == bfd.AdminDown
	if !failed || up.IsZero() || session.Phase != bgp.Established || onPurpose {
		return false
	}
	return watch.Since.Sub(up) >= bfdSettles && watch.Since.Sub(session.Since) >= bfdSettles
}
