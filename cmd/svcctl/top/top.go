package top

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// Every is the interval at which the table is drawn, and the wait after the first look: the
// server's looks are at least a second apart.
const Every = 2 * time.Second

// Top is the table of `svcctl top` and what it is sorted and filtered by.
type Top struct {
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

// Options are the initial settings of the table.
type Options struct {
	By, Filter                string
	Endpoints, Clients, Color bool
}

// New returns a table of the Services of a query, which names one or a namespace.
func New(c *client.Client, query url.Values, o Options) *Top {
	return &Top{c: c, query: query, by: o.By, filter: o.Filter, endpoints: o.Endpoints, clients: o.Clients, color: o.Color, named: query.Get("name") != ""}
}

// Seen is the last look.
func (t *Top) Seen() *wire.Traffic { return t.seen }

// Look asks for the newest look.
func (t *Top) Look(ctx context.Context) (err error) {
	t.query.Set("sort", t.by)
	t.query.Set("filter", t.filter)
	t.query.Set("endpoints", strconv.FormatBool(t.endpoints))
	t.query.Set("clients", strconv.FormatBool(t.clients))
	t.seen, err = t.c.Traffic(ctx, t.query)
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
func (t *Top) typed(b byte) (quit bool) {
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
func (t *Top) bar() string {
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
