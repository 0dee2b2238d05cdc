package parts

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store/object"
)

// Prober probes endpoints; implemented by prober.Prober.
type Prober interface {
	Run(ctx context.Context, flipped func())
	Set(service string, targets []prober.Request)
	Hasten(health.Target)
	Verdict(health.Target) (health.Verdict, bool)
	Flipped() []string
	Stats() prober.Stats
}

// EventRecorder writes Events about objects.
type EventRecorder interface {
	Record(about object.Ref, reason, message string, normal bool)
}

// Reasons of the Events about an endpoint. The kubelet uses Unhealthy too.
const (
	reasonUnhealthy = "Unhealthy"
	reasonHealthy   = "Healthy"
)

// lookEvery is the interval at which the prober's statistics are examined for checks that are late or not made.
const lookEvery = 5 * time.Second

// Health runs the health checks of endpoints, and makes the loop plan a Service again when one of its endpoints goes down or up.
type Health struct {
	reconcile.NopPart
	// History records since when endpoints are down; nil: times from before this process are lost.
	History *history.Book

	prober Prober
	tell   EventRecorder
	log    *slog.Logger

	first chan struct{} // capacity 1; a value wakes watch when there are endpoints to check

	mu       sync.RWMutex
	services map[string]resolve.Health // Services with endpoints that are checked, excluded by annotation, or dead
	asked    int                       // the number of Services with endpoints that are checked
	watched  bool                      // watch examines the statistics, or first has a value
	opened   int                       // the number of ports that also use endpoints that are down (FailingOpen)
	problems []resolve.Problem         // problems of this host that affect checks
}

func NewHealth(p Prober, tell EventRecorder, log *slog.Logger) *Health {
	return &Health{
		prober: p, tell: tell, log: log, services: map[string]resolve.Health{},
		first: make(chan struct{}, 1),
	}
}

// Name implements reconcile.Part.
func (h *Health) Name() string { return "health checks" }

// Run implements reconcile.Part.
func (h *Health) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.watch(ctx)
	}()
	h.prober.Run(ctx, h.flipped)
	<-done
	return nil
}

// flipped queues the Services with changed verdicts to be planned again.
func (h *Health) flipped() {
	keys := h.prober.Flipped()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range keys {
		h.queueReplan(key)
	}
}

// queueReplan queues a Service to be planned again if the verdicts of its endpoints differ from those at its last plan. The caller holds
// mu.
func (h *Health) queueReplan(key string) {
	if s := h.services[key]; slices.ContainsFunc(s.Checked, func(c resolve.Checked) bool {
		v, known := h.prober.Verdict(c.Target)
		return known && (v.State != c.State || s.Waiting && v.Assumed != c.Assumed || v.State == health.Down && (v.Why != c.Why || v.Asked && !c.Asked))
	}) {
		h.Changed(resolve.Plans(key)...)
	}
}

// watch updates, at the interval lookEvery, the problems of this host that affect health checks, until ctx is done. It sleeps while there are no
// endpoints to check.
func (h *Health) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.first:
		}
		for more := true; more; {
			if !task.Sleep(ctx, lookEvery) {
				return
			}
			h.mu.Lock()
			more = h.asked > 0
			h.watched = more // if not, first gets a value with the next one
			h.mu.Unlock()
			if h.refreshProblems() {
				h.Changed()
			}
		}
	}
}

// refreshProblems recomputes the problems of this host that affect health checks, and reports whether they changed.
func (h *Health) refreshProblems() bool {
	now := hostProblems(h.prober.Stats())
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(now, h.problems) {
		return false
	}
	h.problems = now
	return true
}

// lateBy is the least ratio of the actual to the requested interval of checks that is reported as a problem.
const lateBy = 1.2

// hostProblems returns the problems of this host that delay health checks or prevent some. Their texts change only when a problem changes.
func hostProblems(s prober.Stats) []resolve.Problem {
	var list []resolve.Problem
	warn := func(reason, format string, args ...any) {
		list = append(list, resolve.Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Warning: true})
	}
	if s.NotMade > 0 {
		warn("CheckNotMade", "endpoints cannot be checked for a reason of this host, and keep the state they had: %s", s.NotMadeWhy)
	}
	if s.Unasked > 0 {
		warn("CheckNotMade", "more endpoints than can be checked: the others are used by the state in their documents; `svcctl health` lists them as not asked")
	}
	if s.Stretch >= lateBy {
		warn("ChecksLate", "this host cannot make all checks in time: every interval is about %.0f %% longer; make intervals longer, or checks simpler", 100*(s.Stretch-1))
	}
	return list
}

// Meet implements reconcile.Answerer.
func (h *Health) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	verdicts := make([]resolve.Verdict, len(d.Targets))
	for i, t := range d.Targets {
		verdicts[i].Target = t
		verdicts[i].Verdict, verdicts[i].Known = h.prober.Verdict(*t)
	}
	o.Judge(verdicts...)
}

// Hasten requests immediate probes of an endpoint by all checks that a Service, "namespace/name", has for it. It returns false if there are none.
func (h *Health) Hasten(service string, endpoint netip.AddrPort) (checked bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for i := range h.services[service].Checked {
		if c := &h.services[service].Checked[i]; c.Endpoint == endpoint {
			h.prober.Hasten(c.Target)
			checked = true
		}
	}
	return checked
}

// Planned implements reconcile.Part.
func (h *Health) Planned(_ *reconcile.Host, services []reconcile.Service) {
	for i := range services {
		svc := &services[i]
		h.mu.RLock()
		before, had := h.services[svc.Key]
		h.mu.RUnlock()
		if !had && len(svc.Checked)+len(svc.Demoted)+len(svc.Dead) == 0 {
			continue
		}
		now := svc.Health
		h.mu.Lock()
		if len(before.Checked) > 0 {
			h.asked--
		}
		if len(now.Checked) > 0 {
			h.asked++
		}
		if h.asked > 0 && !h.watched {
			h.watched = true
			h.first <- struct{}{} // has room: watch took the last one before it cleared watched
		}
		h.opened += now.FailingOpen - before.FailingOpen
		if h.services[svc.Key] = now; len(now.Checked)+len(now.Demoted)+len(now.Dead) == 0 {
			delete(h.services, svc.Key)
		}
		h.mu.Unlock()
		h.prober.Set(svc.Key, h.requests(svc.Checked))
		h.mu.Lock()
		h.queueReplan(svc.Key) // it may have flipped while it was planned
		h.mu.Unlock()
		h.report(svc.Key, before.Checked, now.Checked)
	}
}

// requests returns the Requests to the prober for checked endpoints: one for each Target.
func (h *Health) requests(checked []resolve.Checked) []prober.Request {
	list := make([]prober.Request, 0, len(checked))
	seen := make(map[health.Target]bool, len(checked))
	for i := range checked {
		if c := &checked[i]; !seen[c.Target] {
			seen[c.Target] = true
			list = append(list, prober.Request{Target: c.Target, Start: c.Start, Past: pastOf(h.History, checkedKey(c))})
		}
	}
	return list
}

// report writes a log line and an Event for each endpoint of a Service that went down or up from before to now.
func (h *Health) report(key string, before, now []resolve.Checked) {
	type place struct {
		port     resolve.Port
		endpoint netip.AddrPort
		check    string
	}
	was := make(map[place]*resolve.Checked, len(before))
	for i := range before {
		was[place{before[i].Port, before[i].Endpoint, before[i].Text}] = &before[i]
	}
	ref := object.ServiceRef(key)
	told := map[health.Target]bool{} // one check may be of several ports
	for i := range now {
		c := &now[i]
		at := place{c.Port, c.Endpoint, c.Text}
		old, known := was[at]
		delete(was, at)
		if known && old.State == c.State || !known && c.State != health.Down || c.State == health.New || told[c.Target] {
			continue
		}
		told[c.Target] = true
		verdict, _ := h.prober.Verdict(c.Target)
		if noteHealth(h.History, c, c.State, verdict); !known {
			continue // it was down before this process
		}
		attrs := []any{"svc", key, "port", cmp.Or(c.Port.Name, "-"), "endpoint", c.Endpoint.String(), "check", c.Text}
		if c.State == health.Up {
			h.log.Info("endpoint up", append(attrs, "passes", verdict.Passes)...)
			h.tell.Record(ref, reasonHealthy, fmt.Sprintf("%s is up: it answers %s", c.Endpoint, c.Text), true)
			continue
		}
		h.log.Warn("endpoint down", append(attrs, "why", verdict.Why, "failures", verdict.Failures)...)
		h.tell.Record(ref, reasonUnhealthy, fmt.Sprintf("%s is down: %s (%s)", c.Endpoint, cmp.Or(verdict.Why, "it does not answer"), c.Text), false)
	}
	for _, c := range was {
		if c.State == health.Down && !slices.ContainsFunc(now, func(other resolve.Checked) bool { return checkedKey(&other) == checkedKey(c) }) {
			noteHealth(h.History, c, health.New, health.Verdict{}) // it is not checked any more
		}
	}
}

// Problems implements reconcile.Part.
func (h *Health) Problems() []resolve.Problem {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.problems
}

// FailingOpen returns the number of Service ports that also use endpoints which are down, because too few are up.
func (h *Health) FailingOpen() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.opened
}

// shown is the health of an endpoint. at is the endpoint's address, by which lists are sorted.
type shown struct {
	wire.EndpointHealth
	at netip.AddrPort
}

// State returns the health of the endpoints of a Service. If name is empty, it returns that of all Services of the namespace; if both are empty, that
// of all Services. It may be called from any goroutine, and blocks the reconcile loop only while it selects the Services.
func (h *Health) State(namespace, name string) []wire.EndpointHealth {
	var list []shown
	for key, s := range h.picked(namespace, name) {
		for i := range s.Checked {
			list = append(list, shown{h.endpoint(key, &s.Checked[i]), s.Checked[i].Endpoint})
		}
		for i := range s.Dead {
			d := &s.Dead[i]
			e := wire.EndpointHealth{Service: key, Port: d.Port.Name, Protocol: d.Port.Protocol, Endpoint: d.Endpoint.String(), State: wire.HealthDown, Check: wire.CheckOfFailures, Why: d.Why, Ejected: s.Eject}
			if !d.Since.IsZero() {
				e.Since = new(d.Since.UTC().Truncate(time.Second))
			}
			list = append(list, shown{e, d.Endpoint})
		}
		for _, d := range s.Demoted {
			if d.Out {
				list = append(list, shown{wire.EndpointHealth{Service: key, Port: d.Port, Protocol: d.Protocol, Endpoint: d.Addr.String(), State: wire.HealthOut}, d.Addr})
			}
		}
	}
	slices.SortFunc(list, func(a, b shown) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), a.at.Compare(b.at))
	})
	all := make([]wire.EndpointHealth, len(list))
	for i := range list {
		all[i] = list[i].EndpointHealth
	}
	return all
}

// picked returns the health of the Services that State selects, by key. The values are never changed afterwards.
func (h *Health) picked(namespace, name string) map[string]resolve.Health {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if name != "" {
		key := namespace + "/" + name
		return map[string]resolve.Health{key: h.services[key]}
	}
	picked := map[string]resolve.Health{}
	for key, s := range h.services {
		if in, _, _ := strings.Cut(key, "/"); namespace == "" || in == namespace {
			picked[key] = s
		}
	}
	return picked
}

// endpoint returns the health of one endpoint of the Service with this key, for the API.
func (h *Health) endpoint(key string, c *resolve.Checked) wire.EndpointHealth {
	e := wire.EndpointHealth{Service: key, Port: c.Port.Name, Protocol: c.Port.Protocol, Endpoint: c.Endpoint.String(), Check: c.Text}
	v, known := h.prober.Verdict(c.Target)
	if !known || !v.Asked && (v.State == health.Up || v.NotMade != "") { // what it began with is no result
		e.State, e.Why = wire.HealthNotAsked, strings.TrimPrefix(v.NotMade, "not asked: ")
		if !known {
			e.Why = "there are more endpoints than can be asked"
		}
		return e
	}
	e.State, e.Why = v.State.String(), v.Last.Why
	if v.NotMade != "" {
		e.Why = "the last check was not made: " + strings.TrimPrefix(v.NotMade, "not asked: ")
	}
	e.Failures, e.Passes, e.Took = v.Failures, v.Passes, wire.Duration(v.Last.Took)
	e.Held = wire.Duration(v.Held)
	if !v.Since.IsZero() {
		e.Since = new(v.Since.UTC().Truncate(time.Second))
	}
	return e
}

// checkedKey returns the history key of an endpoint with a check.
func checkedKey(c *resolve.Checked) history.Key {
	return history.Key{Kind: history.KindEndpoint, Object: object.ServiceRef(c.Port.Service).String(), What: c.Endpoint.String() + " " + c.Text}
}

// deadKey returns the history key of an endpoint without a check. Its state is stateDead while the endpoint accepts no connections.
func deadKey(endpoint netip.AddrPort) history.Key {
	return history.Key{Kind: history.KindEndpoint, What: endpoint.String()}
}

const stateDead = "dead"

// noteHealth records in the history whether an endpoint is down or up, with the time at which that began.
func noteHealth(b *history.Book, c *resolve.Checked, state health.State, v health.Verdict) {
	at := cmp.Or(v.Since, time.Now())
	if state == health.Down {
		b.Note(checkedKey(c), wire.HealthDown, v.Why, at)
	} else {
		b.Note(checkedKey(c), "", "", at)
	}
}

// pastOf returns the state that a Target had at the end of the previous process, from the history.
func pastOf(b *history.Book, k history.Key) health.Past {
	switch t, known := b.Last(k); {
	case !known:
		return health.Past{}
	case t.State == "":
		return health.Past{State: health.Up, Since: t.At}
	default:
		return health.Past{State: health.Down, Since: t.At}
	}
}

// deadBefore returns the proof that an endpoint was dead before this process started. If the history has no record of that, the proof has no time and
// a general reason.
func deadBefore(b *history.Book, endpoint netip.AddrPort) health.Dead {
	t, _ := b.Last(deadKey(endpoint))
	if t.State != stateDead {
		return health.Dead{Why: "it was out before this start"}
	}
	b.Note(t.Key, stateDead, t.Why, t.At)
	return health.DeadOf(health.Verdict{Why: t.Why, Since: t.At})
}
