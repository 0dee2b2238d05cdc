package prober

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// target is one Target, asked for all Services that want the same.
type target struct {
	addr     netip.AddrPort
	check    *check
	machine  health.Machine
	services []string
	hash     uint32

	// asked is false beyond the most Targets, answered before the first answer, gone when no Service wants it
	// any more. notMade is why the last probe was not made; "": it was.
	asked, answered, gone bool
	notMade               string

	timing timing
	mark   uint64 // of the last Set that named it
}

// check is a health.Check, shared by the targets that are asked by it.
type check struct {
	health.Check
	recipe  recipe
	targets int
}

// key is a Target with its Check by identity.
type key struct {
	addr  netip.AddrPort
	check *check
}

// book holds the targets, and the Services that want each of them.
type book struct {
	most     int
	checks   map[health.Check]*check
	targets  map[key]*target
	services map[string][]*target
	// excess are the targets beyond the most, which are not asked.
	excess map[*target]struct{}
	states [health.Down + 1]int
	// notMade counts targets whose last probe was not made; notMadeWhy is the latest reason.
	notMade    int
	notMadeWhy string
	expiry     map[*target]time.Time // ends of certificates
	mark       uint64
}

// bookkeeper has the functions that set calls for targets that are probed from now on or no more, and for those with another
// state.
type bookkeeper struct{ asked, dropped, flipped func(*target) }

func (b *book) find(of health.Target) *target {
	c := b.checks[of.Check]
	if c == nil {
		return nil
	}
	return b.targets[key{of.Addr, c}]
}

// set replaces the targets of a Service.
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
	if len(after) == 0 {
		delete(b.services, service)
	} else {
		b.services[service] = after
	}
}

// enter adds a target, and has it probed if there is room.
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

// correct takes the state of a later Request for a target without an answer: up wins over down, as the
// Service has it in use, and both win over new.
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

// leave takes a Service from a target, which goes with the last one.
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

// moved counts a target that left a state.
func (b *book) moved(t *target, from health.State) {
	b.states[from]--
	b.states[t.machine.State()]++
}

// void counts targets whose last probe was not made.
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

// hashOf spreads targets over time and source ports. It is the same after a restart, so that a
// target keeps its entry in conntrack.
func hashOf(t health.Target) uint32 {
	h := fnv.New32a()
	addr := t.Addr.Addr().As16()
	_, _ = h.Write(addr[:])
	_, _ = h.Write(binary.BigEndian.AppendUint16(nil, t.Addr.Port()))
	_, _ = h.Write([]byte{byte(t.Check.Kind)})
	_, _ = h.Write([]byte(t.Check.Host + t.Check.Path + t.Check.Name))
	return mix(h.Sum32())
}

// mix spreads what differs in few bits (the finalizer of MurmurHash3).
func mix(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
