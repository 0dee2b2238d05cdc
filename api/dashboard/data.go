package dashboard

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// overview is the data of the first page.
type overview struct {
	Headline, Rest string // the status verdict, cut at the first "; "
	Newest         *wire.ProblemGroup
	Problems       []wire.ProblemGroup
	More           int // number of problems that are left out of Problems
	Box            Box
	Graph          wire.TrafficGraph
	Busy           []Row
	Happened       []Event
	NoTraffic      string
	Day            bool
}

func (d *overview) values() map[string]string {
	k := map[string]string{"new": rateText(d.Box.Rate), "refused": rateText(d.Box.RefusedRate), "failed": rateText(d.Box.FailedRate),
		"open": wire.Grouped(d.Box.Open), "tracked": wire.Grouped(d.Box.Tracked)}
	rowValues(k, d.Busy)
	return k
}

func (d *overview) shape() string {
	var b strings.Builder
	for i := range d.Problems {
		g := &d.Problems[i]
		fmt.Fprintln(&b, g.Text, g.Concerned, g.Since)
	}
	for _, e := range d.Happened {
		fmt.Fprintln(&b, e.At.UnixNano(), e.Text)
	}
	shapeOf(&b, d.Busy)
	fmt.Fprintln(&b, d.Graph.From.Unix()) // a new point
	return b.String()
}

// rowValues adds the numbers of the Services in a list to k. The keys are "NAMESPACE/NAME " followed by n (new connections per second), r (refused
// connections per second) or o (open connections).
func rowValues(k map[string]string, rows []Row) {
	for i := range rows {
		r := &rows[i]
		at := r.Namespace + "/" + r.Name + " "
		k[at+"n"], k[at+"r"], k[at+"o"] = rateText(r.Rate), rateText(r.RefusedRate), wire.Grouped(r.Open)
	}
}

// shapeOf writes to b the columns of rows that rowValues leaves out. An open page is fetched again when one of them changes.
func shapeOf(b *strings.Builder, rows []Row) {
	for i := range rows {
		r := &rows[i]
		fmt.Fprintln(b, r.Namespace, r.Name, r.State, r.Up, r.All, r.Unchecked, r.RefusedRate != nil && *r.RefusedRate > 0)
	}
}

// listed is the data of the list of Services.
type listed struct {
	*Services
	Query       Query
	Links       listLinks
	First, Last int
	Pages       int
}

func (d *listed) values() map[string]string {
	k := map[string]string{}
	rowValues(k, d.Rows)
	return k
}

func (d *listed) shape() string {
	var b strings.Builder
	fmt.Fprintln(&b, d.Total, time.Now().Unix()/30) // small curves
	shapeOf(&b, d.Rows)
	return b.String()
}

// listLinks holds the links on a page of the list of Services: one for each sort order and each state filter, by name, and those to the previous and
// the next page.
type listLinks struct {
	Sort, State    map[string]string
	Previous, Next string // "" if there is no such page
}

func linksOf(q Query, total int) listLinks {
	link := func(q Query) string {
		v := url.Values{}
		for name, value := range map[string]string{"namespace": q.Namespace, "search": q.Search, "sort": q.Sort, "state": q.State} {
			if value != "" && (name != "sort" || value != byState) {
				v.Set(name, value)
			}
		}
		if q.Page > 1 {
			v.Set("page", strconv.Itoa(q.Page))
		}
		return "?" + v.Encode()
	}
	links := listLinks{Sort: map[string]string{}, State: map[string]string{}}
	other := q
	other.Page = 1
	for _, other.Sort = range sorts {
		links.Sort[other.Sort] = link(other)
	}
	other.Sort = q.Sort
	for _, other.State = range states {
		links.State[other.State] = link(other)
	}
	other.State = q.State
	if other.Page = q.Page - 1; q.Page > 1 {
		links.Previous = link(other)
	}
	if other.Page = q.Page + 1; q.Page*PageRows < total {
		links.Next = link(other)
	}
	return links
}

// shownService is the data of the page of one Service.
type shownService struct {
	*Service
	Headline string
	Level    string // good, warn or bad
	Paths    []path
	Graph    wire.TrafficGraph
	Happened []Event
	Do       []step
	Day      bool
}

// step is a command to run next, and its purpose.
type step struct{ Command, Does string }

func (d *shownService) values() map[string]string {
	k := map[string]string{"new": rateText(d.Rate), "refused": rateText(d.RefusedRate), "failed": rateText(d.FailedRate), "open": wire.Grouped(d.Open)}
	for i := range d.Paths {
		p := &d.Paths[i]
		for _, e := range p.Endpoints {
			at := p.Port + " " + p.Protocol + " " + e.Text + " "
			k[at+"n"], k[at+"f"], k[at+"o"] = rateText(e.Rate), rateText(e.Failed), wire.Grouped(e.Open)
		}
	}
	for _, c := range d.Clients.Clients {
		k["client "+c.Client] = wire.Grouped(c.Open)
	}
	return k
}

func (d *shownService) shape() string {
	var b strings.Builder
	fmt.Fprintln(&b, d.Headline, d.Why, d.Clients.Counted, len(d.Clients.Clients))
	for i := range d.Paths {
		for _, e := range d.Paths[i].Endpoints {
			fmt.Fprintln(&b, e.Text, e.Word, e.Dead, e.Weight)
		}
	}
	for _, c := range d.Clients.Clients {
		fmt.Fprintln(&b, c.Client)
	}
	for _, c := range d.Checks {
		fmt.Fprintln(&b, c.Level, len(c.Details))
	}
	for _, e := range d.Happened {
		fmt.Fprintln(&b, e.At.UnixNano(), e.Text)
	}
	shapeOf(&b, []Row{d.Row})
	fmt.Fprintln(&b, d.Graph.From.Unix()) // a new point
	return b.String()
}

// headline returns the state of a Service in a sentence.
func headline(svc *Service) (text, level string) {
	name := svc.Namespace + "/" + svc.Name
	switch svc.Row.State {
	case wire.ServiceFails:
		return name + " does not answer", "bad"
	case wire.ServiceStale:
		return "An earlier version of " + name + " is in force", "bad"
	case wire.ServiceIdle:
		return name + " has no endpoint, on purpose", "warn"
	case wire.ServiceSettling:
		return name + " waits for its endpoints", "warn"
	}
	level = "good"
	if svc.Row.State == wire.ServiceWarning {
		level = "warn"
	}
	switch {
	case svc.All < 0:
		return name + " is a name without an address", level
	case svc.Up == svc.All:
		return name + " answers, with " + wire.Count(svc.All, "endpoint"), level
	}
	return fmt.Sprintf("%s answers, with %s of %s", name, wire.Grouped(svc.Up), wire.Count(svc.All, "endpoint")), level
}

// stepsOf returns the commands that the page of a Service proposes, by its state.
func stepsOf(svc *Service, paths []path) (steps []step) {
	of := "svc/" + svc.Name + " -n " + svc.Namespace
	steps = append(steps, step{"svcctl explain " + of, "Why it answers, or does not."})
	for _, p := range paths {
		if to := p.Target(); to != "" {
			steps = append(steps, step{"svcctl trace " + strings.TrimSuffix(to, "/tcp"), "Follow the next packets through the rules."})
			break
		}
	}
	out := ""
	for _, p := range paths {
		for _, e := range p.Endpoints {
			if at, _, err := net.SplitHostPort(e.Text); err == nil && (out == "" || e.Dead) {
				if out = at; e.Dead {
					break
				}
			}
		}
	}
	if out != "" {
		steps = append(steps, step{"svcctl explain --probe " + of, "Connect to each endpoint now."},
			step{"svcctl out " + of + " " + out, "Take an endpoint out until svcctl in, whatever its check finds."})
	}
	return steps
}

// connections is the data of the page of connections.
type connections struct {
	*wire.Connections
	Namespace, Name, Client string
}

func (d *connections) values() map[string]string { return nil }

func (d *connections) shape() string {
	var b strings.Builder
	for i := range d.Connections.Connections {
		c := &d.Connections.Connections[i]
		fmt.Fprintln(&b, c.ID, c.State, c.Answered)
	}
	return b.String()
}
