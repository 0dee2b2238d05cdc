package announce

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
)

// Config holds the settings of `svcctl announce`.
type Config struct {
	// Socket is the path of the API socket of `svcctl serve`.
	Socket string
	// StateDir is the directory of the state file. The file must not survive a reboot, so the directory should be on a tmpfs.
	StateDir string
	// L2 names the interfaces to announce on, or Auto.
	L2 []string
	// Election, when not nil, configures the VRRP election that decides whether this box or another one answers for the addresses.
	Election *vrrp.Config
	// Gateways are addresses outside of the pools for which the active box of the election also answers, such as the default gateways of
	// servers.
	Gateways []netip.Addr
	// Follow, when valid, is an address that another program moves between boxes. The box that has it answers.
	Follow netip.Addr
	// BGP, when not nil, configures the BGP peers. They get routes to all addresses, even while another box answers ARP and neighbor
	// solicitations.
	BGP *BGP
}

// savePause is the delay before the state file is written, and reportPause the delay before a report is sent. A burst of changes causes
// only one write and one report.
const (
	savePause   = 50 * time.Millisecond
	reportPause = 50 * time.Millisecond
	// countEvery is the interval of reports while nothing but counters changes.
	countEvery = 15 * time.Second
	// retryPorts is the interval at which an interface that could not be opened is tried again.
	retryPorts = time.Second
	// handOver is the longest time that a stopping box waits for another box to take over its addresses.
	handOver = 2 * time.Second
)

// Run announces the addresses that the appliance publishes until ctx is done. The calling thread must be in the network namespace of the
// interfaces.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	last, err := loadState(cfg.StateDir)
	if err != nil {
		log.Warn("what was announced before is not known", "err", err)
	}
	// The end of ctx lets it hand over first; the tasks end after that.
	stop := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	tasks, ctx := errgroup.WithContext(ctx)
	links, err := node.WatchLinks(ctx, log)
	if err != nil {
		return err
	}
	serve := client.New(cfg.Socket)
	a := &announcer{cfg: cfg, log: log, wanted: map[netip.Addr]ad{}, file: newStateWriter(cfg.StateDir), reports: newReports(serve, log, tasks)}
	a.segments = newSegments(log, tasks, a.mark)
	for _, addr := range cfg.Gateways {
		a.adverts.add(addr)
	}
	a.restore(last)
	if cfg.Election != nil {
		a.election = newElection(*cfg.Election, log)
		a.segments.may = a.election.isActive
		if a.drained {
			a.election.leave(0)
		}
		tasks.Go(func() error { return a.election.run(ctx) })
	}
	a.passive = cfg.Election != nil || cfg.Follow.IsValid()
	if a.peers, err = newPeers(cfg.BGP, a.config, a.wanted, a.drained, log); err != nil {
		return err
	}
	a.peers.start(ctx, tasks)
	f := &feed{client: serve, log: log, events: make(chan *wire.AnnouncementsEvent)}
	tasks.Go(func() error { return f.run(ctx) })
	tasks.Go(func() error {
		defer cancel()
		return a.run(ctx, stop, f.events, links)
	})
	return tasks.Wait()
}

// announcer is the state of the announcing process: which addresses are announced on which interfaces and to which peers. Only the
// goroutine of run uses it and its parts.
type announcer struct {
	cfg Config
	log *slog.Logger

	ranges  []Range
	wanted  map[netip.Addr]ad // addresses to announce, and where
	config  *wire.AnnounceConfig
	adverts listing // the addresses in wanted and the gateways, as listed in VRRP adverts
	file    *stateWriter

	segments *segments
	peers    *peers
	reports  *reports

	election *election  // nil if no election is configured
	passive  bool       // another box answers for the addresses
	drained  bool       // the box hands over and announces nothing
	master   netip.Addr // the box that answers, if it is another one; invalid if it is this one or unknown

	serve absence
}

// restore takes over the state that an earlier process saved.
func (a *announcer) restore(last state) {
	a.setRanges(last.Ranges)
	a.drained, a.config = last.Drained, last.Config
	for _, text := range last.Wanted {
		if addr, err := netip.ParseAddr(text); err == nil && a.inRanges(addr) {
			a.wanted[addr] = last.Ads[text]
			a.adverts.add(addr)
		}
	}
	if !last.Stopped.IsZero() && time.Since(last.Stopped) > trusted {
		return
	}
	for _, text := range last.Announced {
		if addr, err := netip.ParseAddr(text); err == nil {
			a.segments.known[addr] = true
		}
	}
}

func (a *announcer) setRanges(texts []string) {
	a.ranges = nil
	for _, text := range texts {
		r, err := parseRange(text)
		if err != nil {
			a.log.Error("a range of serve is not understood: nothing in it is announced", "range", text, "err", err)
			continue
		}
		a.ranges = append(a.ranges, r)
	}
}

func (a *announcer) inRanges(addr netip.Addr) bool {
	return slices.ContainsFunc(a.ranges, func(r Range) bool { return r.contains(addr) })
}

func (a *announcer) run(ctx context.Context, stop <-chan struct{}, events <-chan *wire.AnnouncementsEvent, links <-chan []node.Link) error {
	defer a.segments.stopAll()
	count := time.NewTicker(countEvery)
	defer count.Stop()
	for leaving := false; !leaving || !a.hasLeft(); {
		select {
		case <-ctx.Done():
			return a.end()
		case <-stop:
			stop, leaving = nil, true
			a.leave(ctx)
		case <-a.peers.left:
			a.peers.left = nil
		case <-a.peers.avoided:
			a.peers.withdrawAll()
			a.reports.everything()
		case <-a.peers.ripe:
			for _, addr := range a.peers.ripen(time.Now()) {
				a.reports.add(addr)
			}
		case <-a.peers.changed:
			if a.peers.refreshStates() {
				a.reports.everything() // each address has the state of the peers
			}
			a.reports.soon()
		case <-a.election.changes():
			a.elected()
		case <-a.serve.late:
			a.serve.late = nil
			a.log.Warn("svcctl serve is away: another box should take over, if there is one", "since", a.serve.since)
			a.evaluate()
		case now := <-links:
			if a.segments.links == nil { // a name may be misspelled, or the interface may come later
				for _, problem := range missing(now, a.cfg.L2) {
					a.log.Warn(problem)
				}
			}
			a.segments.links = now
			if err := a.syncSegments(ctx); err != nil {
				return err
			}
			a.reports.everything() // problems may have changed
		case <-a.segments.retry:
			a.segments.retry = nil
			if err := a.syncSegments(ctx); err != nil {
				return err
			}
		case e := <-events:
			if err := a.follow(ctx, e); err != nil {
				return err
			}
		case index := <-a.segments.changed:
			a.segments.collect(index)
		case end := <-a.segments.ended:
			if a.segments.ports[end.index] == end.p {
				a.log.Warn("nothing is announced on an interface any more", "interface", end.p.link.Name, "err", end.err)
				a.segments.stop(end.index)
				later(&a.segments.retry, retryPorts)
			}
		case <-a.file.due:
			a.file.due = nil
			if err := a.file.save(len(a.wanted), a.state, a.lastStatus); err != nil {
				a.log.Error("the state of announcements could not be stored: a restart would not have it", "err", err)
			}
		case <-a.reports.due:
			a.reports.due = nil
			a.report(ctx)
		case err := <-a.reports.made:
			a.reports.sent(err)
		case <-count.C:
			if a.segments.counters() != a.reports.counted {
				a.reports.soon()
			}
		}
	}
	return a.end()
}

// later starts a timer that fires after pause, unless one is already running.
func later(timer *<-chan time.Time, pause time.Duration) {
	if *timer == nil {
		*timer = time.After(pause)
	}
}

// end writes the state file for the next process.
func (a *announcer) end() error {
	s := a.state()
	s.Stopped = time.Now()
	return s.save(a.cfg.StateDir)
}

// follow processes an event from the connection to serve; nil means that the connection ended.
func (a *announcer) follow(ctx context.Context, e *wire.AnnouncementsEvent) error {
	if e == nil {
		a.reports.connected = false
		a.serve = absence{time.Now(), time.After(stale)}
		return nil
	}
	var changed []netip.Addr
	drained := a.drained
	if e.Drained != nil {
		drained = *e.Drained
	}
	if e.All != nil {
		a.reports.connected, a.serve = true, absence{}
		defer a.evaluate()
		a.reports.everything()
		changed, drained = a.setAll(e.All), e.All.Drained
	}
	changed = append(changed, a.set(e.Set)...)
	for _, text := range e.Gone {
		if addr, err := netip.ParseAddr(text); err == nil && a.isWanted(addr) {
			a.want(addr, false, ad{})
			changed = append(changed, addr)
		}
	}
	if len(changed) > 0 {
		a.evaluate()
	}
	if drained {
		a.setDrained(true) // before routes to new addresses are announced
	}
	if e.Config != nil && !reflect.DeepEqual(a.config, e.Config) {
		a.config = e.Config
		a.file.everything()
		a.peers.configure(a.config, a.wanted)
		a.reports.everything()
		if err := a.syncSegments(ctx); err != nil {
			return err
		}
	}
	a.peers.update(changed, a.wanted)
	if !drained {
		a.setDrained(false) // after routes to removed addresses are withdrawn
	}
	if e.All != nil && len(a.segments.ports) == 0 {
		return a.syncSegments(ctx)
	}
	for _, addr := range changed {
		a.place(addr)
		a.reports.add(addr)
	}
	return nil
}

// setAll replaces all ranges and addresses by those in a full list from serve, and returns the addresses whose announcement changed.
func (a *announcer) setAll(all *wire.Announcements) (changed []netip.Addr) {
	before := slices.Clone(a.ranges)
	a.setRanges(all.Ranges)
	if !slices.Equal(before, a.ranges) {
		a.file.everything()
		a.segments.keepKnown()
		a.segments.stopAll() // their filters are for other ranges
	}
	items := map[string]bool{}
	for _, item := range all.Items {
		items[item.Address] = true
	}
	for addr := range a.wanted {
		if !items[addr.String()] || !a.inRanges(addr) {
			a.want(addr, false, ad{})
			changed = append(changed, addr)
		}
	}
	return append(changed, a.set(all.Items)...)
}

// set replaces the announcements of some addresses, and returns the addresses whose announcement changed.
func (a *announcer) set(items []wire.Announcement) (changed []netip.Addr) {
	for _, item := range items {
		addr, err := netip.ParseAddr(item.Address)
		if err != nil || !a.inRanges(addr) {
			a.log.Error("an address of serve is not announced: it lies in no range of serve", "address", item.Address)
			continue
		}
		now := item.Withheld == ""
		if before, was := a.wanted[addr]; now != was || now && !before.equal(adOf(&item)) {
			changed = append(changed, addr)
			a.want(addr, now, adOf(&item))
		}
	}
	return changed
}

func (a *announcer) isWanted(addr netip.Addr) bool {
	_, is := a.wanted[addr]
	return is
}

// want records whether an address is to be announced, and on which interfaces and to which peers.
func (a *announcer) want(addr netip.Addr, wanted bool, where ad) {
	a.file.add(addr)
	if wanted {
		if !a.isWanted(addr) {
			a.adverts.add(addr)
		}
		a.wanted[addr] = where
		return
	}
	delete(a.wanted, addr)
	a.adverts.remove(addr)
}

// l2 returns the names of the interfaces to announce on: those of flags and those that L2Advertisements name.
func (a *announcer) l2() []string {
	all := slices.Clone(a.cfg.L2)
	if a.config == nil {
		return all
	}
	for _, name := range a.config.Interfaces {
		if name == everywhere {
			name = Auto
		}
		all = append(all, name)
	}
	return all
}

// mark schedules an address for the state file and for the next report.
func (a *announcer) mark(addr netip.Addr) {
	if a.isGateway(addr) {
		return // it is no address of serve
	}
	a.file.add(addr)
	a.reports.add(addr)
}

// lastStatus returns the entry of an address for the state file.
func (a *announcer) lastStatus(addr netip.Addr) lastStatus {
	where, wanted := a.wanted[addr]
	return lastStatus{ad: where, Wanted: wanted, Announced: wanted && a.segments.keeps(addr)}
}

// state returns the full content for the state file.
func (a *announcer) state() state {
	s := state{Drained: a.drained, Config: a.config, Ads: map[string]ad{}}
	for _, r := range a.ranges {
		s.Ranges = append(s.Ranges, r.First.String()+"-"+r.Last.String())
	}
	for _, addr := range slices.SortedFunc(maps.Keys(a.wanted), netip.Addr.Compare) {
		s.Wanted = append(s.Wanted, addr.String())
		if where := a.wanted[addr]; !where.equal(ad{Flags: true}) {
			s.Ads[addr.String()] = where
		}
		if a.segments.keeps(addr) {
			s.Announced = append(s.Announced, addr.String())
		}
	}
	return s
}

// evaluate passes the health of this box, and the addresses to list in its VRRP adverts, to the election.
func (a *announcer) evaluate() {
	if a.election == nil {
		return
	}
	unwell := len(missing(a.segments.links, a.l2())) > 0 || a.serve.isStale()
	for _, l := range selectLinks(a.segments.links, a.l2(), a.answerable()) {
		unwell = unwell || !l.Carrier
	}
	a.adverts.complete(a.advertised())
	a.election.set(unwell, a.adverts.listed())
}

// elected applies the result of the election: it announces the addresses or leaves them to the master.
func (a *announcer) elected() {
	answers, master, assert := a.election.outcome()
	replaced := a.master != master
	if replaced {
		a.master = master
		a.reports.everything() // each address has the master
	}
	a.reports.soon()
	a.setPassive(!answers)
	if replaced && master.IsValid() && !answers {
		for _, p := range a.segments.ports {
			p.Verify()
		}
	}
	if assert && answers {
		for _, p := range a.segments.ports {
			p.Refresh()
		}
	}
}

// setPassive(true) stops answering for all addresses on all interfaces, because another box does. setPassive(false) starts it again.
func (a *announcer) setPassive(passive bool) {
	a.passive = passive
	for _, p := range a.segments.ports {
		p.SetPassive(passive)
	}
}

// setDrained(true) withdraws all addresses from this box, setDrained(false) announces them again. In an election another box takes the addresses
// over. Without an election they are removed from the interfaces, and no other box takes over; with Config.Follow another program moves them.
func (a *announcer) setDrained(drained bool) {
	if a.drained == drained {
		return
	}
	a.drained = drained
	a.file.everything()
	a.log.Info("the drain of this box changed", "drained", drained)
	if a.election != nil && drained {
		a.election.leave(handOver)
	} else if a.election != nil {
		a.election.do(func(now time.Time) []uint8 {
			a.election.m.Join(now)
			return nil
		})
	}
	a.peers.setDrained(drained)
	for addr := range a.wanted {
		a.place(addr)
	}
	a.reports.everything()
}

// leave starts the hand-over of all addresses to another box of the election, and the withdrawal of BGP routes. hasLeft reports its end.
func (a *announcer) leave(ctx context.Context) {
	if a.election != nil && !a.passive {
		a.election.leave(handOver)
	}
	a.peers.leave(ctx)
}

// hasLeft reports whether the hand-over that leave started is complete.
func (a *announcer) hasLeft() bool { return a.peers.left == nil && (a.election == nil || a.passive) }
