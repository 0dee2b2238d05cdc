package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
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
}

// set notes a Service, or that it is gone with slices left.
func (d *declared) set(key string, there, unchecked bool, slices []*object.EndpointSlice) {
	was, before := d.unchecked[key]
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
	if before != there || len(d.strays[key]) > 0 {
		d.hints = nil
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

// settle parts what is no problem yet from the problems of Services.
func (l *Loop) settle(problems []resolve.Problem) (shown []resolve.Problem, settling []wire.Problem) {
	l.settles = time.Time{}
	now := l.opts.Clock()
	shown = problems[:0]
	for _, p := range problems {
		if p.Reason == resolve.ReasonNoEndpoints || p.Reason == resolve.ReasonOrphanSlice {
			if o, _ := l.opts.Store.Get(p.Object); o != nil && o.GetMeta().CreationTimestamp != nil {
				until := o.GetMeta().CreationTimestamp.Add(newFor)
				if left := until.Sub(now); left > 0 && left <= newFor+time.Second {
					if l.settles.IsZero() || until.Before(l.settles) {
						l.settles = until
					}
					settling = append(settling, wireProblem(l.opts.Publisher.Reporter.InFile(p)))
					continue
				}
			}
		}
		shown = append(shown, p)
	}
	return shown, settling
}

// judge brings the verdict of the status to its problems.
func (l *Loop) judge(settling []wire.Problem) {
	pub := l.opts.Publisher
	j := verdict.Judge(verdict.Facts{
		Problems: pub.Status.Problems, Since: pub.Reporter.since, Settling: settling,
		Services: l.planner.declared.unchecked, Unchecked: l.planner.declared.count, Packaged: pub.Status.Packaged,
	})
	pub.Status.Verdict = j.Verdict
	v, problems := &j.Verdict, map[[2]string]int{}
	for i := range pub.Status.Problems {
		problems[[2]string{pub.Status.Problems[i].Severity, pub.Status.Problems[i].Reason}]++
	}
	pub.Metrics.Verdict(map[string]int{
		"answers": v.Answers - len(v.Settling), "warning": v.Warning, "fails": v.Fails, "settling": len(v.Settling), "unchecked": v.Unchecked,
	}, problems)
	pub.Board.conditions.judged(j.Services, l.planner.declared.unchecked, l.opts.Clock())
}
