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

// newFor is the time after the creation of an object during which a related object may be missing, such as the EndpointSlice of a Service, before
// this is reported as a problem.
const newFor = 10 * time.Second

// declared records the existing Services, and the EndpointSlices whose Service does not exist.
type declared struct {
	unchecked map[string]bool     // by existing Service: whether it has endpoints but no health check
	count     int                 // number of true values in unchecked
	strays    map[string][]string // names of the EndpointSlices of each missing Service
	hints     map[string]string   // existing Service with the most similar name, by missing Service; nil if not computed yet
	strayed   bool                // the result of strayProblems may have changed since the last report
}

// set records whether a Service exists (there), and whether it has endpoints but no health check (unchecked). If the Service does not exist, slices
// are the EndpointSlices that name it.
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

// mostHints is the maximum number of missing Services for which a similar name is searched.
const mostHints = 20

// strayProblems returns the problems of EndpointSlices whose Service does not exist. there reports whether a Service is stored though it is not
// planned; its slices have no problem.
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

// report passes the problems of all parts of the program to the Reporter, and updates the conditions of the Services whose problems changed.
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

// settled returns the time before which a problem does not count, because the object is new and a related object may follow. It returns the zero Time
// if the problem counts at once.
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

// mostTurns is the number of changes of conditions that are kept for watchers. A watcher that missed older ones must read the conditions of all
// Services.
const mostTurns = 8192

// Conditions computes the conditions Ready and Programmed of Services, as this box determines them, on request. They are never stored: this costs no
// disk writes, and the boxes of a fleet do not overwrite each other's different conditions. Its methods may be called concurrently.
type Conditions struct {
	revisions func() (accepted, concerning uint64) // store.Revisions: the newest revision, and the newest that affects the kernel

	mu    sync.Mutex
	began time.Time      // start of the history of conditions; no earlier transitions are recorded
	bench *verdict.Judge // computes the states of Services; nil before the first call of judge
	// ready and stored hold the last transition times of the conditions Ready and Programmed, by Service. A Service without recorded transitions has
	// no entry.
	ready, stored map[string]time.Time
	inKernel      uint64   // the kernel holds every change up to this store revision
	away          bool     // another program changed our rules, and they are not repaired yet
	turns         []string // keys of the Services whose conditions changed, newest last
	dropped       uint64   // number of entries removed from the front of turns
	changed       chan struct{}
}

// judge updates the conditions. over and came are the problems that ended and began. touched holds the keys of the Services that were planned. The
// keys of services are those of all Services, and unchecked is the number of Services without health checks. past holds earlier transitions. judge
// returns the verdict without its groups, and the number of problems by severity and reason.
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

// State returns the state of the Service with the given key.
func (c *Conditions) State(key string) (s verdict.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bench != nil {
		s = c.bench.State(key)
	}
	return s
}

// Judged returns the state of each Service that has a problem, with the reason, by key. It also returns the number of Services in each state, and the
// verdict as one line of text.
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

// settling returns the keys of the Services that wait for related objects; if they are many, only the first ones.
func (c *Conditions) settling() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bench.Settling()
}

// programmed records the store revision that is in the kernel. away is set while our rules are changed by another program and not repaired.
func (c *Conditions) programmed(revision uint64, away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inKernel, c.away = revision, away
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changed returns a channel that is closed when the conditions of Services may have changed since the call.
func (c *Conditions) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Since returns the Services whose conditions changed after the change with the number turn. newest is the number of the newest change. known is
// false if the changes since turn are no longer kept. Then any Service may have changed.
func (c *Conditions) Since(turn uint64) (keys []string, newest uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest = c.dropped + uint64(len(c.turns))
	if turn < c.dropped || turn > newest {
		return nil, newest, false
	}
	return append([]string(nil), c.turns[turn-c.dropped:]...), newest, true
}

// reasonPending is the Reason of the conditions of a Service whose stored version is not in the kernel yet. reasonServed and reasonProgrammed are the
// Reasons of the conditions Ready and Programmed of a Service that has no problem.
const (
	reasonPending    = "Pending"
	reasonServed     = "Served"
	reasonProgrammed = "Programmed"
)

// rulesAway is the message of the conditions while our rules are changed by another program and not repaired.
const rulesAway = "another program changed the rules of svcctl, which are not repaired yet"

// Of returns the conditions of a stored Service. settled is false while this version of the Service is not in the kernel.
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
