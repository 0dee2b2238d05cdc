package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeTable is a connection tracking table of a few entries.
type fakeTable struct {
	mu      sync.Mutex
	takes   time.Duration // how long a query takes
	uses    time.Duration // the CPU that it uses
	entries []entry
	reset   []entry
	queries int
	fails   int    // how many times clean fails
	during  func() // called in the middle of a look
}

var errFake = errors.New("the kernel is not in the mood")

func (f *fakeTable) close() error { return nil }

// deleteMatching implements table. It gives entries one at a time.
func (f *fakeTable) deleteMatching(_ context.Context, queries []query, judge filterFunc) (tally, error) {
	var takes, uses time.Duration
	f.with(func() { takes, uses = f.takes, f.uses })
	used := Cost()
	time.Sleep(takes * time.Duration(len(queries)))
	for used() < uses*time.Duration(len(queries)) {
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries += len(queries)
	if f.fails > 0 {
		f.fails--
		return tally{}, errFake
	}
	if f.during != nil {
		f.during()
		f.during = nil
	}
	var done tally
	var left []entry
	for i, e := range f.entries {
		done.seen++
		switch v, _ := judge(&f.entries[i]); v {
		case leave:
			left = append(left, e)
		case forget:
			done.forgotten++
		case reset:
			done.reset++
			f.reset = append(f.reset, e)
		}
	}
	f.entries = left
	return done, nil
}

// with locks the table.
func (f *fakeTable) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeTable) has(e entry) (has bool) {
	f.with(func() {
		has = slices.ContainsFunc(f.entries, func(o entry) bool { return o.to == e.to && o.replyFrom == e.replyFrom })
	})
	return has
}

// left counts the entries.
func (f *fakeTable) left() (n int) {
	f.with(func() { n = len(f.entries) })
	return n
}

// asked counts the queries.
func (f *fakeTable) asked() (n int) {
	f.with(func() { n = f.queries })
	return n
}

func (f *fakeTable) resets() (n int) {
	f.with(func() { n = len(f.reset) })
	return n
}

// run has a Cleaner work on a table during the test; time is the bubble's.
func run(t *testing.T, table *fakeTable, test func(*Cleaner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newCleaner(table, slog.New(slog.DiscardHandler))
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		test(c)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func flows(f ...Flows) Work { return Work{Flows: f} }

func TestCleanerForgets(t *testing.T) {
	stale, good := sent(udp(vip, 53), l1), sent(udp(vip, 53), r1)
	table := &fakeTable{entries: []entry{stale, good}}
	run(t, table, func(c *Cleaner) {
		c.Reconcile(flows(Flows{Frontend: udp(vip, 53), Keep: to(r1), Look: true}))
		synctest.Wait()
		if table.has(stale) || !table.has(good) {
			t.Error("the stale entry is left, or the other one is not")
		}
		// A packet that was under way.
		table.with(func() { table.entries = append(table.entries, stale) })
		time.Sleep(rescanDelay + scanSlack)
		synctest.Wait()
		if table.has(stale) {
			t.Error("what was entered during the change is left")
		}
		if got, want := c.Stats(), (Stats{Looks: 2, Entries: 4, Forgotten: 2}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Hour)
		if n := table.asked(); n != 2 {
			t.Errorf("%d looks in an hour, want 2", n)
		}
	})
}

// TestCleanerCoalesces: what is asked for during a look is done by one more.
func TestCleanerCoalesces(t *testing.T) {
	table := &fakeTable{takes: 100 * time.Millisecond}
	run(t, table, func(c *Cleaner) {
		start := time.Now()
		for n := range uint16(20) {
			c.Reconcile(flows(Flows{Frontend: udp(vip, 53), Keep: to(l1), Look: true}, Flows{Frontend: udp(vip, 1000+n), Look: true}))
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(start); took != 200*time.Millisecond {
			t.Errorf("Reconcile waited: %s for 20 calls", took)
		}
		time.Sleep(rescanDelay / 2)
		if looks := c.Stats().Looks; looks != 2 {
			t.Errorf("%d looks for what came at once, want 2", looks)
		}
		if n := table.asked(); n != 3 {
			t.Errorf("%d queries, want two for two ports and one for all of UDP", n)
		}
	})
}

func TestCleanerTriesAgain(t *testing.T) {
	stale := sent(udp(vip, 53), l1)
	table := &fakeTable{entries: []entry{stale}, fails: 3}
	run(t, table, func(c *Cleaner) {
		c.Reconcile(flows(Flows{Frontend: udp(vip, 53), Look: true}))
		synctest.Wait()
		if !errors.Is(c.Err(), errFake) {
			t.Errorf("Err: %v", c.Err())
		}
		c.Reconcile(flows(Flows{Frontend: udp(vip2, 53), Look: true}))
		synctest.Wait()
		if n := table.asked(); n != 1 {
			t.Errorf("%d queries, want the second one after %s", n, retryFirst)
		}
		time.Sleep(7 * retryFirst)
		synctest.Wait()
		if table.has(stale) || c.Err() != nil || c.Stats().Failures != 3 {
			t.Errorf("the entry is left: %t, error %v, %+v", table.has(stale), c.Err(), c.Stats())
		}
	})
}

func TestCleanerDrains(t *testing.T) {
	open, other := sent(tcp(vip, 80), l1), sent(tcp(vip, 80), r1)
	table := &fakeTable{entries: []entry{open, other}}
	run(t, table, func(c *Cleaner) {
		c.Reconcile(flows(Flows{Frontend: tcp(vip, 80), Keep: to(r1), Drain: oneMinute, Look: true}))
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		if !table.has(open) || c.Stats().Draining != 1 {
			t.Fatalf("not draining: %+v", c.Stats())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if table.has(open) || !table.has(other) || table.resets() != 1 || c.Stats().Draining != 0 {
			t.Errorf("%d connections were reset, want one, and not the other: %+v", table.resets(), c.Stats())
		}
	})
}

// TestCleanerSpares: an endpoint that is back before its connections were judged keeps
// them, even in the middle of a look.
func TestCleanerSpares(t *testing.T) {
	open := sent(tcp(vip, 80), l1)
	table := &fakeTable{entries: []entry{open}}
	run(t, table, func(c *Cleaner) {
		gone := Flows{Frontend: tcp(vip, 80), Drain: oneMinute, Look: true}
		back := Flows{Frontend: tcp(vip, 80), Keep: to(l1), Drain: oneMinute}
		c.Reconcile(flows(gone))
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		table.with(func() { table.during = func() { c.Reconcile(flows(back)) } })
		time.Sleep(time.Hour)
		if !table.has(open) || table.resets() > 0 {
			t.Errorf("%d connections were reset", table.resets())
		}
	})
}

func TestExplain(t *testing.T) {
	for errno, advice := range map[unix.Errno]string{
		unix.EPERM:  "run as root or with CAP_NET_ADMIN",
		unix.EINVAL: "modprobe nf_conntrack_netlink",
		unix.ENOMEM: "look through the tracked connections",
	} {
		if err := explain(errno); !errors.Is(err, errno) || !strings.Contains(err.Error(), advice) {
			t.Errorf("%v: got %v, want one with %q", errno, err, advice)
		}
	}
}

// TestCost: a scan costs the CPU that it uses and not the time for which a busy machine lets it wait.
func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := Cost()
		time.Sleep(24 * time.Hour)
		if cost := waits(); cost >= 24*time.Hour || cost < 0 {
			t.Errorf("a scan that waits for a day costs %s", cost)
		}
	})
	began, computes := time.Now(), Cost()
	for computes() == 0 { // until the clock of the CPU moves
		if time.Since(began) > time.Minute {
			t.Fatal("a scan that computes costs nothing")
		}
	}
	if cost, most := computes(), time.Since(began); cost > most {
		t.Errorf("a scan costs %s within %s", cost, most)
	}
}
