package conntrack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
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
	err      error
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
	if len(w.Flows)+len(w.Restored)+len(w.Departed) == 0 {
		return
	}
	task.Wake(c.wake)
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

// Err returns the error that keeps stale connections from being deleted; nil: there is none.
func (c *Cleaner) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
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
	before := c.err
	c.err = err
	due, next := c.schedule.due(start)
	if queries := c.schedule.queries(due, start); len(queries) > 0 {
		next = start
	}
	c.mu.Unlock()

	switch {
	case err != nil && before == nil:
		c.log.Warn("connections to removed endpoints may continue", "err", err)
	case err == nil && before != nil:
		c.log.Info("connections to removed endpoints are deleted again")
	}
	if total.forgotten+total.reset > 0 {
		c.log.Debug("stale connections", "frontends", len(looked), "forgotten", total.forgotten, "reset", total.reset, "seen", total.seen, "dur", took)
	}
	return next
}
