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
	// maxShare limits scans to 1 % of a core: it is the minimum time between two scans as a multiple of the CPU time (threadCost) of the first. A
	// viewer may use 2 %; the rest is for responses and garbage collection.
	maxShare = 100
	// forgetAfter is the time without a request after which the memory of the last scan is released.
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
	known   tracked   // connections of the last scan, or zero
	found   *index    // index of the Service ports in state knownAt (see sources.ports); initially nil and 0
	knownAt int

	mu      sync.Mutex
	last    *Snapshot
	history map[string][]wire.TrafficSample // by Port.Key; only ports that had connections
	watched map[string]time.Time            // time of the last request for a Service's clients, by Service; they are counted for watchFor
	forget  *time.Timer
	viewed  bool // there was a request since the last drop

	rings *rings // nil if traffic is not recorded
}

// sources has the functions by which an Observer reads its data. Tests replace them.
type sources struct {
	read func(each func(*conntrack.Connection)) (entries int, err error)
	// ports returns the Service ports by "namespace/name" and the number now of the current state. Unless all is true, it returns only the Services
	// that changed since the state with the number since; a removed Service has no ports. No state has the number 0.
	ports func(since int) (of map[string][]Port, all bool, now int)
	// totals returns the kernel's counters since the start. The function is nil if the kernel does not count.
	totals func() (nft.Totals, error)
	now    func() time.Time
	used   func() time.Duration // returns the CPU time used (threadCost)
	// ended holds the totals of ended connections. receive adds the events that the kernel has sent so far to them. Both are nil if connection events
	// are not read.
	ended   *flows.Totals
	receive func()
	// settings returns which data of connections the kernel counts. failures returns the numbers of failed connections so far, nil if they are not
	// counted. judged returns the states of Services with problems. settings and judged are nil if these data are not available.
	settings func() conntrack.Settings
	failures func() map[string]map[netip.AddrPort]uint64
	judged   func() (states map[string]wire.Judged, counts map[string]int, verdict string)
	leave    func([]wire.EgressTraffic) // receives the egress traffic; may be nil
}

// New returns an Observer. It reads connections with read and the kernel's counters with totals, and attributes both to the Service ports that the
// function ports returns. totals is nil if the kernel does not count.
func New(read func(each func(*conntrack.Connection)) (int, error), ports func(since int) (of map[string][]Port, all bool, now int), totals func() (nft.Totals, error)) *Observer {
	return &Observer{sources: sources{read: read, ports: ports, totals: totals, now: time.Now, used: threadCost, failures: func() map[string]map[netip.AddrPort]uint64 { return nil }}, history: map[string][]wire.TrafficSample{}}
}

// Snapshot returns the last scan, or makes a new one if the last is older than minPause and maxShare permits it. The second scan, which gives the
// first rates, may follow sooner. The caller must not modify the result.
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

// record makes a scan for the rings, unless one was just made for a viewer. It returns the time until the next scan is due.
func (o *Observer) record() (pause time.Duration, err error) {
	o.looking.Lock()
	defer o.looking.Unlock()
	if len(o.served().rows) > 0 {
		_, err = o.look(recordEvery/2, time.Time{})
	}
	return max(recordEvery, recordShare*o.cost), err
}

// look returns the last scan, or makes a new one if the last is older than age and the time due has passed. The caller must hold o.looking.
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

// served returns an up-to-date index of the Service ports. The caller must hold o.looking.
func (o *Observer) served() *index {
	of, all, now := o.ports(o.knownAt)
	if o.knownAt = now; all {
		o.found = indexOf(of)
	} else if len(of) > 0 {
		o.found.change(of)
	}
	return o.found
}

// count reads the connection tracking table into l, and adds the totals of ended connections. before holds the connections of the previous scan. The
// result known holds those of this scan; it is empty after an error.
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

// userShare is the weight of CPU time in user mode. The extra weight represents the computation of responses and garbage collection, which run in
// other threads. Reading many connections takes almost only time in the kernel.
const userShare = 3

// threadCost returns the CPU time of the calling thread, with user time weighted by userShare.
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

// drop releases the history and the last scan, after forgetAfter without a request. If traffic is recorded it keeps the data that the next scan
// needs.
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

// History returns the samples of a Service port (Port.Key) in the last scans, oldest first; at most Samples.
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
