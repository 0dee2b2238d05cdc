package reconcile

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/object"
)

// mostTurns bounds the changes of conditions that are kept for watchers; a slower one looks at all Services.
const mostTurns = 8192

// Conditions are the conditions Ready and Programmed of Services, as this box judges them. They are computed when they
// are asked for and never stored: they cost no write, need no disk, and boxes of a fleet, of which each has its own,
// do not overwrite each other's. Its methods may be called concurrently.
type Conditions struct {
	revisions func() (accepted, concerning uint64) // of the store

	mu     sync.Mutex
	began  time.Time                // before it nothing is known
	states map[string]verdict.State // other than the zero State
	// ready and stored are when Ready and Programmed were others the last time, of Services for which they were.
	ready, stored map[string]time.Time
	inKernel      uint64   // the revision that the kernel stands at
	turns         []string // Services whose conditions changed, the newest last
	dropped       uint64   // turns that are gone
	changed       chan struct{}
}

func newConditions(revisions func() (accepted, concerning uint64)) *Conditions {
	return &Conditions{
		revisions: revisions, states: map[string]verdict.State{}, ready: map[string]time.Time{}, stored: map[string]time.Time{},
		changed: make(chan struct{}),
	}
}

// judged takes the states of all Services that have one other than the zero State. services has the keys of those that
// there are.
func (c *Conditions) judged(states map[string]verdict.State, services map[string]bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		c.began = now
	}
	turn := func(key string, before, after verdict.State) {
		if before == after {
			return
		}
		if (before.Failing.Reason == "") != (after.Failing.Reason == "") {
			c.ready[key] = now
		}
		if (before.Stale.Reason == "") != (after.Stale.Reason == "") {
			c.stored[key] = now
		}
		c.turns = append(c.turns, key)
	}
	for key, before := range c.states {
		if _, still := states[key]; !still {
			turn(key, before, verdict.State{})
		}
	}
	for key, after := range states {
		turn(key, c.states[key], after)
	}
	for _, times := range []map[string]time.Time{c.ready, c.stored} {
		maps.DeleteFunc(times, func(key string, _ time.Time) bool { _, there := services[key]; return !there })
	}
	c.states = states
	if more := len(c.turns) - mostTurns; more > 0 {
		c.turns = append([]string(nil), c.turns[more:]...)
		c.dropped += uint64(more)
	}
}

// programmed takes the revision that the kernel stands at.
func (c *Conditions) programmed(revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inKernel = revision
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changed is closed when the conditions of Services may be others than at the call.
func (c *Conditions) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Since returns the Services whose conditions changed after a turn, and the newest turn. known is false when too many
// did: any of them may have.
func (c *Conditions) Since(turn uint64) (keys []string, newest uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest = c.dropped + uint64(len(c.turns))
	if turn < c.dropped || turn > newest {
		return nil, newest, false
	}
	return append([]string(nil), c.turns[turn-c.dropped:]...), newest, true
}

// reasonPending is the reason of conditions of a version that is not in the kernel yet, reasonServed and
// reasonProgrammed are those of a Service without a problem.
const (
	reasonPending    = "Pending"
	reasonServed     = "Served"
	reasonProgrammed = "Programmed"
)

// Of returns the conditions of a Service as it is stored. settled is false while its version is not in the kernel.
func (c *Conditions) Of(svc *object.Service) (conditions []object.Condition, settled bool) {
	accepted, concerning := c.revisions()
	version, _ := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
	key := object.RefOf(svc).Key()
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.states[key]
	since := c.began
	if created := svc.Metadata.CreationTimestamp; created != nil && created.After(since) {
		since = *created
	}
	for i := range svc.Metadata.ManagedFields {
		if at := svc.Metadata.ManagedFields[i].Time; at != nil && at.After(since) {
			since = *at
		}
	}
	at := func(times map[string]time.Time) time.Time {
		if t := times[key]; t.After(since) {
			return t.UTC().Truncate(time.Second)
		}
		return since.UTC().Truncate(time.Second)
	}
	ready := object.Condition{Type: wire.ConditionReady, Status: object.ConditionTrue, Reason: reasonServed,
		Message: "every port and address that was asked for is served", ObservedGeneration: svc.Metadata.Generation, LastTransitionTime: at(c.ready)}
	programmed := object.Condition{Type: wire.ConditionProgrammed, Status: object.ConditionTrue, Reason: reasonProgrammed,
		Message: "this version is in the kernel", ObservedGeneration: svc.Metadata.Generation, LastTransitionTime: at(c.stored)}
	settled = !c.began.IsZero() && upTo(c.inKernel, accepted, concerning) >= version
	switch {
	case !settled:
		ready.Status, ready.Reason, ready.Message = object.ConditionUnknown, reasonPending, "this version is not in the kernel yet"
		programmed.Status, programmed.Reason, programmed.Message = "False", reasonPending, ready.Message
	default:
		if why := state.Failing; why.Reason != "" {
			ready.Status, ready.Reason, ready.Message = "False", why.Reason, why.Message
		}
		if why := state.Stale; why.Reason != "" {
			programmed.Status, programmed.Reason, programmed.Message = "False", why.Reason, why.Message
		}
	}
	return []object.Condition{ready, programmed}, settled
}
