package prober

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

func addrOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
}

var usual = health.Check{Kind: health.TCP, Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}

func requests(n int, c health.Check, start health.State) (all []Request) {
	for i := range n {
		all = append(all, Request{Target: health.Target{Addr: addrOf(i), Check: c}, Start: start})
	}
	return all
}

// Targets are asked once an interval, give or take 5 % and a tick; not all at the same time.
func TestInterval(t *testing.T) {
	bubble(t, defaultLimits, passing, func(t *testing.T, p *Prober, f *fake) {
		const n = 1000
		p.Set("default/web", requests(n, usual, health.Up))
		time.Sleep(time.Minute)
		perTick := map[time.Duration]int{}
		for i := range n {
			gaps := f.gaps(addrOf(i))
			if len(gaps) < 10 || slices.Min(gaps) < 4750*time.Millisecond-tick || slices.Max(gaps) > 5250*time.Millisecond+tick {
				t.Fatalf("%s: asked after %v", addrOf(i), gaps)
			}
			perTick[f.of(addrOf(i))[0].at.Sub(p.epoch)/(250*time.Millisecond)]++
		}
		for when, count := range perTick {
			if count > 3*n/20 {
				t.Errorf("%d of %d are first asked in the same quarter of a second, %d", count, n, when)
			}
		}
		if s := p.Stats(); s.Targets[health.Up] != n || s.Stretch != 1 || s.Late != 0 || s.Transitions[health.Down] != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// While nothing is due, the loop sleeps: what wakes it is the next probe. Without targets,
// nothing wakes it.
func TestSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule(defaultLimits)
		if _, planned := s.plan(0); planned {
			t.Error("with no target the loop would wake")
		}
		c := usual
		c.Interval = time.Hour
		x := &target{check: &check{Check: c}, machine: health.NewMachine(c, health.Up, health.Past{}, 0), hash: 1 << 31}
		s.add(x, 0)
		if sleep, planned := s.plan(0); !planned || sleep < 30*time.Minute || sleep > 30*time.Minute+tick {
			t.Errorf("half an interval before the first probe, the loop sleeps %v", sleep)
		}
	})
}

// A new target is asked at once, and up with its first pass.
func TestNewIsAskedAtOnce(t *testing.T) {
	bubble(t, defaultLimits, passing, func(t *testing.T, p *Prober, f *fake) {
		p.Set("default/web", requests(1, usual, health.New))
		time.Sleep(2 * tick)
		target := requests(1, usual, health.New)[0].Target
		if v, known := p.Verdict(target); !known || v.State != health.Up {
			t.Errorf("%+v, %v; want up", v, known)
		}
		if got := p.Flipped(); !slices.Equal(got, []string{"default/web"}) {
			t.Errorf("flipped: %v", got)
		}
		if got := p.Flipped(); len(got) > 0 {
			t.Errorf("flipped again: %v", got)
		}
	})
}

// A target that refuses is down within an interval and two short waits, a silent one within an
// interval and three timeouts; each probe under doubt leaves from an ephemeral port, and of those
// there are two at most.
func TestDown(t *testing.T) {
	for name, c := range map[string]struct {
		result func(probe) (health.Result, time.Duration)
		fall   int
		within time.Duration
		why    string
	}{
		"refused":        {refusing, 3, 5250*time.Millisecond + 2*(100*time.Millisecond+2*tick), "connection refused"},
		"silent":         {silent, 3, 5250*time.Millisecond + 3*(2*time.Second+tick), "no answer in 2s"},
		"silent, slowly": {silent, 10, 5250*time.Millisecond + 10*(2*time.Second+tick), "no answer in 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, defaultLimits, c.result, func(t *testing.T, p *Prober, f *fake) {
				check := usual
				check.Fall = c.fall
				all := requests(20, check, health.Up)
				p.Set("default/web", all)
				time.Sleep(c.within + tick)
				for _, r := range all {
					v, _ := p.Verdict(r.Target)
					if v.State != health.Down || v.Failures < c.fall || v.Last.Why != c.why {
						t.Errorf("%s: %+v", r.Addr, v)
					}
					ephemeral := 0
					for i, a := range f.of(r.Addr) {
						if a.ephemeral {
							ephemeral++
						}
						if i == 0 && a.ephemeral {
							t.Errorf("%s: the first probe left from an ephemeral port", r.Addr)
						}
					}
					if ephemeral != 2 {
						t.Errorf("%s: %d probes left from ephemeral ports, want 2", r.Addr, ephemeral)
					}
				}
			})
		})
	}
}

// The Services of a target that is down are planned again when two failures in a row had another reason, and not for each of two that
// alternate.
func TestDownForAnotherReason(t *testing.T) {
	var reasons atomic.Pointer[[]string] // of the next failures, in turns
	var next atomic.Int64
	set := func(all ...string) { reasons.Store(&all) }
	set("connection refused")
	bubble(t, defaultLimits, func(probe) (health.Result, time.Duration) {
		all := *reasons.Load()
		return failed(health.Refused, all[int(next.Add(1))%len(all)]), time.Millisecond
	}, func(t *testing.T, p *Prober, f *fake) {
		one := requests(1, usual, health.Up)
		p.Set("default/web", one)
		for _, step := range []struct {
			reasons []string
			flips   int
		}{
			{[]string{"connection refused"}, 1},
			{[]string{"the certificate has expired"}, 1},
			{[]string{"the certificate has expired", "connection refused"}, 0},
			{[]string{"no answer", "status 500"}, 1},
		} {
			set(step.reasons...)
			flips := 0
			for range 60 {
				time.Sleep(time.Second)
				flips += len(p.Flipped())
			}
			if v, _ := p.Verdict(one[0].Target); v.State != health.Down || flips != step.flips {
				t.Errorf("%v: flipped %d times, want %d; %+v", step.reasons, flips, step.flips, v)
			}
		}
		if s := p.Stats(); s.Transitions[health.Down] != 1 {
			t.Errorf("%d transitions", s.Transitions[health.Down])
		}
	})
}

// What is asked alike is asked once, and every Service that wants it hears of it.
func TestShared(t *testing.T) {
	var refuses sync.Map
	bubble(t, defaultLimits, func(p probe) (health.Result, time.Duration) {
		if _, is := refuses.Load(p.target.addr); is {
			return refusing(p)
		}
		return passing(p)
	}, func(t *testing.T, p *Prober, f *fake) {
		one := requests(1, usual, health.Up)
		p.Set("default/a", append(one, one...))
		p.Set("default/b", one)
		time.Sleep(50 * time.Second)
		if n := f.count(); n < 8 || n > 11 {
			t.Errorf("asked %d times in ten intervals", n)
		}
		refuses.Store(one[0].Addr, true)
		time.Sleep(10 * time.Second)
		if got := p.Flipped(); !slices.Equal(got, []string{"default/a", "default/b"}) {
			t.Errorf("flipped: %v", got)
		}
		p.Set("default/a", nil)
		if v, known := p.Verdict(one[0].Target); !known || v.State != health.Down {
			t.Errorf("with one Service left: %+v, %v", v, known)
		}
		p.Set("default/b", nil)
		if _, known := p.Verdict(one[0].Target); known {
			t.Error("nobody wants it, and there is a verdict")
		}
		before := f.count()
		time.Sleep(time.Minute)
		if f.count() > before+1 {
			t.Error("nobody wants it, and it is asked")
		}
		if s := p.Stats(); s.Services+s.Unasked+s.UnderWay+s.NotMade > 0 || s.Targets[health.Down] != 0 {
			t.Errorf("left: %+v", s)
		}
		if len(p.book.checks)+len(p.book.targets)+len(p.book.services)+len(p.schedule.due)+len(p.schedule.deadlines) > 0 || p.schedule.demand != 0 {
			t.Errorf("left: %+v %+v", p.book, p.schedule)
		}
	})
}

// A Service that has the target in use counts for more than one that does not know it, until it
// has been asked; no flip is missed.
func TestStartOfTwo(t *testing.T) {
	bubble(t, defaultLimits, silent, func(t *testing.T, p *Prober, f *fake) {
		p.Set("default/a", requests(1, usual, health.New))
		p.Set("default/b", requests(1, usual, health.Up))
		v, _ := p.Verdict(requests(1, usual, health.New)[0].Target)
		if v.State != health.Up || !slices.Equal(p.Flipped(), []string{"default/a"}) {
			t.Errorf("%+v, want up, and the first Service told", v)
		}
		time.Sleep(time.Minute)
		p.Set("default/c", requests(1, usual, health.Up))
		if v, _ := p.Verdict(requests(1, usual, health.New)[0].Target); v.State != health.Down {
			t.Errorf("asked already, and a Service changed it: %+v", v)
		}
	})
}

// Work beyond the rate stretches the intervals of all alike, and none is forgotten.
func TestStretch(t *testing.T) {
	l := limits{targets: 1000, underWay: 1000, rate: 100}
	bubble(t, l, passing, func(t *testing.T, p *Prober, f *fake) {
		const n = 1000 // 200 a second
		p.Set("default/web", requests(n, usual, health.Up))
		time.Sleep(5 * time.Minute)
		stretch := p.Stats().Stretch
		if stretch < 2 || stretch > 2.3 {
			t.Fatalf("stretched %.2f times", stretch)
		}
		if total := f.count(); total > 300*100+100 {
			t.Errorf("%d probes in 300 s", total)
		}
		for i := range n {
			if got := len(f.of(addrOf(i))); got < 20 || got > 33 {
				t.Errorf("%s was asked %d times, others about 28 times", addrOf(i), got)
			}
		}
	})
}

// Silent targets do not use more than the probes there may be, and Stats say how late others are.
func TestUnderWay(t *testing.T) {
	l := limits{targets: 1000, underWay: 50, rate: 5000}
	bubble(t, l, silent, func(t *testing.T, p *Prober, f *fake) {
		p.Set("default/web", requests(500, usual, health.Up))
		time.Sleep(time.Minute)
		f.mu.Lock()
		most := f.most
		f.mu.Unlock()
		if most != 50 {
			t.Errorf("%d under way at once, want 50", most)
		}
		if s := p.Stats(); s.Late == 0 {
			t.Errorf("not late: %+v", s)
		}
		for i := range 500 {
			if len(f.of(addrOf(i))) == 0 {
				t.Errorf("%s was never asked", addrOf(i))
			}
		}
	})
}

// Beyond the most targets, there is no verdict; a place that gets free is taken.
func TestMostTargets(t *testing.T) {
	bubble(t, limits{targets: 10, underWay: 10, rate: 100}, passing, func(t *testing.T, p *Prober, f *fake) {
		p.Set("default/a", requests(10, usual, health.Up))
		late := health.Target{Addr: addrOf(99), Check: usual}
		p.Set("default/b", []Request{{Target: late}})
		if _, known := p.Verdict(late); known || p.Stats().Unasked != 1 {
			t.Errorf("there is a verdict on too many: %+v", p.Stats())
		}
		p.Set("default/a", requests(9, usual, health.Up))
		time.Sleep(time.Second)
		if v, known := p.Verdict(late); !known || v.State != health.Up || p.Stats().Unasked != 0 {
			t.Errorf("%+v, %v; want up", v, known)
		}
		if got := p.Flipped(); !slices.Contains(got, "default/b") {
			t.Errorf("flipped: %v", got)
		}
	})
}

// UDP probes of one address are a second apart, however many ports are asked.
func TestUDPTurns(t *testing.T) {
	bubble(t, defaultLimits, passing, func(t *testing.T, p *Prober, f *fake) {
		c := usual
		c.Kind = health.UDP
		var all []Request
		for port := range uint16(20) {
			all = append(all, Request{Target: health.Target{Addr: netip.AddrPortFrom(addrOf(1).Addr(), 1000+port), Check: c}})
		}
		p.Set("default/dns", all)
		time.Sleep(3 * time.Minute)
		var times []time.Time
		for _, r := range all {
			if got := len(f.of(r.Addr)); got < 6 {
				t.Errorf("%s was asked %d times", r.Addr, got)
			}
			for _, a := range f.of(r.Addr) {
				times = append(times, a.at)
			}
		}
		slices.SortFunc(times, time.Time.Compare)
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < time.Second-tick {
				t.Fatalf("%v between two probes of an address", gap)
			}
		}
	})
}

// What was not made is counted, named, and changes nothing.
func TestVoid(t *testing.T) {
	bubble(t, defaultLimits, func(probe) (health.Result, time.Duration) {
		return failed(health.Void, "not asked: too many open files"), 0
	}, func(t *testing.T, p *Prober, f *fake) {
		all := requests(10, usual, health.Up)
		p.Set("default/web", all)
		time.Sleep(time.Minute)
		if s := p.Stats(); s.NotMade != 10 || s.NotMadeWhy != "not asked: too many open files" || s.Targets[health.Up] != 10 {
			t.Errorf("%+v", s)
		}
		if n := f.count(); n > 10*80 {
			t.Errorf("asked %d times in a minute", n)
		}
		p.Set("default/web", nil)
		if s := p.Stats(); s.NotMade != 0 {
			t.Errorf("%d left", s.NotMade)
		}
	})
}

// A host that stood still gives no verdict from what was under way then: silence of any kind, and what
// a server said because it had to wait. A refused connection it believes.
func TestStoodStill(t *testing.T) {
	for _, c := range []struct {
		kind    health.Kind
		outcome health.Outcome
		late    time.Duration
		doubt   bool
	}{
		{health.TCP, health.Silent, 600 * time.Millisecond, true},
		{health.TCP, health.Silent, 400 * time.Millisecond, false},
		{health.TCP, health.Refused, 4 * time.Second, false},
		{health.HTTP, health.Refused, 4 * time.Second, true},
		{health.HTTP, health.Pass, 4 * time.Second, false},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			s := newSchedule(defaultLimits)
			asked := usual
			asked.Kind = c.kind
			x := &target{check: &check{Check: asked}, machine: health.NewMachine(asked, health.New, health.Past{}, 0)}
			s.add(x, 0)
			batch := s.take(0, nil)
			if len(batch) != 1 {
				t.Fatal("nothing was due")
			}
			sleep, _ := s.plan(0)
			if sleep > beat {
				t.Fatalf("with a probe under way the loop sleeps %v", sleep)
			}
			now := sleep + c.late
			if !s.done(x, batch[0].serial, now) {
				t.Fatal("the answer does not count")
			}
			if got := s.doubtful(x, health.Result{Outcome: c.outcome}); got != c.doubt {
				t.Errorf("doubtful: %v", got)
			}
			// The next one begins after it.
			s.reschedule(x, 0, now)
			batch = s.take(now+tick, nil)
			s.plan(now + tick)
			s.done(x, batch[0].serial, now+2*tick)
			if s.doubtful(x, health.Result{Outcome: c.outcome}) {
				t.Error("the next one is doubtful too")
			}
		})
	}
}

// Nothing is open and nothing wakes while there are no targets; the first one begins it, the last
// one ends it, again and again.
func TestRests(t *testing.T) {
	bubble(t, defaultLimits, passing, func(t *testing.T, p *Prober, f *fake) {
		for round := range 3 {
			asked := f.count()
			time.Sleep(time.Hour)
			synctest.Wait()
			if f.opens != round || f.open || f.count() != asked || p.schedule.next != -1 {
				t.Fatalf("round %d: without targets it was opened %d times, open: %t, woke for %s", round, f.opens, f.open, p.schedule.next)
			}
			p.Set("default/web", []Request{{Target: health.Target{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Check: checkOf(health.TCP)}, Start: health.Up}})
			time.Sleep(time.Hour)
			synctest.Wait()
			if f.opens != round+1 || !f.open || f.count() < asked+5 {
				t.Fatalf("round %d: opened %d times, open: %t, %d probes in an hour", round, f.opens, f.open, f.count()-asked)
			}
			p.Set("default/web", nil)
		}
	})
}

// While it cannot be opened no probe is made, each says why, and the state stays; then it goes on.
func TestCannotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		f := &fake{result: passing, begun: map[netip.AddrPort][]asked{}}
		p := newProber(slog.New(slog.DiscardHandler), defaultLimits, func(done func([]answer)) (asker, error) {
			f.done = done
			if broken.Load() {
				return nil, syscall.EMFILE
			}
			return f, nil
		})
		run(t, p)
		at := health.Target{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Check: checkOf(health.TCP)}
		p.Set("default/web", []Request{{Target: at, Start: health.Up}})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		v, _ := p.Verdict(at)
		if s := p.Stats(); s.NotMade != 1 || !strings.Contains(s.NotMadeWhy, "too many open files") || v.State != health.Up || s.UnderWay != 0 {
			t.Errorf("while it cannot be opened: %+v, %+v", s, v)
		}
		broken.Store(false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := p.Stats(); s.NotMade != 0 || f.count() == 0 {
			t.Errorf("when it can: %+v", s)
		}
	})
}

// A hastened target is asked at once, one that is under way is not asked beside that, and intervals go on from there.
func TestHasten(t *testing.T) {
	bubble(t, defaultLimits, passing, func(t *testing.T, p *Prober, f *fake) {
		target := health.Target{Addr: netip.MustParseAddrPort("10.180.0.1:80"), Check: checkOf(health.TCP)}
		target.Check.Interval = time.Hour
		p.Set("default/web", []Request{{Target: target}})
		time.Sleep(time.Second)
		synctest.Wait()
		before := len(f.of(target.Addr))
		p.Hasten(target)
		p.Hasten(target)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(f.of(target.Addr)); before != 1 || n != 2 {
			t.Errorf("it was asked %d times, and %d after it was hastened", before, n)
		}
		p.Hasten(health.Target{Addr: target.Addr}) // nobody asks it
	})
}
