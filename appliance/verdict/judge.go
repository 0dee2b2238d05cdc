package verdict

// This file is long because Services are judged, and problems grouped, by the same rows and occurrences.

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Problem is a problem in the status of the appliance, with the times at which it began. Its fields must not be modified while a Judge holds it.
type Problem struct {
	wire.Problem
	// Since holds the start time of each of its Occurrences.
	Since []time.Time
	// Settling is set for a problem that began only a moment ago. It keeps its Service from being Ready but is not shown yet.
	Settling bool
}

// Occurrence identifies a fault, independently of the message of its problem and the file that declares its object. What combines reason, severity
// and field, possibly with a cause.
type Occurrence struct{ Object, What string }

// Occurrences returns the faults that a problem is about: one for each cause if it is a warning grouped by cause, otherwise one.
func Occurrences(p *wire.Problem) (all []Occurrence) {
	o := Occurrence{cmp.Or(p.Object, p.File), p.Reason + " " + p.Severity + " " + p.Field}
	switch {
	case rowOf(p.Reason).By == ByCause && p.Severity == wire.SeverityWarning && p.Cause != "":
		for cause := range strings.SplitSeq(p.Cause, causeSeparator) {
			at, _, _ := strings.Cut(cause, " (") // the reason may change
			all = append(all, Occurrence{o.Object, o.What + " " + at})
		}
		return all
	case o.Object == "": // several problems of the box have one reason
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(p.Message))
		o.What += strconv.FormatUint(hash.Sum64(), 36)
	}
	return []Occurrence{o}
}

// ComesLater reports whether a problem with this Occurrence.What may begin some time after the start of the appliance, because it is found by
// observing endpoints, the announcer or routers.
func ComesLater(what string) bool {
	reason, _, _ := strings.Cut(what, " ")
	return rowOf(reason).By == ByCause
}

// State has the worst problem of a Service for each effect. The zero State is a Service without a problem.
type State struct {
	// Failing is why the Service is not Ready, Stale why its newest version is not applied, Doubt a warning. A zero Why means that there is no such
	// problem.
	Failing, Stale, Doubt Why
	// Settling is set if the problem in Failing is still settling (see Problem).
	Settling bool
}

// Why is the reason and message of a problem; the zero Why means none.
type Why struct {
	Reason, Message string
	Warning         bool // the problem is not an error
}

func (w *Why) set(p *wire.Problem) {
	if warning := p.Severity != wire.SeverityError; w.Reason == "" || w.Warning && !warning {
		*w = Why{p.Reason, p.Message, warning}
	}
}

// Word returns the state of a Service as one of the constants wire.Service..., such as "fails".
func (s *State) Word() string {
	switch {
	case s.Failing.Reason != "" && s.Settling:
		return wire.ServiceSettling
	case s.Failing.Reason != "" && !s.Failing.Warning:
		return wire.ServiceFails
	case s.Stale.Reason != "":
		return wire.ServiceStale
	case s.Failing.Reason != "":
		return wire.ServiceIdle
	case s.Doubt.Reason != "":
		return wire.ServiceWarning
	}
	return wire.ServiceAnswers
}

// mostNamed is the maximum number of Services, and of details, in a group. mostSettling is the maximum number of Services that Settling returns.
const (
	mostNamed    = 10
	mostSettling = 1000
)

// Judge computes the states of Services from their problems. The cost of a change is proportional to the number of Services that it
// affects.
type Judge struct {
	// services holds all existing Services, by "namespace/name".
	services map[string]bool
	problems map[string][]*Problem // the problems of each Service, in the order of compare
	counted  map[string]counted    // the Services with a problem, whether they exist or not
	words    map[string]int        // numbers of Services by State.Word; nonexistent Services count only if they fail
	absent   int                   // number of Services in words that do not exist
	reasons  map[[2]string]int     // numbers of problems by severity and reason
}

// counted holds the last computed State of a Service. there is set if the Service exists.
type counted struct {
	State
	there bool
}

// NewJudge returns a Judge without problems. services holds all existing Services, by "namespace/name"; the Judge reads it again at each Change.
func NewJudge(services map[string]bool) *Judge {
	return &Judge{services: services, problems: map[string][]*Problem{}, counted: map[string]counted{}, words: map[string]int{}, reasons: map[[2]string]int{}}
}

// State returns the State of the Service "namespace/name".
func (j *Judge) State(key string) State { return j.counted[key].State }

// Judged yields the Services that have a problem, with their states.
func (j *Judge) Judged() iter.Seq2[string, State] {
	return func(yield func(string, State) bool) {
		for key, c := range j.counted {
			if c.State != (State{}) && !yield(key, c.State) {
				return
			}
		}
	}
}

// Change removes the problems in over and adds those in came. It recomputes the States of their Services, and of the Services in touched, which were
// added or removed. It returns the previous States of the Services whose State changed.
func (j *Judge) Change(over, came []*Problem, touched []string) (before map[string]State) {
	again := map[string]struct{}{}
	for _, key := range touched {
		again[key] = struct{}{}
	}
	for _, p := range over {
		j.count(p, -1)
		if key, is := serviceOf(&p.Problem); is {
			again[key] = struct{}{}
			if i := slices.Index(j.problems[key], p); i >= 0 {
				j.problems[key] = slices.Delete(j.problems[key], i, i+1)
			}
		}
	}
	for _, p := range came {
		j.count(p, 1)
		if key, is := serviceOf(&p.Problem); is {
			again[key] = struct{}{}
			i, _ := slices.BinarySearchFunc(j.problems[key], p, compare)
			j.problems[key] = slices.Insert(j.problems[key], i, p)
		}
	}
	before = map[string]State{}
	for key := range again {
		_, there := j.services[key]
		was, now := j.counted[key], counted{j.judged(key, there), there}
		if len(j.problems[key]) == 0 {
			delete(j.problems, key)
		}
		j.tally(&was, -1)
		j.tally(&now, 1)
		if j.counted[key] = now; now.State == (State{}) {
			delete(j.counted, key)
		}
		if was.State != now.State {
			before[key] = was.State
		}
	}
	return before
}

// tally adds the number by to the count of the state that a Service is in. It ignores a Service without problems, and a missing Service whose
// problems are no failure.
func (j *Judge) tally(c *counted, by int) {
	if c.State == (State{}) || !c.there && c.Failing.Reason == "" {
		return // well, or a file has problems with a Service that there is not
	}
	j.words[c.Word()] += by
	if !c.there {
		j.absent += by
	}
}

func (j *Judge) count(p *Problem, by int) {
	if p.Settling {
		return
	}
	labels := [2]string{p.Severity, p.Reason}
	if j.reasons[labels] += by; j.reasons[labels] == 0 {
		delete(j.reasons, labels)
	}
}

// compare orders the problems of a Service.
func compare(a, b *Problem) int {
	return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Severity, b.Severity))
}

// judged computes the State of a Service from its problems. there is set if the Service exists.
func (j *Judge) judged(key string, there bool) (s State) {
	for _, settling := range []bool{false, true} {
		for _, p := range j.problems[key] {
			switch {
			case p.Settling != settling:
			case fails(&p.Problem), stays(&p.Problem) && !there:
				s.Settling = settling && s.Failing.Reason == "" || s.Settling
				s.Failing.set(&p.Problem)
			case stays(&p.Problem):
				s.Stale.set(&p.Problem)
			case settling: // shown later
			default:
				s.Doubt.set(&p.Problem)
			}
		}
	}
	return s
}

// Reasons returns the numbers of problems by severity and reason.
func (j *Judge) Reasons() map[[2]string]int { return maps.Clone(j.reasons) }

// Verdict returns the numbers of Services by state and the headline, without groups and settling Services. unchecked is the number of
// Services without health checks.
func (j *Judge) Verdict(unchecked int) wire.Verdict {
	v := wire.Verdict{
		Services: len(j.services) + j.absent, Fails: j.words[wire.ServiceFails], Stale: j.words[wire.ServiceStale], Warning: j.words[wire.ServiceWarning],
		Idle: j.words[wire.ServiceIdle], Unchecked: unchecked,
	}
	settling := j.words[wire.ServiceSettling]
	v.Answers = v.Services - v.Fails - v.Stale - v.Warning - v.Idle - settling
	v.Text = headline(&v, settling)
	return v
}

// Settling returns the Services in the state settling, sorted, at most mostSettling.
func (j *Judge) Settling() (keys []string) {
	if j.words[wire.ServiceSettling] == 0 {
		return nil
	}
	for key, c := range j.counted {
		if c.Word() == wire.ServiceSettling {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys[:min(mostSettling, len(keys))]
}

// serviceOf returns the Service ("namespace/name") that a problem is about. It returns false if the problem is about another object.
func serviceOf(p *wire.Problem) (key string, is bool) { return strings.CutPrefix(p.Object, service) }

// headline returns the verdict in one line. A Service answers if it is Ready, even if in an earlier version.
func headline(v *wire.Verdict, settling int) string {
	text := ""
	switch not := v.Fails + v.Idle + settling; {
	case v.Services == 0:
		text = "no Service is declared"
	case v.Services == 1 && not > 0:
		text = "the only Service does not answer"
	case v.Fails > 0:
		text = fmt.Sprintf("%s of %s Services %s not answer", wire.Grouped(v.Fails), wire.Grouped(v.Services), verb(v.Fails, "does", "do"))
	case not > 0:
		text = fmt.Sprintf("%s of %s Services %s", wire.Grouped(v.Services-not), wire.Grouped(v.Services), verb(v.Services-not, "answers", "answer"))
	case v.Services == 1:
		text = "the only Service answers"
	case v.Services == 2:
		text = "both Services answer"
	default:
		text = fmt.Sprintf("all %s Services answer", wire.Grouped(v.Services))
	}
	for _, more := range []struct {
		n         int
		one, many string
	}{
		{settling, "waits for endpoints", "wait for endpoints"},
		{v.Idle, "has no endpoint on purpose", "have no endpoint on purpose"},
		{v.Stale, "is served in an earlier version", "are served in an earlier version"},
		{v.Warning, "has a warning", "have a warning"},
	} {
		if more.n > 0 {
			text += fmt.Sprintf("; %s %s", wire.Grouped(more.n), verb(more.n, more.one, more.many))
		}
	}
	return text
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// severities lists the severities, the worst first.
var severities = []string{wire.SeverityError, wire.SeverityWarning}

func rank(severity string) int { return slices.Index(severities, severity) }

// cluster collects the problems of one group.
type cluster struct {
	problems []*Problem
	since    time.Time       // start time of the oldest problem
	services map[string]bool // the affected Services, true if they fail
}

// Groups groups problems by cause. It returns the groups, most severe first. packaged selects the next steps that suit the installation.
func Groups(problems []*Problem, packaged wire.Packaged) []wire.ProblemGroup {
	clusters := map[string]*cluster{}
	var order []string
	add := func(key string, p *Problem, since []time.Time) {
		c := clusters[key]
		if c == nil {
			c = &cluster{services: map[string]bool{}}
			clusters[key] = c
			order = append(order, key)
		}
		c.problems = append(c.problems, p)
		for _, at := range since {
			if c.since.IsZero() || at.Before(c.since) {
				c.since = at
			}
		}
		if name, is := serviceOf(&p.Problem); is {
			c.services[name] = c.services[name] || fails(&p.Problem)
		}
	}
	// A Service that uses endpoints which are all down has one problem for all of them; each of them by itself with the
	// other Services that it is missing in.
	opened := map[string]bool{}
	for _, p := range problems {
		if p.Reason == reasonFailingOpen && p.Cause != "" {
			opened[p.Object+p.Field] = true
		}
	}
	for _, p := range problems {
		switch r := rowOf(p.Reason); {
		case isDead(p) && opened[p.Object+p.Field]: // in the problem of all of them
		case isDead(p) && p.Severity == wire.SeverityWarning:
			i := 0
			for cause := range strings.SplitSeq(p.Cause, causeSeparator) {
				add("endpoint "+address(cause), p, p.Since[min(i, len(p.Since)):min(i+1, len(p.Since))])
				i++
			}
		case (isDead(p) || p.Reason == reasonFailingOpen) && p.Cause != "":
			add("endpoint "+addresses(p.Cause), p, p.Since)
		case r.By == ByCause:
			add(p.Reason+" "+p.Cause, p, p.Since)
		case p.Object != "":
			add(p.Object, p, p.Since)
		default:
			add(p.File+p.Reason+p.Message, p, p.Since)
		}
	}
	groups := make([]wire.ProblemGroup, 0, len(order))
	for _, key := range order {
		groups = append(groups, clusters[key].shown(packaged, strings.TrimPrefix(key, "endpoint "), strings.HasPrefix(key, "endpoint ")))
	}
	slices.SortStableFunc(groups, func(a, b wire.ProblemGroup) int {
		return cmp.Or(
			cmp.Compare(boolRank(a.Reason == reasonDrained), boolRank(b.Reason == reasonDrained)),
			cmp.Compare(rank(a.Severity), rank(b.Severity)),
			cmp.Compare(b.Concerned, a.Concerned),
		)
	})
	return groups
}

func boolRank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// The reasons whose groups have special texts.
const (
	reasonFailingOpen     = "FailingOpen"
	reasonEndpointDown    = "EndpointDown"
	reasonEndpointRefuses = "EndpointRefuses"
	reasonEndpointSilent  = "EndpointSilent"
	reasonDrained         = "Drained"
	// causeSeparator separates the causes of a problem: "10.1.2.12:8080 (connection refused); 10.1.2.13:8080".
	causeSeparator = "; "
)

// isDead reports whether a problem means that endpoints of a port are down, by a check or by failed connections.
func isDead(p *Problem) bool {
	return p.Cause != "" && (p.Reason == reasonEndpointDown || p.Reason == reasonEndpointRefuses || p.Reason == reasonEndpointSilent)
}

// address returns the IP address in a cause such as "192.0.2.7:80 (refused)".
func address(cause string) string {
	at, _, _ := strings.Cut(cause, " (")
	if i := strings.LastIndexByte(at, ':'); i >= 0 {
		return strings.Trim(at[:i], "[]")
	}
	return at
}

// addresses returns the IP addresses in a list of causes, sorted and without duplicates.
func addresses(causes string) string {
	var all []string
	for cause := range strings.SplitSeq(causes, causeSeparator) {
		all = append(all, address(cause))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// shown converts a group to the form of the API. endpoint is set if the group is about endpoints that are down. In this case the text of lists the
// addresses of the endpoints.
func (c *cluster) shown(packaged wire.Packaged, of string, endpoint bool) wire.ProblemGroup {
	worst := &slices.MinFunc(c.problems, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(boolRank(fails(&a.Problem)), boolRank(fails(&b.Problem))))
	}).Problem
	g := wire.ProblemGroup{
		Severity: worst.Severity, Reason: worst.Reason, Problems: len(c.problems), Concerned: len(c.services),
		Next: next(worst, packaged), Place: place(worst), Since: c.since,
	}
	failing := 0
	for name, fails := range c.services {
		if fails {
			failing++
		}
		g.Services = append(g.Services, name)
	}
	slices.SortFunc(g.Services, func(a, b string) int {
		return cmp.Or(cmp.Compare(boolRank(c.services[a]), boolRank(c.services[b])), cmp.Compare(a, b))
	})
	g.Services = g.Services[:min(mostNamed, len(g.Services))]
	switch {
	case len(c.services) > 1 && endpoint:
		// If health checks did not find the endpoints down, clients may still be sent to them.
		checked := !slices.ContainsFunc(c.problems, func(p *Problem) bool { return p.Reason != reasonEndpointDown && p.Reason != reasonFailingOpen })
		g.Text = of + " " + verb(strings.Count(of, ", ")+1, "is", "are") + " down" + c.why(of) + ": " + consequence(failing, len(c.services), checked)
		if worst.Severity != wire.SeverityError || len(c.services) > 1 {
			g.Next, g.Place = "svcctl health", ""
		}
	case len(c.services) > 1:
		g.Text = worst.Message + "; " + consequence(failing, len(c.services), true)
		g.Place = ""
	case fails(worst) && len(g.Services) > 0:
		g.Text = g.Services[0] + " does not answer: " + worst.Message
	default:
		g.Text = text(worst)
	}
	for _, p := range c.problems {
		if &p.Problem != worst && len(g.Details) < mostNamed {
			g.Details = append(g.Details, text(&p.Problem))
		}
	}
	if len(c.services) > 1 && len(g.Details) < mostNamed {
		g.Details = append([]string{text(worst)}, g.Details...)
	}
	return g
}

// why returns in parentheses why endpoints are down. The text of lists the addresses of the endpoints. It returns "" if they have different reasons,
// or none.
func (c *cluster) why(of string) string {
	found := ""
	for _, p := range c.problems {
		for cause := range strings.SplitSeq(p.Cause, causeSeparator) {
			if _, why, is := strings.Cut(cause, " ("); is && strings.Contains(of, address(cause)) {
				if found != "" && found != why {
					return ""
				}
				found = why
			}
		}
	}
	if found == "" {
		return ""
	}
	return " (" + found
}

// consequence describes the effect of a cause on several Services: failing of them do not answer. without is set if the others run without the object
// that failed; otherwise they are described as affected.
func consequence(failing, all int, without bool) string {
	one, many := "is affected", "are affected"
	if without {
		one, many = "runs without it", "run without it"
	}
	switch rest := all - failing; {
	case failing == 0:
		return fmt.Sprintf("%d Services %s", all, many)
	case rest == 0:
		return fmt.Sprintf("%d Services do not answer", all)
	default:
		return fmt.Sprintf("%d %s not answer, %d %s", failing, verb(failing, "Service does", "Services do"), rest, verb(rest, one, many))
	}
}

func place(p *wire.Problem) string {
	if p.File == "" || p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// text returns a problem as one line without its severity. If the problem has an object, the line omits file and line number.
func text(p *wire.Problem) string {
	short := wire.Problem{Object: p.Object, Field: p.Field, Message: p.Message}
	if p.Object == "" && p.File != "" {
		short.File, short.Line, short.Column = p.File, p.Line, p.Column
	}
	return strings.TrimPrefix(short.String(), service)
}
