package conntrack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// Options are the network namespace and the log of a Cleaner.
type Options struct {
	// NetNS is a file descriptor of the network namespace to work in; 0: the current
	// one. It is needed as long as Run runs.
	NetNS int
	Log   *slog.Logger // nil: slog.Default
}

// Cleaner deletes the conntrack entries of stale connections: those to endpoints that are gone. Reconcile queues the work, Run does it.
type Cleaner struct {
	log   *slog.Logger
	table table
	wake  chan struct{} // capacity 1

	mu       sync.Mutex
	schedule *schedule
	stats    Stats

	task.LastError // the error that keeps stale connections from being deleted
}

// Stats are counters since the start, except for Draining.
type Stats struct {
	Looks     uint64 // scans of the connection tracking table
	Entries   uint64 // entries that were read
	Forgotten uint64 // entries that were deleted
	Reset     uint64 // TCP connections that were ended by a reset
	Failures  uint64 // scans that failed, and were or will be repeated
	Draining  int    // endpoints that are gone and whose connections may still live
	// Retried counts the entries that Retry deleted; it is 0 in the Stats of a Cleaner.
	Retried uint64
	// LastLook is the duration of the last scan.
	LastLook time.Duration
}

// The wait before a failed scan is repeated starts with retryFirst and doubles up to retryLast.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
)

// RestFor is the pause after a scan of the table, as a multiple of the Cost of that scan, so that scans of one kind use no more than a
// twentieth of a CPU. A Cleaner uses the elapsed time in place of the Cost, and pauses for restMost at most.
const (
	RestFor  = 19
	restMost = 200 * time.Millisecond
)

// Cost starts to measure a scan. The function that it returns returns the CPU time that this process used since then, at most the elapsed
// time. So the time that a scan waits for a CPU does not lengthen the pause.
func Cost() func() time.Duration {
	began, begin, end := time.Now(), unix.Timespec{}, unix.Timespec{}
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &begin) // it fails for no process of this kernel
	return func() time.Duration {
		_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &end)
		return min(time.Since(began), time.Duration(end.Nano()-begin.Nano()))
	}
}

// New returns a Cleaner that does nothing before its Run. It fails when the kernel refuses access to the connection tracking table; the
// error has the remedy.
func New(options Options) (*Cleaner, error) {
	table := &kernelTable{netns: options.NetNS}
	err := table.open()
	if err == nil {
		_, err = table.reader.count() // whether the kernel answers at all
	}
	if err != nil {
		return nil, errors.Join(explain(err), table.close())
	}
	options.Log = cmp.Or(options.Log, slog.Default())
	return newCleaner(table, options.Log), nil
}

func newCleaner(table table, log *slog.Logger) *Cleaner {
	return &Cleaner{log: log, table: table, wake: make(chan struct{}, 1), schedule: newSchedule()}
}

// Reconcile queues work for Run, and does not block. The ruleset that the work follows from must be in the kernel already.
func (c *Cleaner) Reconcile(w Work) {
	c.mu.Lock()
	c.schedule.add(w, time.Now())
	c.mu.Unlock()
	if len(w.Flows)+len(w.Begun)+len(w.Departed) > 0 {
		task.Wake(c.wake)
	}
}

// Expect announces the work of a change that is about to be committed; Reconcile follows after the commit. Without it a scan in between
// would delete connections to new endpoints as stale.
func (c *Cleaner) Expect(w Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.expect(w)
}

// Stats returns the counters of the Cleaner.
func (c *Cleaner) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Draining = c.schedule.draining()
	return s
}

// Run deletes stale connections until ctx is done, and then closes its sockets. Work that is queued during a scan of the table is done
// together in the next one. After a scan it pauses for RestFor, so that endpoints that change all the time use no more than a twentieth of
// a CPU: a scan walks the whole table, which takes some 10 ms even if it is empty. Failed scans are repeated.
func (c *Cleaner) Run(ctx context.Context) error {
	var retry time.Duration
	var earliest time.Time // of the next look
	task.Repeat(ctx, c.wake, func() time.Time {
		start := time.Now()
		if start.Before(earliest) {
			return earliest
		}
		next, err := c.scan(ctx, start)
		rest := min(RestFor*time.Since(start), restMost)
		if err != nil {
			retry = min(max(2*retry, retryFirst), retryLast)
			rest = retry
		} else {
			retry = 0
		}
		if earliest = time.Now().Add(rest); !next.IsZero() && next.Before(earliest) {
			return earliest
		}
		return next
	})
	return c.table.close()
}

// scan judges the entries of every frontend that is due, deletes the stale ones, and returns the time of the next scan.
func (c *Cleaner) scan(ctx context.Context, now time.Time) (next time.Time, err error) {
	c.mu.Lock()
	due, next := c.schedule.due(now)
	queries := c.schedule.queries(due, now)
	c.mu.Unlock()
	if len(queries) == 0 {
		return next, nil
	}
	judge := func(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range entries {
			verdicts = append(verdicts, c.schedule.judge(&entries[i], now))
		}
		return verdicts, c.schedule.resetters
	}
	total, err := c.table.deleteMatching(ctx, queries, judge)
	if ctx.Err() != nil {
		return next, ctx.Err()
	}
	return c.commitScan(due, now, total, err), err
}

// commitScan removes the scanned frontends from the schedule, unless the scan failed, and adds the deletions to the counters. It returns
// the time of the next scan.
func (c *Cleaner) commitScan(looked []*item, start time.Time, total tally, err error) (next time.Time) {
	took := time.Since(start)
	c.mu.Lock()
	if err == nil {
		c.schedule.done(looked, start)
	} else {
		c.stats.Failures++
	}
	c.stats.Looks++
	c.stats.Entries += uint64(total.seen)
	c.stats.Forgotten += uint64(total.forgotten)
	c.stats.Reset += uint64(total.reset)
	c.stats.LastLook = took
	due, next := c.schedule.due(start)
	if queries := c.schedule.queries(due, start); len(queries) > 0 {
		next = start
	}
	c.mu.Unlock()

	c.Log(c.log, err, "connections to removed endpoints may continue", "connections to removed endpoints are deleted again")
	if total.forgotten+total.reset > 0 {
		c.log.Debug("stale connections", "frontends", len(looked), "forgotten", total.forgotten, "reset", total.reset, "seen", total.seen, "dur", took)
	}
	return next
}

// rescanDelay is the delay after which a frontend is scanned a second time. A packet in flight during a change of the ruleset may have been
// translated by the old rules, and its entry be made after the first scan. If the client never pauses, that entry would never expire.
const rescanDelay = time.Second

// scanSlack is the longest time by which a second scan is delayed further, to combine it with those of other changes: each scan wakes the
// process up.
const scanSlack = 500 * time.Millisecond

// schedule computes which connections to look for, and when. It has no clock: calls pass the time.
type schedule struct {
	addresses [2][]netip.Addr // nodePorts and resetters are made from them: on which node ports answer, and all of the box
	nodePorts map[netip.Addr]bool
	resetters map[nft.Family]netip.Addr
	items     map[Frontend]*item
	ranges    Ranges // the port ranges in items
	most      int    // the most items since the map was made
	begun     begun

	departing
}

func newSchedule() *schedule {
	return &schedule{items: map[Frontend]*item{}, begun: begun{frontends: map[Frontend]time.Time{}}}
}

// item is a frontend whose connections are to be scanned.
type item struct {
	flows Flows
	since time.Time   // when its endpoints changed last
	looks []time.Time // the times of further scans, in order
	// open has the endpoints that are gone and had connections at the last scan, with the time since which they are gone.
	open map[netip.AddrPort]time.Time
}

// revoked is the key in item.open for TCP connections of clients that may no longer connect, whatever their endpoint, when the Service
// drains them.
var revoked netip.AddrPort

// add schedules the work of a change. It replaces pending work for the same frontends, so that connections to an endpoint that came back
// are kept.
func (a *schedule) add(w Work, now time.Time) {
	a.place(w.NodePorts, w.Local)
	a.depart(w.Departed, now)
	a.begun.add(w.Begun, now)
	for _, flows := range w.Flows {
		it := a.items[flows.Frontend]
		if it == nil {
			if !flows.Look {
				continue
			}
			it = &item{open: map[netip.AddrPort]time.Time{}}
			a.items[flows.Frontend] = it
			a.ranges.Add(flows.Frontend)
			a.most = max(a.most, len(a.items))
		}
		if !it.flows.Sources.equal(flows.Sources) {
			delete(it.open, revoked) // others are shut out now: their time begins
		}
		it.flows = flows
		if flows.Look {
			it.since, it.looks = now, []time.Time{now, now.Add(rescanDelay)}
		}
		for endpoint := range it.open {
			if !flows.Drain.On || contains(flows.Keep, endpoint) {
				delete(it.open, endpoint)
			}
		}
		a.tidy(it)
	}
}

// place sets the addresses of the box: those on which node ports answer, and all. They change rarely.
func (a *schedule) place(nodePorts, local []netip.Addr) {
	if slices.Equal(nodePorts, a.addresses[0]) && slices.Equal(local, a.addresses[1]) {
		return
	}
	a.addresses = [2][]netip.Addr{nodePorts, local}
	a.nodePorts, a.resetters = addressSet(nodePorts), resettersOf(local)
}

// tidy removes an item whose scans are all done and which has no draining connections.
func (a *schedule) tidy(it *item) {
	if len(it.looks) == 0 && len(it.open) == 0 {
		delete(a.items, it.flows.Frontend)
		a.ranges.Drop(it.flows.Frontend)
	}
}

// next returns the earliest and the latest time of the item's next scan; zero: none.
func (it *item) next() (from, latest time.Time) {
	if len(it.looks) > 0 {
		from, latest = it.looks[0], it.looks[0]
		if from.After(it.since) {
			latest = from.Add(scanSlack)
		}
	}
	for _, since := range it.open {
		deadline := since.Add(it.flows.Drain.Timeout)
		if from.IsZero() || deadline.Before(from) {
			from = deadline
		}
		if latest.IsZero() || deadline.Before(latest) {
			latest = deadline
		}
	}
	return from, latest
}

// expect merges the work of a change that is about to be committed into the pending work. Until add is called, connections are kept if
// their endpoint serves before or after the change, and if their client may connect before or after it.
func (a *schedule) expect(w Work) {
	for _, flows := range w.Flows {
		if it := a.items[flows.Frontend]; it != nil {
			it.flows.Keep = union([][]netip.AddrPort{it.flows.Keep, flows.Keep})
			it.flows.Sources = it.flows.Sources.mergeSources(flows.Sources)
		}
	}
}

// due returns the frontends whose scan is due, and the latest time for the next scan of the others (zero: none). Connections that began
// before their rules (begun) have a time of their own.
func (a *schedule) due(now time.Time) (due []*item, next time.Time) {
	next = a.nextLook(now)
	for _, it := range a.items {
		switch from, latest := it.next(); {
		case !from.After(now):
			due = append(due, it)
		case next.IsZero() || latest.Before(next):
			next = latest
		}
	}
	return due, next
}

// verdict is what a scan does with an entry.
type verdict uint8

const (
	leave  verdict = iota
	forget         // delete it: the next packet begins a new connection, if it can
	reset          // make it a dead end: the next packet of either side is answered by a reset
)

// judge returns what to do with an entry. It also records which of the endpoints that are gone have draining connections.
func (a *schedule) judge(e *entry, now time.Time) verdict {
	if v, judged := a.judgeDeparture(e, now); judged {
		return v
	}
	it, known := atFrontend(a.items, e, a.nodePorts, a.ranges)
	if !known || it.flows.isOtherPort(e) {
		return leave
	}
	flows, endpoint := &it.flows, e.replyFrom
	if flows.Frontend.Last != 0 {
		endpoint = netip.AddrPortFrom(endpoint.Addr(), 0) // at whichever port
	}
	admitted := flows.Sources.admit(e.from.Addr())
	switch {
	case admitted && contains(flows.Keep, endpoint):
		return leave
	case e.replyFrom == e.to: // it was never translated
		if flows.Gone || e.protocol == nft.TCP {
			return leave
		}
		return forget
	case e.isDeadEnd(), e.isEnding():
		return leave
	case !admitted && e.protocol != nft.TCP:
		return forget
	case contains(flows.Ended, endpoint):
		if e.protocol == nft.TCP && e.isEstablished() {
			return reset
		}
		return forget
	case !flows.Drain.On:
		if e.protocol == nft.TCP {
			return leave
		}
		return forget
	}
	if !admitted {
		endpoint = revoked
	}
	since, known := it.open[endpoint]
	if !known {
		since = it.since
		it.open[endpoint] = since
	}
	switch {
	case since.Add(flows.Drain.Timeout).After(now):
		return leave
	case e.isEstablished():
		return reset
	}
	return forget
}

// queries returns the queries for the frontends that are due, and for connections that began before their rules, if these are due.
func (a *schedule) queries(due []*item, now time.Time) []query {
	queries := append(a.dueQueries(now), queriesFor(due)...)
	if !a.begun.next.IsZero() && !a.begun.next.After(now) {
		for fe := range a.begun.frontends { // one dump of unanswered entries for each family and protocol
			q := query{family: fe.Family, protocol: fe.Protocol, unanswered: true}
			if !slices.Contains(queries, q) {
				queries = append(queries, q)
			}
		}
	}
	return queries
}

// done records that all entries of these frontends were judged at a time, and removes the frontends that need no further scan.
func (a *schedule) done(looked []*item, at time.Time) {
	a.departed(at)
	for _, it := range looked {
		it.looks = slices.DeleteFunc(it.looks, func(t time.Time) bool { return !t.After(at) })
		for endpoint, since := range it.open {
			if !since.Add(it.flows.Drain.Timeout).After(at) {
				delete(it.open, endpoint)
			}
		}
		if a.items[it.flows.Frontend] == it {
			a.tidy(it)
		}
	}
	if len(a.items) < a.most/8 { // a map keeps its room, and each scan walks all of it
		items := make(map[Frontend]*item, len(a.items))
		maps.Copy(items, a.items)
		a.items, a.most = items, len(items)
	}
}

// draining returns the number of endpoints that are gone and may still have connections.
func (a *schedule) draining() (n int) {
	for _, it := range a.items {
		n += len(it.open)
	}
	return n
}

// expirySet has the TCP frontends whose Services set a time: for Idle the idle timeout, for Retry the time to wait for an answer.
type expirySet struct {
	times     map[Frontend]time.Duration
	services  map[string][]Frontend
	nodePorts map[netip.Addr]bool
	ranges    Ranges // the port ranges in times
}

func newExpirySet() expirySet {
	return expirySet{times: map[Frontend]time.Duration{}, services: map[string][]Frontend{}}
}

// any reports whether any frontend has a time.
func (t *expirySet) any() bool { return len(t.times) > 0 }

// update replaces the frontends of Services by those of their TCP ports for which timeOf returns a time, and the addresses of node ports
// if there is a Box. It reports whether the set was empty before or is now, but not both.
func (t *expirySet) update(box *nft.Box, changes map[string][]nft.ServicePort, timeOf func(service string, p *nft.ServicePort) time.Duration) (turned bool) {
	if box != nil {
		t.nodePorts = addressSet(box.NodePortAddresses)
	}
	before := t.any()
	for service := range changes { // all of them first: a frontend may move from one Service to another
		for _, fe := range t.services[service] {
			delete(t.times, fe)
			t.ranges.Drop(fe)
		}
		delete(t.services, service)
	}
	for service, ports := range changes {
		for i := range ports {
			p := &ports[i]
			after := timeOf(service, p)
			if after == 0 || p.Protocol != nft.TCP {
				continue
			}
			for _, fe := range FrontendsOf(p) {
				t.times[fe] = after
				t.ranges.Add(fe)
				t.services[service] = append(t.services[service], fe)
			}
		}
	}
	return t.any() != before
}

// of returns the time that is set for the frontend of an entry; 0 if there is none.
func (t *expirySet) of(e *entry) time.Duration {
	after, _ := atFrontend(t.times, e, t.nodePorts, t.ranges)
	return after
}

// begun finds connections that began before rules led them to a Service: the Service is new, or the rules were missing, for example after a
// flush of the ruleset. The kernel translates by the first packet alone, so retransmissions of such a connection leave untranslated. When
// its entry is deleted, the next packet is a first one. Only unanswered entries are concerned: an untranslated answer came from a program
// of the box that listens there, or from a destination that the rules do not translate.
type begun struct {
	frontends map[Frontend]time.Time // with the time of the last scan for each
	ranges    Ranges                 // the port ranges in frontends
	next      time.Time              // the next scan; zero: there is none
}

// add schedules a scan for the frontends after rescanDelay, and one at once for those whose rules were missing (true).
func (w *begun) add(frontends map[Frontend]bool, now time.Time) {
	for fe, missing := range frontends {
		w.frontends[fe] = now.Add(rescanDelay)
		w.ranges.Add(fe)
		if missing {
			w.next = now
		} else if w.next.IsZero() {
			w.next = now.Add(rescanDelay)
		}
	}
}

// concerns reports whether an entry is of a connection that began before its rules. nodePorts are the addresses on which node ports answer.
func (w *begun) concerns(e *entry, nodePorts map[netip.Addr]bool) bool {
	if len(w.frontends) == 0 || e.answered || e.replyFrom != e.to || e.protocol == nft.TCP && e.state != tcpSynSent {
		return false
	}
	_, served := atFrontend(w.frontends, e, nodePorts, w.ranges)
	return served
}

// done records that every entry was judged at a time, and schedules the next scan. A scan walks the kernel's whole table, so the next one
// covers all frontends that were added since.
func (w *begun) done(at time.Time) {
	if w.next.After(at) { // others came meanwhile
		return
	}
	for fe, last := range w.frontends {
		if !last.After(at) {
			delete(w.frontends, fe)
			w.ranges.Drop(fe)
		}
	}
	w.next = at.Add(rescanDelay)
	if len(w.frontends) == 0 {
		w.frontends, w.next = map[Frontend]time.Time{}, time.Time{} // a map that was emptied keeps its room
	}
}
