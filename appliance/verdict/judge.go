package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Facts are what Judge judges.
type Facts struct {
	Problems []wire.Problem
	// Since is when a problem came up; nil: not known.
	Since map[wire.Problem]time.Time
	// Settling are problems of Services that came a moment ago: they keep them from being Ready and are not shown.
	Settling []wire.Problem
	// Services has each Service that there is, by "namespace/name": true if it has endpoints and no health check.
	// Unchecked counts those with true.
	Services  map[string]bool
	Unchecked int
	// Packaged is set where next steps name units of systemd.
	Packaged wire.Packaged
}

// State is what is wrong with a Service. The zero State is a Service without a problem.
type State struct {
	// Failing is why it is not Ready, Stale why its newest version is not in force, Doubt a warning; "" reasons: none.
	Failing, Stale, Doubt Why
	// Settling is set when Failing is no problem yet.
	Settling bool
}

// Why is the worst problem of a kind, or the first of these.
type Why struct {
	Reason, Message string
	Warning         bool // it is meant so
}

func (w *Why) set(p *wire.Problem) {
	warning := p.Severity != wire.SeverityError
	if w.Reason == "" || w.Warning && !warning {
		*w = Why{p.Reason, p.Message, warning}
	}
}

// Failed reports whether an error keeps the Service from being served as it is written.
func (s *State) Failed() bool {
	return s.Stale.Reason != "" || s.Failing.Reason != "" && !s.Failing.Warning && !s.Settling
}

// Judgement is what all doors show.
type Judgement struct {
	Verdict wire.Verdict
	// Services has the State of each Service that has one other than the zero State.
	Services map[string]State
}

// mostNamed bounds the Services and details of a group, and mostSettling the settling Services that are named.
const (
	mostNamed    = 10
	mostSettling = 1000
)

// Judge judges all problems. It takes time in proportion to their number.
func Judge(f Facts) Judgement {
	j := Judgement{Services: map[string]State{}}
	each := func(problems []wire.Problem, settling bool) {
		for i := range problems {
			p := &problems[i]
			key, is := serviceOf(p)
			if !is {
				continue
			}
			s := j.Services[key]
			_, there := f.Services[key]
			switch {
			case fails(p), stays(p) && !there:
				s.Settling = settling && s.Failing.Reason == ""
				s.Failing.set(p)
			case stays(p):
				s.Stale.set(p)
			case settling: // shown later
			default:
				s.Doubt.set(p)
			}
			j.Services[key] = s
		}
	}
	each(f.Problems, false)
	each(f.Settling, true)
	v := &j.Verdict
	v.Services, v.Unchecked = len(f.Services), f.Unchecked
	for key, s := range j.Services {
		if _, there := f.Services[key]; !there {
			if s.Failing.Reason == "" {
				continue // what a file says about a Service that is not one
			}
			v.Services++
		}
		switch {
		case s.Failed():
			v.Fails++
		case s.Settling:
			v.Settling = append(v.Settling, key)
		default:
			v.Warning++
		}
	}
	slices.Sort(v.Settling)
	v.Settling = v.Settling[:min(mostSettling, len(v.Settling))]
	v.Answers = max(0, v.Services-v.Fails-v.Warning)
	v.Groups = group(&f, j.Services)
	v.Text = headline(v)
	return j
}

// serviceOf returns the key of the Service that a problem is about.
func serviceOf(p *wire.Problem) (key string, is bool) { return strings.CutPrefix(p.Object, service) }

// headline is the answer in one line.
func headline(v *wire.Verdict) string {
	text := ""
	switch {
	case v.Services == 0:
		text = "no Service is declared"
	case v.Fails > 0 && v.Services == 1:
		text = "the only Service does not answer"
	case v.Fails > 0:
		text = fmt.Sprintf("%d of %d Services %s not answer", v.Fails, v.Services, verb(v.Fails, "does", "do"))
	case v.Services == 1:
		text = "the only Service answers"
	default:
		text = fmt.Sprintf("all %d Services answer", v.Services)
	}
	if n := len(v.Settling); n > 0 {
		text += fmt.Sprintf("; %d %s for endpoints", n, verb(n, "waits", "wait"))
	}
	if v.Warning > 0 {
		text += fmt.Sprintf("; %d %s a warning", v.Warning, verb(v.Warning, "has", "have"))
	}
	return text
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// severities orders them, the worst first.
var severities = []string{wire.SeverityError, wire.SeverityWarning}

func rank(severity string) int { return slices.Index(severities, severity) }

// cluster is a group while it is collected.
type cluster struct {
	problems []*wire.Problem
	services map[string]bool // true: it fails
}

// group joins the problems by cause.
func group(f *Facts, states map[string]State) []wire.ProblemGroup {
	clusters := map[string]*cluster{}
	var order []string
	add := func(key string, p *wire.Problem) {
		c := clusters[key]
		if c == nil {
			c = &cluster{services: map[string]bool{}}
			clusters[key] = c
			order = append(order, key)
		}
		c.problems = append(c.problems, p)
		if name, is := serviceOf(p); is {
			c.services[name] = c.services[name] || fails(p)
		}
	}
	// A Service that uses endpoints which are all down is told of with all of them; each of them by itself with the
	// other Services that it is missing in.
	opened := map[string]bool{}
	for i := range f.Problems {
		if p := &f.Problems[i]; p.Reason == reasonFailingOpen && p.Cause != "" {
			opened[p.Object+p.Field] = true
		}
	}
	for i := range f.Problems {
		p := &f.Problems[i]
		switch r := rowOf(p.Reason); {
		case r.By == ByCause && p.Reason == reasonEndpointDown:
			if opened[p.Object+p.Field] {
				continue
			}
			for cause := range strings.SplitSeq(p.Cause, causeSeparator) {
				add("endpoint "+address(cause), p)
			}
		case r.By == ByCause && p.Reason == reasonFailingOpen && p.Cause != "":
			add("endpoint "+addresses(p.Cause), p)
		case r.By == ByCause:
			add(p.Reason+" "+p.Cause, p)
		case p.Object != "":
			add(p.Object, p)
		default:
			add(p.File+p.Reason+p.Message, p)
		}
	}
	groups := make([]wire.ProblemGroup, 0, len(order))
	for _, key := range order {
		groups = append(groups, clusters[key].shown(f, strings.TrimPrefix(key, "endpoint "), strings.HasPrefix(key, "endpoint ")))
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

// The reasons that have texts of their own here.
const (
	reasonFailingOpen  = "FailingOpen"
	reasonEndpointDown = "EndpointDown"
	reasonDrained      = "Drained"
	// causeSeparator parts the causes of a problem: "10.1.2.12:8080 (connection refused); 10.1.2.13:8080".
	causeSeparator = "; "
)

// address is the address of a cause without its port and reason.
func address(cause string) string {
	at, _, _ := strings.Cut(cause, " (")
	if i := strings.LastIndexByte(at, ':'); i >= 0 {
		return strings.Trim(at[:i], "[]")
	}
	return at
}

// addresses are those of all causes, each once.
func addresses(causes string) string {
	var all []string
	for cause := range strings.SplitSeq(causes, causeSeparator) {
		all = append(all, address(cause))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// shown is a group as it is shown.
func (c *cluster) shown(f *Facts, of string, endpoint bool) wire.ProblemGroup {
	worst := slices.MinFunc(c.problems, func(a, b *wire.Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(boolRank(fails(a)), boolRank(fails(b))))
	})
	g := wire.ProblemGroup{
		Severity: worst.Severity, Reason: worst.Reason, Problems: len(c.problems), Concerned: len(c.services),
		Next: next(worst, f.Packaged), Place: place(worst),
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
	for _, p := range c.problems {
		if at, known := f.Since[*p]; known && (g.Since.IsZero() || at.Before(g.Since)) {
			g.Since = at
		}
	}
	switch {
	case len(c.services) > 1 && endpoint:
		g.Text = of + " " + verb(strings.Count(of, ", ")+1, "is", "are") + " down" + c.why(of) + ": " + consequence(failing, len(c.services))
		if worst.Severity != wire.SeverityError || len(c.services) > 1 {
			g.Next, g.Place = "svcctl health", ""
		}
	case len(c.services) > 1:
		g.Text = worst.Message + "; " + consequence(failing, len(c.services))
		g.Place = ""
	case fails(worst) && len(g.Services) > 0:
		g.Text = g.Services[0] + " does not answer: " + worst.Message
	default:
		g.Text = text(worst)
	}
	for _, p := range c.problems {
		if p != worst && len(g.Details) < mostNamed {
			g.Details = append(g.Details, text(p))
		}
	}
	if len(c.services) > 1 && len(g.Details) < mostNamed {
		g.Details = append([]string{text(worst)}, g.Details...)
	}
	return g
}

// why is the reason, in parentheses, for which an endpoint is down, if it is the same for all.
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

// consequence is what a cause does to several Services.
func consequence(failing, all int) string {
	switch rest := all - failing; {
	case failing == 0:
		return fmt.Sprintf("%d Services run without it", all)
	case rest == 0:
		return fmt.Sprintf("%d Services do not answer", all)
	default:
		return fmt.Sprintf("%d %s not answer, %d %s without it", failing, verb(failing, "Service does", "Services do"), rest, verb(rest, "runs", "run"))
	}
}

func place(p *wire.Problem) string {
	if p.File == "" || p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// text is a problem in one line, without its place and severity.
func text(p *wire.Problem) string {
	short := wire.Problem{Object: p.Object, Field: p.Field, Message: p.Message}
	if p.Object == "" && p.File != "" {
		short.File, short.Line, short.Column = p.File, p.Line, p.Column
	}
	return strings.TrimPrefix(short.String(), service)
}
