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
	"time"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
)

// The protocols of a Port.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // not relayed: reported as a Problem
)

// Port is a way to one pool of endpoints: a node port on one loopback address, or frontends that
// the kernel redirects to a listener of the relay.
// It has more than 15 fields: it is all that Services say of a port, as one value that is compared.
type Port struct {
	ID       string         // "namespace/name/port", for problems and the log
	Listen   netip.AddrPort // a loopback address and the node port, or the listener of the relay
	Protocol string         // TCP or UDP
	// Frontends are the addresses whose clients the kernel redirects to Listen; the zero Addr
	// stands for any address. Nil: Listen is a node port on loopback.
	Frontends []netip.AddrPort
	// ProxyFrom are the balancers whose TCP connections begin with a header of the PROXY protocol.
	ProxyFrom []netip.Prefix
	// Endpoints get new connections. A node port on loopback without any, and without Names, has no listener.
	Endpoints []netip.AddrPort
	Pick      Pick
	// Serving are endpoints that keep their connections besides.
	Serving []netip.AddrPort
	// Ended are endpoints whose TCP connections are reset.
	Ended []netip.AddrPort
	// Drain is after how long TCP connections of an endpoint are reset that is in neither; nil: never.
	Drain   *time.Duration
	Connect Connect
	// IdleTimeout resets TCP connections over which nothing came for that time; 0: none.
	IdleTimeout time.Duration
	// Logged has EndpointsOf know its clients.
	Logged bool
	// Front handles TLS and HTTP; nil: bytes are passed on as they are.
	Front *Front
	// Names has the endpoints by server name; clients without a server name get the port's own.
	Names []Named

	// via tells it apart from others of the same ID and Listen: for one of Names, the port that has it and
	// its server name.
	via string
}

// Pick says which endpoint gets a new connection.
type Pick struct {
	By Algorithm
	// Weights has the weights of the endpoints, in their order; nil: all are alike.
	Weights []uint16
	// Choose, when not nil, returns the endpoint of a new connection by its client and the address that it connected
	// to. When it is not ok, or that endpoint did not accept the connection, By picks one.
	Choose func(client, asked netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	// Affinity is the time that a client keeps its endpoint after its last new connection;
	// 0: no affinity. A client is an address (spec.sessionAffinity: ClientIP).
	Affinity time.Duration
}

// Algorithm picks an endpoint when neither Choose nor affinity does.
type Algorithm uint8

const (
	// Random draws by weight.
	Random Algorithm = iota
	// RoundRobin gives turns: in the order of the addresses, or where weights differ in the smooth order of nginx
	// (ngx_http_upstream_round_robin.c).
	RoundRobin
	// LeastConnection picks the endpoint with the fewest open connections for its weight; of several, in turn.
	// Connections of all Ports of the same ID and protocol count, from when their endpoint is picked.
	LeastConnection
)

// Connect says how TCP connections to endpoints are made.
type Connect struct {
	// Retries bounds the other endpoints that are tried for a connection that one did not accept
	// within Timeout, by default 5 s.
	Retries int
	Timeout time.Duration
	// ProxyProtocol is the version of the PROXY protocol whose header an endpoint gets before what
	// the client sends: 1 or 2; 0: none.
	ProxyProtocol int
	// Transparent has an endpoint see the client's address as the source (IP_TRANSPARENT), which needs
	// routes that deliver its answers here. One of another family than the client's, or that is the client
	// itself, sees the box.
	Transparent bool
}

// keeps reports whether connections to an endpoint live on.
func (p *Port) keeps(endpoint netip.AddrPort) bool {
	return slices.Contains(p.Endpoints, endpoint) || slices.Contains(p.Serving, endpoint)
}

// ends reports whether TCP connections to an endpoint are reset at once.
func (p *Port) ends(endpoint netip.AddrPort) bool { return slices.Contains(p.Ended, endpoint) }

func (p *Port) key() key { return key{p.ID, p.Protocol, p.Listen, p.via} }

// redirected reports whether the kernel sends clients to the port.
func (p *Port) redirected() bool { return p.Frontends != nil }

// Problem is a Port without a listener.
type Problem struct {
	ID      string
	Listen  netip.AddrPort
	Reason  string // one of the Reason constants
	Message string
}

// The reasons of Problems.
const (
	ReasonListen      = "LoopbackListenFailed" // retried every few seconds
	ReasonNotLoopback = "NotLoopback"          // the address to listen on is no loopback address
	ReasonProtocol    = "ProtocolNotRelayed"   // neither TCP nor UDP
)

// limits are the limits and timeouts of a Relay.
type limits struct {
	tcp, udp    bothBounds    // concurrent connections, and clients
	pipes       int64         // for splice(2)
	clients     int           // affinity entries of a port
	header      time.Duration // timeout of a header of the PROXY protocol
	dial        time.Duration // timeout of connecting to an endpoint where the Port has none
	unreplied   time.Duration // idle timeout of a UDP client without an answer
	replied     time.Duration // idle timeout of a UDP client with an answer, once it goes on for
	stream      time.Duration // this time
	removal     time.Duration // that a port serves after the kernel sends it no new clients
	lastDrain   time.Duration // that a hand-over waits for connections that began during Drain; new clients wait meanwhile
	retry       time.Duration // between attempts to open a listener
	backoff     time.Duration // after a failure to accept or receive
	logInterval time.Duration // between repetitions of a log line
}

// defaults are for the limit of open files. The times of UDP are a little shorter than those of
// conntrack (net.netfilter.nf_conntrack_udp_timeout, 30 s, and nf_conntrack_udp_timeout_stream, 120 s, for
// what lasts 2 s): what a flow leads to never outlives the entry that said so.
func defaults() limits {
	l := limits{
		clients: 1 << 16,
		header:  10 * time.Second, dial: 5 * time.Second, unreplied: 28 * time.Second, replied: 115 * time.Second, stream: 2 * time.Second,
		removal: 10 * time.Second, lastDrain: 2 * time.Second, retry: 5 * time.Second, backoff: 100 * time.Millisecond, logInterval: time.Minute,
	}
	l.descriptors(openFiles())
	return l
}

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

// key identifies a listener: a change of it takes a new one.
type key struct {
	id, protocol string
	listen       netip.AddrPort
	via          string // Port.via
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
