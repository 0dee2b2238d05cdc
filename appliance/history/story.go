package history

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Entry is an event for display. It stands for one transition, or for several with one cause at nearly the same time.
type Entry struct {
	At   time.Time
	Kind string
	// Severity is error or warning for a fault; "" for the end of a fault, or an event that is not one.
	Severity string
	Text     string
	// Services are the first of the affected Services, "namespace/name"; Concerned is the number of all.
	Services  []string
	Concerned int
}

// together is the time within which transitions with the same cause form one Entry.
const together = 10 * time.Second

// Story returns the events in a list of transitions, the oldest first. A problem has no Entry if the list also has its effect, such as an endpoint
// that is down or a Service that does not answer. A Service that waits for its endpoints has none either.
func Story(list []Transition) []Entry {
	shown := shownOf(list)
	type cause struct{ kind, what, state string }
	var groups []*group
	last := map[cause]*group{}
	for i := range list {
		severity, is := shown[i]
		if !is {
			continue
		}
		t := &list[i]
		c := cause{t.Kind, t.cause(), t.State + severity}
		g := last[c]
		if g == nil || t.At.Sub(g.At).Abs() > together || g.keys[t.Key] { // it was in another state meanwhile
			g = &group{Transition: t, severity: severity, about: map[string]bool{}, keys: map[Key]bool{}}
			groups, last[c] = append(groups, g), g
		}
		g.add(t)
	}
	entries := make([]Entry, len(groups))
	for i, g := range groups {
		entries[i] = g.entry()
	}
	return entries
}

// shownOf returns the severity of each transition that is part of an Entry, by index in list.
func shownOf(list []Transition) map[int]string {
	shown := map[int]string{}
	problems, ends := map[string][]int{}, map[Key][]int{} // by object; of conditions
	endpoints := map[string][]time.Time{}
	for i := range list {
		switch t := &list[i]; {
		case t.Kind == KindEndpoint:
			endpoints[t.Endpoint()] = append(endpoints[t.Endpoint()], t.At)
		case t.Kind == KindProblem:
			problems[t.Object] = append(problems[t.Object], i)
		case t.Kind == KindCondition && t.State == "":
			ends[t.Key] = append(ends[t.Key], i)
		}
	}
	for i := range list {
		switch t := &list[i]; t.Kind {
		case KindEndpoint:
			if t.State != "" {
				shown[i] = "warning"
			} else {
				shown[i] = ""
			}
		case KindAnnouncement:
			if t.State == "" {
				shown[i] = "warning"
			} else {
				shown[i] = ""
			}
		case KindProblem:
			if words := strings.Fields(t.What); len(words) > 0 && hasNear(endpoints[words[len(words)-1]], t.At) {
				continue
			}
			if shown[i] = ""; t.State != "" {
				shown[i] = t.severity()
			}
		}
	}
	for i := range list { // a condition stands for the problem that it comes from, and ends with it
		t := &list[i]
		if t.Kind != KindCondition || t.State == "" {
			continue
		}
		last := len(list)
		if of := ends[t.Key]; len(of) > 0 {
			if end := sort.SearchInts(of, i); end < len(of) {
				last = of[end]
			}
		}
		of := problems["Service "+t.Object]
		for _, k := range of[sort.Search(len(of), func(n int) bool { return !list[of[n]].At.Before(t.At) }):] {
			p := &list[k]
			if k > last && p.At.After(list[last].At) {
				break
			}
			if p.Why != t.Why {
				continue
			}
			if delete(shown, k); p.State == "" {
				continue
			}
			if shown[i] = p.severity(); last < len(list) {
				shown[last] = ""
			}
		}
	}
	return shown
}

// hasNear reports whether one of times differs from at by no more than the constant together. times is sorted, the oldest first.
func hasNear(times []time.Time, at time.Time) bool {
	i, _ := slices.BinarySearchFunc(times, at.Add(-together), time.Time.Compare)
	return i < len(times) && !times[i].After(at.Add(together))
}

// IsAbout reports whether a transition concerns a Service; with name "", whether it concerns any Service of the namespace.
func (t *Transition) IsAbout(namespace, name string) bool {
	is := func(service string) bool {
		return service == namespace+"/"+name || name == "" && strings.HasPrefix(service, namespace+"/")
	}
	service, about := strings.CutPrefix(t.Object, "Service ")
	return (about || t.Kind == KindCondition) && is(service) || slices.ContainsFunc(t.Services, is)
}

// Endpoint returns the address and port of the endpoint that a transition is about, without its check.
func (t *Transition) Endpoint() string {
	at, _, _ := strings.Cut(t.What, " ")
	return at
}

// severity returns the severity of a problem: the second word of What.
func (t *Transition) severity() string {
	_, rest, _ := strings.Cut(t.What, " ")
	severity, _, _ := strings.Cut(rest, " ")
	return severity
}

// cause returns a text that is equal for transitions of one kind with the same cause. Such transitions form one Entry.
func (t *Transition) cause() string {
	switch {
	case t.Kind == KindEndpoint:
		return t.Endpoint()
	case t.Kind == KindProblem && t.Object != "":
		reason, _, _ := strings.Cut(t.What, " ")
		return reason + " " + t.severity()
	}
	return t.What
}

// group is a set of transitions that become one Entry. It embeds the first of them.
type group struct {
	*Transition
	severity string
	keys     map[Key]bool
	about    map[string]bool // addresses, Services and other objects
	names    []string        // the first two of about
	services []string
}

func (g *group) add(t *Transition) {
	g.keys[t.Key] = true
	service, is := strings.CutPrefix(t.Object, "Service ")
	services := t.Services
	if is || t.Kind == KindCondition {
		services = []string{service}
	}
	for _, s := range services {
		if !slices.Contains(g.services, s) && len(g.services) < mostServices {
			g.services = append(g.services, s)
		}
	}
	about := []string{service}
	if t.Kind == KindEndpoint {
		about = services
	}
	for _, name := range about {
		if !g.about[name] {
			if g.about[name] = true; len(g.names) < 2 {
				g.names = append(g.names, name)
			}
		}
	}
}

// subject returns the objects of the group as text: one or two objects, or the first one and the number of the others.
func (g *group) subject() string {
	switch n := len(g.about); {
	case n == 0:
		return ""
	case n <= 2:
		return strings.Join(g.names, " and ")
	default:
		return fmt.Sprintf("%s and %d others", g.names[0], n-1)
	}
}

func (g *group) entry() Entry {
	e := Entry{At: g.At, Kind: g.Kind, Severity: g.severity, Services: g.services, Concerned: max(len(g.services), len(g.about))}
	subject, over := g.subject(), g.State == ""
	many := func(one, several string) string {
		if len(g.about) > 1 {
			return several
		}
		return one
	}
	after, why := "", ""
	if over && g.Lasted > 0 {
		after = " after " + spanText(time.Duration(g.Lasted)*time.Second)
	}
	if g.Why != "" {
		why = ": " + g.Why
	}
	switch g.Kind {
	case KindEndpoint:
		of := ""
		if subject != "" {
			of = " of " + subject
		}
		if e.Text = g.Endpoint() + of + " went down" + why; over {
			e.Text = g.Endpoint() + of + " came up" + after
		}
	case KindAnnouncement:
		by, at, _ := strings.Cut(g.What, " ")
		preposition := " on "
		if by == "bgp" {
			preposition = " to "
		}
		if e.Text = subject + " announced" + preposition + at; over {
			e.Text = subject + " no longer announced" + preposition + at
		}
		e.Concerned = len(g.services)
	case KindCondition:
		switch programmed := g.What == "Programmed"; {
		case programmed && over:
			e.Text = "the newest version of " + subject + " is in force" + after
		case programmed:
			e.Text = "an earlier version of " + subject + " stays in force" + why
		case over:
			e.Text = subject + many(" answers", " answer") + " again" + after
		default:
			e.Text = subject + many(" does", " do") + " not answer" + why
		}
	default:
		if why == "" {
			reason, _, _ := strings.Cut(g.What, " ")
			why = ": " + reason
		}
		if over {
			why = ": over" + after + why
		}
		e.Text = strings.TrimPrefix(subject+why, ": ")
	}
	return e
}

// spanText returns a duration in one unit, rounded down, such as "5 min".
func spanText(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d/time.Second))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d/time.Hour))
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}
