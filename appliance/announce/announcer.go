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

// Config holds the settings of the announcer.
type Config struct {
	// Socket is the socket of serve.
	Socket string
	// StateDir is the directory of its last state; it must not survive a boot.
	StateDir string
	// L2 names the interfaces to announce on, or Auto.
	L2 []string
	// Election, when not nil, decides between this box and others who answers.
	Election *vrrp.Config
	// Gateways are addresses that the box which the election chose answers for as well, wherever they lie: those that
	// servers have as their router.
	Gateways []netip.Addr
	// Follow, when valid, is an address whose box answers: another program elects it.
	Follow netip.Addr
	// BGP, when not nil, has the routers that get a route to every address, whichever box answers on
	// segments.
	BGP *BGP
}

// Pauses before the file is written and before serve is told, so that one of each serves a burst.
const (
	savePause   = 50 * time.Millisecond
	reportPause = 50 * time.Millisecond
	// countEvery is the interval of reports to serve that only bring new counters.
	countEvery = 15 * time.Second
	// retryPorts is the interval at which an interface that could not be opened is tried again.
	retryPorts = time.Second
	// handOver is the time for which a box that stops waits for its successor.
	handOver = 2 * time.Second
)

// Run announces until ctx is done. The calling thread must be in the network namespace.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	last, err := loadState(cfg.StateDir)
	if err != nil {
		log.Warn("what was announced before is not known", "err", err)
	}
	// What stops the process lets it hand over first; the tasks end after that.
	stop := ctx.Done()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	tasks, ctx := errgroup.WithContext(ctx)
	links, err := node.WatchLinks(ctx, log)
	if err != nil {
		return err
	}
	serve := client.New(cfg.Socket)
	a := &announcer{cfg: cfg, log: log, wanted: map[netip.Addr]ad{}, file: newKeeper(cfg.StateDir), reports: newReports(serve, log, tasks)}
	a.segments = newSegments(log, tasks, a.mark)
	for _, addr := range cfg.Gateways {
		a.adverts.add(addr)
	}
	a.recall(last)
	if cfg.Election != nil {
		a.election = newElection(*cfg.Election, log)
		a.segments.may = a.election.mayAnswer
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

// announcer decides what is announced. Only the goroutine of run touches it and its parts.
type announcer struct {
	cfg Config
	log *slog.Logger

	ranges  []Range
	wanted  map[netip.Addr]ad // to be announced, and where
	config  *wire.AnnounceConfig
	adverts listing // of wanted
	file    *keeper

	segments *segments
	peers    *peers
	reports  *reports

	election *election  // nil: there is none
	passive  bool       // another box answers
	drained  bool       // nothing is to be announced, but what is handed over
	master   netip.Addr // which one, if it is known

	serve absence
}

// recall goes on with what was announced before.
func (a *announcer) recall(last state) {
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
			if a.peers.look() {
				a.reports.everything() // their state is told with each address
			}
			a.reports.soon()
		case <-a.election.changes():
			a.elected()
		case <-a.serve.late:
			a.serve.late = nil
			a.log.Warn("svcctl serve is away: another box should take over, if there is one", "since", a.serve.since)
			a.judge()
		case now := <-links:
			if a.segments.links == nil { // a name may be misspelled, or the interface may come later
				for _, problem := range missing(now, a.cfg.L2) {
					a.log.Warn(problem)
				}
			}
			a.segments.links = now
			if err := a.placeAll(ctx); err != nil {
				return err
			}
			a.reports.everything() // problems may be others
		case <-a.segments.retry:
			a.segments.retry = nil
			if err := a.placeAll(ctx); err != nil {
				return err
			}
		case e := <-events:
			if err := a.take(ctx, e); err != nil {
				return err
			}
		case index := <-a.segments.changed:
			a.segments.collect(index)
		case end := <-a.segments.ended:
			a.segments.gone(end)
		case <-a.file.due:
			a.file.due = nil
			if err := a.file.save(len(a.wanted), a.state, a.fateOf); err != nil {
				a.log.Error("the state of announcements could not be stored: a restart would not have it", "err", err)
			}
		case <-a.reports.due:
			a.reports.due = nil
			a.tell(ctx)
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

// later starts a timer, unless it runs.
func later(timer *<-chan time.Time, pause time.Duration) {
	if *timer == nil {
		*timer = time.After(pause)
	}
}

// end keeps what a successor goes on with.
func (a *announcer) end() error {
	s := a.state()
	s.Stopped = time.Now()
	return s.save(a.cfg.StateDir)
}

// take follows what serve says.
func (a *announcer) take(ctx context.Context, e *wire.AnnouncementsEvent) error {
	if e == nil {
		a.reports.connected = false
		a.serve.begin()
		return nil
	}
	var touched []netip.Addr
	drained := a.drained
	if e.Drained != nil {
		drained = *e.Drained
	}
	if e.All != nil {
		a.reports.connected, a.serve = true, absence{}
		defer a.judge()
		a.reports.everything()
		touched, drained = a.takeAll(e.All), e.All.Drained
	}
	touched = append(touched, a.set(e.Set)...)
	for _, text := range e.Gone {
		if addr, err := netip.ParseAddr(text); err == nil && a.isWanted(addr) {
			a.want(addr, false, ad{})
			touched = append(touched, addr)
		}
	}
	if len(touched) > 0 {
		a.judge()
	}
	if drained {
		a.setDrained(true) // before routes to what is new are announced
	}
	if e.Config != nil && !reflect.DeepEqual(a.config, e.Config) {
		a.config = e.Config
		a.file.everything()
		a.peers.configure(a.config, a.wanted)
		a.reports.everything()
		if err := a.placeAll(ctx); err != nil {
			return err
		}
	}
	a.peers.update(touched, a.wanted)
	if !drained {
		a.setDrained(false) // after routes to what is gone are withdrawn
	}
	if e.All != nil && len(a.segments.ports) == 0 {
		return a.placeAll(ctx)
	}
	for _, addr := range touched {
		a.place(addr)
		a.reports.add(addr)
	}
	return nil
}

// takeAll follows everything that serve has to say, and returns the addresses that change.
func (a *announcer) takeAll(all *wire.Announcements) (touched []netip.Addr) {
	before := slices.Clone(a.ranges)
	a.setRanges(all.Ranges)
	if !slices.Equal(before, a.ranges) {
		a.file.everything()
		a.segments.keepKnown()
		a.segments.stopAll() // their filters are for other ranges
	}
	there := map[string]bool{}
	for _, item := range all.Items {
		there[item.Address] = true
	}
	for addr := range a.wanted {
		if !there[addr.String()] || !a.inRanges(addr) {
			a.want(addr, false, ad{})
			touched = append(touched, addr)
		}
	}
	return append(touched, a.set(all.Items)...)
}

// set follows what is said of some addresses, and returns those that change.
func (a *announcer) set(items []wire.Announcement) (touched []netip.Addr) {
	for _, item := range items {
		addr, err := netip.ParseAddr(item.Address)
		if err != nil || !a.inRanges(addr) {
			a.log.Error("an address of serve is not announced: it lies in no range of serve", "address", item.Address)
			continue
		}
		now := item.Withheld == ""
		if before, was := a.wanted[addr]; now != was || now && !before.equal(adOf(&item)) {
			touched = append(touched, addr)
			a.want(addr, now, adOf(&item))
		}
	}
	return touched
}

func (a *announcer) isWanted(addr netip.Addr) bool {
	_, is := a.wanted[addr]
	return is
}

// want notes whether an address is to be announced, and where.
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

// l2 are the interfaces to announce on, of flags and of objects.
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

// mark notes that an address is to be kept and reported.
func (a *announcer) mark(addr netip.Addr) {
	if a.isGateway(addr) {
		return // serve does not know of it
	}
	a.file.add(addr)
	a.reports.add(addr)
}

// fateOf returns what the file should have of an address now.
func (a *announcer) fateOf(addr netip.Addr) fate {
	where, wanted := a.wanted[addr]
	return fate{ad: where, Wanted: wanted, Announced: wanted && a.segments.keeps(addr)}
}

// state is the content that the file should have now.
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
