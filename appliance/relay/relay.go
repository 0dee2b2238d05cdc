package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
)

// Relay serves Ports. All methods may be called concurrently. It has more than 15 fields: listeners, limits, counts
// and what is handed over to a new process belong to all ports.
type Relay struct {
	log            *slog.Logger
	limits         limits
	origin         Origin
	quotas         *quotas
	overload       *overload
	buffers        sync.Pool // of datagrams
	pump           *pump
	open           *openCounts
	lately         lately
	listeners      *listen.Reconciler[Problem]
	tasks          sync.WaitGroup
	fronts         fronts
	arriving       arriving
	leaving        leaving
	draining       draining
	store          *handover.Store
	failedConnects atomic.Int64
	// ctx ends after that of Run, by the same cause: connections of the program before go on before Run.
	ctx  context.Context
	end  context.CancelCauseFunc
	http *httpproxy.Proxy
	// failedHandshakes counts failed TLS handshakes, with clients and with endpoints.
	failedHandshakes atomic.Int64

	mu      sync.Mutex
	desired []Port
}

// Origin finds what a UDP client sent to before the kernel redirected it to one of the listeners.
type Origin func(listener, client netip.AddrPort) (netip.AddrPort, error)

// New returns a Relay without Ports. origin may be nil where the kernel redirects no UDP.
func New(log *slog.Logger, origin Origin) *Relay { return newRelay(log, origin, defaults()) }

func newRelay(log *slog.Logger, origin Origin, l limits) *Relay {
	ctx, end := context.WithCancelCause(context.Background())
	return &Relay{
		ctx: ctx, end: end, store: handover.NewStore(),
		log: log, limits: l, origin: origin, quotas: newQuotas(&l), overload: newOverload(log, l.logInterval),
		buffers: sync.Pool{New: func() any { return new([maxDatagram]byte) }},
		pump:    newPump(l.pipes), open: newOpenCounts(),
		listeners: listen.NewReconciler[Problem](l.retry),
		fronts:    fronts{open: map[frontKey]*front{}, ports: map[string]map[key]*redirected{}},
		arriving:  arriving{sockets: map[frontKey]*os.File{}, ports: map[key]*HeldPort{}, tcp: map[key]*tcpPort{}},
		leaving:   leaving{conns: map[*tcpPort][]HeldConnection{}}, draining: newDraining(),
		http: httpproxy.New(log),
	}
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
func (r *Relay) Set(ports []Port) {
	r.mu.Lock()
	r.desired = ports
	r.mu.Unlock()
	r.listeners.Trigger()
}

// Problems returns the ports without a listener, sorted by ID and address, as of the last
// time that Run opened and closed listeners: see Changed.
func (r *Relay) Problems() []Problem { return r.listeners.Problems() }

// Changed is signaled after Problems has changed.
func (r *Relay) Changed() <-chan struct{} { return r.listeners.Changed() }

// Run opens and closes listeners until ctx is done. It then closes all listeners and connections, or, where
// the cause is handover.ErrRequested, leaves them open for HandedOver, waits for its goroutines and returns
// nil. It may be called once. It opens sockets in the network namespace of the process.
func (r *Relay) Run(ctx context.Context) error {
	open := map[key]listener{}
	requests := make(chan struct{})
	answering, stop := context.WithCancel(context.Background()) // ends after clients were reset: it would close them
	go func() {
		defer close(requests)
		r.http.Run(answering)
	}()
	defer func() { stop(); <-requests }()
	r.fronts.serve(r.ctx)
	r.listeners.Run(ctx, func() ([]Problem, bool) { return r.reconcile(r.ctx, open) })
	if handover.IsRequested(ctx) {
		r.drainLast(open)
	}
	r.end(context.Cause(ctx))
	r.overload.stop()
	if handover.IsRequested(ctx) {
		r.pause(open)
		return nil
	}
	for _, l := range open {
		l.close()
	}
	r.fronts.close()
	r.tasks.Wait()
	r.pump.close()
	return nil
}

// listener serves one Port.
type listener interface {
	// update replaces the endpoints and the affinity.
	update(Port)
	// close closes the listening socket before it returns.
	close()
}

// reconcile opens missing listeners, updates open ones and closes superfluous ones. retry
// means that one could not be opened but may be later.
func (r *Relay) reconcile(ctx context.Context, open map[key]listener) (problems []Problem, retry bool) {
	r.mu.Lock()
	desired := r.desired
	r.mu.Unlock()

	wanted := make(map[key]bool, len(desired))
	for _, p := range desired {
		if len(p.Endpoints)+len(p.Names) > 0 {
			wanted[p.key()] = true
		}
	}
	// Close first: another port may need the same address.
	for k, l := range open {
		if !wanted[k] {
			l.close()
			delete(open, k)
		}
	}
	for _, p := range desired {
		k := p.key()
		if !wanted[k] {
			continue
		}
		if l, is := open[k]; is {
			l.update(p)
			continue
		}
		l, problem := r.listen(ctx, p)
		if problem != nil {
			problems = append(problems, *problem)
			retry = retry || problem.Reason == ReasonListen
			continue
		}
		open[k] = l
	}
	r.settled()
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), a.Listen.Compare(b.Listen), strings.Compare(a.Message, b.Message))
	})
	return problems, retry
}

// listen opens the listener of a Port with endpoints.
func (r *Relay) listen(ctx context.Context, p Port) (listener, *Problem) {
	problem := func(reason, format string, args ...any) *Problem {
		where := fmt.Sprintf("node port %d/%s does not answer on %s: ", p.Listen.Port(), strings.ToUpper(p.Protocol), p.Listen.Addr())
		return &Problem{ID: p.ID, Listen: p.Listen, Reason: reason, Message: where + fmt.Sprintf(format, args...)}
	}
	if !p.Listen.Addr().IsLoopback() || p.Listen.Addr().Is4In6() {
		return nil, problem(ReasonNotLoopback, "only loopback addresses are relayed: leave it out")
	}
	var l listener
	var err error
	log := r.logOf(p)
	switch p.Protocol {
	case TCP:
		var port *tcpPort
		var socket *tcpListener
		if socket, err = r.listenTCP(p.Listen, log, func(*net.TCPConn) (*tcpPort, netip.AddrPort, error) { return port, p.Listen, nil }); err == nil {
			port = r.portOf(p)
			socket.start(ctx)
			l = &loopbackTCP{socket, port}
		}
	case UDP:
		port := r.newUDPPort(p)
		var socket *udpListener
		if socket, err = r.listenUDP(p.Listen, log, func(netip.AddrPort) (*udpPort, netip.AddrPort, error) { return port, p.Listen, nil }); err == nil {
			r.flowsOf(socket, port)
			socket.start(ctx)
			l = &loopbackUDP{socket, port}
		}
	default:
		return nil, problem(ReasonProtocol, "only TCP and UDP are relayed on loopback: use another address of this host")
	}
	if err != nil {
		return nil, problem(ReasonListen, "%v: %s", err, listen.Advice(err, p.Listen.Port(), "tu", "another node port"))
	}
	return l, nil
}

func (r *Relay) logOf(p Port) *slog.Logger {
	return r.log.With("svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol)
}
