package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/cmd/svcctl/output"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// topEvery is the interval at which the table is drawn, and the wait after the first look: the
// server's looks are at least a second apart.
const topEvery = 2 * time.Second

func (p *program) topVerb() *verb {
	sorts := wire.TrafficSorts()
	return &verb{
		name:    "top",
		summary: "show which Services and endpoints have traffic",
		args:    "[svc/NAME] [FLAGS]",
		about: `Shows ports of Services by their connections, the busiest first, and draws the table anew
every two seconds. Of a Service that is named it shows the endpoints too, or with
--clients who has most connections to it.

OPEN are connections that were answered and that neither side has closed. UNANSWERED are those
to which the endpoint has sent nothing: where they stay, the endpoint is dead. NEW/S are
new connections a second since the look before. CONNS are all connections since the
appliance started, and REFUSED the packets that were refused or dropped because no
endpoint was there: both are counted by the kernel, which --traffic off of the appliance
spares it.

On a terminal, o, r, u, f and n sort by open, rate, unanswered, refused and name, / filters
by a text until Enter, Esc ends the filter, e shows or hides endpoints, c clients of a
Service that is named, q quits. Anywhere else one table is printed; with -o json one
document a look.

The numbers come from the kernel's connection tracking, which is read only while somebody
asks, and more rarely where it is large: at most 2 % of a core is used. Connections to
node ports on loopback addresses are not among them.`,
		options: append([]*option{
			namespaceOption(),
			{name: "all-namespaces", letter: "A", group: groupWhich, usage: "Services of all namespaces"},
			{name: "filter", arg: "TEXT", group: groupWhich, usage: "ports with this in NAMESPACE/NAME:PORT; with *, those that are like it, as 'shop/*'"},
			{name: "limit", letter: "l", arg: "N", def: "100", group: groupWhich, usage: "how many ports, and how many clients, at most 10000"},
			{name: "by", arg: strings.Join(sorts, "|"), def: sorts[0], words: sorts, group: groupOutput, usage: "what to sort by"},
			{name: "endpoints", group: groupOutput, usage: "show the endpoints of each port"},
			{name: "clients", group: groupOutput, usage: "show the clients of the Service that is named, the busiest first"},
			{name: "once", group: groupOutput, usage: "print one table"},
			outputOption("table", "json"),
		}, connectOptions()...),
		examples: []example{
			{"What is going on?", "svcctl top -A"},
			{"Which ports of a team's Services are busy?", "svcctl top -A --filter 'shop-*' --by rate"},
			{"Who talks to a Service most?", "svcctl top svc/web --clients"},
			{"Which endpoints are in the documents and dead on the wire?", "svcctl top -A --once --endpoints --by unanswered"},
		},
		exits: `  0  done
  1  refused
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runTop,
	}
}

// runTop shows traffic once, or until it is interrupted.
func (p *program) runTop(ctx context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	t := &top{by: v.option("by").text(), filter: v.option("filter").text(), endpoints: v.option("endpoints").on(), color: p.color}
	if sorts := wire.TrafficSorts(); !slices.Contains(sorts, t.by) {
		return usagef("--by %q: want %s", t.by, strings.Join(sorts, ", "))
	}
	if len(t.filter) > wire.MaxTrafficFilter {
		return usagef("--filter: it is %d bytes long, %d is the most", len(t.filter), wire.MaxTrafficFilter)
	}
	var err error
	if t.query, err = p.trafficQuery(v, args); err != nil {
		return err
	}
	t.named = t.query.Get("name") != ""
	t.clients = v.option("clients").on()
	if t.clients && !t.named {
		return usagef("--clients are those of one Service: name it, as in `svcctl top svc/web --clients`")
	}
	t.endpoints = t.endpoints || t.named && !t.clients
	limit := v.option("limit").text()
	if n, err := strconv.Atoi(limit); err != nil || n < 1 {
		return usagef("--limit %q: want a number from 1 to 10000", limit)
	}
	t.query.Set("limit", limit)
	if t.c, err = p.client(v); err != nil {
		return err
	}
	once := v.option("once").on()
	if v.option("output").text() == formJSON {
		return p.topJSON(ctx, t, once)
	}
	if once || !p.stdoutTTY || !p.stdinTTY {
		if err := t.second(ctx); err != nil {
			return err
		}
		return p.print(t.table(p.now(), 0, 0))
	}
	return p.topLive(ctx, t)
}

// top is the screen of `svcctl top`.
type top struct {
	c         *client.Client
	query     url.Values
	by        string
	filter    string
	typing    bool // the filter
	endpoints bool
	named     bool // it is about one Service
	clients   bool // of that
	color     bool
	seen      *wire.Traffic
}

// look asks for the newest look.
func (t *top) look(ctx context.Context) (err error) {
	t.query.Set("sort", t.by)
	t.query.Set("filter", t.filter)
	t.query.Set("endpoints", strconv.FormatBool(t.endpoints))
	t.query.Set("clients", strconv.FormatBool(t.clients))
	t.seen, err = t.c.Traffic(ctx, t.query)
	return err
}

// second looks until there are rates, which need two looks, and clients, which are counted from the look after the first question on.
func (t *top) second(ctx context.Context) error {
	for {
		if err := t.look(ctx); err != nil {
			return err
		}
		if t.seen.Seconds > 0 && (t.seen.Clients == nil || t.seen.Clients.Counted) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(topEvery):
		}
	}
}

// topJSON prints one document a look.
func (p *program) topJSON(ctx context.Context, t *top, once bool) error {
	var last time.Time
	for {
		look := t.look
		if once {
			look = t.second
		}
		err := look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if t.seen.At.After(last) { // looks are shared, and may be rare
			last = t.seen.At
			if err := p.printLine(t.seen); err != nil {
				return err
			}
		}
		if once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(topEvery):
		}
	}
}

// table is the last look for people, cut to a number of lines and columns; 0: to none.
func (t *top) table(now time.Time, lines, columns int) string {
	s := t.seen
	var sum wire.ConnectionCounts
	sum.Rate = new(float64)
	for i := range s.Ports {
		sum.Open += s.Ports[i].Open
		sum.Unanswered += s.Ports[i].Unanswered
		if r := s.Ports[i].Rate; r != nil {
			*sum.Rate += *r
		}
	}
	if s.Seconds == 0 {
		sum.Rate = nil
	}
	head := fmt.Sprintf("%s, %d open, %d unanswered, %s new/s; %s tracked in all",
		count(len(s.Ports), "port"), sum.Open, sum.Unanswered, rateText(sum.Rate), count(s.Tracked, "connection"))
	if s.More > 0 {
		head += fmt.Sprintf("; %d ports left out", s.More)
	}
	if age := now.Sub(s.At).Round(time.Second); age >= topEvery+time.Second {
		head += fmt.Sprintf("; read %s ago", age)
	}
	heads := []string{"SERVICE", "PROTO"}
	if t.endpoints {
		heads = append(heads, "ENDPOINT")
	}
	heads = append(heads, "OPEN", "UNANSWERED", "NEW/S")
	if s.Counted {
		heads = append(heads, "CONNS", "REFUSED")
	} else if s.Flows {
		heads = append(heads, "CONNS")
	}
	bytes := s.Flows && s.NoBytes == ""
	if bytes {
		heads = append(heads, "IN", "OUT")
	}
	rows := [][]string{heads}
	row := func(service, protocol, endpoint string, c wire.ConnectionCounts, made, refused *uint64, flows wire.FlowTotals) {
		cells := []string{service, protocol}
		if t.endpoints {
			cells = append(cells, endpoint)
		}
		cells = append(cells, strconv.Itoa(c.Open), strconv.Itoa(c.Unanswered), rateText(c.Rate))
		if made == nil {
			made = flows.Flows
		}
		if s.Counted {
			cells = append(cells, numberText(made), numberText(refused))
		} else if s.Flows {
			cells = append(cells, numberText(made))
		}
		if bytes {
			cells = append(cells, bytesText(flows.BytesIn), bytesText(flows.BytesOut))
		}
		rows = append(rows, cells)
	}
	for i := range s.Ports {
		port := &s.Ports[i]
		key := portKey(port.Namespace, port.Service, port.Port)
		row(key, port.Protocol, "", port.ConnectionCounts, port.Connections, port.Refused, port.FlowTotals)
		if !t.endpoints {
			continue
		}
		for _, e := range port.Endpoints {
			name := e.Endpoint
			switch {
			case e.Relay:
				name += " (relay)"
			case e.Relayed:
				name += " (relayed)"
			case e.Leaving:
				name += " (leaving)"
			}
			row("", "", name, e.ConnectionCounts, nil, nil, e.FlowTotals)
		}
	}
	text := strings.Split(strings.TrimSuffix(new(output.Grid).Text(rows...), "\n"), "\n")
	text = append([]string{head, ""}, text...)
	if s.Clients != nil {
		text = append(append(text, ""), strings.Split(strings.TrimSuffix(clientsTable(s.Clients), "\n"), "\n")...)
	}
	if s.NoBytes != "" && t.endpoints {
		text = append(text, "", "bytes: off, because "+s.NoBytes)
	}
	if lines > 0 && len(text) > lines {
		text = text[:lines]
	}
	for i := range text {
		text[i] = strings.TrimRight(text[i], " ")
		text[i] = cut(text[i], columns)
	}
	if t.color && len(text) > 2 {
		text[2] = "\x1b[1m" + text[2] + "\x1b[0m"
	}
	return strings.Join(text, "\n") + "\n"
}

// cut shortens a line to a number of columns; 0: it does not.
func cut(line string, columns int) string {
	if runes := []rune(line); columns > 0 && len(runes) > columns {
		return string(runes[:columns])
	}
	return line
}

// numberText is a number that may be absent.
func numberText(n *uint64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatUint(*n, 10)
}

// bytesText is a number of bytes that may be absent: "1.5K".
func bytesText(n *uint64) string {
	if n == nil {
		return ""
	}
	number, prefix := wire.Binary(*n)
	return number + prefix
}

// rateText is a rate for people; "-" where none is known yet.
func rateText(r *float64) string {
	if r == nil {
		return "-"
	}
	precision := 0
	if *r > 0 && *r < 10 {
		precision = 1
	}
	return strconv.FormatFloat(*r, 'f', precision, 64)
}

// key acts on a key that was pressed, and reports whether the user is done.
func (t *top) key(b byte) (quit bool) {
	if t.typing {
		return t.typed(b)
	}
	switch b {
	case 'q', 'Q', keyInterrupt, keyEnd:
		return true
	case '/':
		t.typing = true
	case keyEscape:
		t.filter = ""
	case 'e':
		t.endpoints = !t.endpoints
	case 'c':
		t.clients = t.named && !t.clients
	case 'f':
		t.by = "refused"
	default:
		sorts := wire.TrafficSorts()
		if i := slices.IndexFunc(sorts, func(name string) bool { return name[0] == b }); i >= 0 {
			t.by = sorts[i]
		}
	}
	return false
}

// Bytes of keys that are no text.
const (
	keyInterrupt = 3 // Ctrl-C
	keyEnd       = 4 // Ctrl-D
	keyErase     = 8 // Ctrl-H
	keyEscape    = 27
	keyBackspace = 127
)

// typed acts on a key while the filter is typed: the table follows.
func (t *top) typed(b byte) (quit bool) {
	switch {
	case b == keyInterrupt:
		return true
	case b == '\r' || b == '\n' || b == keyEnd:
		t.typing = false
	case b == keyEscape:
		t.typing, t.filter = false, ""
	case b == keyErase || b == keyBackspace:
		t.filter = t.filter[:max(0, len(t.filter)-1)]
	case b > ' ' && b < keyBackspace && len(t.filter) < wire.MaxTrafficFilter: // names have no others
		t.filter += string(b)
	}
	return false
}

// bar is the last line of the screen.
func (t *top) bar() string {
	if t.typing {
		return "filter: " + t.filter + "_   Enter keeps it  Esc ends it"
	}
	by := "by " + t.by
	if t.filter != "" {
		by += ", with " + t.filter
	}
	keys := "   o open  r rate  u unanswered  f refused  n name  e endpoints  "
	if t.named {
		keys += "c clients  "
	}
	return by + keys + "/ filter  q quit"
}
