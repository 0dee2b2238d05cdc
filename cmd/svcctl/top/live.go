package top

import (
	"cmp"
	"context"
	"maps"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// live is the interactive display: the list of ports, the page of one Service, or the help.
type live struct {
	*Top
	health []wire.EndpointHealth // of the Service that is shown
	// list is the list to return to when a Service page is closed with Esc; nil while the list is shown.
	list            *answer
	typing, helping bool
	cursor          string // row key; "" selects the first row
	rows            []string
	page            int // visible rows
	first, most     int // the first visible line of a Service page, and its maximum
	widths          map[string]int
	rates           map[string][]sample // rates of the last two minutes, by port
	failure         error               // the error of the last request, nil if it succeeded
	asked           time.Time           // start of the pending request; zero if there is none
	now             time.Time
}

// sample is the rate of a port at one time.
type sample struct {
	at   time.Time
	rate float64
}

// answer is the response to a traffic request: data, or an error. q is the request.
type answer struct {
	q      wire.TrafficQuery
	seen   *wire.Traffic
	health []wire.EndpointHealth
	err    error
}

func newLive(t *Top) *live {
	l := &live{Top: t, widths: map[string]int{}, rates: map[string][]sample{}}
	if t.q.Service != "" {
		l.list = &answer{q: wire.TrafficQuery{Namespace: t.q.Namespace, Sort: t.q.Sort, Limit: t.q.Limit}}
		l.q.Endpoints = true
	}
	return l
}

// ask requests traffic data, and for a Service page also the states of endpoints.
func (l *live) ask(ctx context.Context, q wire.TrafficQuery) (a answer) {
	a.q = q
	if a.seen, a.err = client.Call(ctx, l.c, wire.GetTraffic, q); a.err == nil && q.Service != "" {
		var h *wire.Health
		if h, a.err = client.Call(ctx, l.c, wire.GetHealth, wire.ObjectQuery{Namespace: q.Namespace, Name: q.Service}); a.err == nil {
			a.health = h.Endpoints
		}
	}
	return a
}

// take stores the response to a request. It ignores data for a Service or namespace that is no longer shown, so the screen changes only when data of
// the new query arrive.
func (l *live) take(a answer) {
	if l.failure = a.err; a.err != nil || a.q.Service != l.q.Service || a.q.Namespace != l.q.Namespace {
		return
	}
	l.seen, l.health = a.seen, a.health
	for i := range a.seen.Ports {
		p := &a.seen.Ports[i]
		key := keyOf(p)
		known := l.rates[key]
		for _, s := range p.History {
			if s.Rate != nil && s.At.Before(a.seen.At) {
				known = append(known, sample{s.At, *s.Rate})
			}
		}
		if n := len(known); p.Rate != nil && (n == 0 || known[n-1].at.Before(a.seen.At)) {
			known = append(known, sample{a.seen.At, *p.Rate})
		}
		l.rates[key] = slices.DeleteFunc(known, func(s sample) bool { return a.seen.At.Sub(s.at) > sparkTime })
	}
	maps.DeleteFunc(l.rates, func(_ string, known []sample) bool {
		return len(known) == 0 || a.seen.At.Sub(known[len(known)-1].at) > sparkTime
	})
}

// Live shows the interactive display until the user quits. now returns the time of day.
func (t *Top) Live(ctx context.Context, in, out *os.File, now func() time.Time) error {
	l := newLive(t)
	q := l.q
	q.History = true // once: the readings that follow are kept here
	first := l.ask(ctx, q)
	if first.err != nil {
		return first.err // it stays on the screen of before
	}
	l.take(first)
	s, err := openScreen(in, out)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	typed := s.keys()
	tick := time.NewTicker(Every)
	defer tick.Stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	answers := make(chan answer, 1)
	for {
		lines, columns := s.size()
		l.now = now()
		if err := s.draw(l.draw(lines, columns)); err != nil {
			return err
		}
		again := false
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case k, open := <-typed:
			before := l.q
			if !open || l.key(k) {
				return nil
			}
			again = before != l.q
		case a := <-answers:
			l.asked = time.Time{}
			l.take(a)
			again = a.q != l.q
		case <-tick.C:
			again = true
		}
		if again && l.asked.IsZero() {
			l.asked = now()
			go func(q wire.TrafficQuery) { answers <- l.ask(ctx, q) }(l.q)
		}
	}
}

// key handles a key. It reports whether the user quits.
func (l *live) key(k key) (quit bool) {
	switch {
	case k == keyInterrupt || k == keyEnd && !l.typing:
		return true
	case l.helping:
		l.helping = false
		return false
	case l.typing:
		l.typed(k)
		return false
	}
	switch k {
	case 'q', 'Q':
		return true
	case '?', 'h':
		l.helping = true
	case '/':
		l.typing = l.list == nil
	case keyEscape, keyBackspace, keyErase, keyLeft:
		l.back(k)
	case keyEnter, '\n', keyRight:
		l.open()
	case 'c':
		if l.open(); l.q.Service != "" {
			l.q.Clients = !l.q.Clients
		}
	case 'e':
		l.q.Endpoints = l.list != nil || !l.q.Endpoints
	case keyUp, 'k':
		l.move(-1)
	case keyDown, 'j':
		l.move(1)
	case keyPageUp:
		l.move(-max(1, l.page-1))
	case keyPageDown, ' ':
		l.move(max(1, l.page-1))
	case keyFirst, 'g':
		l.cursor, l.first = "", 0
	case keyLast, 'G':
		l.move(len(l.rows) + l.most)
	default:
		if by := orders[k]; by != "" {
			l.q.Sort = by
		}
	}
	return false
}

// orders maps keys to the columns that they sort by.
var orders = map[key]string{'s': "state", 'o': "open", 'r': "rate", 'u': "unanswered", 'f': "refused", 'b': "bytes", 'n': "name"}

// open opens the page of the selected Service.
func (l *live) open() {
	if l.list != nil || len(l.rows) == 0 {
		return
	}
	port := l.selected()
	if port == nil {
		return
	}
	l.list, l.first = &answer{q: l.q, seen: l.seen}, 0
	l.q = wire.TrafficQuery{Namespace: port.Namespace, Service: port.Service, Sort: l.q.Sort, Limit: l.q.Limit, Endpoints: true}
	only := *l.seen
	only.Ports, only.Clients = nil, nil
	for i := range l.seen.Ports {
		if p := &l.seen.Ports[i]; p.Namespace == port.Namespace && p.Service == port.Service {
			only.Ports = append(only.Ports, *p)
		}
	}
	l.seen, l.health = &only, nil // until there is a reading of it
}

// back handles Esc and similar keys: it returns from a Service page to the list, or clears the filter.
func (l *live) back(k key) {
	switch {
	case l.list != nil:
		l.q, l.seen, l.list = l.list.q, cmp.Or(l.list.seen, l.seen), nil
	case k == keyEscape:
		l.q.Filter = ""
	}
}

// move selects another row of the list, or scrolls a Service page, by a number of lines.
func (l *live) move(by int) {
	if l.list != nil {
		l.first = min(max(l.first+by, 0), l.most)
		return
	}
	if len(l.rows) == 0 {
		return
	}
	at := min(max(l.at()+by, 0), len(l.rows)-1)
	l.cursor = l.rows[at]
	if at+l.page >= len(l.rows) && l.seen.More > 0 {
		l.q.Limit = min(l.q.Limit+100, 10_000)
	}
}

// at returns the index of the selected row.
func (l *live) at() int { return max(0, slices.Index(l.rows, l.cursor)) }

// selected returns the port in the selected row; nil if there is none or it no longer exists.
func (l *live) selected() *wire.PortTraffic {
	for i := range l.seen.Ports {
		if p := &l.seen.Ports[i]; len(l.rows) > 0 && keyOf(p) == l.rows[l.at()] {
			return p
		}
	}
	return nil
}

// typed handles a key while the user types a filter.
func (l *live) typed(k key) {
	switch {
	case k == keyEnter || k == '\n' || k == keyEnd:
		l.typing = false
	case k == keyEscape:
		l.typing, l.q.Filter = false, ""
	case k == keyErase || k == keyBackspace:
		l.q.Filter = l.q.Filter[:max(0, len(l.q.Filter)-1)]
	case k == keyUp || k == keyDown || k == keyPageUp || k == keyPageDown:
		l.typing = false
		l.key(k)
	case k > ' ' && k < keyBackspace && len(l.q.Filter) < wire.MaxTrafficFilter: // names have no others
		l.q.Filter += string(rune(k))
	}
}
