package parts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/connlog"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
)

const (
	// drainInterval is the interval of readings of events, while there are any.
	drainInterval = 50 * time.Millisecond
	// listenRetry is the wait before listening to the kernel again, and before a log that could not be written is tried
	// again.
	listenRetry = 5 * time.Second
	// pruneInterval is the least time between two looks for connections whose end was lost.
	pruneInterval = time.Minute
)

// Flows reads connections as they end, for totals of endpoints and for a log.
type Flows struct {
	reconcile.NopPart
	slog *slog.Logger
	book *flows.Totals
	log  *connlog.Log // nil: there is none

	reading sync.Mutex // held while events are read
	mu      sync.Mutex
	events  *conntrack.Events // nil: connection events are not read
	err     error             // why
}

// NewFlows writes a line for each connection that ends to a place (connlog.Open), of Services that ask for it; "": there
// is no log. endpointsOf returns the endpoints of a relayed one, as relay.Relay's does.
func NewFlows(place string, endpointsOf func(protocol string, client netip.AddrPort, listener uint16) []netip.AddrPort, log *slog.Logger) *Flows {
	f := &Flows{slog: log}
	if place == "" {
		f.book = flows.NewTotals(nil)
		return f
	}
	f.log = connlog.Open(place)
	f.book = flows.NewTotals(func(e *flows.Ended) {
		line := lineOf(e)
		if e.Relayed {
			for _, at := range endpointsOf(e.Protocol.String(), e.As, e.Endpoint.Port()) {
				line.RelayedTo = append(line.RelayedTo, at.String())
			}
		}
		f.log.Write(line)
	})
	return f
}

// lineOf is the line of the log about a connection.
func lineOf(e *flows.Ended) *connlog.Line {
	namespace, name, _ := strings.Cut(e.Service, "/")
	l := &connlog.Line{
		Time: time.Now().UTC().Round(time.Millisecond), Namespace: namespace, Service: name, Port: e.Port, Protocol: e.Protocol.Name(),
		Client: e.Client.String(), To: e.To.String(), Endpoint: e.Endpoint.String(), Relayed: e.Relayed,
		End: e.Ended.UTC().Round(time.Millisecond), State: e.State, Answered: e.Answered,
	}
	if e.As != e.Client {
		l.As = e.As.String()
	}
	if !e.Began.IsZero() {
		began := e.Began.UTC().Round(time.Millisecond)
		l.Begin = &began
		if l.End.Before(began) { // the time of its event
			l.End = began
		}
	}
	if e.Counted {
		in, out := e.In, e.Out
		l.BytesIn, l.BytesOut = &in, &out
	}
	return l
}

// Totals returns the totals.
func (f *Flows) Totals() *flows.Totals { return f.book }

// Log is the log; nil: there is none.
func (f *Flows) Log() *connlog.Log { return f.log }

// Name implements reconcile.Part.
func (f *Flows) Name() string { return "flows" }

// Planned implements reconcile.Part.
func (f *Flows) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		f.book.Host(host.Box.NodePortAddresses)
	}
	now := time.Now()
	for i := range services {
		f.book.Plan(services[i].Key, services[i].Ports, services[i].Logged, now)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events == nil {
		return
	}
	if err := f.events.Begins(f.book.Logs()); err != nil {
		f.slog.Warn("it is not known when connections begin that are logged", "err", err)
	}
}

// Run implements reconcile.Part.
func (f *Flows) Run(ctx context.Context) error {
	told := make(chan struct{})
	go func() {
		defer close(told)
		f.watchLog(ctx)
	}()
	for ctx.Err() == nil {
		if f.fail(f.listen(ctx)) {
			f.Changed()
		}
		task.Sleep(ctx, listenRetry)
	}
	<-told
	if f.log != nil {
		f.log.Flush(time.Second)
	}
	return nil
}

// fail notes why listening failed, and reports whether the reason is new.
func (f *Flows) fail(err error) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events != nil {
		f.book.Lose(0) // how much ends until events are read again is not known
	}
	news = fmt.Sprint(err) != fmt.Sprint(f.err)
	f.events, f.err = nil, err
	return news
}

// watchLog tries a log again that cannot be written.
func (f *Flows) watchLog(ctx context.Context) {
	if f.log == nil {
		return
	}
	for {
		var again <-chan time.Time
		if f.log.Err() != nil {
			again = time.After(listenRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.log.Changed():
			f.Changed()
		case <-again:
			f.log.Retry()
		}
	}
}

// listen reads conntrack events until ctx is done.
func (f *Flows) listen(ctx context.Context) error {
	var lost, pruned uint64
	var prunedAt time.Time
	return readEnds(ctx, conntrack.Listen, drainInterval, func(events *conntrack.Events) error {
		// Connections that began before listening may end without a message.
		if !f.book.Resumed() {
			if _, err := eachConnection(f.book.Before); err != nil {
				return err
			}
			f.book.Listening()
		}
		f.book.Lose(0) // those that a look has counted by now are in its totals, and stay there
		f.mu.Lock()
		f.events, f.err = events, events.Begins(f.book.Logs())
		f.mu.Unlock()
		f.Changed()
		return nil
	}, func(*conntrack.Events) error {
		err := f.readEvents()
		if lost = f.book.Lost(); err == nil && lost > pruned && time.Since(prunedAt) > pruneInterval {
			f.prune()
			pruned, prunedAt = lost, time.Now()
		}
		return err
	})
}

// readEnds listens until ctx is done: begin is called first, and read while there are events, each interval.
func readEnds(ctx context.Context, listen func(netns int) (*conntrack.Events, error), interval time.Duration, begin, read func(*conntrack.Events) error) error {
	if !conntrack.ReadSettings().Events {
		return errors.New("net.netfilter.nf_conntrack_events is 0: set it to 2")
	}
	events, err := listen(0)
	if err != nil {
		return err
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { _ = events.Close() })()
	for err = begin(events); err == nil && ctx.Err() == nil; task.Sleep(ctx, interval) {
		if err = events.Wait(); err == nil {
			err = read(events)
		}
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Update adds the events that the kernel has sent by now to the totals.
func (f *Flows) Update() { _ = f.readEvents() } // an error ends listen, which reports it

func (f *Flows) readEvents() error {
	f.reading.Lock()
	defer f.reading.Unlock()
	f.mu.Lock()
	events := f.events
	f.mu.Unlock()
	if events == nil {
		return nil
	}
	now := time.Now()
	lost, err := events.Read(now, func(e *conntrack.Event) { f.book.RecordEnd(e, now) })
	if lost > 0 {
		f.book.Lose(lost)
	}
	return err
}

// eachConnection calls each for every tracked connection whose destination is translated.
func eachConnection(each func(*conntrack.Connection)) (entries int, err error) {
	return conntrack.Scan(0, func(c *conntrack.Connection) {
		if !c.Left {
			each(c)
		}
	})
}

// prune forgets connections whose end was lost.
func (f *Flows) prune() {
	began := time.Now()
	var ids []uint32
	if _, err := eachConnection(func(c *conntrack.Connection) { ids = append(ids, c.ID) }); err != nil {
		return // it is tried again after the next loss
	}
	slices.Sort(ids)
	f.book.Prune(ids, began)
}

// Problems implements reconcile.Part.
func (f *Flows) Problems() []resolve.Problem {
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	var list []resolve.Problem
	if err != nil {
		list = append(list, resolve.Problem{Reason: "NoFlows", Warning: true,
			Message: fmt.Sprintf("connections of endpoints are neither counted nor logged: %v; it is tried again every %s", err, listenRetry)})
	}
	if f.log == nil {
		return list
	}
	if err := f.log.Err(); err != nil {
		list = append(list, resolve.Problem{Reason: "ConnectionLog",
			Message: fmt.Sprintf("lines of the connection log are lost, %d of them so far: %v; make room, or let this program write there: it is tried again every %s", f.log.Lost(), err, listenRetry)})
	}
	return list
}
