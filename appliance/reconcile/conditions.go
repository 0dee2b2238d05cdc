package reconcile

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/history"
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

	mu    sync.Mutex
	began time.Time      // before it nothing is known
	bench *verdict.Judge // nil: nothing is known
	// ready and stored are when Ready and Programmed were others the last time, of Services for which they were.
	ready, stored map[string]time.Time
	inKernel      uint64   // the revision that the kernel stands at
	away          bool     // another program has changed the rules
	turns         []string // Services whose conditions changed, the newest last
	dropped       uint64   // turns that are gone
	changed       chan struct{}
}

func newConditions(revisions func() (accepted, concerning uint64)) *Conditions {
	return &Conditions{
		revisions: revisions, ready: map[string]time.Time{}, stored: map[string]time.Time{},
		changed: make(chan struct{}),
	}
}

// judge takes the problems that are over and those that came up, and the Services that were planned. services has the
// keys of those that there are, unchecked counts those without health checks. It returns the verdict without its
// groups, and the number of problems by severity and reason. past has since when conditions are as they are.
func (c *Conditions) judge(over, came []*verdict.Problem, touched []string, services map[string]bool, unchecked int, past *history.Book, now time.Time) (wire.Verdict, map[[2]string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times := map[string]map[string]time.Time{wire.ConditionReady: c.ready, wire.ConditionProgrammed: c.stored}
	if c.bench == nil {
		c.began, c.bench = past.From(now), verdict.NewJudge(services)
		for _, t := range past.Before(history.KindCondition) {
			if t.State != "" { // which may be over, or be found again below
				t.At = now
			}
			if of := times[t.What]; of != nil {
				of[t.Object] = t.At
			}
		}
	}
	note := func(what, key string, was, is verdict.Why) {
		switch k := (history.Key{Kind: history.KindCondition, Object: key, What: what}); {
		case was.Reason == "" && is.Reason != "":
			times[what][key] = past.Note(k, "False", is.Reason, now)
		case was.Reason != "" && is.Reason == "":
			times[what][key] = past.Note(k, "", "", now)
		}
	}
	before := c.bench.Change(over, came, touched)
	for _, key := range slices.Sorted(maps.Keys(before)) {
		was, is := before[key], c.bench.State(key)
		note(wire.ConditionReady, key, was.Failing, is.Failing)
		note(wire.ConditionProgrammed, key, was.Stale, is.Stale)
		c.turns = append(c.turns, key)
	}
	for _, key := range touched {
		if _, there := services[key]; !there {
			delete(c.ready, key)
			delete(c.stored, key)
		}
	}
	if more := len(c.turns) - mostTurns; more > 0 {
		c.turns = append([]string(nil), c.turns[more:]...)
		c.dropped += uint64(more)
	}
	return c.bench.Verdict(unchecked), c.bench.Reasons()
}

// State is what is wrong with a Service.
func (c *Conditions) State(key string) (s verdict.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bench != nil {
		s = c.bench.State(key)
	}
	return s
}

// settling names the first of the Services that are settling.
func (c *Conditions) settling() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bench.Settling()
}

// programmed takes the revision that the kernel stands at, unless another program has changed the rules.
func (c *Conditions) programmed(revision uint64, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inKernel, c.away = revision, away
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

// rulesAway is the message of conditions while another program keeps changing the rules.
const rulesAway = "another program changed the rules of svcctl, which are not repaired yet"

// Of returns the conditions of a Service as it is stored. settled is false while its version is not in the kernel.
func (c *Conditions) Of(svc *object.Service) (conditions []object.Condition, settled bool) {
	accepted, concerning := c.revisions()
	version, _ := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
	key := object.RefOf(svc).Key()
	state := c.State(key)
	c.mu.Lock()
	defer c.mu.Unlock()
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
	settled = !c.began.IsZero() && !c.away && upTo(c.inKernel, accepted, concerning) >= version
	switch {
	case c.away:
		ready.Status, ready.Reason, ready.Message = object.ConditionUnknown, reasonInterference, rulesAway
		programmed.Status, programmed.Reason, programmed.Message = "False", reasonInterference, rulesAway
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
