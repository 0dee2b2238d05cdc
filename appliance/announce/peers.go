package announce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/task"
)

// BGP holds the settings of BGP sessions from flags.
type BGP struct {
	Peers []Peer
	// Attributes has the path attributes of every route.
	Attributes bgp.Attributes
	// BFD, when not nil, has the timers of a BFD session with each peer.
	BFD *bfd.Timers
	// BFDMinTTL is the lowest TTL accepted in BFD packets of peers several hops away.
	BFDMinTTL int
}

// Peer is a BGP peer with its name for the output.
type Peer struct {
	Name string
	bgp.Peer
}

// leaveAtMost is the longest time that a stopping process waits for all sessions to end. Speaker.Leave takes 3 s.
const leaveAtMost = 5 * time.Second

// peers holds the sessions with all BGP peers. Each session runs in its own goroutine, so that the announcer's work does not delay BFD. The
// methods must be called from the announcer's goroutine.
type peers struct {
	log     *slog.Logger
	hub     *bfd.Hub
	table   *table
	list    []*peering    // peers from flags precede those from objects
	changed chan struct{} // capacity 1: a session changed its state
	left    chan struct{} // made by leave, and closed when all sessions ended
	wrong   []string      // the reasons why BGPPeers have no session

	damper  damper
	damped  map[netip.Prefix]time.Time // routes held back by the damper, and when they are announced
	ripe    <-chan time.Time           // fires when the first damped route is due
	drained bool
	parted  time.Time        // when the drain began or ended
	avoided <-chan time.Time // fires when routes may be withdrawn, after avoidance

	ctx   context.Context // the context passed to start; nil before
	tasks *errgroup.Group
}

// newPeers returns the peers from flags and objects, with sessions that are not started. Their routes to all wanted addresses are set from
// the start, because a router ends graceful restart after the first routes.
func newPeers(cfg *BGP, config *wire.AnnounceConfig, wanted map[netip.Addr]ad, drained bool, log *slog.Logger) (*peers, error) {
	ps := &peers{
		log: log, hub: bfd.NewHub(log), table: newTable(), changed: make(chan struct{}, 1),
		damper: newDamper(), damped: map[netip.Prefix]time.Time{}, drained: drained,
	}
	if cfg != nil {
		flags := wire.Advertisement{Length4: 32, Length6: 128, LocalPref: cfg.Attributes.LocalPref, Communities: cfg.Attributes.Communities}
		for _, c := range cfg.Attributes.Large {
			flags.Large = append(flags.Large, c)
		}
		for _, peer := range cfg.Peers {
			flags.Peers = append(flags.Peers, peer.Name)
			p := &peering{Peer: peer}
			if cfg.BFD != nil {
				p.bfd = &bfd.Config{Timers: *cfg.BFD, MultiHop: peer.MultiHop, MinTTL: cfg.BFDMinTTL}
			}
			if err := ps.add(p); err != nil {
				return nil, err
			}
		}
		ps.table.advertisements[byFlags] = &flags
	}
	ps.configure(config, wanted)
	return ps, nil
}

// add adds a session without starting it.
func (ps *peers) add(p *peering) (err error) {
	p.hub, p.log, p.updated, p.changed = ps.hub, ps.log, make(chan struct{}, 1), ps.changed
	if p.speaker, err = bgp.New(p.Peer.Peer, ps.log, func() { task.Wake(p.updated) }); err == nil {
		ps.list = append(ps.list, p)
	}
	return err
}

// configure replaces the peers and advertisements that come from objects. A session whose peer changed is ended and started again.
func (ps *peers) configure(config *wire.AnnounceConfig, wanted map[netip.Addr]ad) {
	if config == nil {
		config = &wire.AnnounceConfig{}
	}
	ps.wrong = nil
	stays := map[string]bool{} // peers of objects that did not change
	ps.list = slices.DeleteFunc(ps.list, func(p *peering) bool {
		i := slices.IndexFunc(config.Peers, func(c wire.PeerConfig) bool { return p.config != nil && reflect.DeepEqual(&c, p.config) })
		if p.config == nil || i >= 0 {
			stays[p.Name] = p.config != nil
			return false
		}
		p.stop()
		return true
	})
	also := map[string]string{} // BGPPeers without a session of their own, and the peers whose sessions have their routes
	for i := range config.Peers {
		c := &config.Peers[i]
		if !stays[c.Name] {
			if same := ps.sameRouter(c); same != nil {
				also[c.Name] = same.Name
				what := "the BGPPeer"
				if same.config == nil {
					what = "--peer"
				}
				ps.wrong = append(ps.wrong, fmt.Sprintf("the BGPPeer %s is the same router as %s %s (%s), in whose session its routes are announced with the settings of that one: remove one of both",
					c.Name, what, same.Name, same.Peer.String()))
				continue
			}
		}
		if slices.ContainsFunc(ps.list, func(p *peering) bool { return p.Name == c.Name && p.config == nil }) {
			ps.wrong = append(ps.wrong, fmt.Sprintf("the BGPPeer %s has the name of a --peer of `svcctl announce`, and gets no session: give one of both another name", c.Name))
			continue
		}
		if stays[c.Name] {
			continue
		}
		p, err := peeringOf(c)
		if err == nil {
			err = ps.add(p)
		}
		if err != nil {
			ps.wrong = append(ps.wrong, fmt.Sprintf("the BGPPeer %s gets no session: %v", c.Name, err))
		}
	}
	changed := map[netip.Prefix]struct{}{}
	ps.table.replace(withPeers(config.Advertisements, also), changed)
	for addr, a := range wanted {
		ps.table.set(addr, a.advertisements(), changed)
	}
	ps.publish(changed, false)
	for _, p := range ps.list {
		if !p.started {
			_ = p.speaker.Set(ps.table.toPeer(p.Name))
		}
	}
	ps.startNew()
	ps.refreshStates()
}

// sameRouter returns the session with the same address or interface as c, a peer from an object; nil if there is none.
func (ps *peers) sameRouter(c *wire.PeerConfig) *peering {
	with, err := peeringOf(c)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(ps.list, func(p *peering) bool { return p.Peer.SameRouter(with.Peer.Peer) })
	if i < 0 {
		return nil
	}
	return ps.list[i]
}

// withPeers returns the advertisements with some peer names replaced. `also` maps each name to be replaced to the new name.
func withPeers(all []wire.Advertisement, also map[string]string) []wire.Advertisement {
	if len(also) == 0 {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		peers := slices.Clone(all[i].Peers)
		for j, name := range peers {
			if with := also[name]; with != "" {
				peers[j] = with
			}
		}
		all[i].Peers = peers
	}
	return all
}

// start runs the sessions until ctx is done or leave ended them.
func (ps *peers) start(ctx context.Context, tasks *errgroup.Group) {
	ps.ctx, ps.tasks = ctx, tasks
	ps.startNew()
}

// startNew runs the sessions that do not run yet.
func (ps *peers) startNew() {
	for _, p := range ps.list {
		if p.started || ps.ctx == nil {
			continue
		}
		p.started = true
		ctx, cancel := context.WithCancel(ps.ctx)
		p.stop = func() {
			ps.tasks.Go(func() error {
				defer cancel()
				patience, done := context.WithTimeout(ctx, leaveAtMost)
				defer done()
				_ = p.speaker.Leave(patience) // a peer that does not take our words notices the end
				return nil
			})
		}
		ps.tasks.Go(func() error { p.speaker.Run(ctx); return nil })
		ps.tasks.Go(func() error { p.watch(ctx); return nil })
	}
}

// update sets the routes to some addresses from wanted, and sends the changes. A route that was withdrawn a moment ago is announced later
// (damper).
func (ps *peers) update(addrs []netip.Addr, wanted map[netip.Addr]ad) {
	if len(ps.list) == 0 || len(addrs) == 0 {
		return
	}
	changed := map[netip.Prefix]struct{}{}
	for _, addr := range addrs {
		ps.table.set(addr, wanted[addr].advertisements(), changed)
	}
	ps.publish(changed, true)
}

// publish sends changed routes to the peers. If damps is set, a route that was withdrawn a moment ago is announced later (see damper).
func (ps *peers) publish(changed map[netip.Prefix]struct{}, damps bool) {
	now := time.Now()
	announced := map[netip.Prefix]*route{}
	var withdrawn []netip.Prefix
	for prefix := range changed {
		r := ps.table.routes[prefix]
		switch back := ps.damper.notBefore(prefix); {
		case len(r.by) == 0:
			delete(ps.damped, prefix)
			delete(ps.table.routes, prefix)
			if r.announced {
				ps.damper.withdrawn(prefix, now)
				withdrawn = append(withdrawn, prefix)
			}
		case ps.drained:
		case !r.announced && damps && now.Before(back):
			ps.damped[prefix] = back
		default:
			if !r.announced {
				r.announced, r.since = true, now
				delete(ps.damped, prefix)
			}
			announced[prefix] = r
		}
	}
	for _, p := range ps.list {
		announce, withdraw := map[netip.Prefix]*bgp.Attributes{}, slices.Clone(withdrawn)
		for prefix, r := range announced {
			if a := ps.table.attributesFor(r, p.Name); a != nil {
				announce[prefix] = a
			} else {
				withdraw = append(withdraw, prefix)
			}
		}
		if err := p.speaker.Update(announce, withdraw); err != nil {
			ps.log.Error("routes are not announced", "peer", p.Name, "err", err)
		}
	}
	ps.wait(now)
}

// wait sets ps.ripe to fire when the first damped route is to be announced.
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

// ripen announces the damped routes that are due, and returns the addresses that they announce.
func (ps *peers) ripen(now time.Time) []netip.Addr {
	ripe := map[netip.Prefix]struct{}{}
	for prefix, at := range ps.damped {
		if !now.Before(at) {
			ripe[prefix] = struct{}{}
			delete(ps.damped, prefix)
		}
	}
	ps.publish(ripe, true)
	return ps.table.behind(ripe)
}

// avoidance is how long routers have time to choose other paths before routes are withdrawn.
const avoidance = 2 * time.Second

// setDrained asks all routers to prefer other paths (community GRACEFUL_SHUTDOWN, RFC 8326) if drained is set. The caller must call
// withdrawAll after avoidance. If drained is not set, it announces all routes again.
func (ps *peers) setDrained(drained bool) {
	ps.drained, ps.parted, ps.avoided = drained, time.Now(), nil
	if !drained {
		all := map[netip.Prefix]struct{}{}
		for prefix := range ps.table.routes {
			all[prefix] = struct{}{}
		}
		ps.publish(all, false)
		return
	}
	clear(ps.damped)
	ps.ripe = nil
	if len(ps.list) == 0 {
		ps.withdrawAll() // no peer can be asked, and one may come
		return
	}
	ps.avoided = time.After(avoidance)
	for _, p := range ps.list {
		_ = p.speaker.Set(bgp.Leaving(ps.table.toPeer(p.Name))) // the attributes are those that it took, and a community
	}
}

// withdrawAll withdraws all routes. It does not end the sessions.
func (ps *peers) withdrawAll() {
	ps.avoided = nil
	for _, r := range ps.table.routes {
		r.announced = false
	}
	for _, p := range ps.list {
		_ = p.speaker.Set(nil)
	}
}

// leave calls Speaker.Leave for every peer, in the background; left is closed when all sessions ended.
func (ps *peers) leave(ctx context.Context) {
	if len(ps.list) == 0 {
		return
	}
	left, list := make(chan struct{}), slices.Clone(ps.list) // configure may change ps.list meanwhile
	ps.left = left
	go func() {
		defer close(left)
		ctx, cancel := context.WithTimeout(ctx, leaveAtMost)
		defer cancel()
		var all errgroup.Group
		for _, p := range list {
			all.Go(func() error { return p.speaker.Leave(ctx) })
		}
		_ = all.Wait() // a peer that does not take our words notices the end
	}()
}

// refreshStates reads the states of the sessions, and reports whether the summary of any session changed.
func (ps *peers) refreshStates() (changed bool) {
	for _, p := range ps.list {
		p.state = p.speaker.State()
		now := summary{p.state.Phase == bgp.Established, p.state.Counters.Established, p.summary.sent, p.state.CannotIPv4, p.state.CannotIPv6}
		if !now.established || now.sessions != p.summary.sessions {
			now.sent = false
		}
		now.sent = now.established && (now.sent || !p.state.Pending)
		changed = changed || now != p.summary
		p.summary = now
	}
	return changed
}

// statusesOf returns, for each peer that gets a route to the address, the state of its announcement.
func (ps *peers) statusesOf(addr netip.Addr) []wire.Place {
	var places []wire.Place
	for _, p := range ps.list {
		prefix, r := ps.table.routeTo(addr, p.Name)
		if r == nil {
			continue
		}
		place := wire.Place{By: "bgp " + p.Name, State: "announced", Since: p.state.Since.UTC()}
		if r.since.After(p.state.Since) {
			place.Since = r.since.UTC()
		}
		if ps.drained && ps.parted.After(place.Since) {
			place.Since = ps.parted.UTC()
		}
		cannot := p.state.CannotIPv4
		if addr.Is6() {
			cannot = p.state.CannotIPv6
		}
		switch at, damped := ps.damped[prefix]; {
		case ps.drained && r.announced:
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

// states returns the states of all peers for the report to serve.
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

// problems returns, in words, why peers have no session or no BFD.
func (ps *peers) problems() (all []string) {
	all = slices.Clone(ps.wrong)
	for _, p := range ps.list {
		if words := p.bfdState().problem; words != "" {
			all = append(all, fmt.Sprintf("BFD does not watch the peer %s: %s", p.Name, words))
		}
	}
	return all
}

// bfdSettles is the time for which BFD must be Up during a BGP session before its failure ends that session: some routers restart BFD when
// the BGP session comes up.
const bfdSettles = time.Second

// peering is the BGP session with a router, and its BFD session.
type peering struct {
	Peer
	speaker *bgp.Speaker
	hub     *bfd.Hub
	bfd     *bfd.Config // without addresses; nil disables BFD
	config  *wire.PeerConfig
	started bool
	stop    func() // ends the session, if it was started
	log     *slog.Logger
	updated chan struct{} // capacity 1: the BGP or the BFD session changed
	changed chan struct{} // the channel peers.changed

	// copied by the last refreshStates; used only by the announcer's goroutine
	state   bgp.State
	summary summary

	watched atomic.Value // a watched
}

// peeringOf returns the session for a peer that an object defines; it is not started.
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

// summary holds the properties of a session on which the reported states of addresses depend.
type summary struct {
	established bool
	sessions    uint64
	sent        bool // all routes were sent at least once in this session
	cannot4     string
	cannot6     string
}

// watched is the state of a BFD session for reports: its phase, and why it cannot run, or "".
type watched struct{ phase, problem string }

func (p *peering) bfdState() watched {
	w, _ := p.watched.Load().(watched)
	return w
}

// watch runs BFD for the BGP session, and resets the BGP session when BFD loses the peer. BFD starts when the BGP session is first
// established, which supplies both addresses. It continues when the BGP session ends.
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
			p.watched.Store(watched{state.Phase.String(), state.Problem})
		}
		task.Wake(p.changed)
	}
}

// runBFD starts a BFD session between two addresses; stop ends it. The session is nil if it cannot be made.
func (p *peering) runBFD(ctx context.Context, local, remote netip.Addr) (session *bfd.Session, stop func()) {
	cfg := *p.bfd
	cfg.Local, cfg.Peer = local, remote
	session, err := p.hub.Session(cfg, func() { task.Wake(p.updated) })
	if err != nil {
		p.log.Error("BFD does not watch a peer", "peer", p.Name, "err", err)
		p.watched.Store(watched{problem: err.Error()})
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); session.Run(ctx) }()
	return session, func() { cancel(); <-done }
}

// guard decides when a failure of BFD ends the BGP session.
type guard struct {
	up       time.Time // when BFD came Up; zero if it is not Up
	failures uint64
}

// lost reports, after a change of either session, whether BFD lost the peer: BFD was Up for bfdSettles during the BGP session, and failed.
// A neighbor that shut BFD down (AdminDown) is not lost.
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
