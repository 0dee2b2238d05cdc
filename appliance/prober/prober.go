package prober

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/task"
)

// Options configure a Prober. The zero value of each is its default.
type Options struct {
	// Log gets what goes wrong on this host; none by default.
	Log *slog.Logger
	// SourcePorts are the source ports of probes in the steady state.
	SourcePorts Ports
}

// Ports is a range of source ports, from First to Last. For the zero value the kernel chooses the port.
type Ports struct{ First, Last uint16 }

// DefaultPorts is above the kernel's default range of ephemeral ports (net.ipv4.ip_local_port_range).
var DefaultPorts = Ports{61000, 61255}

// Request asks the Prober to probe a Target.
type Request struct {
	health.Target
	// Start is the state of the Target until it has been asked.
	Start health.State
	Past  health.Past
}

// limits are the limits of a Prober.
type limits struct {
	targets  int // that are probed
	underWay int // concurrent probes
	rate     int // units of work a second
}

var defaultLimits = limits{targets: 50_000, underWay: 4096, rate: 5000}

// Prober probes Targets. Its methods may be called from any goroutine, before, during and after Run, and do not block.
type Prober struct {
	log   *slog.Logger
	epoch time.Time // times are counted from here
	// open opens the asker, with the first probe.
	open func(done func([]answer)) (asker, error)
	kick chan struct{} // wakes the loop early

	mu       sync.Mutex
	book     book
	schedule schedule
	counts   counts
	// flips has the Services with a flip that Flipped has not returned; notify signals that there
	// are some.
	flips  map[string]struct{}
	notify func()
}

// asker makes probes; implemented by network. It passes the answer to each, once, to the function done that it was opened with.
type asker interface {
	// begin starts probes, and does not wait for their answers.
	begin([]probe)
	// expire ends the probes with these serial numbers, whose deadline has passed.
	expire([]uint64)
	// close ends all probes, and waits for their goroutines.
	close()
}

// New returns a Prober without targets.
func New(o Options) *Prober {
	log := cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return newProber(log, defaultLimits, func(done func([]answer)) (asker, error) {
		return newNetwork(o.SourcePorts, done)
	})
}

func newProber(log *slog.Logger, l limits, open func(func([]answer)) (asker, error)) *Prober {
	return &Prober{
		log: log, epoch: time.Now(), open: open,
		kick: make(chan struct{}, 1),
		book: book{
			most: l.targets, checks: map[health.Check]*check{}, targets: map[key]*target{},
			services: map[string][]*target{}, excess: map[*target]struct{}{}, expiry: map[*target]time.Time{},
		},
		schedule: newSchedule(l),
		flips:    map[string]struct{}{},
		notify:   func() {},
	}
}

// now returns the time since the epoch, by the monotonic clock.
func (p *Prober) now() time.Duration { return time.Since(p.epoch) }

// Set replaces the Targets of a Service; with no requests the Service is removed. A Target that is probed already, for this Service or
// another, keeps its state.
func (p *Prober) Set(service string, requests []Request) {
	p.mu.Lock()
	now := p.now()
	p.book.set(service, requests, now, bookkeeper{
		asked:   func(t *target) { p.schedule.add(t, now) },
		dropped: p.schedule.remove,
		flipped: p.flip,
	})
	early := p.schedule.early()
	flipped := len(p.flips) > 0
	notify := p.notify
	p.mu.Unlock()
	p.wake(early)
	if flipped {
		notify()
	}
}

// Hasten makes a probe of a Target due now, unless one is under way. UDP probes keep their spacing.
func (p *Prober) Hasten(of health.Target) {
	p.mu.Lock()
	if t := p.book.find(of); t != nil && t.asked {
		p.schedule.hasten(t, p.now())
	}
	early := p.schedule.early()
	p.mu.Unlock()
	p.wake(early)
}

// Verdict returns the verdict on a Target. It returns false for one that is not probed: it was not Set, or is beyond the limit of Targets.
func (p *Prober) Verdict(of health.Target) (health.Verdict, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.book.find(of)
	if t == nil || !t.asked {
		return health.Verdict{}, false
	}
	v := t.machine.Verdict(p.epoch)
	v.Asked, v.NotMade = t.answered, t.notMade
	return v, true
}

// Flipped returns the Services, sorted, with a Target that changed since the last call: its state, the reason for which it is down, or
// whether its state is the result of a probe instead of an assumption.
func (p *Prober) Flipped() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Sorted(maps.Keys(p.flips))
	clear(p.flips)
	return all
}

// Run probes until ctx is done. It calls flipped whenever Flipped has something new; flipped must not block. Run is called once. While
// there are no Targets it sleeps, and holds nothing open.
func (p *Prober) Run(ctx context.Context, flipped func()) {
	asks := &onDemand{open: p.open, done: p.record}
	defer asks.close()
	p.mu.Lock()
	p.notify = flipped
	missed := len(p.flips) > 0
	p.mu.Unlock()
	if missed {
		flipped()
	}

	var batch []probe
	var over []uint64
	task.Repeat(ctx, p.kick, func() (next time.Time) {
		p.mu.Lock()
		over = p.schedule.expired(p.now(), over[:0])
		batch = p.schedule.take(p.now(), batch[:0])
		p.mu.Unlock()
		asks.expire(over)
		asks.begin(batch)
		clear(batch) // it holds Targets, which may leave

		p.mu.Lock()
		sleep, planned := p.schedule.plan(p.now())
		p.mu.Unlock()
		if !planned {
			asks.close() // no target is left
			return next
		}
		return time.Now().Add(sleep)
	})
}

// wake wakes the loop if early is set: a probe is due before its planned wake-up.
func (p *Prober) wake(early bool) {
	if early {
		task.Wake(p.kick)
	}
}

// record applies the answers to probes to their targets, and calls the function flipped of Run if a state changed.
func (p *Prober) record(answers []answer) {
	p.mu.Lock()
	now := p.now()
	flipped := false
	for _, a := range answers {
		flipped = p.take(a, now) || flipped
	}
	early := p.schedule.early()
	notify := p.notify
	p.mu.Unlock()
	p.wake(early)
	if flipped {
		notify()
	}
}

// take applies one answer to its target. It reports whether the state of the Target changed, or the reason for which it is down.
func (p *Prober) take(a answer, now time.Duration) (flipped bool) {
	t := a.target
	if !p.schedule.done(t, a.serial, now) {
		return false
	}
	if p.schedule.doubtful(t, a.result) {
		a.result = health.Result{Outcome: health.Void, Why: stoodStill, Took: a.result.Took}
	}
	p.counts.add(t, a.result)
	if a.expires != nil {
		p.book.expiry[t] = *a.expires
	}
	if a.result.Outcome == health.Void && t.notMade == "" {
		p.log.Debug("check not made", "target", t.addr, "why", a.result.Why)
	}
	p.book.void(t, a.result)
	first := !t.answered && a.result.Outcome != health.Void
	t.answered = t.answered || first
	before, assumed := t.machine.State(), t.machine.Assumed()
	next, changed := t.machine.Observe(now, a.result)
	p.schedule.reschedule(t, next, now)
	if state := t.machine.State(); state != before {
		p.book.moved(t, before)
		p.counts.transitions[state]++
	}
	known := assumed && !t.machine.Assumed() || first && before == health.Down
	if changed || known {
		p.flip(t)
	}
	return changed || known
}

// flip adds the Services of a Target whose state changed to flips.
func (p *Prober) flip(t *target) {
	for _, service := range t.services {
		p.flips[service] = struct{}{}
	}
}

// onDemand is an asker that opens another one with the first probe, and again after it was closed. While that fails, as when this host is
// out of descriptors, each probe has the error as its result.
type onDemand struct {
	open func(done func([]answer)) (asker, error)
	done func([]answer)
	asks asker // nil: not open
}

// begin implements asker.
func (o *onDemand) begin(probes []probe) {
	if len(probes) == 0 {
		return
	}
	if o.asks == nil {
		asks, err := o.open(o.done)
		if err != nil {
			answers := make([]answer, len(probes))
			for i, p := range probes {
				answers[i] = answer{target: p.target, serial: p.serial, result: failed(health.Void, fmt.Sprintf("not asked: %v", err))}
			}
			o.done(answers)
			return
		}
		o.asks = asks
	}
	o.asks.begin(probes)
}

// expire implements asker.
func (o *onDemand) expire(serials []uint64) {
	if o.asks != nil {
		o.asks.expire(serials)
	}
}

// close implements asker: it closes the asker that the last probe opened. The next probe opens another one.
func (o *onDemand) close() {
	if o.asks != nil {
		o.asks.close()
		o.asks = nil
	}
}

// Bounds are the upper bounds of the buckets of a Durations, in seconds.
var Bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// Durations is a histogram of the durations of probes.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// Buckets counts those that took at most Bounds[i].
	Buckets [len(Bounds)]uint64
}

// Stats are the statistics of a Prober at one moment. Counters start at zero with the Prober.
type Stats struct {
	// Services counts the Services that have Targets. Targets counts the Targets that are probed, by state, Unasked those beyond the limit,
	// which have no verdict.
	Services int
	Targets  map[health.State]int
	Unasked  int
	// Checks counts probes by kind and outcome, Transitions changes of state by the new state.
	Checks      map[health.Kind]map[health.Outcome]uint64
	Durations   map[health.Kind]Durations
	Transitions map[health.State]uint64
	// UnderWay counts the probes that wait for an answer.
	UnderWay int
	// Stretch is the factor by which intervals are multiplied to fit the rate, at least 1. Late is how long the first due probe has waited
	// because of the limits.
	Stretch float64
	Late    time.Duration
	// NotMade counts the Targets whose last probe was not made, for a reason on this host. NotMadeWhy is the latest reason.
	NotMade    int
	NotMadeWhy string
	// Expiry is the nearest end of a certificate; zero if none was seen.
	Expiry time.Time
}

// counts has the counters for Stats.
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

// Stats returns the statistics of this moment.
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
