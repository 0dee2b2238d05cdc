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
	// NetNS is a file descriptor of the network namespace to work in; 0 means the current one. It must stay open while Run runs.
	NetNS int
	Log   *slog.Logger // nil means slog.Default
}

// Cleaner deletes the conntrack entries of stale connections, such as those to removed endpoints. Reconcile queues the work, and Run
// performs it.
type Cleaner struct {
	log   *slog.Logger
	table table
	wake  chan struct{} // capacity 1: work was queued

	mu       sync.Mutex
	schedule *schedule
	stats    Stats

	task.LastError // why stale connections cannot be deleted
}

// Stats holds counters since the start, and the current value of Draining.
type Stats struct {
	Looks     uint64 // number of scans of the connection tracking table
	Entries   uint64 // entries read from the kernel
	Forgotten uint64 // entries that were deleted
	Reset     uint64 // TCP connections that were ended by a reset
	Failures  uint64 // failed scans, which are repeated
	Draining  int    // removed endpoints that may still have connections
	// Retried counts the entries that Retry deleted; always 0 in the Stats of a Cleaner.
	Retried uint64
	// LastLook is the duration of the last scan.
	LastLook time.Duration
}

// The delay before a failed scan is repeated starts at retryFirst and doubles up to retryLast.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
)

// RestFor is the pause after a scan of the table, as a multiple of the Cost of that scan, so that scans of one kind use at most a twentieth
// of a CPU. A Cleaner uses the elapsed time instead of the Cost, and pauses for at most restMost.
const (
	RestFor  = 19
	restMost = 200 * time.Millisecond
)

// Cost starts measuring a scan. The returned function returns the CPU time that this process has used since then, limited to the elapsed
// time. The time that a scan waits for a CPU thus does not lengthen the pause.
func Cost() func() time.Duration {
	began, begin, end := time.Now(), unix.Timespec{}, unix.Timespec{}
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &begin) // it fails for no process of this kernel
	return func() time.Duration {
		_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &end)
		return min(time.Since(began), time.Duration(end.Nano()-begin.Nano()))
	}
}

// New returns a Cleaner that does nothing before Run is called. It fails if the kernel refuses access to the connection tracking table; the
// error contains the remedy.
func New(options Options) (*Cleaner, error) {
	table := &kernelTable{netns: options.NetNS}
	err := table.open(&table.reader)
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

// Reconcile queues work for Run, and does not block. The ruleset that caused the work must already be in the kernel.
func (c *Cleaner) Reconcile(w Work) {
	c.mu.Lock()
	c.schedule.add(w, time.Now())
	c.mu.Unlock()
	if len(w.Flows)+len(w.Begun)+len(w.Departed) > 0 {
		task.Wake(c.wake)
	}
}

// Expect announces the work of a change that is about to be committed. Reconcile must follow after the commit. Without Expect a scan
// between the commit and Reconcile would delete connections to new endpoints as stale.
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

// Run deletes stale connections until ctx is done, and then closes its sockets. Work queued during a scan of the table is combined into the
// next scan. A scan walks the whole table, which takes some 10 ms even if the table is empty. After each scan Run pauses (RestFor), so that
// endpoints that change constantly use a limited share of a CPU. Failed scans are repeated.
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
	total, err := c.table.deleteMatching(ctx, queries, func(e *entry) (verdict, netip.Addr) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.schedule.judge(e, now), c.schedule.resetters[e.family]
	})
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

// rescanDelay is the delay of the second scan of a frontend. A packet in flight during a change of the ruleset may have been translated by
// the old rules, and its entry may be created after the first scan. If the client never pauses, that entry would never expire.
const rescanDelay = time.Second

// scanSlack is the longest additional delay of a second scan, to combine it with the scans of other changes, because each scan wakes the
// process.
const scanSlack = 500 * time.Millisecond

// schedule computes which connections to scan for, and when. It has no clock: callers pass the time.
type schedule struct {
	addresses [2][]netip.Addr // node port addresses and all addresses of the box, from which nodePorts and resetters are made
	nodePorts map[netip.Addr]bool
	resetters map[nft.Family]netip.Addr
	items     Index[*item]
	most      int // maximum size of items since the map was allocated
	begun     begun

	departing
}

func newSchedule() *schedule {
	return &schedule{items: NewIndex[*item](0), begun: begun{frontends: NewIndex[time.Time](0)}}
}

// item is a frontend whose connections are to be scanned.
type item struct {
	flows Flows
	since time.Time   // when the endpoints of the frontend last changed
	looks []time.Time // the times of further scans, in order
	// open holds the removed endpoints that had connections at the last scan, with the time of their removal.
	open map[netip.AddrPort]time.Time
}

// revoked is the key in item.open for the TCP connections of clients that may no longer connect, to whichever endpoint. It is used only if the
// Service drains connections.
var revoked netip.AddrPort

// add schedules the work of a change. It replaces pending work for the same frontends, so that connections to an endpoint that was added
// back are kept.
func (a *schedule) add(w Work, now time.Time) {
	a.place(w.NodePorts, w.Local)
	a.depart(w.Departed, now)
	a.begun.add(w.Begun, now)
	for _, flows := range w.Flows {
		it := a.items.Of[flows.Frontend]
		if it == nil {
			if !flows.Look {
				continue
			}
			it = &item{open: map[netip.AddrPort]time.Time{}}
			a.items.Set(flows.Frontend, it)
			a.most = max(a.most, len(a.items.Of))
		}
		if !it.flows.Sources.equal(flows.Sources) {
			delete(it.open, revoked) // others are shut out now: their time begins
		}
		it.flows = flows
		if flows.Look {
			it.since, it.looks = now, []time.Time{now, now.Add(rescanDelay)}
		}
		maps.DeleteFunc(it.open, func(endpoint netip.AddrPort, _ time.Time) bool {
			return !flows.Drain.On || contains(flows.Keep, endpoint)
		})
		a.tidy(it)
	}
}

// place sets the addresses of the box: nodePorts holds those on which node ports answer, local holds all. They change rarely.
func (a *schedule) place(nodePorts, local []netip.Addr) {
	if slices.Equal(nodePorts, a.addresses[0]) && slices.Equal(local, a.addresses[1]) {
		return
	}
	a.addresses = [2][]netip.Addr{nodePorts, local}
	a.nodePorts, a.resetters = addressSet(nodePorts), resettersOf(local)
}

// tidy removes an item that has no further scans and no draining connections.
func (a *schedule) tidy(it *item) {
	if len(it.looks) == 0 && len(it.open) == 0 {
		a.items.Delete(it.flows.Frontend)
	}
}

// next returns the earliest and the latest time of the item's next scan; zero if none is scheduled.
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
		if it := a.items.Of[flows.Frontend]; it != nil {
			it.flows.Keep = union([][]netip.AddrPort{it.flows.Keep, flows.Keep})
			it.flows.Sources = it.flows.Sources.mergeSources(flows.Sources)
		}
	}
}

// due returns the frontends that are due for a scan. next is the latest time for the next scan of other frontends, begun connections or departures;
// zero if none is scheduled.
func (a *schedule) due(now time.Time) (due []*item, next time.Time) {
	next = a.nextLook(now)
	for _, it := range a.items.Of {
		switch from, latest := it.next(); {
		case !from.After(now):
			due = append(due, it)
		case next.IsZero() || latest.Before(next):
			next = latest
		}
	}
	return due, next
}

// verdict is the action of a scan on an entry.
type verdict uint8

const (
	leave  verdict = iota
	forget         // delete the entry: the next packet begins a new connection, if it can
	reset          // replace the entry with dead ends: the next packet of either side is answered by a reset
)

// judge returns the verdict on an entry. It also records which removed endpoints have draining connections.
func (a *schedule) judge(e *entry, now time.Time) verdict {
	if v, judged := a.judgeDeparture(e, now); judged {
		return v
	}
	it, known := a.items.of(e, a.nodePorts)
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

// queries returns the queries for the frontends that are due and, if their scan is due, for connections that predate their rules.
func (a *schedule) queries(due []*item, now time.Time) []query {
	queries := append(a.dueQueries(now), queriesFor(due)...)
	if !a.begun.next.IsZero() && !a.begun.next.After(now) {
		for fe := range a.begun.frontends.Of { // one dump of unanswered entries for each family and protocol
			q := query{family: fe.Family, protocol: fe.Protocol, unanswered: true}
			if !slices.Contains(queries, q) {
				queries = append(queries, q)
			}
		}
	}
	return queries
}

// done records that all entries of the given frontends were judged at a time, and removes the frontends that need no further scan.
func (a *schedule) done(looked []*item, at time.Time) {
	a.departed(at)
	for _, it := range looked {
		it.looks = slices.DeleteFunc(it.looks, func(t time.Time) bool { return !t.After(at) })
		maps.DeleteFunc(it.open, func(_ netip.AddrPort, since time.Time) bool { return !since.Add(it.flows.Drain.Timeout).After(at) })
		if a.items.Of[it.flows.Frontend] == it {
			a.tidy(it)
		}
	}
	if len(a.items.Of) < a.most/8 { // a map keeps its room, and each scan walks all of it
		items := make(map[Frontend]*item, len(a.items.Of))
		maps.Copy(items, a.items.Of)
		a.items.Of, a.most = items, len(items)
	}
}

// draining returns the number of removed endpoints that may still have connections.
func (a *schedule) draining() (n int) {
	for _, it := range a.items.Of {
		n += len(it.open)
	}
	return n
}

// expirySet holds the TCP frontends of Services that configure a time: the idle timeout for Idle, or the time to wait for an answer for
// Retry.
type expirySet struct {
	times     Index[time.Duration]
	services  map[string][]Frontend
	nodePorts map[netip.Addr]bool
}

func newExpirySet() expirySet {
	return expirySet{times: NewIndex[time.Duration](0), services: map[string][]Frontend{}}
}

// any reports whether a time is configured for any frontend.
func (t *expirySet) any() bool { return len(t.times.Of) > 0 }

// update replaces the frontends of the given Services. It includes only TCP ports for which timeOf returns a nonzero time. If box is not nil, it also
// replaces the node port addresses. turned reports whether the set became empty or nonempty.
func (t *expirySet) update(box *nft.Box, changes map[string][]nft.ServicePort, timeOf func(service string, p *nft.ServicePort) time.Duration) (turned bool) {
	if box != nil {
		t.nodePorts = addressSet(box.NodePortAddresses)
	}
	before := t.any()
	for service := range changes { // all of them first: a frontend may move from one Service to another
		for _, fe := range t.services[service] {
			t.times.Delete(fe)
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
				t.times.Set(fe, after)
				t.services[service] = append(t.services[service], fe)
			}
		}
	}
	return t.any() != before
}

// of returns the time configured for the frontend of an entry; 0 if there is none.
func (t *expirySet) of(e *entry) time.Duration {
	after, _ := t.times.of(e, t.nodePorts)
	return after
}

// begun finds connections that predate the rules of their Service, because the Service is new or the rules were missing, for example after
// a flush. The kernel translates only according to the first packet, so retransmissions of such a connection leave untranslated. After its
// entry is deleted, the next packet counts as a first one. Only unanswered entries are concerned: an untranslated answer came from a
// program of the box that listens there, or from a destination that the rules do not translate.
type begun struct {
	frontends Index[time.Time] // with the time of the last scheduled scan
	next      time.Time        // time of the next scan; zero if none is scheduled
}

// add schedules a scan for the frontends after rescanDelay, and an additional scan at once if the rules of a frontend were missing (value
// true).
func (w *begun) add(frontends map[Frontend]bool, now time.Time) {
	for fe, missing := range frontends {
		w.frontends.Set(fe, now.Add(rescanDelay))
		if missing {
			w.next = now
		} else if w.next.IsZero() {
			w.next = now.Add(rescanDelay)
		}
	}
}

// concerns reports whether an entry belongs to a connection that predates its rules. nodePorts are the addresses on which node ports
// answer.
func (w *begun) concerns(e *entry, nodePorts map[netip.Addr]bool) bool {
	if len(w.frontends.Of) == 0 || e.answered || e.replyFrom != e.to || e.protocol == nft.TCP && e.state != tcpSynSent {
		return false
	}
	_, served := w.frontends.of(e, nodePorts)
	return served
}

// done records that every entry was judged at a time, and schedules the next scan. Because a scan walks the kernel's whole table, one scan
// covers all frontends added since.
func (w *begun) done(at time.Time) {
	if w.next.After(at) { // others came meanwhile
		return
	}
	for fe, last := range w.frontends.Of {
		if !last.After(at) {
			w.frontends.Delete(fe)
		}
	}
	w.next = at.Add(rescanDelay)
	if len(w.frontends.Of) == 0 {
		w.frontends, w.next = NewIndex[time.Time](0), time.Time{} // a map that was emptied keeps its room
	}
}
