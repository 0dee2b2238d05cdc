package health

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// history is a naive model of a Target: it keeps all results, and looks at all of them each time.
type history struct {
	check   Check
	start   State
	at      []time.Duration
	results []Outcome
	states  []State
}

// observe gives the state after one more result.
func (h *history) observe(now time.Duration, o Outcome) State {
	before := h.start
	if n := len(h.states); n > 0 {
		before = h.states[n-1]
	}
	h.at, h.results = append(h.at, now), append(h.results, o)
	state := before
	row, since := h.row()
	switch {
	case o == Void:
	case o == Pass && before == New:
		state = Up
	case o == Pass && before == Down && row >= h.check.Rise && now-since >= h.hold():
		state = Up
	case o != Pass && before != Down && row >= h.check.Fall:
		state = Down
	}
	h.states = append(h.states, state)
	return state
}

// row is how many results of the last one's kind came in a row, and when the row began.
func (h *history) row() (n int, since time.Duration) {
	kind, known := false, false
	for i := len(h.results) - 1; i >= 0; i-- {
		if h.results[i] == Void {
			continue
		}
		if pass := h.results[i] == Pass; !known {
			kind, known = pass, true
		} else if pass != kind {
			break
		}
		n, since = n+1, h.at[i]
	}
	return n, since
}

// hold is for how long the Target has to pass.
func (h *history) hold() time.Duration {
	var falls []time.Duration
	for i, s := range h.states {
		before := h.start
		if i > 0 {
			before = h.states[i-1]
		}
		if before == Up && s == Down {
			falls = append(falls, h.at[i])
		}
	}
	if len(falls) == 0 {
		return 0
	}
	n := 0
	for _, at := range falls {
		if falls[len(falls)-1]-at <= 10*time.Minute {
			n++
		}
	}
	if n < 3 {
		return 0
	}
	return min(5*time.Minute, time.Duration(n)*30*time.Second)
}

func TestMachineAgainstModel(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := Check{Kind: []Kind{TCP, UDP}[seed%2], Interval: time.Duration(1+random.IntN(20)) * time.Second, Timeout: time.Second, Rise: 1 + random.IntN(4), Fall: 1 + random.IntN(4)}
		start := State(random.IntN(3))
		now := time.Duration(0)
		m := NewMachine(c, start, Past{}, now)
		model := history{check: c, start: start}
		outcome, log := Pass, ""
		for range 400 {
			if random.IntN(3) == 0 {
				outcome = Outcome(random.IntN(4))
			}
			before := m.State()
			next, changed := m.Observe(now, Result{Outcome: outcome})
			log += fmt.Sprintf(" %v:%d=%s", now, outcome, m.State())
			if want := model.observe(now, outcome); m.State() != want || changed != (before != want) {
				t.Fatalf("seed %d, %+v from %s: %s changed %t, want %s%s", seed, c, start, m.State(), changed, want, log)
			}
			if next < 0 || next > c.Interval || next == 0 && outcome != Silent {
				t.Fatalf("seed %d: asks again after %v%s", seed, next, log)
			}
			now += next + time.Duration(random.IntN(1000))*time.Millisecond
		}
	}
}

// TestMachinePace: how soon a Target is asked again, and how long it takes until it is down.
func TestMachinePace(t *testing.T) {
	c := Check{Kind: HTTP, Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	m := NewMachine(c, Up, Past{}, 0)
	now := time.Duration(0)
	step := func(m *Machine, o Outcome, want time.Duration, state State) {
		t.Helper()
		next, _ := m.Observe(now, Result{Outcome: o})
		if next != want || m.State() != state {
			t.Errorf("%d: asked again after %v and %s; want %v and %s", o, next, m.State(), want, state)
		}
		now += next
	}
	step(&m, Pass, 5*time.Second, Up)
	step(&m, Refused, 100*time.Millisecond, Up)
	step(&m, Refused, 100*time.Millisecond, Up)
	step(&m, Refused, 5*time.Second, Down)
	if now != 10200*time.Millisecond { // 5 s after it was
		t.Errorf("down after %v", now)
	}
	step(&m, Refused, 5*time.Second, Down)
	step(&m, Pass, time.Second, Down)
	step(&m, Pass, 5*time.Second, Up)
	step(&m, Silent, 0, Up)
	step(&m, Void, time.Second, Up)
	step(&m, Silent, 0, Up)
	if !m.InTransition() {
		t.Error("a failure of who is up is no transition")
	}
	step(&m, Silent, 5*time.Second, Down)
	if m.InTransition() {
		t.Error("a steady failure is a transition")
	}
	c.Kind = UDP
	u := NewMachine(c, Up, Past{}, 0)
	step(&u, Refused, time.Second, Up)
	n := NewMachine(c, New, Past{}, 0)
	step(&n, Pass, 5*time.Second, Up)
}

// TestMachinePast: what was down before this process, and is found to be, is down since then, unless it passed.
func TestMachinePast(t *testing.T) {
	c := Check{Kind: TCP, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 2}
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	then := epoch.Add(-time.Hour)
	const pass, fail = Pass, Refused
	for _, test := range []struct {
		start, was State
		results    []Outcome
		want       State
		since      time.Time
	}{
		{Down, Down, nil, Down, then},
		{Down, Down, []Outcome{fail}, Down, then},
		{Down, Down, []Outcome{pass, fail, fail}, Down, then}, // it did not come up
		{Down, Down, []Outcome{pass, pass}, Up, epoch.Add(2 * time.Second)},
		{Down, Down, []Outcome{pass, pass, fail, fail}, Down, epoch.Add(4 * time.Second)},
		{Up, Down, nil, Up, time.Time{}},
		{Up, Down, []Outcome{fail, fail}, Down, then}, // it was used as all were down
		{Up, Down, []Outcome{pass, fail, fail}, Down, epoch.Add(3 * time.Second)},
		{New, Down, []Outcome{fail, fail}, Down, then},
		{New, Down, []Outcome{pass}, Up, epoch.Add(time.Second)},
		{Up, Up, []Outcome{pass}, Up, then},
		{Up, Up, []Outcome{fail, fail, pass, pass}, Up, epoch.Add(4 * time.Second)},
		{Up, Up, []Outcome{fail, fail}, Down, epoch.Add(2 * time.Second)},
		{Down, New, nil, Down, time.Time{}},
	} {
		m := NewMachine(c, test.start, Past{test.was, then}, 0)
		for i, o := range test.results {
			m.Observe(time.Duration(i+1)*time.Second, Result{Outcome: o})
		}
		if v := m.Verdict(epoch); v.State != test.want || !v.Since.Equal(test.since) {
			t.Errorf("%v, was %v, %v: %v since %v, want %v since %v", test.start, test.was, test.results, v.State, v.Since, test.want, test.since)
		}
	}
}

// TestMachineFlaps: who falls often has to pass for long.
func TestMachineFlaps(t *testing.T) {
	c := Check{Kind: TCP, Interval: time.Second, Timeout: time.Second, Rise: 1, Fall: 1}
	m := NewMachine(c, Up, Past{}, 0)
	now := time.Duration(0)
	back := func() time.Duration {
		m.Observe(now, Result{Outcome: Refused})
		began := now
		for m.State() == Down {
			next, _ := m.Observe(now, Result{Outcome: Pass})
			if m.State() == Down {
				now += next
			}
		}
		return now - began
	}
	for i, want := range []time.Duration{0, 0, 90 * time.Second, 120 * time.Second, 150 * time.Second} {
		if got := back(); got != want {
			t.Errorf("fall %d: back after %v, want %v", i+1, got, want)
		}
		now += time.Second
	}
	now += 20 * time.Minute
	if got := back(); got != 0 {
		t.Errorf("after a calm: back after %v", got)
	}
}

// The reason of a Target that is down follows its failures, and one that passes or fails once for another reason does not change it.
func TestWhyItIsDown(t *testing.T) {
	m := NewMachine(Check{Kind: TCP, Interval: time.Minute, Timeout: time.Second, Rise: 2, Fall: 2}, Down, Past{}, 0)
	for i, step := range []struct {
		why     string // "": it passes
		changed bool
		want    string
	}{
		{"no route", true, "no route"}, // before it was not known
		{"refused", false, "no route"},
		{"no route", false, "no route"},
		{"refused", false, "no route"},
		{"", false, "no route"},
		{"refused", false, "no route"},
		{"expired", true, "expired"},
		{"expired", false, "expired"},
		{"", false, "expired"},
		{"", true, "expired"}, // up
		{"silent", false, "expired"},
		{"refused", true, "refused"},
	} {
		r := Result{Outcome: Refused, Why: step.why}
		if step.why == "" {
			r.Outcome = Pass
		}
		if _, changed := m.Observe(time.Duration(i)*time.Second, r); changed != step.changed || m.Verdict(time.Time{}).Why != step.want {
			t.Errorf("step %d, %+v: changed: %t, %+v", i, step, changed, m.Verdict(time.Time{}))
		}
	}
}
