package parts

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// fakeProber records its requests.
type fakeProber struct {
	set      map[string][]prober.Request
	verdicts map[health.Target]health.Verdict
	flips    []string
	stats    prober.Stats
	looks    atomic.Int64 // calls of Stats
	hastened []health.Target
}

func (p *fakeProber) Run(ctx context.Context, _ func()) { <-ctx.Done() }
func (p *fakeProber) Stats() prober.Stats               { p.looks.Add(1); return p.stats }

func (p *fakeProber) Set(service string, requests []prober.Request) {
	p.set[service] = requests
	for _, r := range requests {
		if _, known := p.verdicts[r.Target]; !known {
			p.verdicts[r.Target] = health.Verdict{State: r.Start}
		}
	}
}

func (p *fakeProber) Verdict(t health.Target) (health.Verdict, bool) {
	v, known := p.verdicts[t]
	return v, known
}

func (p *fakeProber) Hasten(t health.Target) { p.hastened = append(p.hastened, t) }

func (p *fakeProber) Flipped() []string {
	flips := p.flips
	p.flips = nil
	return flips
}

// TestHealthRests: statistics are not read while nothing is checked, and a problem of this host
// goes with the last endpoint.
func TestHealthRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := &fakeProber{set: map[string][]prober.Request{}, verdicts: map[health.Target]health.Verdict{}}
		part := NewHealth(asks, new(told), slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var loop wakes
		part.Attach(loop.changed)
		go func() { _ = part.Run(ctx) }()
		pass := func(d time.Duration) int64 {
			before := asks.looks.Load()
			time.Sleep(d)
			synctest.Wait()
			return asks.looks.Load() - before
		}
		svc, _ := checkedAs(health.Up)
		other := svc
		other.Key = "shop/other"
		for round := range 3 {
			part.Planned(nil, []reconcile.Service{{Key: "shop/web"}})
			if looks := pass(time.Hour); looks != 0 {
				t.Errorf("round %d: %d looks while nothing is checked", round, looks)
			}
			asks.stats = prober.Stats{NotMade: 1, NotMadeWhy: "no descriptors"}
			part.Planned(nil, []reconcile.Service{svc, other})
			if looks := pass(10*lookEvery + time.Second); looks != 10 || len(part.Problems()) != 1 {
				t.Errorf("round %d: %d looks in ten times the period, %v", round, looks, part.Problems())
			}
			part.Planned(nil, []reconcile.Service{{Key: "shop/other"}})
			part.Planned(nil, []reconcile.Service{svc}) // planned again, as it is
			if looks := pass(10 * lookEvery); looks != 10 {
				t.Errorf("round %d: %d looks with one Service left", round, looks)
			}
			asks.stats = prober.Stats{}
			part.Planned(nil, []reconcile.Service{{Key: "shop/web"}})
			if looks := pass(time.Hour); looks != 1 || part.Problems() != nil {
				t.Errorf("round %d: %d looks after the last Service, and %v", round, looks, part.Problems())
			}
		}
		if loop.times != 6 {
			t.Errorf("problems changed 6 times, and the loop was woken %d times", loop.times)
		}
	})
}

// told are Events as text.
type told []string

func (l *told) Record(about object.Ref, reason, message string, normal bool) {
	*l = append(*l, fmt.Sprintf("%s %s %s %t", about, reason, message, normal))
}

// checkedAs returns a Service with one endpoint, of two ports that are judged by one check.
func checkedAs(state health.State) (reconcile.Service, health.Target) {
	at := netip.MustParseAddrPort("10.1.2.12:8080")
	target := health.Target{Addr: at, Check: health.Check{Kind: health.HTTP, Path: "/"}}
	one := resolve.Checked{
		Port: resolve.Port{Service: "shop/web", Name: "http", Protocol: "TCP", Family: nft.IPv4}, Endpoint: at, Target: target,
		Start: health.Up, State: state, Text: "http/",
	}
	other := one
	other.Port.Name, other.Endpoint = "https", netip.MustParseAddrPort("10.1.2.12:8443")
	return reconcile.Service{Key: "shop/web", Health: resolve.Health{Checked: []resolve.Checked{one, other}}}, target
}

// TestHealthTellsFlips: a flip has its Service planned again once, a line and an Event.
func TestHealthTellsFlips(t *testing.T) {
	asks := &fakeProber{set: map[string][]prober.Request{}, verdicts: map[health.Target]health.Verdict{}}
	var events told
	var log bytes.Buffer
	part := NewHealth(asks, &events, slog.New(slog.NewTextHandler(&log, nil)))
	var loop wakes
	part.Attach(loop.changed)
	svc, target := checkedAs(health.Up)
	part.Planned(nil, []reconcile.Service{svc})
	if got := asks.set["shop/web"]; len(got) != 1 || got[0].Target != target || got[0].Start != health.Up {
		t.Fatalf("asked for %v", got)
	}

	flip := func(v health.Verdict) []string {
		asks.verdicts[target], asks.flips = v, []string{"shop/web"}
		part.flipped()
		return loop.take()
	}
	if got := flip(health.Verdict{State: health.Up, Passes: 1}); got != nil {
		t.Errorf("nothing changed, and %v is planned again", got)
	}
	down := health.Verdict{State: health.Down, Failures: 3, Why: "connection refused", Last: health.Result{Outcome: health.Pass}} // it passed once since
	if got := flip(down); !slices.Equal(got, []string{"shop/web"}) {
		t.Errorf("planned again: %v", got)
	}
	if got := loop.take(); len(got) > 0 {
		t.Errorf("planned again twice: %v", got)
	}
	svc, _ = checkedAs(health.Down)
	part.Planned(nil, []reconcile.Service{svc})
	down.Why = "the certificate has expired"
	if got := flip(down); !slices.Equal(got, []string{"shop/web"}) {
		t.Errorf("down for another reason: planned again %v", got)
	}
	flip(health.Verdict{State: health.Up, Passes: 2})
	svc, _ = checkedAs(health.Up)
	part.Planned(nil, []reconcile.Service{svc})
	if want := (told{
		"Service shop/web Unhealthy 10.1.2.12:8080 is down: connection refused (http/) false",
		"Service shop/web Healthy 10.1.2.12:8080 is up: it answers http/ true",
	}); !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	for _, want := range []string{
		`level=WARN msg="endpoint down" svc=shop/web port=http endpoint=10.1.2.12:8080 check=http/ why="connection refused" failures=3`,
		`level=INFO msg="endpoint up" svc=shop/web port=http endpoint=10.1.2.12:8080 check=http/ passes=2`,
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("no line %q in\n%s", want, &log)
		}
	}

	// A flip while the Service was planned is not lost.
	svc, _ = checkedAs(health.Down)
	part.Planned(nil, []reconcile.Service{svc})
	if got := loop.take(); !slices.Equal(got, []string{"shop/web"}) {
		t.Errorf("planned as down, and up: planned again %v", got)
	}

	part.Planned(nil, []reconcile.Service{{Key: "shop/web"}})
	if len(asks.set["shop/web"]) != 0 || len(part.State("", "")) != 0 {
		t.Errorf("after it was removed: asked for %v, shown %v", asks.set, part.State("", ""))
	}
}

// TestHealthHostProblems: what keeps checks from being made is a problem of the host, in words that
// do not change with every number.
func TestHealthHostProblems(t *testing.T) {
	asks := &fakeProber{set: map[string][]prober.Request{}, stats: prober.Stats{Stretch: 1}}
	part := NewHealth(asks, &told{}, slog.New(slog.DiscardHandler))
	if part.refreshProblems() || len(part.Problems()) != 0 {
		t.Errorf("%v", part.Problems())
	}
	asks.stats = prober.Stats{Stretch: 1.5, NotMade: 3, NotMadeWhy: "too many open files", Unasked: 1}
	if !part.refreshProblems() || len(part.Problems()) != 3 {
		t.Errorf("%v", part.Problems())
	}
	asks.stats.NotMade = 4
	if part.refreshProblems() {
		t.Errorf("another problem: %v", part.Problems())
	}
}

// TestDeadBefore: an endpoint that was dead before this start is dead for the same reason, since the same time.
func TestDeadBefore(t *testing.T) {
	at, since := netip.MustParseAddrPort("10.1.2.12:8080"), time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	dir := t.TempDir()
	before := history.Open(dir, "box", since, slog.New(slog.DiscardHandler))
	before.Note(deadKey(at), stateDead, "connection refused", since, "shop/web")
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	now := history.Open(dir, "box", since.Add(time.Hour), slog.New(slog.DiscardHandler))
	if got, want := deadBefore(now, at), (health.Dead{Refuses: true, Why: "connection refused", Since: since}); got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
}
