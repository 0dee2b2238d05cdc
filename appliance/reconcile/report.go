package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Reporter merges the problems of all origins (parts of the program) into one list. It logs each problem when it begins and when it ends. The cost of
// a step is proportional to the number of changed problems; the list itself is computed on request.
type Reporter struct {
	Log *slog.Logger
	// Where returns the file and line that declare an object (store.Location).
	Where  func(object.Ref) (file string, line int)
	Events Events // nil if no Events are written
	// History records since when problems exist, across restarts. If nil, only the time since this process found them is available.
	History *history.Book

	of       map[string][]manifest.Problem  // problems that each origin reported last
	altered  map[manifest.Problem]struct{}  // problems whose number of origins changed since the last flush
	settling map[manifest.Problem]time.Time // when each settling problem starts to count as a problem
	times    map[verdict.Occurrence]int     // number of problems for each occurrence

	mu      sync.Mutex // guards the fields below
	known   map[manifest.Problem]*reported
	version uint64  // number of changes of the list
	listed  *listed // cached result of list
}

// listed is the cached result of Reporter.list for one version of the Reporter.
type listed struct {
	version  uint64
	problems []wire.Problem
	groups   []wire.ProblemGroup
}

// Events writes a Kubernetes Event for each problem that ended (over) or began (new).
type Events interface {
	Report(over, new []manifest.Problem)
}

// reported is the state of one problem in a Reporter.
type reported struct {
	origins int              // number of origins that report it
	problem *verdict.Problem // nil until the first flush after it was reported
	told    manifest.Problem // the problem as it was first logged, with its file and line
}

// NewReporter returns a Reporter without problems.
func NewReporter(log *slog.Logger, where func(object.Ref) (file string, line int), events Events, past *history.Book) *Reporter {
	return &Reporter{
		Log: log, Where: where, Events: events, History: past, of: map[string][]manifest.Problem{},
		altered: map[manifest.Problem]struct{}{}, settling: map[manifest.Problem]time.Time{}, known: map[manifest.Problem]*reported{},
		times: map[verdict.Occurrence]int{},
	}
}

// from replaces the problems of an origin. Problems of objects must have no file and line, since these may change; Located adds them later.
func (r *Reporter) from(origin string, now []manifest.Problem) {
	if before := r.of[origin]; !slices.Equal(before, now) {
		r.replace(before, now)
		r.of[origin] = slices.Clone(now)
	}
}

// replace updates the number of origins of each problem after one origin has reported again. before holds the problems that this origin reported
// previously, now holds its present ones.
func (r *Reporter) replace(before, now []manifest.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(problems []manifest.Problem, by int) {
		for _, p := range problems {
			k := r.known[p]
			if k == nil {
				k = &reported{}
				r.known[p] = k
			}
			k.origins += by
			r.altered[p] = struct{}{}
		}
	}
	count(now, 1)
	count(before, -1)
}

// flush returns the problems that ended and began since the last call, logs them, and passes them to Events. If until returns a later time for a new
// problem, the problem is settling, and does not count before that time.
func (r *Reporter) flush(at time.Time, until func(*manifest.Problem) time.Time) (over, came []*verdict.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var gone, new []manifest.Problem
	show := func(p manifest.Problem) {
		k := r.known[p]
		k.problem, k.told = &verdict.Problem{Problem: wireProblem(p)}, r.Located(p)
		k.problem.Since = r.begin(&k.problem.Problem, at)
		came, new = append(came, k.problem), append(new, k.told)
	}
	for p := range r.altered {
		k := r.known[p]
		switch {
		case k.origins > 0 && k.problem == nil:
			if due := until(&p); due.After(at) {
				k.problem = &verdict.Problem{Problem: wireProblem(p), Settling: true}
				came, r.settling[p] = append(came, k.problem), due
				continue
			}
			show(p)
		case k.origins == 0:
			delete(r.known, p)
			if k.problem != nil {
				over = append(over, k.problem)
				if _, settled := r.settling[p]; !settled {
					gone = append(gone, k.told)
				}
			}
			delete(r.settling, p)
		}
	}
	r.altered = map[manifest.Problem]struct{}{} // it may have been large
	for p, due := range r.settling {
		if !due.After(at) {
			delete(r.settling, p)
			over = append(over, r.known[p].problem)
			show(p)
		}
	}
	if len(over)+len(came) > 0 {
		r.version++
	}
	for _, p := range over {
		r.end(p, at)
	}
	r.logChanges(gone, new)
	return over, came
}

// begin returns the start time of each occurrence of a new problem. A start time may be earlier than at, if another problem was about the same
// occurrence.
func (r *Reporter) begin(p *wire.Problem, at time.Time) (since []time.Time) {
	for _, o := range verdict.Occurrences(p) {
		r.times[o]++
		since = append(since, r.History.Note(keyOf(o), p.Severity, p.Message, at))
	}
	return since
}

// end records in the history that the occurrences of an ended problem are over, unless another problem is about them.
func (r *Reporter) end(p *verdict.Problem, at time.Time) {
	if p.Settling {
		return
	}
	for _, o := range verdict.Occurrences(&p.Problem) {
		if r.times[o]--; r.times[o] == 0 {
			delete(r.times, o)
			r.History.Note(keyOf(o), "", "", at)
		}
	}
}

func keyOf(o verdict.Occurrence) history.Key {
	return history.Key{Kind: history.KindProblem, Object: o.Object, What: o.What}
}

// settles returns the earliest time at which a settling problem starts to count, zero if none is settling.
func (r *Reporter) settles() (first time.Time) {
	for _, due := range r.settling {
		if first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return first
}

// moved makes the next call of list look up files and lines again, since manifests changed.
func (r *Reporter) moved() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version++
}

// list returns all problems, sorted, and the groups of problems with the same cause. packaged selects the commands that the groups suggest as next
// steps. The caller must not modify the result. list does not block the loop.
func (r *Reporter) list(packaged wire.Packaged) ([]wire.Problem, []wire.ProblemGroup) {
	r.mu.Lock()
	have, version := r.listed, r.version
	var shown []*verdict.Problem
	var places []manifest.Problem
	if have == nil || have.version != version {
		have = nil
		for p, k := range r.known {
			if k.problem != nil && !k.problem.Settling {
				shown, places = append(shown, k.problem), append(places, p)
			}
		}
	}
	r.mu.Unlock()
	if have != nil {
		return have.problems, have.groups
	}
	for i, p := range places {
		shown[i] = &verdict.Problem{Problem: wireProblem(r.Located(p)), Since: shown[i].Since}
	}
	slices.SortFunc(shown, func(a, b *verdict.Problem) int { return compareProblems(a.Problem, b.Problem) })
	have = &listed{version: version, problems: make([]wire.Problem, len(shown)), groups: verdict.Groups(shown, packaged)}
	for i, p := range shown {
		have.problems[i] = p.Problem
	}
	r.mu.Lock()
	r.listed = have
	r.mu.Unlock()
	return have.problems, have.groups
}

// logChanges logs the problems that ended (over) and began (new), and passes them to Events. If only the message of a problem with a Cause changed,
// it is not logged again, since an endpoint may fail for alternating reasons.
func (r *Reporter) logChanges(over, new []manifest.Problem) {
	ends := map[manifest.Problem]bool{}
	wordless := func(p manifest.Problem) manifest.Problem { p.Message = ""; return p }
	for _, p := range over {
		ends[wordless(p)] = p.Cause != ""
	}
	goesOn := map[manifest.Problem]bool{}
	new = slices.DeleteFunc(new, func(p manifest.Problem) bool {
		goesOn[wordless(p)] = ends[wordless(p)]
		return ends[wordless(p)]
	})
	over = slices.DeleteFunc(over, func(p manifest.Problem) bool { return goesOn[wordless(p)] })
	for _, list := range [][]manifest.Problem{over, new} {
		slices.SortFunc(list, func(a, b manifest.Problem) int { return compareProblems(wireProblem(a), wireProblem(b)) })
	}
	for _, p := range new {
		if p.Reason == resolve.ReasonEndpointDown {
			continue // each endpoint that goes down has a line of its own
		}
		w, level := wireProblem(p), slog.LevelError
		if w.Severity == wire.SeverityWarning {
			level = slog.LevelWarn
		}
		r.Log.Log(context.Background(), level, "problem", problemAttrs(w)...)
	}
	for _, p := range over {
		if p.Reason != resolve.ReasonEndpointDown {
			r.Log.Info("problem is over", problemAttrs(wireProblem(p))...)
		}
	}
	if r.Events != nil {
		r.Events.Report(over, new)
	}
}

func problemAttrs(p wire.Problem) []any {
	var attrs []any
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, key, value)
		}
	}
	add("file", p.File)
	if p.Line > 0 {
		attrs = append(attrs, "line", p.Line)
	}
	add("object", p.Object)
	add("field", p.Field)
	return append(attrs, "reason", p.Reason, "message", p.Message)
}

func compareProblems(a, b wire.Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Message, b.Message), cmp.Compare(a.Severity, b.Severity),
	)
}

func severity(warning bool) string {
	if warning {
		return wire.SeverityWarning
	}
	return wire.SeverityError
}

func wireProblem(p manifest.Problem) wire.Problem {
	w := wire.Problem{
		File: p.File, Line: p.Line, Column: p.Column,
		Field: p.Field, Reason: p.Reason, Message: p.Message, Severity: verdict.Severity(p.Reason, severity(p.Warning)), Cause: p.Cause,
	}
	if p.Object != (object.Ref{}) {
		w.Object = p.Object.String()
	}
	return w
}

// Located returns p with the file and line that declare its object, unless p has a file already.
func (r *Reporter) Located(p manifest.Problem) manifest.Problem {
	if p.File == "" && p.Object != (object.Ref{}) {
		p.File, p.Line = r.Where(p.Object)
	}
	return p
}
