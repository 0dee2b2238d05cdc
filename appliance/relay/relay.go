package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/listen"
)

// The protocols of a Port.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // not relayed: reported as a Problem
)

// Port is a node port on one loopback address.
type Port struct {
	ID        string           // "namespace/name/port", for problems and the log
	Listen    netip.AddrPort   // a loopback address and the node port
	Protocol  string           // TCP or UDP
	Endpoints []netip.AddrPort // empty: no listener
	// Weights are those of the endpoints, in their order; nil: all are alike.
	Weights []uint16
	// Choose, when not nil, is the endpoint of a new connection of a client; not ok: one is
	// drawn by weight.
	Choose func(client netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	// Affinity is the time that a client keeps its endpoint after its last new connection;
	// 0: no affinity. A client is an address (spec.sessionAffinity: ClientIP).
	Affinity time.Duration
}

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
	port        int64         // concurrent connections, or UDP clients, of a port
	total       int64         // the same of all ports together
	clients     int           // affinity entries of a port
	dial        time.Duration // timeout of connecting to an endpoint
	unreplied   time.Duration // idle timeout of a UDP client without an answer
	replied     time.Duration // idle timeout of a UDP client with an answer
	retry       time.Duration // between attempts to open a listener
	backoff     time.Duration // after a failure to accept or receive
	logInterval time.Duration // between repetitions of a log line
}

// defaults bound descriptors: a TCP connection has two sockets and, while bytes flow,
// two pipes, a UDP client has one socket. 8192 connections stay well below the limit
// that systemd gives (524288 descriptors). The times of UDP are those of conntrack:
// net.netfilter.nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream.
func defaults() limits {
	return limits{
		port: 1024, total: 8192, clients: 4096,
		dial: 5 * time.Second, unreplied: 30 * time.Second, replied: 120 * time.Second,
		retry: 5 * time.Second, backoff: 100 * time.Millisecond, logInterval: time.Minute,
	}
}

// Relay serves Ports. All methods may be called concurrently.
type Relay struct {
	log       *slog.Logger
	limits    limits
	total     quota
	buffers   sync.Pool
	listeners *listen.Reconciler[Problem]
	tasks     sync.WaitGroup

	mu      sync.Mutex
	desired []Port
}

// New returns a Relay without Ports.
func New(log *slog.Logger) *Relay { return newRelay(log, defaults()) }

func newRelay(log *slog.Logger, l limits) *Relay {
	return &Relay{
		log: log, limits: l, total: quota{limit: l.total},
		buffers:   sync.Pool{New: func() any { return new([maxDatagram]byte) }},
		listeners: listen.NewReconciler[Problem](l.retry),
	}
}

// Set replaces the Ports and returns at once; Run opens and closes listeners soon. The
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

// Run opens and closes listeners until ctx is done. It then closes all listeners and
// connections, waits for its goroutines and returns nil. It may be called once. It opens
// sockets in the network namespace of the process.
func (r *Relay) Run(ctx context.Context) error {
	open := map[key]listener{}
	defer r.tasks.Wait()
	defer func() {
		for _, l := range open {
			l.close()
		}
	}()
	r.listeners.Run(ctx, func() ([]Problem, bool) { return r.reconcile(ctx, open) })
	return nil
}

// key identifies a listener: a change of it takes a new one.
type key struct {
	id, protocol string
	listen       netip.AddrPort
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
		if len(p.Endpoints) > 0 {
			wanted[key{p.ID, p.Protocol, p.Listen}] = true
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
		k := key{p.ID, p.Protocol, p.Listen}
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
	switch p.Protocol {
	case TCP:
		l, err = r.listenTCP(ctx, p)
	case UDP:
		l, err = r.listenUDP(p)
	default:
		return nil, problem(ReasonProtocol, "only TCP and UDP are relayed on loopback: use another address of this host")
	}
	if err != nil {
		return nil, problem(ReasonListen, "%v: %s", err, listen.Advice(err, p.Listen.Port(), "tu", "another node port"))
	}
	return l, nil
}

// network returns the network name of the port for package net, as in "tcp4".
func (p Port) network() string {
	if p.Listen.Addr().Is4() {
		return p.Protocol + "4"
	}
	return p.Protocol + "6"
}
