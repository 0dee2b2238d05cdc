package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// newFor is the time for which a new object may wait for those that come with it, as an EndpointSlice after its
// Service, before that is a problem.
const newFor = 10 * time.Second

// declared are the Services that are planned, and EndpointSlices of Services that are not.
type declared struct {
	unchecked map[string]bool     // by Service: it has endpoints and no health check
	count     int                 // of those that unchecked has as true
	strays    map[string][]string // by Service, the names of slices
	hints     map[string]string   // by Service of strays: the nearest name that there is; nil: not looked up yet
	strayed   bool                // the problems of strays may be others than at the last report
}

// set notes a Service, or that it is gone with slices left.
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

// strayProblems are the problems of slices whose Service is not there.
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

// report takes the problems of all origins, and judges the Services whose problems differ.
func (l *Loop) report() {
	pub, p := l.opts.Publisher, l.planner
	r := pub.Reporter
	r.fromFiles("files", l.fileProblems())
	if l.adopted { // before, they are as of the last process, and the files may end them
		r.fromFiles("store", l.opts.Store.Problems())
	}
	if pub.snapshot != l.observed.snapshot {
		pub.snapshot = l.observed.snapshot
		r.moved()
	}
	r.fromServices("endpoints", l.opts.Endpoints.Problems())
	r.fromServices("late", p.late())
	r.fromServices("adopting", p.adopting.problems())
	if p.declared.strayed {
		p.declared.strayed = false
		r.fromServices("strays", p.declared.strayProblems(func(key string) bool {
			o, _ := l.opts.Store.Get(object.ServiceRef(key))
			return o != nil
		}))
	}
	for _, part := range l.opts.Parts {
		r.fromServices("part "+part.Name(), part.Problems())
	}
	touched := make([]string, 0, len(p.before))
	for key, before := range p.before {
		touched = append(touched, key)
		r.replace(ofObjects(before), ofObjects(p.problems[key]))
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
	pub.Metrics.Verdict(map[string]int{
		wire.ServiceAnswers: v.Answers, wire.ServiceWarning: v.Warning, wire.ServiceStale: v.Stale, wire.ServiceFails: v.Fails, wire.ServiceIdle: v.Idle,
		wire.ServiceSettling: v.Services - v.Answers - v.Warning - v.Stale - v.Fails - v.Idle, "unchecked": v.Unchecked,
	}, reasons)
}

// settled returns when a problem is one, if it may yet end by itself: an object that came a moment ago waits for those
// that come with it. Else it returns the zero Time.
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
