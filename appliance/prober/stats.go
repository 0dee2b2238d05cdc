package prober

import (
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// Bounds are the upper bounds of the buckets of a Durations, in seconds.
var Bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// Durations is a histogram of the durations of probes.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// Buckets counts those that took at most Bounds[i].
	Buckets [len(Bounds)]uint64
}

// Stats are the numbers of a Prober at one moment. Counters begin with the Prober.
type Stats struct {
	// Services have Targets. Targets are those that are asked, by state; Unasked are beyond the
	// most there may be, and have no verdict.
	Services int
	Targets  map[health.State]int
	Unasked  int
	// Checks counts probes by what came of them, Transitions changes of state by the new one.
	Checks      map[health.Kind]map[health.Outcome]uint64
	Durations   map[health.Kind]Durations
	Transitions map[health.State]uint64
	// UnderWay are probes that wait for their answer.
	UnderWay int
	// Stretch is the factor that intervals take, 1 if all fit. Late is how long the first probe
	// waits that was to begin and may not.
	Stretch float64
	Late    time.Duration
	// NotMade are the Targets whose last probe was not made, for a reason of this host:
	// NotMadeWhy, the latest.
	NotMade    int
	NotMadeWhy string
	// Expiry is the nearest end of a certificate; zero if none was seen.
	Expiry time.Time
}

// counts are the counters of a Prober.
type counts struct {
	checks      [health.ICMP + 1][health.Void + 1]uint64
	durations   [health.ICMP + 1]Durations
	transitions [health.Down + 1]uint64
}

func (c *counts) add(t *target, r health.Result) {
	kind := t.check.Kind
	c.checks[kind][r.Outcome]++
	if r.Outcome == health.Void {
		return
	}
	d := &c.durations[kind]
	d.Count++
	d.Sum += r.Took
	for i := len(Bounds) - 1; i >= 0 && r.Took.Seconds() <= Bounds[i]; i-- {
		d.Buckets[i]++
	}
}

// Stats takes the numbers of this moment.
func (p *Prober) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Services: len(p.book.services), Unasked: len(p.book.excess), UnderWay: p.schedule.underWay,
		Targets: map[health.State]int{}, Transitions: map[health.State]uint64{},
		Checks: map[health.Kind]map[health.Outcome]uint64{}, Durations: map[health.Kind]Durations{},
		Stretch: p.schedule.stretch(), Late: p.schedule.behind,
		NotMade: p.book.notMade,
	}
	if s.NotMade > 0 {
		s.NotMadeWhy = p.book.notMadeWhy
	}
	for state := range health.Down + 1 {
		s.Targets[state] = p.book.states[state]
		s.Transitions[state] = p.counts.transitions[state]
	}
	for kind := health.TCP; kind <= health.ICMP; kind++ {
		s.Checks[kind] = map[health.Outcome]uint64{}
		for outcome := range health.Void + 1 {
			s.Checks[kind][outcome] = p.counts.checks[kind][outcome]
		}
		s.Durations[kind] = p.counts.durations[kind]
	}
	for _, at := range p.book.expiry {
		if s.Expiry.IsZero() || at.Before(s.Expiry) {
			s.Expiry = at
		}
	}
	return s
}
