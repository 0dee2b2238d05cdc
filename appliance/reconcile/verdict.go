package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// newFor is how long a new object may wait for those that belong to it, such as the EndpointSlice of a Service, before that is a problem.
const newFor = 10 * time.Second

// declared records the Services that exist, and the EndpointSlices of those that do not.
type declared struct {
	unchecked map[string]bool     // by Service: it has endpoints and no health check
	count     int                 // the number of true values in unchecked
	strays    map[string][]string // by missing Service: the names of its slices
	hints     map[string]string   // by missing Service (strays): the existing Service with the most similar name; nil: not computed yet
	strayed   bool                // the problems of strays may have changed since the last report
}

// set records a Service: if it exists (there), whether its endpoints lack a health check (unchecked), or else its remaining slices.
func (d *declared) set(key string, there, unchecked bool, slices []*object.EndpointSlice) {
	was, before := d.unchecked[key]
	had := len(d.strays[key])
	if was {
		d.count--
	}
	switch {
	case there:
		d.unchecked[key] = unchecked
		if unchecked {
			d.count++
		}
		delete(d.strays, key)
	default:
		delete(d.unchecked, key)
		delete(d.strays, key)
		for _, s := range slices {
			d.strays[key] = append(d.strays[key], s.Metadata.Name)
		}
	}
	if strays := len(d.strays[key]); before != there || strays > 0 || had > 0 {
		d.hints, d.strayed = nil, true
	}
}

// mostHints bounds the slices of unknown Services for which the nearest name is looked up.
const mostHints = 20

// strayProblems returns the problems of EndpointSlices whose Service does not exist.
func (d *declared) strayProblems(there func(key string) bool) (problems []resolve.Problem) {
	if len(d.strays) == 0 {
		return nil
	}
	if d.hints == nil {
		d.hints = map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(d.strays))[:min(mostHints, len(d.strays))] {
			namespace, name, _ := strings.Cut(key, "/")
			d.hints[key] = manifest.Nearest(name, func(yield func(string) bool) {
				for other := range d.unchecked {
					if of, name, _ := strings.Cut(other, "/"); of == namespace && !yield(name) {
						return
					}
				}
			})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.strays)) {
		namespace, name, _ := strings.Cut(key, "/")
		if name == "" || there(key) {
			continue // it belongs to no Service, or that is withheld
		}
		hint := ""
		if d.hints[key] != "" {
			hint = fmt.Sprintf(" Did you mean %s?", d.hints[key])
		}
		for _, slice := range d.strays[key] {
			problems = append(problems, resolve.Problem{
				Object: object.Ref{Kind: object.KindEndpointSlice, Namespace: namespace, Name: slice},
				Field:  "metadata.labels[" + object.LabelServiceName + "]", Reason: resolve.ReasonOrphanSlice, Warning: true,
				Message: fmt.Sprintf("EndpointSlice %s names Service %s, which does not exist.%s", slice, name, hint),
			})
		}
	}
	return problems
}

// report passes the problems of all origins to the Reporter, and updates the conditions of the Services whose problems changed.
func (l *Loop) report() {
	pub, p := l.opts.Publisher, l.planner
	r := pub.Reporter
	r.from("files", l.fileProblems())
	if l.adopted { // before, they are as of the last process, and the files may end them
		r.from("store", l.opts.Store.Problems())
	}
	if pub.snapshot != l.observed.snapshot {
		pub.snapshot = l.observed.snapshot
		r.moved()
	}
	r.from("endpoints", l.opts.Endpoints.Problems())
	r.from("late", p.late())
	r.from("adopting", p.adopting.problems())
	if p.declared.strayed {
		p.declared.strayed = false
		r.from("strays", p.declared.strayProblems(func(key string) bool {
			o, _ := l.opts.Store.Get(object.ServiceRef(key))
			return o != nil
		}))
	}
	for _, part := range l.opts.Parts {
		r.from("part "+part.Name(), part.Problems())
	}
	touched := make([]string, 0, len(p.before))
	for key, before := range p.before {
		touched = append(touched, key)
		r.replace(before, p.problems[key])
	}
	p.before = map[string][]resolve.Problem{}
	now := l.opts.Clock()
	over, came := r.flush(now, l.settled)
	if pub.Status.Ready && !pub.settled {
		pub.settled = true
		r.History.Settle(now, func(k history.Key) bool {
			return k.Kind == history.KindProblem && k.Object != "" && !verdict.ComesLater(k.What)
		})
	}
	l.settles = r.settles()
	v, reasons := pub.Board.conditions.judge(over, came, touched, p.declared.unchecked, p.declared.count, r.History, now)
	pub.Status.Verdict = v
	words := v.ByState()
	words["unchecked"] = v.Unchecked
	pub.Metrics.Verdict(words, reasons)
}

// settled returns the time from which a problem counts, if it may resolve itself until then: a new object waits for those that belong to
// it. Otherwise it returns the zero Time.
func (l *Loop) settled(p *manifest.Problem) time.Time {
	if p.Reason != resolve.ReasonNoEndpoints && p.Reason != resolve.ReasonOrphanSlice {
		return time.Time{}
	}
	o, _ := l.opts.Store.Get(p.Object)
	if o == nil || o.GetMeta().CreationTimestamp == nil {
		return time.Time{}
	}
	due := o.GetMeta().CreationTimestamp.Add(newFor)
	if due.Sub(l.opts.Clock()) > newFor+time.Second { // the clock was set back
		return time.Time{}
	}
	return due
}

// mostTurns bounds the changes of conditions that are kept for watchers. A watcher that missed older ones reads the conditions of all
// Services.
const mostTurns = 8192

// Conditions are the conditions Ready and Programmed of Services, as this box determines them. They are computed on request and never
// stored: so they cost no write, need no disk, and boxes of a fleet, which have different ones, do not overwrite each other's. Its methods
// may be called concurrently.
type Conditions struct {
	revisions func() (accepted, concerning uint64) // of the store

	mu    sync.Mutex
	began time.Time      // the start of the history: earlier conditions are unknown
	bench *verdict.Judge // nil before the first call of judge
	// ready and stored have, by Service, the times of the last transitions of the conditions Ready and Programmed, if any.
	ready, stored map[string]time.Time
	inKernel      uint64   // the revision up to which all changes are in the kernel
	away          bool     // another program has changed the rules, which are not repaired yet
	turns         []string // Services whose conditions changed, the newest last
	dropped       uint64   // the number of entries removed from the front of turns
	changed       chan struct{}
}

// judge updates the conditions from the problems that ended and began, and the Services that were planned (touched). services has the keys
// of all Services, unchecked is the number of those without health checks, past the history with the begin of conditions. It returns the
// verdict without its groups, and the number of problems by severity and reason.
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
			times[what][key] = past.Note(k, "False", is.Message, now)
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

// State returns the state of a Service, by key.
func (c *Conditions) State(key string) (s verdict.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bench != nil {
		s = c.bench.State(key)
	}
	return s
}

// Judged returns the state of each Service that has a problem, with the reason; the number of all Services by state; and the verdict in one
// line.
func (c *Conditions) Judged() (states map[string]wire.Judged, counts map[string]int, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bench == nil {
		return nil, nil, ""
	}
	states = map[string]wire.Judged{}
	for key, s := range c.bench.Judged() {
		states[key] = wire.Judged{State: s.Word(), Why: cmp.Or(s.Failing, s.Stale, s.Doubt).Message}
	}
	v := c.bench.Verdict(0)
	return states, v.ByState(), v.Text
}

// settling returns the first Services that are settling.
func (c *Conditions) settling() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bench.Settling()
}

// programmed sets the revision that is in the kernel. away is set while another program's change of the rules is not repaired.
func (c *Conditions) programmed(revision uint64, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inKernel, c.away = revision, away
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changed returns a channel that is closed when the conditions of Services may differ from those at the call.
func (c *Conditions) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Since returns the Services whose conditions changed after turn, a number that counts such changes, and the newest turn. known is false
// when the changes since turn are no longer kept: any Service may have changed.
func (c *Conditions) Since(turn uint64) (keys []string, newest uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest = c.dropped + uint64(len(c.turns))
	if turn < c.dropped || turn > newest {
		return nil, newest, false
	}
	return append([]string(nil), c.turns[turn-c.dropped:]...), newest, true
}

// reasonPending is the reason of conditions while the version of a Service is not in the kernel yet; reasonServed and reasonProgrammed are
// those of a Service without a problem.
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
