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

// Options configures a Prober. The zero value of each field selects its default.
type Options struct {
	// Log receives messages about probes that this host could not make. If nil, they are discarded.
	Log *slog.Logger
	// SourcePorts is the range of the fixed source ports of probes. A probe that repeats a deviating result uses an ephemeral port instead.
	SourcePorts Ports
}

// Ports is a range of source ports from First to Last, both included. With the zero value the kernel chooses the ports.
type Ports struct{ First, Last uint16 }

// DefaultPorts is a range of source ports above the kernel's default range of ephemeral ports (net.ipv4.ip_local_port_range).
var DefaultPorts = Ports{61000, 61255}

// Request asks the Prober to probe a Target. Past is the state of the Target at the end of the previous process.
type Request struct {
	health.Target
	// Start is the assumed state of the Target until its first result.
	Start health.State
	Past  health.Past
}

// limits bounds the work of a Prober.
type limits struct {
	targets  int // maximum number of targets that are probed
	underWay int // maximum number of concurrent probes
	rate     int // maximum work per second, see units
}

var defaultLimits = limits{targets: 50_000, underWay: 4096, rate: 5000}

// Prober probes Targets. Its methods may be called from any goroutine, before, during and after Run, and do not block.
type Prober struct {
	log   *slog.Logger
	epoch time.Time // times in this package are durations since epoch
	// open creates the asker. It is called before the first probe.
	open func(done func([]answer)) (asker, error)
	kick chan struct{} // wakes the loop early

	mu       sync.Mutex
	book     book
	schedule schedule
	counts   counts
	// flips holds the Services with changed Targets that Flipped has not returned yet. notify signals that there are some.
	flips  map[string]struct{}
	notify func()
}

// asker makes probes; network implements it. It passes the answer to each probe exactly once to the function done that it was created with.
type asker interface {
	// begin starts probes, and does not wait for their answers.
	begin([]probe)
	// expire ends the probes with the given serial numbers, which have passed their deadline.
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

// now returns the monotonic time since epoch.
func (p *Prober) now() time.Duration { return time.Since(p.epoch) }

// Set replaces the Targets of a Service. Without requests it removes the Service. A Target that is already probed, for any Service, keeps its state.
func (p *Prober) Set(service string, requests []Request) {
	p.mu.Lock()
	now := p.now()
	p.book.set(service, requests, now, bookkeeper{
		asked:   func(t *target) { p.schedule.add(t, now) },
		dropped: p.schedule.remove,
		flipped: p.flip,
	})
	p.unlock(len(p.flips) > 0)
}

// Hasten makes the next probe of a Target due now. It does nothing while a probe is under way. The minimum spacing of UDP probes is kept.
func (p *Prober) Hasten(of health.Target) {
	p.mu.Lock()
	if t := p.book.find(of); t != nil && t.asked {
		p.schedule.hasten(t, p.now())
	}
	p.unlock(false)
}

// Verdict returns the verdict on a Target. It returns false if the Target is not probed, because no Service has requested that or because it is
// beyond the limit of Targets.
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

// Flipped returns the Services, sorted, with a Target that has changed since the last call. A Target changes when its state or its reason for being
// down changes, and when a probe confirms a state that was only assumed.
func (p *Prober) Flipped() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Sorted(maps.Keys(p.flips))
	clear(p.flips)
	return all
}

// Run probes until ctx is done. It calls flipped whenever Flipped has something to return; flipped must not block. Run must be called only once.
// While there are no Targets, it sleeps and keeps no sockets open.
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

// unlock releases p.mu. It wakes the loop if a probe is due before its planned wake-up, and calls notify if flipped is set.
func (p *Prober) unlock(flipped bool) {
	early, notify := p.schedule.early(), p.notify
	p.mu.Unlock()
	if early {
		task.Wake(p.kick)
	}
	if flipped {
		notify()
	}
}

// record applies the answers to probes to their targets, and calls notify if a target changed.
func (p *Prober) record(answers []answer) {
	p.mu.Lock()
	now := p.now()
	flipped := false
	for _, a := range answers {
		flipped = p.take(a, now) || flipped
	}
	p.unlock(flipped)
}

// take applies one answer to its target. It reports whether the target changed in a way that Flipped must return.
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

// flip adds the Services of a target to flips.
func (p *Prober) flip(t *target) {
	for _, service := range t.services {
		p.flips[service] = struct{}{}
	}
}

// onDemand is an asker that creates an underlying asker for the first probe, and again after close. If that fails, for instance because this host is
// out of file descriptors, each probe gets the error as its result.
type onDemand struct {
	open func(done func([]answer)) (asker, error)
	done func([]answer)
	asks asker // the underlying asker; nil while there is none
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

// close implements asker: it closes the underlying asker. The next probe creates a new one.
func (o *onDemand) close() {
	if o.asks != nil {
		o.asks.close()
		o.asks = nil
	}
}

// Bounds are the upper bounds of the buckets of Durations, in seconds.
var Bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// Durations is a histogram of the durations of probes.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// Buckets[i] counts the probes that took at most Bounds[i] seconds, those of lower buckets included.
	Buckets [len(Bounds)]uint64
}

// Stats are the statistics of a Prober at one point in time. Counters start at zero when the Prober is created.
type Stats struct {
	// Services counts the Services that have Targets. Targets counts the Targets that are probed, by state. Unasked counts the Targets beyond the
	// limit, which are not probed and have no verdict.
	Services int
	Targets  map[health.State]int
	Unasked  int
	// Checks counts probes by kind and outcome. Transitions counts changes of state, by new state.
	Checks      map[health.Kind]map[health.Outcome]uint64
	Durations   map[health.Kind]Durations
	Transitions map[health.State]uint64
	// UnderWay is the number of probes that wait for an answer.
	UnderWay int
	// Stretch is the factor, at least 1, by which intervals are multiplied so that probes do not exceed the rate. Late is how long the limits have
	// delayed the first due probe.
	Stretch float64
	Late    time.Duration
	// NotMade counts the Targets whose last probe could not be made because of this host. NotMadeWhy is the latest reason.
	NotMade    int
	NotMadeWhy string
	// Expiry is the earliest expiry of a server's certificate; zero if no probe received one.
	Expiry time.Time
}

// counts holds the counters that Stats returns.
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

// Stats returns the present statistics.
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
