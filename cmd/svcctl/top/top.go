package top

import (
	"context"
	"slices"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// Every is the interval at which the table is drawn, and the wait after the first look: the
// server's looks are at least a second apart.
const Every = 2 * time.Second

// Top is the table of `svcctl top` and what it is sorted and filtered by.
type Top struct {
	c      *client.Client
	q      wire.TrafficQuery
	typing bool // the filter
	color  bool
	seen   *wire.Traffic
}

// Options are the initial settings of the table.
type Options struct {
	By, Filter                string
	Limit                     int
	Endpoints, Clients, Color bool
}

// New returns a table of one Service, of those of a namespace, or of all.
func New(c *client.Client, of wire.ObjectQuery, o Options) *Top {
	return &Top{c: c, color: o.Color, q: wire.TrafficQuery{Namespace: of.Namespace, Service: of.Name, Sort: o.By, Filter: o.Filter, Limit: o.Limit, Endpoints: o.Endpoints, Clients: o.Clients}}
}

// Seen is the last look.
func (t *Top) Seen() *wire.Traffic { return t.seen }

// Look asks for the newest look.
func (t *Top) Look(ctx context.Context) (err error) {
	t.seen, err = client.Call(ctx, t.c, wire.GetTraffic, t.q)
	return err
}

// Second looks until there are rates, which need two looks, and clients, which are counted from the look after the first question on.
func (t *Top) Second(ctx context.Context) error {
	for {
		if err := t.Look(ctx); err != nil {
			return err
		}
		if t.seen.Seconds > 0 && (t.seen.Clients == nil || t.seen.Clients.Counted) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(Every):
		}
	}
}

// key acts on a key that was pressed, and reports whether the user is done.
func (t *Top) key(b byte) (quit bool) {
	if t.typing {
		return t.typed(b)
	}
	switch b {
	case 'q', 'Q', keyInterrupt, keyEnd:
		return true
	case '/':
		t.typing = true
	case keyEscape:
		t.q.Filter = ""
	case 'e':
		t.q.Endpoints = !t.q.Endpoints
	case 'c':
		t.q.Clients = t.q.Service != "" && !t.q.Clients
	case 'f':
		t.q.Sort = "refused"
	default:
		sorts := wire.TrafficSorts()
		if i := slices.IndexFunc(sorts, func(name string) bool { return name[0] == b }); i >= 0 {
			t.q.Sort = sorts[i]
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
func (t *Top) typed(b byte) (quit bool) {
	switch {
	case b == keyInterrupt:
		return true
	case b == '\r' || b == '\n' || b == keyEnd:
		t.typing = false
	case b == keyEscape:
		t.typing, t.q.Filter = false, ""
	case b == keyErase || b == keyBackspace:
		t.q.Filter = t.q.Filter[:max(0, len(t.q.Filter)-1)]
	case b > ' ' && b < keyBackspace && len(t.q.Filter) < wire.MaxTrafficFilter: // names have no others
		t.q.Filter += string(b)
	}
	return false
}

// bar is the last line of the screen.
func (t *Top) bar() string {
	if t.typing {
		return "filter: " + t.q.Filter + "_   Enter keeps it  Esc ends it"
	}
	by := "by " + t.q.Sort
	if t.q.Filter != "" {
		by += ", with " + t.q.Filter
	}
	keys := "   o open  r rate  u unanswered  f refused  n name  e endpoints  "
	if t.q.Service != "" {
		keys += "c clients  "
	}
	return by + keys + "/ filter  q quit"
}
