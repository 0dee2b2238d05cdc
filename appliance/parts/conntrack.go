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
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/appliance/connlog"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/parallel"
)

// Conntrack deletes the conntrack entries of connections to endpoints that a change removed. It never blocks the reconcile loop.
type Conntrack struct {
	reconcile.NopPart
	tracker *conntrack.ChangeTracker
	idle    *conntrack.Idle
	retry   *conntrack.Retry
	cleaner *conntrack.Cleaner // nil: the connection tracking table cannot be reached
	err     error              // why cleaner is nil
}

// NewConntrack opens the connection tracking table. A failure is reported by Problems.
func NewConntrack(log *slog.Logger) *Conntrack {
	options := conntrack.Options{Log: log}
	c := &Conntrack{tracker: conntrack.NewChangeTracker(), idle: conntrack.NewIdle(options), retry: conntrack.NewRetry(options)}
	c.cleaner, c.err = conntrack.New(options)
	return c
}

// Stats returns a function that returns the statistics. It is nil if the connection tracking table cannot be opened.
func (c *Conntrack) Stats() func() conntrack.Stats {
	if c.cleaner == nil {
		return nil
	}
	return func() conntrack.Stats {
		stats := c.cleaner.Stats()
		stats.Retried = c.retry.Retried()
		return stats
	}
}

// Name implements reconcile.Part.
func (c *Conntrack) Name() string { return "conntrack" }

// Run implements reconcile.Part.
func (c *Conntrack) Run(ctx context.Context) error {
	if c.cleaner == nil {
		return c.NopPart.Run(ctx)
	}
	others := make(chan error, 2)
	go func() { others <- c.idle.Run(ctx) }()
	go func() { others <- c.retry.Run(ctx) }()
	return errors.Join(c.cleaner.Run(ctx), <-others, <-others)
}

// Adopt implements reconcile.Part.
func (c *Conntrack) Adopt(have nft.Ruleset) { c.tracker.Adopt(have) }

// minShare is the number of Services that a CPU takes at a time (parallel.Do): fewer are handled on one CPU.
const minShare = 256

// Planned implements reconcile.Part.
func (c *Conntrack) Planned(host *reconcile.Host, services []reconcile.Service) {
	ports := make([][]conntrack.Port, len(services))
	parallel.Do(len(services), minShare, func(i int) {
		svc := &services[i]
		if len(svc.Ports) == 0 {
			return
		}
		ports[i] = make([]conntrack.Port, len(svc.Ports))
		for j := range svc.Ports {
			ports[i][j] = conntrack.PortOf(&svc.Ports[j], svc.Ports[j].Serving, conntrack.Drain(svc.Drain))
			ports[i][j].Ended = ended(svc, &svc.Ports[j])
		}
	})
	changes, served, retry := make(map[string][]conntrack.Port, len(services)), make(map[string][]nft.ServicePort, len(services)), map[string]time.Duration{}
	for i := range services {
		changes[services[i].Key] = ports[i]
		served[services[i].Key] = services[i].Ports
		if after := services[i].RetryAfter; after > 0 {
			retry[services[i].Key] = after
		}
	}
	var box *nft.Box
	if host != nil {
		box = &host.Box
	}
	c.tracker.Update(box, changes)
	c.idle.Update(box, served)
	c.retry.Update(box, served, retry)
}

// ended returns the endpoints of a port that are down and whose connections must therefore be reset, sorted. It returns nil if the Service does not
// request resets, or the port is not a TCP port.
func ended(svc *reconcile.Service, p *nft.ServicePort) []netip.AddrPort {
	if !svc.ResetDown || p.Protocol != nft.TCP {
		return nil
	}
	var list []netip.AddrPort
	for _, d := range svc.Demoted {
		if !d.Out && d.Protocol == p.Protocol.Name() && resolve.PortID(svc.Key, d.Port) == p.ID && nft.FamilyOf(d.Addr.Addr()) == p.Family {
			list = append(list, d.Addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// Applying implements reconcile.Part.
func (c *Conntrack) Applying(restored bool) {
	if restored {
		c.tracker.Restored()
	}
	if c.cleaner != nil {
		c.cleaner.Expect(c.tracker.Pending())
	}
}

// Stepped implements reconcile.Part.
func (c *Conntrack) Stepped(step reconcile.Step) {
	if !step.Applied {
		return
	}
	if work := c.tracker.Take(); c.cleaner != nil {
		c.cleaner.Reconcile(work)
	}
}

// Problems implements reconcile.Part.
func (c *Conntrack) Problems() []resolve.Problem {
	err := c.err
	if c.cleaner != nil {
		err = c.cleaner.Err()
	}
	return append(failing("StaleConnections", "connections to removed endpoints may continue", err),
		failing("NoRetry", "clients stay with endpoints that do not answer, in spite of svcctl.io/retry-after", c.retry.Err())...)
}

// failing returns a warning whose message is consequence and the text of err. It returns nil if err is nil.
func failing(reason, consequence string, err error) []resolve.Problem {
	if err == nil {
		return nil
	}
	return []resolve.Problem{{Reason: reason, Message: consequence + ": " + err.Error(), Warning: true}}
}

func frontendOf(p *nft.ServicePort, i int) resolve.Frontend {
	return resolve.Frontend{Family: p.Family, Protocol: p.Protocol, At: netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)}
}

// Fullness excludes endpoints from new connections while they have as many open connections as svcctl.io/endpoint-connections allows.
type Fullness struct {
	reconcile.NopPart
	counting *conntrack.ConnLimiter
	kernel   atomic.Pointer[func() map[resolve.Frontend]*nft.ServicePort] // the ports that the kernel served at the start; nil: not needed any more
}

// NewFullness returns a Fullness without Services.
func NewFullness(log *slog.Logger) *Fullness {
	f := &Fullness{}
	f.counting = conntrack.NewConnLimiter(conntrack.Options{Log: log}, func(service string) { f.Changed(resolve.Plans(service)...) })
	return f
}

// Name implements reconcile.Part.
func (f *Fullness) Name() string { return "full endpoints" }

// Run implements reconcile.Part.
func (f *Fullness) Run(ctx context.Context) error { return f.counting.Run(ctx) }

// Adopt implements reconcile.Part. Until connections are counted, an endpoint counts as full if the kernel did not use it before
// the restart, so that a restart changes nothing.
func (f *Fullness) Adopt(have nft.Ruleset) {
	served := sync.OnceValue(func() map[resolve.Frontend]*nft.ServicePort { return reconcile.ServedBefore(have) })
	f.kernel.Store(&served)
}

// Meet implements reconcile.Answerer.
func (f *Fullness) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, l := range d.Limited {
		proto, _ := nft.ProtocolNamed(l.Port.Protocol)
		for _, endpoint := range l.Endpoints {
			full, counted := f.counting.Full(l.Port.Service, proto, endpoint)
			if counted {
				f.kernel.Store(nil) // all were looked at together
			} else {
				full = f.wasLeftOut(&l, proto, endpoint)
			}
			o.Count(l.Port, endpoint, resolve.Fullness{Full: full, Counted: counted})
		}
	}
}

// wasLeftOut reports whether the kernel served the port without this endpoint at the start of this process.
func (f *Fullness) wasLeftOut(l *resolve.Limited, proto nft.Protocol, endpoint netip.AddrPort) (served bool) {
	kernel := f.kernel.Load()
	if kernel == nil {
		return false
	}
	for _, at := range l.Frontends {
		p := (*kernel)()[resolve.Frontend{Family: l.Port.Family, Protocol: proto, At: at}]
		if p == nil {
			continue
		}
		if slices.ContainsFunc(p.Serving, func(ap netip.AddrPort) bool {
			return ap == endpoint || endpoint.Port() == 0 && ap.Addr() == endpoint.Addr()
		}) {
			return false
		}
		served = true
	}
	return served
}

// Planned implements reconcile.Part.
func (f *Fullness) Planned(host *reconcile.Host, services []reconcile.Service) {
	changes := make(map[string]conntrack.EndpointLimit, len(services))
	for i := range services {
		changes[services[i].Key] = conntrack.EndpointLimit{Limit: services[i].EndpointConnections, Ports: services[i].Ports}
	}
	var box *nft.Box
	if host != nil {
		box = &host.Box
	}
	if !f.counting.Update(box, changes) {
		f.kernel.Store(nil) // no first count is awaited
	}
}

// Problems implements reconcile.Part.
func (f *Fullness) Problems() []resolve.Problem {
	return failing("NotCounted", "endpoints stay full, or not, as they were counted last, in spite of svcctl.io/endpoint-connections", f.counting.Err())
}

const (
	// drainInterval is the interval at which events are read while there are any.
	drainInterval = 50 * time.Millisecond
	// listenRetry is the wait before conntrack events are subscribed to again, and before another attempt to write to a log that failed.
	listenRetry = 5 * time.Second
	// pruneInterval is the least time between two scans for connections with a lost end event.
	pruneInterval = time.Minute
)

// Flows reads the conntrack events of connections that end. It counts them by endpoint, and logs those of Services that request a connection log.
type Flows struct {
	reconcile.NopPart
	slog *slog.Logger
	book *flows.Totals
	log  *connlog.Log // nil: no log is configured

	reading sync.Mutex // held while events are read
	mu      sync.Mutex
	events  *conntrack.Events // nil: connection events are not read
	err     error             // why connection events are not read; nil: they are
}

// NewFlows returns a Flows. It logs the ended connections of Services that request a connection log at place (connlog.Open); "" means no log.
// endpointsOf returns the endpoints of a relayed connection, like the method of relay.Relay.
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

// lineOf returns the line of the log for an ended connection.
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

// Totals returns the totals by endpoint.
func (f *Flows) Totals() *flows.Totals { return f.book }

// Log returns the log, nil if there is none.
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

// fail records why reading events failed. news reports whether the error differs from the previous one.
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

// watchLog retries writing to a log that failed, until ctx is done.
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

// readEnds reads conntrack events until ctx is done or an error occurs. It calls begin once after it has subscribed to the events. It then waits for
// events and calls read, at most once per interval.
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

// eachConnection calls each for every tracked connection with a translated destination, and returns the number of entries of the table.
func eachConnection(each func(*conntrack.Connection)) (entries int, err error) {
	return conntrack.Scan(0, func(c *conntrack.Connection) {
		if !c.Left {
			each(c)
		}
	})
}

// prune removes the start times of connections that the kernel no longer tracks from f.book. They are left over because the end events of these
// connections were lost. The counters stay as they are.
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
