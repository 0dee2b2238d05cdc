package traffic

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

const (
	// minPause is the least time between two scans; between the first two it is a quarter of that.
	minPause = time.Second
	// maxShare is the least time between scans as a multiple of the CPU time of a scan and its consequences (userShare): 1 % of a core. A
	// viewer may use 2 %; the rest is for responses and garbage collection.
	maxShare = 100
	// forgetAfter is the time without a scan after which the memory of the last one is released.
	forgetAfter = 15 * time.Minute
	// Samples is the number of scans in a History.
	Samples = 120
)

// Observer scans the connection tracking table on request. Use New to create one.
type Observer struct {
	sources

	looking sync.Mutex // held during a scan
	cost    time.Duration
	due     time.Time // earliest time of the next scan for a viewer
	known   tracked   // connections of the last scan; zero if last is nil
	found   *index    // index of the ports in state knownAt (see sources.ports); nil and 0 at first
	knownAt int

	mu      sync.Mutex
	last    *Snapshot
	history map[string][]wire.TrafficSample // by Service port, of those that had connections
	watched map[string]time.Time            // Services whose clients are counted, by the time of the last request
	forget  *time.Timer
	viewed  bool // there was a request since the last drop

	rings *rings // nil: none are kept
}

// sources has the functions by which an Observer reads its data. Tests replace them.
type sources struct {
	read func(each func(*conntrack.Connection)) (entries int, err error)
	// ports returns the number of the current state, now, and the ports by Service, "namespace/name": of the Services that changed since an
	// earlier state, without ports for one that is gone, or of all Services. No state has the number 0.
	ports func(since int) (of map[string][]Port, all bool, now int)
	// totals returns the kernel's counts since the start, nil if it does not count.
	totals func() (nft.Totals, error)
	now    func() time.Time
	used   func() time.Duration // threadCost
	// ended has the totals of ended connections, and receive adds the events that the kernel has sent by now to them. Both are nil where
	// connection events are not read.
	ended   *flows.Totals
	receive func()
	// settings reads which data of connections the kernel counts. failures returns the failed connections so far (nil: not counted). judged
	// returns the states of Services that do not answer, or answer with a warning. settings and judged are nil where that is unknown.
	settings func() conntrack.Settings
	failures func() map[string]map[netip.AddrPort]uint64
	judged   func() (states map[string]wire.Judged, counts map[string]int, verdict string)
	leave    func([]wire.EgressTraffic) // receives the egress traffic; may be nil
}

// New returns an Observer that reads connections with read and the kernel's counters with totals, and attributes them to the ports that
// ports returns. totals is nil if the kernel does not count.
func New(read func(each func(*conntrack.Connection)) (int, error), ports func(since int) (of map[string][]Port, all bool, now int), totals func() (nft.Totals, error)) *Observer {
	return &Observer{sources: sources{read: read, ports: ports, totals: totals, now: time.Now, used: threadCost, failures: func() map[string]map[netip.AddrPort]uint64 { return nil }}, history: map[string][]wire.TrafficSample{}}
}

// Snapshot returns the newest scan, or makes one if it is older than minPause and maxShare permits; the second one, from which rates
// result, follows the first sooner. The caller must not change the result.
func (o *Observer) Snapshot() (*Snapshot, error) {
	o.looking.Lock()
	defer o.looking.Unlock()
	o.mu.Lock()
	o.viewed = true
	if o.forget == nil {
		o.forget = time.AfterFunc(forgetAfter, o.drop)
	}
	o.forget.Reset(forgetAfter)
	age := minPause
	if o.last != nil && o.last.Since == 0 { // somebody waits for rates
		age /= 4
	}
	o.mu.Unlock()
	return o.look(age, o.due)
}

// record makes a scan for the rings, unless there was one a moment ago for a viewer. It returns the time until the next one.
func (o *Observer) record() (pause time.Duration, err error) {
	o.looking.Lock()
	defer o.looking.Unlock()
	if len(o.served().rows) > 0 {
		_, err = o.look(recordEvery/2, time.Time{})
	}
	return max(recordEvery, recordShare*o.cost), err
}

// look returns the newest scan, or makes one if it is older than age and due has passed. The caller holds o.looking.
func (o *Observer) look(age time.Duration, due time.Time) (*Snapshot, error) {
	begin := o.now()
	o.mu.Lock()
	last := o.last
	o.mu.Unlock()
	if last != nil && (begin.Sub(last.At) < age || begin.Before(due)) {
		return last, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := o.used()
	found := o.served()
	l := &Snapshot{At: begin, clients: o.watching(begin)}
	if last != nil {
		l.Since = begin.Sub(last.At)
	}
	known, err := o.count(l, found, o.known)
	var counted nft.Totals
	if err == nil && o.totals != nil {
		if counted, err = o.totals(); err == nil {
			l.total(found, counted)
		}
	}
	found.end(l)
	if err != nil {
		return nil, err
	}
	if l.Counted {
		l.compare(last)
	}
	if l.leave(found, counted.Egress, last); o.leave != nil && (l.Egress != nil || last != nil && last.Egress != nil) {
		o.leave(l.Egress)
	}
	if o.settings != nil {
		l.Bytes = o.settings().Bytes
	}
	if l.Failures = o.failures(); last != nil {
		l.failing = last.Failures
	}
	if o.judged != nil {
		l.States, l.Counts, l.Verdict = o.judged()
	}
	if o.rings != nil {
		o.rings.add(l)
	}
	o.cost = o.used() - used
	pause := maxShare * o.cost
	if since := begin.Add(-pause); o.due.Before(since) {
		o.due = since
	}
	o.due = o.due.Add(pause)
	o.known = known
	o.appendHistory(l)
	return l, nil
}

// served returns the index of the ports as they are now. The caller holds o.looking.
func (o *Observer) served() *index {
	of, all, now := o.ports(o.knownAt)
	if o.knownAt = now; all {
		o.found = indexOf(of)
	} else if len(of) > 0 {
		o.found.change(of)
	}
	return o.found
}

// count reads the connection tracking table into l, and adds the totals of connections that ended. before has the connections of the
// previous scan. It returns those of this one.
func (o *Observer) count(l *Snapshot, found *index, before tracked) (known tracked, err error) {
	if o.ended == nil {
		return l.count(found, before, nil, o.read)
	}
	o.receive()
	ended := o.ended.Snapshot(o.now())
	defer func() {
		if err != nil {
			known = tracked{} // they are not all
		}
		ended.End(known.ids)
	}()
	if known, err = l.count(found, before, ended.Counts, o.read); err != nil {
		return known, err
	}
	l.addEnded(found, ended)
	return known, nil
}

// userShare is the factor by which CPU time outside of the kernel counts. It represents the responses that are computed from a scan and
// garbage collection, which run in other threads. Reading many connections takes nearly only time in the kernel.
const userShare = 3

// threadCost returns the CPU time of this thread, weighted by userShare.
func threadCost() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &r) // of this thread it does not fail
	return time.Duration(userShare*r.Utime.Nano() + r.Stime.Nano())
}

// appendHistory makes a scan the newest one, and adds it to the history of the ports that have connections or recently had some.
func (o *Observer) appendHistory(l *Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last = l; !o.viewed {
		return
	}
	seen := make(map[string]wire.TrafficSample, len(o.history))
	for _, p := range l.Ports {
		key := p.Port.Key()
		if p.Open+p.Unanswered+p.New == 0 && o.history[key] == nil {
			continue
		}
		s := seen[key]
		s.At, s.Open = l.At, s.Open+p.Open
		if s.Rate = plus(s.Rate, rate(p.New, l.Since)); s.Rate == nil {
			s.Rate = rate(p.New, l.Since)
		}
		seen[key] = s
	}
	for key := range o.history {
		_, has := seen[key]
		if _, served := place(l.rows, key); !has && served {
			seen[key] = wire.TrafficSample{At: l.At, Rate: rate(0, l.Since)}
		}
	}
	for key, s := range seen {
		h := append(o.history[key], s)
		o.history[key] = h[max(0, len(h)-Samples):]
	}
	for key, h := range o.history {
		if _, has := seen[key]; !has || l.At.Sub(h[0].At) > 0 && idle(h) {
			delete(o.history, key) // the Service is gone, or had nothing in the whole history
		}
	}
}

// idle reports whether a history is full and has no connections.
func idle(h []wire.TrafficSample) bool {
	return len(h) == Samples && !slices.ContainsFunc(h, func(s wire.TrafficSample) bool { return s.Open > 0 || s.Rate != nil && *s.Rate > 0 })
}

// drop releases the memory of the last scan and of the history after forgetAfter without a request, except for what rings need for the next
// scan.
func (o *Observer) drop() {
	o.looking.Lock()
	defer o.looking.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.viewed, o.history, o.watched = false, map[string][]wire.TrafficSample{}, nil
	if o.rings == nil {
		o.last, o.known, o.found, o.knownAt = nil, tracked{}, nil, 0
	}
}

// History returns the samples of a Service port (Port.Key) in the last scans, the oldest first.
func (o *Observer) History(key string) []wire.TrafficSample {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.history[key])
}

// Key identifies a port without its family: "namespace/name" or "namespace/name/port".
func (p *Port) Key() string {
	if p.row != nil {
		return p.row.key
	}
	if p.Name == "" {
		return p.Service
	}
	return p.Service + "/" + p.Name
}
