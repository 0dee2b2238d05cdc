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

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// Options say where a Cleaner works.
type Options struct {
	// NetNS is a file descriptor of the network namespace to work in; 0: the current
	// one. It is needed as long as Run runs.
	NetNS int
	Log   *slog.Logger // nil: slog.Default
}

// Cleaner deletes the entries of connections whose endpoint is gone. Reconcile queues the
// work, Run does it.
type Cleaner struct {
	log   *slog.Logger
	table table
	wake  chan struct{} // holds one

	mu       sync.Mutex
	schedule *schedule
	stats    Stats

	task.LastError // keeps stale connections from being deleted
}

// Stats are counted since the start, except for Draining.
type Stats struct {
	Looks     uint64 // times the connection tracking table was looked through
	Entries   uint64 // entries that were read
	Forgotten uint64 // entries that were deleted
	Reset     uint64 // TCP connections that were ended by a reset
	Failures  uint64 // looks that failed, and were or will be repeated
	Draining  int    // endpoints that are gone and whose connections may still live
	// Retried counts what Retry forgot; a Cleaner leaves it at 0.
	Retried uint64
	// LastLook is the duration of the last look.
	LastLook time.Duration
}

// The wait before Run repeats what failed doubles from retryFirst to the last one.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
)

// RestFor is the pause after a look through the table, as a multiple of the time that the look took: looks of a kind keep no more than
// a twentieth of a CPU busy. A Cleaner pauses restMost at most.
const (
	RestFor  = 19
	restMost = 200 * time.Millisecond
)

// New prepares a Cleaner. It fails when the kernel refuses access to the connection
// tracking table; the error has the remedy.
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

// Reconcile queues work for Run. The ruleset that the work follows from must be in the kernel already. It does not block.
func (c *Cleaner) Reconcile(w Work) {
	c.mu.Lock()
	c.schedule.add(w, time.Now())
	c.mu.Unlock()
	if len(w.Flows)+len(w.Begun)+len(w.Departed) > 0 {
		task.Wake(c.wake)
	}
}

// Expect prepares for a change that is about to be committed; Reconcile follows when it was.
// Without it a look in between would take connections to new endpoints for stale.
func (c *Cleaner) Expect(w Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.expect(w)
}

// Stats returns the counters of deleted entries.
func (c *Cleaner) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Draining = c.schedule.draining()
	return s
}

// Run works until ctx is done, and gives its sockets back then. All that was asked for
// while it looked through the table is done by one more look. After a look it rests, so
// that endpoints that change all the time keep no more than a twentieth of a CPU busy: a
// look walks the whole table, which takes some 10 ms even where it is empty. Failures
// are repeated.
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

// scan handles every frontend that is due, and returns the time of the next one.
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

// commitScan removes the scanned frontends from the schedule, unless the scan failed, and
// counts the deletions. It returns the time of the next scan.
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

	switch fails, again := c.SetErr(err); {
	case fails:
		c.log.Warn("connections to removed endpoints may continue", "err", err)
	case again:
		c.log.Info("connections to removed endpoints are deleted again")
	}
	if total.forgotten+total.reset > 0 {
		c.log.Debug("stale connections", "frontends", len(looked), "forgotten", total.forgotten, "reset", total.reset, "seen", total.seen, "dur", took)
	}
	return next
}

// rescanDelay is the delay after which a frontend is looked at once more. A packet that was under
// way while the ruleset changed may have been sent by the old one, and its connection be entered
// after the first look; with a sender that never pauses it would stay for ever.
const rescanDelay = time.Second

// scanSlack bounds the additional delay of a second look, which joins it with those of other
// changes: each wakes the process up.
const scanSlack = 500 * time.Millisecond

// schedule computes which connections to look for, and when. The caller gives the time.
type schedule struct {
	addresses [2][]netip.Addr // what the next two were made of: on which node ports answer, and all of the box
	nodePorts map[netip.Addr]bool
	resetters map[nft.Family]netip.Addr
	items     map[Frontend]*item
	ranges    Ranges // those of items
	most      int    // items since the map was made
	begun     begun

	departing
}

func newSchedule() *schedule {
	return &schedule{items: map[Frontend]*item{}, begun: begun{frontends: map[Frontend]time.Time{}}}
}

// item is a frontend that is looked at.
type item struct {
	flows Flows
	since time.Time   // when its endpoints changed last
	looks []time.Time // still to come, in order
	// open are the endpoints that are gone and had connections when they were looked
	// at, and since when they are gone.
	open map[netip.AddrPort]time.Time
}

// revoked stands in item.open for the clients that may not connect any more, whatever their
// endpoints: connections of TCP that the Service drains.
var revoked netip.AddrPort

// add adds the work of a change. It replaces pending work for the same frontends, so that an endpoint that is back loses no
// connection.
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

// place sets the addresses of the box, which change rarely.
func (a *schedule) place(nodePorts, local []netip.Addr) {
	if slices.Equal(nodePorts, a.addresses[0]) && slices.Equal(local, a.addresses[1]) {
		return
	}
	a.addresses = [2][]netip.Addr{nodePorts, local}
	a.nodePorts, a.resetters = addressSet(nodePorts), resettersOf(local)
}

// tidy drops a frontend that nothing is left to do for.
func (a *schedule) tidy(it *item) {
	if len(it.looks) == 0 && len(it.open) == 0 {
		delete(a.items, it.flows.Frontend)
		a.ranges.Drop(it.flows.Frontend)
	}
}

// next returns the earliest and the latest time of the next scan of the item.
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

// expect takes the work that a change under commit will leave. Its connections may be there
// before add is called: an endpoint that serves before or after the change keeps them, and
// so does a client that may connect before or after it.
func (a *schedule) expect(w Work) {
	for _, flows := range w.Flows {
		if it := a.items[flows.Frontend]; it != nil {
			it.flows.Keep = union([][]netip.AddrPort{it.flows.Keep, flows.Keep})
			it.flows.Sources = it.flows.Sources.mergeSources(flows.Sources)
		}
	}
}

// due returns the frontends whose scan is due, and the latest time for the next of the others
// (zero: none). The scan for connections that were begun before has a time of its own.
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

// verdict is the action on an entry.
type verdict uint8

const (
	leave  verdict = iota
	forget         // delete it: the next packet begins a new connection, if it can
	reset          // make it a dead end: the next packet of either side is answered by a reset
)

// judge returns the verdict about an entry at a time. It also notes the endpoints whose connections are
// drained.
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

// queries returns the queries for the frontends that are due, and for connections that were begun before if those are due.
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

// done records that every entry of these frontends was judged at a time.
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

// draining counts the endpoints that are gone and may have connections.
func (a *schedule) draining() (n int) {
	for _, it := range a.items {
		n += len(it.open)
	}
	return n
}

// expirySet has the TCP frontends whose Services set a time, the idle timeout for Idle and the time without an answer for Retry.
type expirySet struct {
	times     map[Frontend]time.Duration
	services  map[string][]Frontend
	nodePorts map[netip.Addr]bool
	ranges    Ranges // those of times
}

func newExpirySet() expirySet {
	return expirySet{times: map[Frontend]time.Duration{}, services: map[string][]Frontend{}}
}

// any reports whether there is a frontend.
func (t *expirySet) any() bool { return len(t.times) > 0 }

// drop takes the frontends of a Service away. What changes together is dropped before any of it is
// added: a frontend may go from one Service to another.
func (t *expirySet) drop(service string) {
	for _, fe := range t.services[service] {
		delete(t.times, fe)
		t.ranges.Drop(fe)
	}
	delete(t.services, service)
}

// add adds the frontends of a port of a Service, unless it asks for no time.
func (t *expirySet) add(service string, p *nft.ServicePort, after time.Duration) {
	if after == 0 || p.Protocol != nft.TCP {
		return
	}
	for _, fe := range FrontendsOf(p) {
		t.times[fe] = after
		t.ranges.Add(fe)
		t.services[service] = append(t.services[service], fe)
	}
}

// of returns the idle timeout of the frontend that the client of an entry connected to, 0 if it has none.
func (t *expirySet) of(e *entry) time.Duration {
	after, _ := atFrontend(t.times, e, t.nodePorts, t.ranges)
	return after
}

// begun finds connections that were begun before rules led them to a Service: it is new, or the rules were missing, as after a flush of
// the ruleset. The kernel translates by the first packet alone, so retransmissions of such a connection keep leaving untranslated.
// Deleting its entry makes the next one a first packet.
//
// Only unanswered entries are concerned. An answer without translation came from a program of the box that listens there, or from a
// destination that the rules leave alone.
type begun struct {
	frontends map[Frontend]time.Time // with the last look for each
	ranges    Ranges                 // those of them
	next      time.Time              // of the next look; zero: there is none
}

// add has frontends looked at after rescanDelay, and those whose rules were missing also at once.
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

// concerns reports whether an entry is of a connection that was begun before. nodePorts are the addresses on which node ports answer.
func (w *begun) concerns(e *entry, nodePorts map[netip.Addr]bool) bool {
	if len(w.frontends) == 0 || e.answered || e.replyFrom != e.to || e.protocol == nft.TCP && e.state != tcpSynSent {
		return false
	}
	_, served := atFrontend(w.frontends, e, nodePorts, w.ranges)
	return served
}

// done records that every entry was judged at a time. Each look walks the kernel's whole table, so that the next is for all that came since.
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
