package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/discover/provider"
)

var start = time.Unix(1_000_000, 0)

func question(name string) Asked {
	return Asked{"consul", provider.Question{Name: name}}
}

func answer(addresses ...string) provider.Answer {
	var a provider.Answer
	for _, addr := range addresses {
		a.Endpoints = append(a.Endpoints, provider.Endpoint{Address: addr, Port: 80})
	}
	return a
}

// addresses formats the endpoints in force of a claim.
func (l *Ledger) addresses(key Key) string {
	var all []string
	for _, e := range l.Endpoints(key) {
		all = append(all, e.Address)
	}
	return strings.Join(all, " ")
}

// plain is a second implementation for one provider whose Services have one claim each: it keeps all that happened, and computes
// the endpoints in force from that.
type plain struct {
	services []*plainService
	lost     []*plainLoss
	most     int
}

type plainService struct {
	question string
	hold     time.Duration
	inForce  []string
	events   []plainEvent // of its question
	emptied  time.Time
	held     bool
	due      time.Time
}

type plainEvent struct {
	at     time.Time
	failed bool
	has    []string
	proved bool
}

type plainLoss struct {
	at     time.Time
	of     *plainService
	passed bool
}

// absent returns how long the last events prove that an address is absent.
func (s *plainService) absent(addr string) (sum time.Duration) {
	for i := len(s.events) - 1; i > 0; i-- {
		now, before := s.events[i], s.events[i-1]
		if now.failed || before.failed {
			if slices.Contains(before.has, addr) {
				break
			}
			continue
		}
		if slices.Contains(before.has, addr) {
			break
		}
		sum += now.at.Sub(before.at)
	}
	return sum
}

func (p *plain) event(question string, e plainEvent) {
	for _, s := range p.services {
		if s.question != question {
			continue
		}
		first := !slices.ContainsFunc(s.events, func(x plainEvent) bool { return !x.failed })
		s.events = append(s.events, e)
		if e.failed {
			s.due = time.Time{}
			continue
		}
		if len(e.has) > 0 || len(s.inForce) == 0 {
			s.emptied, s.due = time.Time{}, time.Time{}
			p.keep(s, e.has, s.hold)
			if len(s.inForce) > 0 {
				p.lost = slices.DeleteFunc(p.lost, func(x *plainLoss) bool { return x.of == s })
				s.held = false
				p.settle()
			}
			continue
		}
		if s.emptied.IsZero() {
			s.emptied = e.at
			if first {
				s.emptied = start
			}
			p.lose(s, e.at)
		}
		if !e.proved || s.hold > 0 {
			s.due = time.Time{}
		} else if s.due.IsZero() {
			s.due = e.at.Add(2 * time.Second)
		}
		if !s.held {
			p.keep(s, nil, max(s.hold, 30*time.Second))
		}
	}
}

func (p *plain) keep(s *plainService, has []string, limit time.Duration) {
	now := slices.Clone(has)
	for _, addr := range s.inForce {
		if !slices.Contains(has, addr) && s.absent(addr) < limit {
			now = append(now, addr)
		}
	}
	slices.Sort(now)
	s.inForce = slices.Compact(now)
	if len(s.inForce) == 0 {
		s.emptied, s.due = time.Time{}, time.Time{}
		for _, x := range p.lost {
			x.passed = x.passed || x.of == s
		}
	}
}

func (p *plain) lose(s *plainService, now time.Time) {
	p.lost = slices.DeleteFunc(p.lost, func(x *plainLoss) bool { return x.passed && now.Sub(x.at) >= 10*time.Second })
	p.lost = append(p.lost, &plainLoss{at: s.emptied, of: s})
	var together []*plainLoss
	served := 0
	for _, x := range p.lost {
		if d := x.at.Sub(s.emptied); d < 10*time.Second && d > -10*time.Second {
			together = append(together, x)
			if x.passed {
				served++
			}
		}
	}
	for _, other := range p.services {
		if len(other.inForce) > 0 {
			served++
		}
	}
	n := len(together)
	if n > 10 && 2*n > served || n >= served && n > 2 {
		for _, x := range together {
			x.of.held = x.of.held || !x.passed
		}
		p.most = max(p.most, p.held())
	}
}

func (p *plain) held() (n int) {
	for _, s := range p.services {
		if s.held {
			n++
		}
	}
	return n
}

func (p *plain) settle() {
	if n := p.held(); p.most > 0 && n <= 10 && 2*n <= p.most {
		p.most = 0
		for _, s := range p.services {
			s.held = false
		}
	}
}

func (p *plain) tick(now time.Time) {
	for _, s := range p.services {
		if !s.due.IsZero() && !now.Before(s.due) && !s.held {
			p.keep(s, nil, 0)
		}
	}
}

func (p *plain) release() {
	for _, s := range p.services {
		if s.held {
			s.held = false
			p.keep(s, nil, 0)
		}
	}
	p.most, p.lost = 0, nil
}

// Random answers and failures have the effects that a plain second implementation computes, and no failure removes an endpoint.
func Test971_no_failure_removes_an_endpoint(t *testing.T) {
	histories := 10_000
	if testing.Short() {
		histories = 500
	}
	seen := map[string]int{}
	for seed := range histories {
		random := rand.New(rand.NewPCG(uint64(seed), 33))
		now := start
		l, p := New(now), &plain{}
		var keys []Key
		services, questions := 1+random.IntN(16), 1+random.IntN(16)
		for i := range services {
			s := &plainService{question: fmt.Sprint("q", i%questions), hold: time.Duration(max(0, random.IntN(4)-2)) * 20 * time.Second}
			key := Key{fmt.Sprint("default/s", i), "http", question(s.question)}
			var stored []provider.Endpoint
			if random.IntN(4) > 0 {
				s.inForce = []string{"10.0.0.1", "10.0.0.2"}
				stored = answer(s.inForce...).Endpoints
			}
			l.Claim(now, key, Terms{Hold: s.hold}, stored)
			p.services, keys = append(p.services, s), append(keys, key)
		}
		steps := 10 + random.IntN(60)
		empties := random.IntN(3) // how often answers are empty in this history
		for range steps {
			now = now.Add(time.Duration(random.IntN(12_000)) * time.Millisecond / time.Duration(1+random.IntN(8)))
			before := make([]string, len(keys))
			for i, key := range keys {
				before[i] = l.addresses(key)
			}
			l.Tick(now)
			p.tick(now)
			q := fmt.Sprint("q", random.IntN(questions))
			what := ""
			switch n := random.IntN(20); {
			case n == 0 && random.IntN(3) == 0:
				what = "release"
				seen[fmt.Sprint("released ", min(1, l.Release("consul")))]++
				p.release()
			case n < 6:
				for i, key := range keys {
					before[i] = l.addresses(key)
				}
				what = "failure"
				l.Fail(now, question(q), "connection refused")
				p.event(q, plainEvent{at: now, failed: true})
				for i, key := range keys {
					if got := l.addresses(key); got != before[i] {
						t.Fatalf("seed %d: a failure made %q of %q", seed, got, before[i])
					}
				}
			default:
				e := plainEvent{at: now, proved: random.IntN(3) == 0}
				if random.IntN(4) > empties {
					for i := range 4 {
						if random.IntN(2) == 0 {
							e.has = append(e.has, fmt.Sprint("10.0.0.", i))
						}
					}
				}
				what = "answer " + strings.Join(e.has, " ")
				a := answer(e.has...)
				a.Proved = e.proved
				l.Answer(now, question(q), a, nil)
				p.event(q, e)
			}
			for i, key := range keys {
				got, want := l.addresses(key), strings.Join(p.services[i].inForce, " ")
				if got != want {
					t.Fatalf("seed %d, %s at %v, Service %d: %q in force, want %q", seed, what, now.Sub(start), i, got, want)
				}
				if held := l.claims[key].service.held; held != p.services[i].held {
					t.Fatalf("seed %d, %s at %v, Service %d: held %v, want %v", seed, what, now.Sub(start), i, held, p.services[i].held)
				}
				if before[i] != "" && got == "" {
					seen["emptied by "+what[:6]]++
				}
				if l.claims[key].service.held {
					seen["held"]++
				}
			}
		}
	}
	t.Log(seen)
	for _, what := range []string{"held", "released 1", "emptied by answer", "emptied by releas"} {
		if seen[what] == 0 && !slices.ContainsFunc(keysOf(seen), func(k string) bool { return strings.HasPrefix(k, what) }) {
			t.Errorf("no history has %s: the test tests less than it should", what)
		}
	}
}

func keysOf(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// fleetOf has n Services with one question each, and answers.
func fleetOf(n int) (*Ledger, []Key) {
	l := New(start)
	var keys []Key
	for i := range n {
		key := Key{fmt.Sprint("default/s", i), "http", question(fmt.Sprint("q", i))}
		l.Claim(start, key, Terms{}, nil)
		l.Answer(start, key.Asked, answer("10.0.0.1", "10.0.0.2"), nil)
		keys = append(keys, key)
	}
	l.Changed()
	return l, keys
}

func (l *Ledger) served(keys []Key) (n int) {
	for _, key := range keys {
		if len(l.Endpoints(key)) > 0 {
			n++
		}
	}
	return n
}

// 400 of 400 Services that are empty at once are held, and let go by a release; one of 400 goes after 30 s of empty answers.
func Test972_all_gone_at_once_is_held(t *testing.T) {
	const n = 400
	l, keys := fleetOf(n)
	empty := func(at time.Duration, which []Key) {
		for _, key := range which {
			l.Answer(start.Add(at), key.Asked, provider.Answer{}, nil)
		}
	}
	for at := time.Minute; at < 10*time.Minute; at += time.Second {
		empty(at, keys)
	}
	if got := l.served(keys); got != n {
		t.Fatalf("%d of %d Services have endpoints after 9 minutes of empty answers", got, n)
	}
	states, of := l.Report(start.Add(10*time.Minute), "consul")
	if len(states) != 1 || states[0].State != wire.DiscoveredHeld || states[0].Services != n || of != n || states[0].Of != nil {
		t.Errorf("the report is %+v, %d", states, of)
	}
	if again := l.Again(start.Add(time.Hour)); len(again) > 0 {
		t.Errorf("%d held questions are asked each second", len(again))
	}
	if released := l.Release("consul"); released != n || l.served(keys) != 0 || len(l.Changed()) != n {
		t.Errorf("%d released, %d are left", released, l.served(keys))
	}

	l, keys = fleetOf(n)
	for at := time.Minute; at <= time.Minute+31*time.Second; at += time.Second {
		empty(at, keys[:1])
		want := n
		if at >= time.Minute+30*time.Second {
			want = n - 1
		}
		if got := l.served(keys); got != want {
			t.Fatalf("after %v: %d Services have endpoints, want %d", at-time.Minute, got, want)
		}
		if again := l.Again(start.Add(at + time.Second)); (len(again) == 1) != (want == n) {
			t.Fatalf("after %v: asked again: %v", at-time.Minute, again)
		}
	}
}

// A hold ends for the rest when most came back, and a restart finds it again.
func Test972_a_hold_outlives_restarts_and_ends_with_what_comes_back(t *testing.T) {
	const n = 400
	l := New(start)
	var keys []Key
	for i := range n {
		key := Key{fmt.Sprint("default/s", i), "http", question(fmt.Sprint("q", i))}
		l.Claim(start, key, Terms{}, answer("10.0.0.1").Endpoints)
		keys = append(keys, key)
	}
	for i, key := range keys { // slowly: one a second
		l.Answer(start.Add(time.Duration(i)*time.Second), key.Asked, provider.Answer{}, nil)
	}
	at := start.Add(time.Hour)
	for _, key := range keys {
		l.Answer(at, key.Asked, provider.Answer{}, nil)
	}
	if got := l.served(keys); got < n-10 {
		t.Fatalf("%d of %d Services have endpoints after a restart with empty answers", got, n)
	}
	for _, key := range keys[:395] {
		l.Answer(at, key.Asked, answer("10.0.0.9"), nil)
	}
	for i := range 40 {
		for _, key := range keys[395:] {
			l.Answer(at.Add(time.Duration(i)*time.Second), key.Asked, provider.Answer{}, nil)
		}
	}
	if got := l.served(keys); got != 395 {
		t.Errorf("%d Services have endpoints, want the 395 that came back", got)
	}
}

// A Service with two questions is emptied when both are, a proved absence needs 2 s without a failure, and hold keeps what rotates.
func Test973_absences(t *testing.T) {
	l := New(start)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	a, b := Key{"default/web", "http", question("a")}, Key{"default/web", "http", question("b")}
	l.Claim(start, a, Terms{}, nil)
	l.Claim(start, b, Terms{Hold: time.Minute}, nil)
	l.Answer(at(1), a.Asked, answer("10.0.0.1", "10.0.0.2"), nil)
	l.Answer(at(1), b.Asked, answer("10.0.1.1", "10.0.1.2"), nil)

	l.Answer(at(2), a.Asked, provider.Answer{Proved: true}, nil)
	l.Fail(at(3), a.Asked, "EOF")
	l.Tick(at(60))
	if got := l.addresses(a); got != "10.0.0.1 10.0.0.2" {
		t.Errorf("a daemon that ends took %q along", got)
	}
	l.Answer(at(61), a.Asked, provider.Answer{Proved: true}, nil)
	if next := l.Next(at(61)); next != at(63) {
		t.Errorf("due at %v, want 63 s", next.Sub(start))
	}
	l.Tick(at(63))
	if got := l.addresses(a); got != "" {
		t.Errorf("%q is left, and its end is proved", got)
	}

	l.Answer(at(100), b.Asked, answer("10.0.1.2", "10.0.1.3"), nil)
	if got := l.addresses(b); got != "10.0.1.1 10.0.1.2 10.0.1.3" {
		t.Errorf("with hold: %q", got)
	}
	if again := l.Again(at(160)); len(again) != 1 {
		t.Errorf("an endpoint that is held for a minute is not asked for after it")
	}
	l.Fail(at(110), b.Asked, "EOF")
	l.Answer(at(165), b.Asked, answer("10.0.1.2"), nil)
	if got := l.addresses(b); got != "10.0.1.1 10.0.1.2 10.0.1.3" {
		t.Errorf("a failure counted for hold: %q", got)
	}
	l.Answer(at(225), b.Asked, answer("10.0.1.2"), nil)
	if got := l.addresses(b); got != "10.0.1.2" {
		t.Errorf("after a minute: %q", got)
	}
}

func TestReportOfFailures(t *testing.T) {
	l, keys := fleetOf(3)
	for _, key := range keys {
		l.Fail(start.Add(time.Minute), key.Asked, "connection refused")
	}
	if states, _ := l.Report(start.Add(time.Minute+time.Second), "consul"); len(states) != 0 {
		t.Errorf("a failure of a second is reported: %+v", states)
	}
	states, of := l.Report(start.Add(2*time.Minute), "consul")
	if len(states) != 1 || states[0].State != wire.DiscoveredStale || states[0].Why != "connection refused" || states[0].Services != 3 || states[0].Of != nil || of != 3 {
		t.Errorf("the report is %+v", states)
	}
	l.Answer(start.Add(3*time.Minute), keys[0].Asked, answer("10.0.0.1"), []string{"127.0.0.1:80 is a loopback address"})
	states, _ = l.Report(start.Add(3*time.Minute), "consul")
	if len(states) != 2 || states[0].State != wire.DiscoveredBad || states[1].Services != 2 || len(states[1].Of) != 2 {
		t.Errorf("the report is %+v", states)
	}
	l.Drop(keys[0])
	l.Claim(start, Key{"default/new", "http", question("new")}, Terms{}, nil)
	if states, _ = l.Report(start.Add(4*time.Minute), "consul"); len(states) != 2 || states[1].State != wire.DiscoveredUnread {
		t.Errorf("the report is %+v", states)
	}
}

// A report lists few reasons, and all Services are in it: one that all questions have is one state, and each of their own are bounded.
func Test1021_a_report_is_bounded(t *testing.T) {
	begin := time.Now()
	for _, tt := range []struct {
		why  func(n int) string
		most int
	}{
		{func(int) string { return "connection refused" }, 1},
		{func(n int) string { return fmt.Sprint("no such host: ", n) }, mostReasons + 1},
	} {
		l := New(begin)
		for n := range 1000 {
			of := Asked{Provider: "dns", Question: provider.Question{Name: fmt.Sprint("s", n)}}
			l.Claim(begin, Key{Service: fmt.Sprint("default/s", n), Asked: of}, Terms{}, nil)
			l.Fail(begin, of, tt.why(n))
		}
		states, services := l.Report(begin.Add(patience), "dns")
		sum := 0
		for _, s := range states {
			sum += s.Services
			if s.State != wire.DiscoveredStale || s.Why == "" {
				t.Errorf("%+v", s)
			}
		}
		if len(states) > tt.most || sum != 1000 || services != 1000 {
			t.Errorf("%d states of %d Services, want at most %d of 1000", len(states), sum, tt.most)
		}
	}
}
