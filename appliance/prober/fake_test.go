package prober

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// fake answers probes without a network.
type fake struct {
	done func([]answer)
	// result returns the result of a probe, and the time it takes.
	result func(probe) (health.Result, time.Duration)

	mu    sync.Mutex
	begun map[netip.AddrPort][]asked
	opens int // how often it was opened
	open  bool
	most  int // under way at once
	now   int
	wg    sync.WaitGroup
}

type asked struct {
	at        time.Time
	ephemeral bool
}

func (f *fake) begin(probes []probe) {
	for _, p := range probes {
		f.mu.Lock()
		f.begun[p.target.addr] = append(f.begun[p.target.addr], asked{time.Now(), p.ephemeral})
		f.now++
		f.most = max(f.most, f.now)
		f.mu.Unlock()
		f.wg.Go(func() {
			r, took := f.result(p)
			time.Sleep(took)
			f.mu.Lock()
			f.now--
			f.mu.Unlock()
			r.Took = took
			f.done([]answer{{target: p.target, serial: p.serial, result: r}})
		})
	}
}

func (f *fake) expire([]uint64) {}
func (f *fake) close()          { f.wg.Wait(); f.open = false }

// of are the probes of a target.
func (f *fake) of(at netip.AddrPort) []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.begun[at])
}

// gaps are the times between the probes of a target.
func (f *fake) gaps(at netip.AddrPort) (all []time.Duration) {
	begun := f.of(at)
	for i := 1; i < len(begun); i++ {
		all = append(all, begun[i].at.Sub(begun[i-1].at))
	}
	return all
}

func (f *fake) count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, of := range f.begun {
		n += len(of)
	}
	return n
}

func passing(probe) (health.Result, time.Duration) { return health.Result{}, time.Millisecond }

func refusing(probe) (health.Result, time.Duration) {
	return failed(health.Refused, "connection refused"), time.Millisecond
}

func silent(p probe) (health.Result, time.Duration) {
	return silence(p.target.check, ""), p.target.check.Timeout
}

// bubble runs a Prober with a fake in a bubble whose clock is its own.
func bubble(t *testing.T, l limits, result func(probe) (health.Result, time.Duration), test func(t *testing.T, p *Prober, f *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{result: result, begun: map[netip.AddrPort][]asked{}}
		p := newProber(slog.New(slog.DiscardHandler), l, func(done func([]answer)) (asker, error) {
			f.done, f.open = done, true
			f.opens++
			return f, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			p.Run(ctx, func() {})
			close(ended)
		}()
		test(t, p, f)
		cancel()
		<-ended
	})
}
