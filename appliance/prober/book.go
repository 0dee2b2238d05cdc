package prober

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// target is a health.Target, probed once on behalf of all Services that check it.
type target struct {
	addr     netip.AddrPort
	check    *check
	machine  health.Machine
	services []string
	hash     uint32

	// asked is set if the target is probed, because it is within the limit of targets. answered is set after the first result of a probe. gone is set
	// once no Service has the target. notMade is the reason why the last probe could not be made, or "" if it was made.
	asked, answered, gone bool
	notMade               string

	timing timing
	mark   uint64 // value of book.mark in the last call of book.set with this target
}

// check is a health.Check with the recipe for its probes. All targets with the same health.Check share it.
type check struct {
	health.Check
	recipe  recipe
	targets int
}

// key is a health.Target with a pointer in place of its Check, for fast lookups.
type key struct {
	addr  netip.AddrPort
	check *check
}

// book holds the targets, and the Services that each of them is probed for.
type book struct {
	most     int
	checks   map[health.Check]*check
	targets  map[key]*target
	services map[string][]*target
	// excess holds the targets beyond the limit in most. They are not probed.
	excess map[*target]struct{}
	states [health.Down + 1]int
	// notMade is the number of targets whose last probe could not be made. notMadeWhy is the latest reason.
	notMade    int
	notMadeWhy string
	expiry     map[*target]time.Time // expiry of the server's certificate, by target
	mark       uint64
}

// bookkeeper holds the callbacks of book.set. asked is called for a target that is probed from now on, dropped for one that is no longer probed, and
// flipped for one whose state has changed.
type bookkeeper struct{ asked, dropped, flipped func(*target) }

func (b *book) find(of health.Target) *target {
	c := b.checks[of.Check]
	if c == nil {
		return nil
	}
	return b.targets[key{of.Addr, c}]
}

// set replaces the targets of a Service, and calls the functions of the bookkeeper for the targets affected by that.
func (b *book) set(service string, requests []Request, now time.Duration, tell bookkeeper) {
	b.mark += 2
	before := b.services[service]
	for _, t := range before {
		t.mark = b.mark - 1
	}
	after := make([]*target, 0, len(requests))
	for _, r := range requests {
		t := b.find(r.Target)
		if t == nil {
			t = b.enter(r, now, tell)
		} else {
			b.correct(t, r, now, tell)
		}
		if t.mark == b.mark {
			continue // named twice
		}
		if t.mark != b.mark-1 {
			t.services = append(t.services, service)
		}
		t.mark = b.mark
		after = append(after, t)
	}
	for _, t := range before {
		if t.mark == b.mark-1 {
			b.leave(t, service, tell)
		}
	}
	if b.services[service] = after; len(after) == 0 {
		delete(b.services, service)
	}
}

// enter adds a new target. The target is probed if the limit of targets permits that.
func (b *book) enter(r Request, now time.Duration, tell bookkeeper) *target {
	c := b.checks[r.Check]
	if c == nil {
		c = &check{Check: r.Check, recipe: newRecipe(r.Check)}
		b.checks[r.Check] = c
	}
	c.targets++
	t := &target{addr: r.Addr, check: c, machine: health.NewMachine(r.Check, r.Start, r.Past, now), hash: hashOf(r.Target)}
	t.timing.index = -1
	b.targets[key{t.addr, c}] = t
	b.admit(t, tell)
	return t
}

func (b *book) admit(t *target, tell bookkeeper) {
	asked := 0
	for _, n := range b.states {
		asked += n
	}
	if asked >= b.most {
		b.excess[t] = struct{}{}
		return
	}
	delete(b.excess, t)
	t.asked = true
	b.states[t.machine.State()]++
	tell.asked(t)
}

// correct applies the Start state of a further Request for a target that has no result yet. Up replaces Down and New, since some Service already uses
// the endpoint; Down replaces New.
func (b *book) correct(t *target, r Request, now time.Duration, tell bookkeeper) {
	known := func(s health.State) int { return slices.Index([]health.State{health.New, health.Down, health.Up}, s) }
	before := t.machine.State()
	if t.answered || known(r.Start) <= known(before) {
		return
	}
	t.machine = health.NewMachine(r.Check, r.Start, r.Past, now)
	if t.asked {
		b.moved(t, before)
		tell.flipped(t)
	}
}

// leave removes a Service from a target. A target without Services is removed. If it was probed, a target in b.excess is probed in its place.
func (b *book) leave(t *target, service string, tell bookkeeper) {
	i := slices.Index(t.services, service)
	t.services = slices.Delete(t.services, i, i+1)
	if len(t.services) > 0 {
		return
	}
	delete(b.targets, key{t.addr, t.check})
	if t.check.targets--; t.check.targets == 0 {
		delete(b.checks, t.check.Check)
	}
	t.gone = true
	delete(b.expiry, t)
	if !t.asked {
		delete(b.excess, t)
		return
	}
	b.void(t, health.Result{})
	b.states[t.machine.State()]--
	tell.dropped(t)
	for next := range b.excess {
		b.admit(next, tell)
		tell.flipped(next)
		break
	}
}

// moved updates the counts of targets by state after the state of t has changed from the given one.
func (b *book) moved(t *target, from health.State) {
	b.states[from]--
	b.states[t.machine.State()]++
}

// void sets t.notMade, and updates b.notMade and b.notMadeWhy, after a probe of t with the result r.
func (b *book) void(t *target, r health.Result) {
	is := r.Outcome == health.Void
	switch was := t.notMade != ""; {
	case is && !was:
		b.notMade++
	case !is && was:
		b.notMade--
	}
	if t.notMade = ""; is {
		t.notMade = cmp.Or(r.Why, "not asked")
		b.notMadeWhy = t.notMade
	}
}

// hashOf returns the hash of a target that determines its source port and its offset within the interval. The hash is the same after a restart, so
// that the target keeps its conntrack entry.
func hashOf(t health.Target) uint32 {
	h := fnv.New32a()
	addr := t.Addr.Addr().As16()
	_, _ = h.Write(addr[:])
	_, _ = h.Write(binary.BigEndian.AppendUint16(nil, t.Addr.Port()))
	_, _ = h.Write([]byte{byte(t.Check.Kind)})
	_, _ = h.Write([]byte(t.Check.Host + t.Check.Path + t.Check.Name))
	return mix(h.Sum32())
}

// mix distributes small differences of its input over all bits (the finalizer of MurmurHash3).
func mix(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}

const (
	// tick is the granularity of the schedule: times are rounded up to a multiple of it, so that a busy Prober wakes at most fifty times a second.
	tick = 20 * time.Millisecond
	// beat is the longest time between two wake-ups of the loop while probes are under way. If a wake-up is overdue by at least the duration late,
	// the process was not running in between.
	beat = 50 * time.Millisecond
	late = 500 * time.Millisecond
	// jitter is the maximum random deviation of an interval, as a fraction of the interval.
	jitter = 0.05
	// ephemerals is the largest number of successive probes of a target that use an ephemeral source port. Each creates a conntrack entry, so a
	// target has at most three, including the entry of its fixed port.
	ephemerals = 2
	// room is the fraction of limits.rate that regular probes may use. If they need more, their intervals are stretched.
	room = 0.95
)

// units is the CPU cost of a probe of each kind, in units of one half-open TCP connection.
var units = [...]int{health.TCP: 1, health.TLS: 10, health.HTTP: 2, health.HTTPS: 10, health.GRPC: 4, health.DNS: 2, health.UDP: 2, health.ICMP: 1}

// timing is the state of a target in the schedule. Times are durations since Prober.epoch.
type timing struct {
	// at is when the next probe of the target is due, or the deadline of the probe under way. index is the position of the target in its queue, -1 if
	// it is in no queue.
	at      time.Duration
	index   int
	started time.Duration
	serial  uint64 // serial number of the last probe
	retries int    // number of consecutive probes whose result contradicted the target's state
	// underWay is set between schedule.take and schedule.done. reserved is set while a UDP probe waits for the time that itsTurn reserved for it.
	underWay, reserved bool
}

// probe is a probe that is to be started now.
type probe struct {
	target    *target
	serial    uint64
	ephemeral bool // the kernel chooses the source port
}

// answer is the result of a probe.
type answer struct {
	target  *target
	serial  uint64
	result  health.Result
	expires *time.Time // when the server's certificate expires; nil if there was none
}

// schedule decides when each target is probed, within the limits of rate and concurrency. It does not read a clock: callers pass the time since
// Prober.epoch.
type schedule struct {
	limit limits
	// due holds the targets that wait for their next probe, deadlines the targets with a probe under way.
	due, deadlines queue
	underWay       int
	serial         uint64
	// demand is the cost of probing all targets at their intervals, in millionths of a unit (see units) per second.
	demand int64
	// tokens is the content of the token bucket that limits the rate, in units of work (see units), as of the time filled.
	tokens float64
	filled time.Duration
	// full is set while the limits of rate or concurrency delay a due probe. behind is how long the first such probe has been delayed.
	full   bool
	behind time.Duration
	// next is the time of the next planned wake-up. stood is when the process last resumed after it had not been running for a while. Both are -1 for
	// never.
	next, stood time.Duration
	turns       map[netip.Addr]*turn // spacing of UDP probes, by address
}

// turn spaces the UDP probes to one address. free is the earliest time for the next one, targets is the number of UDP targets with that address.
type turn struct {
	free    time.Duration
	targets int
}

func newSchedule(l limits) schedule {
	return schedule{limit: l, tokens: burst(l), next: -1, stood: -1, turns: map[netip.Addr]*turn{}}
}

// add schedules a new target: at once if its state is health.New, and otherwise at an offset within its interval that its hash determines.
func (s *schedule) add(t *target, now time.Duration) {
	s.demand += demandOf(t)
	if t.check.Kind == health.UDP {
		if s.turns[t.addr.Addr()] == nil {
			s.turns[t.addr.Addr()] = &turn{}
		}
		s.turns[t.addr.Addr()].targets++
	}
	wait := time.Duration(0)
	if t.machine.State() != health.New {
		wait = time.Duration(float64(t.check.Interval) * s.stretch() * float64(t.hash) / math.MaxUint32)
	}
	s.push(t, now+wait)
}

// remove removes a target from the schedule. A probe under way is not interrupted.
func (s *schedule) remove(t *target) {
	s.demand -= demandOf(t)
	if t.check.Kind == health.UDP {
		if turn := s.turns[t.addr.Addr()]; turn.targets > 1 {
			turn.targets--
		} else {
			delete(s.turns, t.addr.Addr())
		}
	}
	if !t.timing.underWay {
		s.due.remove(t)
	}
}

func demandOf(t *target) int64 {
	return int64(units[t.check.Kind]) * 1e6 * int64(time.Second) / int64(max(t.check.Interval, tick))
}

// stretch returns the factor, at least 1, by which all intervals are multiplied so that the probes do not exceed the rate.
func (s *schedule) stretch() float64 {
	return max(1, float64(s.demand)/1e6/(float64(s.limit.rate)*room))
}

func (s *schedule) push(t *target, at time.Duration) {
	t.timing.at = (at + tick - 1) / tick * tick
	heap.Push(&s.due, t)
}

// reschedule schedules the next probe of a target after the duration next. If the last probe could not be made, the delay is randomized, so that
// targets affected by the same cause are not retried all at once.
func (s *schedule) reschedule(t *target, next, now time.Duration) {
	if t.machine.InTransition() {
		t.timing.retries++
	} else {
		t.timing.retries = 0
	}
	from := now
	if t.notMade != "" {
		next = time.Duration(float64(next) * (0.5 + rand.Float64()))
	} else if next >= t.check.Interval { // between the beginnings of probes
		next = time.Duration(float64(next) * s.stretch() * (1 - jitter + 2*jitter*rand.Float64()))
		from = t.timing.started
	}
	s.push(t, max(from+next, now))
}

// hasten makes a target due now, unless it has a probe under way, a reserved time, or is due already.
func (s *schedule) hasten(t *target, now time.Duration) {
	if t.timing.underWay || t.timing.reserved || t.timing.index < 0 || t.timing.at <= now {
		return
	}
	s.due.remove(t)
	s.push(t, now)
}

// take starts the due probes that the limits permit. It appends them to batch and returns the result.
func (s *schedule) take(now time.Duration, batch []probe) []probe {
	s.tokens = min(s.tokens+(now-s.filled).Seconds()*float64(s.limit.rate), burst(s.limit))
	s.filled = now
	s.full, s.behind = false, 0
	for len(s.due) > 0 && s.due[0].timing.at <= now {
		t := s.due[0]
		if s.underWay >= s.limit.underWay || s.tokens <= 0 {
			s.full, s.behind = true, now-t.timing.at
			break
		}
		heap.Pop(&s.due)
		if t.check.Kind == health.UDP && !s.itsTurn(t, now) {
			continue
		}
		s.tokens -= float64(units[t.check.Kind])
		s.underWay++
		s.serial++
		t.timing.serial, t.timing.started, t.timing.underWay = s.serial, now, true
		t.timing.at = now + t.check.Timeout
		heap.Push(&s.deadlines, t)
		batch = append(batch, probe{t, s.serial, t.timing.retries > 0 && t.timing.retries <= ephemerals})
	}
	return batch
}

// itsTurn reports whether a UDP probe may be sent to its address now. If not, it reserves the next free time for the probe and schedules it then.
func (s *schedule) itsTurn(t *target, now time.Duration) bool {
	turn := s.turns[t.addr.Addr()]
	if t.timing.reserved {
		t.timing.reserved = false
		return true
	}
	wait := turn.free > now
	at := max(turn.free, now)
	turn.free = at + health.UDPSpacing
	if wait {
		t.timing.reserved = true
		s.push(t, at)
	}
	return !wait
}

// burst returns the capacity of the token bucket: the units of work of a tenth of a second, at least 1.
func burst(l limits) float64 { return max(float64(l.rate)/10, 1) }

// expired removes from s.deadlines the probes whose deadline has passed. It appends their serial numbers to over and returns the result.
func (s *schedule) expired(now time.Duration, over []uint64) []uint64 {
	s.checkPause(now)
	for len(s.deadlines) > 0 && s.deadlines[0].timing.at <= now {
		t := heap.Pop(&s.deadlines).(*target)
		over = append(over, t.timing.serial)
	}
	return over
}

// done ends a probe. It reports whether its answer counts: it must be the first answer to the last probe of the target, and the target must still
// exist.
func (s *schedule) done(t *target, serial uint64, now time.Duration) bool {
	if !t.timing.underWay || t.timing.serial != serial {
		return false
	}
	s.checkPause(now)
	t.timing.underWay = false
	s.underWay--
	s.deadlines.remove(t)
	return !t.gone
}

// stoodStill is the reason given for a probe whose failure is ignored because the process was not running during it.
const stoodStill = "this host stood still meanwhile"

// doubtful reports whether a failure may have been caused by this host, because the process was not running for part of the probe. A refused TCP
// connection is never doubtful, since the refusal came from the server.
func (s *schedule) doubtful(t *target, r health.Result) bool {
	if t.timing.started >= s.stood {
		return false
	}
	return r.Outcome == health.Silent || r.Outcome == health.Refused && t.check.Kind != health.TCP
}

// checkPause sets s.stood if the planned wake-up is overdue by at least the duration late. Each goroutine that wakes calls it before anything else,
// since any of them may be the first.
func (s *schedule) checkPause(now time.Duration) {
	if s.next >= 0 && now-s.next >= late {
		s.stood, s.next = now, now
	}
}

// plan returns how long the loop may sleep. planned is false if no probe is scheduled or under way.
func (s *schedule) plan(now time.Duration) (sleep time.Duration, planned bool) {
	s.checkPause(now)
	s.full = s.full && len(s.due) > 0 // what was due may be gone
	s.next = s.wakes(now)
	return max(s.next-now, 0), s.next >= 0
}

func (s *schedule) wakes(now time.Duration) time.Duration {
	next := time.Duration(-1)
	sooner := func(at time.Duration) {
		if next < 0 || at < next {
			next = at
		}
	}
	if len(s.due) > 0 {
		at := s.due[0].timing.at
		if s.full { // look again when there may be room
			at = (now/tick + 1) * tick
		}
		sooner(at)
	}
	if s.underWay > 0 {
		sooner(now + beat)
	}
	if len(s.deadlines) > 0 {
		sooner((s.deadlines[0].timing.at + tick - 1) / tick * tick)
	}
	return next
}

// early reports whether a probe that the limits permit is due before the planned wake-up of the loop.
func (s *schedule) early() bool {
	return !s.full && len(s.due) > 0 && (s.next < 0 || s.due[0].timing.at < s.next)
}

// queue is a heap of targets by timing.at.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].timing.at < q[j].timing.at }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].timing.index, q[j].timing.index = i, j
}

func (q *queue) Push(x any) {
	t := x.(*target)
	t.timing.index = len(*q)
	*q = append(*q, t)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	t.timing.index = -1
	return t
}

// remove removes a target from q, which must be the queue that holds it. It does nothing if no queue holds the target.
func (q *queue) remove(t *target) {
	if t.timing.index >= 0 {
		heap.Remove(q, t.timing.index)
	}
}
