package relay

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"svcctl.io/svcctl/appliance/handover"
)

// Relay serves Ports. All methods may be called concurrently.
type Relay struct {
	*shared
	arriving *arriving
	loopback *loopback
	fronts   *fronts
}

// New returns a Relay without Ports. origin may be nil where the kernel redirects no UDP.
func New(log *slog.Logger, origin Origin) *Relay { return newRelay(log, origin, defaults()) }

func newRelay(log *slog.Logger, origin Origin, l limits) *Relay {
	s := newShared(log, l)
	a := newArriving(s)
	return &Relay{shared: s, arriving: a, loopback: newLoopback(s, a), fronts: newFronts(s, a, origin)}
}

// Stats are numbers of a Relay.
type Stats struct {
	TCP, UDP Load
	// FailedConnects are endpoints that did not accept a connection.
	FailedConnects int64
	// FailedHandshakes counts failed TLS handshakes, with clients and with endpoints.
	FailedHandshakes int64
}

// Load counts the connections, or clients, of a protocol.
type Load struct {
	// Loopback and Redirected count the open ones; Limit bounds Redirected.
	Loopback, Redirected, Limit int64
	// Taken were let in so far, and TurnedAway were not, or lost their flow to another client, as
	// there were too many.
	Taken, TurnedAway int64
}

// Stats returns the numbers as they are now.
func (r *Relay) Stats() Stats {
	load := func(q *bothQuotas) Load {
		return Load{
			Loopback: q.loopback.used.Load(), Redirected: q.redirected.used.Load(), Limit: q.redirected.limit,
			Taken: q.loopback.taken.Load() + q.redirected.taken.Load(),
		}
	}
	s := Stats{TCP: load(&r.quotas.tcp), UDP: load(&r.quotas.udp), FailedConnects: r.failedConnects.Load(), FailedHandshakes: r.failedHandshakes.Load()}
	s.TCP.TurnedAway, s.UDP.TurnedAway = r.overload.counts()
	return s
}

// Overloaded returns the ports that have refused clients in the last minute or two, sorted.
func (r *Relay) Overloaded() []Overloaded { return r.overload.list() }

// OverloadedChanged is signaled when Overloaded has changed.
func (r *Relay) OverloadedChanged() <-chan struct{} { return r.overload.changed }

// Set replaces the Ports on loopback and returns at once; Run opens and closes listeners soon. The
// caller must not modify the slices afterwards.
func (r *Relay) Set(ports []Port) { r.loopback.set(ports) }

// Problems returns the ports without a listener, sorted by ID and address, as of the last
// time that Run opened and closed listeners: see Changed.
func (r *Relay) Problems() []Problem { return r.loopback.listeners.Problems() }

// Changed is signaled after Problems has changed.
func (r *Relay) Changed() <-chan struct{} { return r.loopback.listeners.Changed() }

// Open opens a listener that the kernel may redirect clients to, unless it is open. Its clients wait
// until Redirect names a port for it and Run runs.
func (r *Relay) Open(protocol string, at netip.AddrPort) error {
	f := r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.openFront(socketKey{protocol, at})
	return err
}

// Redirect takes the ports of a Service that the kernel redirects clients to, with Frontends, and serves
// them when it returns. Those that the Service had and are not named any more are removed after limits.removal,
// unless more is set, which is for the time before the kernel has heard of the change. An error is about
// listeners that cannot be opened; the other ports are served.
func (r *Relay) Redirect(service string, ports []Port, more bool) error {
	return r.RedirectAll(map[string][]Port{service: ports}, more)
}

// RedirectAll is Redirect for several Services. Clients of a new listener are let in when all of them are
// known, so none finds that its port is missing.
func (r *Relay) RedirectAll(services map[string][]Port, more bool) error {
	return r.fronts.redirect(services, more)
}

// CloseUnused closes the listeners that have no port. Their connections live on.
func (r *Relay) CloseUnused() {
	r.fronts.mu.Lock()
	defer r.fronts.mu.Unlock()
	r.fronts.closeUnused()
}

// Inherit takes what the program before has left, before Run. Its connections go on at once.
func (r *Relay) Inherit(s *State) { r.arriving.take(s) }

// InheritSocket takes a listening socket that was kept, before Run.
func (r *Relay) InheritSocket(f *os.File) error { return r.arriving.takeSocket(f) }

// Settle closes what the program before has left and no Port has taken, soon. It is called when all
// Ports were named.
func (r *Relay) Settle() {
	r.arriving.settleNext()
	r.loopback.listeners.Trigger()
}

// Run opens and closes listeners until ctx is done. It then closes all listeners and connections, or, where
// the cause is handover.ErrRequested, leaves them open for HandedOver, waits for its goroutines and returns
// nil. It may be called once. It opens sockets in the network namespace of the process.
func (r *Relay) Run(ctx context.Context) error {
	requests := make(chan struct{})
	answering, stop := context.WithCancel(context.Background()) // ends after clients were reset: it would close them
	go func() {
		defer close(requests)
		r.http.Run(answering)
	}()
	defer func() { stop(); <-requests }()
	r.fronts.serve(r.ctx)
	r.loopback.listeners.Run(ctx, r.loopback.reconcile)
	if handover.IsRequested(ctx) {
		r.drainLast()
	}
	r.end(context.Cause(ctx))
	r.overload.stop()
	if handover.IsRequested(ctx) {
		r.pause()
		return nil
	}
	r.loopback.close()
	r.fronts.close()
	r.tasks.Wait()
	r.pump.close()
	return nil
}

// Drain is for a hand-over to come. It has clients of HTTP make another connection for their next request (Connection:
// close, GOAWAY), and waits until all connections have ended that cannot be handed over and are open now, or ctx is
// done. All clients are served meanwhile, new ones too.
func (r *Relay) Drain(ctx context.Context) {
	open, over := r.draining.next()
	if open > 0 {
		r.log.Info("waiting for connections with TLS or HTTP to end before the hand-over", "connections", open)
	}
	go r.http.Drain(ctx)
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// drainLast stops accepting clients, and waits a little for connections that cannot be handed over.
func (r *Relay) drainLast() {
	r.loopback.pauseTCP()
	r.fronts.pauseTCP()
	_, over := r.draining.next()
	timer := time.NewTimer(r.limits.lastDrain)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// pause has everything rest that Run has started, for HandedOver.
func (r *Relay) pause() {
	r.loopback.pause()
	r.fronts.pause()
	r.tasks.Wait()
	r.loopback.leave()
	r.fronts.leave()
}

// HandedOver returns what Run has left after its context ended by handover.ErrRequested; nil: nothing.
func (r *Relay) HandedOver() *State { return r.leaving.finish() }
