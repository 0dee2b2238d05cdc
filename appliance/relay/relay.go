package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The protocols of a Port.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // is not relayed: a Problem says so
)

// Port is a node port on one loopback address.
type Port struct {
	ID        string           // "namespace/name/port": names it in problems and in the log
	Listen    netip.AddrPort   // a loopback address and the node port
	Protocol  string           // TCP or UDP
	Endpoints []netip.AddrPort // empty: nobody listens
	// Affinity is how long a client keeps its endpoint after its last new connection;
	// 0: no affinity. Clients are told apart by address: Service spec.sessionAffinity.
	Affinity time.Duration
}

// Problem is a Port that is not served.
type Problem struct {
	ID      string
	Listen  netip.AddrPort
	Reason  string // one of the Reason constants
	Message string
}

// The reasons of Problems.
const (
	ReasonListen      = "LoopbackListenFailed" // tried again every few seconds
	ReasonNotLoopback = "NotLoopback"          // the address to listen on is no loopback address
	ReasonProtocol    = "ProtocolNotRelayed"   // neither TCP nor UDP
)

// limits are the bounds and times of a Relay.
type limits struct {
	port      int64         // connections, or UDP clients, of a port at once
	total     int64         // the same of all ports together
	clients   int           // with affinity that a port remembers
	dial      time.Duration // to connect to an endpoint
	unreplied time.Duration // until a UDP client without an answer is forgotten
	replied   time.Duration // until a UDP client with one is
	retry     time.Duration // between attempts to listen where it failed
	pause     time.Duration // of accepting and receiving when the box is out of resources
	complain  time.Duration // at least, between equal lines in the log
}

// defaults bound descriptors: a TCP connection has two sockets and, while bytes flow,
// two pipes, a UDP client has one socket. 8192 connections stay well below the limit
// that systemd gives (524288 descriptors). The times of UDP are those of conntrack:
// net.netfilter.nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream.
func defaults() limits {
	return limits{
		port: 1024, total: 8192, clients: 4096,
		dial: 5 * time.Second, unreplied: 30 * time.Second, replied: 120 * time.Second,
		retry: 5 * time.Second, pause: 100 * time.Millisecond, complain: time.Minute,
	}
}

// Relay listens where it is told to. All methods may be called concurrently.
type Relay struct {
	log     *slog.Logger
	limits  limits
	total   room
	buffers sync.Pool
	dirty   chan struct{} // there is something to set
	changed chan struct{}
	tasks   sync.WaitGroup

	mu       sync.Mutex
	want     []Port
	problems []Problem
}

// New is a Relay that listens nowhere yet.
func New(log *slog.Logger) *Relay { return newRelay(log, defaults()) }

func newRelay(log *slog.Logger, l limits) *Relay {
	return &Relay{
		log: log, limits: l, total: room{limit: l.total},
		buffers: sync.Pool{New: func() any { return new([maxDatagram]byte) }},
		dirty:   make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

// Set has the relay listen for exactly these ports, as soon as Run gets to it, and
// returns at once. The slices must not be changed any more.
func (r *Relay) Set(ports []Port) {
	r.mu.Lock()
	r.want = ports
	r.mu.Unlock()
	signal(r.dirty)
}

// Problems are the ports that are not served, sorted by ID and address. They are as of
// the last time Run got to it: see Changed.
func (r *Relay) Problems() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.problems)
}

// Changed is signaled after Problems has changed.
func (r *Relay) Changed() <-chan struct{} { return r.changed }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is signaled already
	}
}

// Run does what Set says until ctx is done. It then stops listening, cuts the
// connections, waits for everything it has started and returns nil. It may be called
// once. The sockets are made in the network namespace of the process.
func (r *Relay) Run(ctx context.Context) error {
	open := map[key]listener{}
	defer r.tasks.Wait()
	defer func() {
		for _, l := range open {
			l.close()
		}
	}()
	retry := time.NewTimer(0)
	retry.Stop()
	for {
		if r.converge(ctx, open) {
			retry.Reset(r.limits.retry)
		} else {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.dirty:
		case <-retry.C:
		}
	}
}

// key is what a listener cannot change.
type key struct {
	id, protocol string
	listen       netip.AddrPort
}

// listener serves one Port.
type listener interface {
	// update takes the endpoints and the affinity of the Port from now on.
	update(Port)
	// close stops listening before it returns.
	close()
}

// converge makes the listeners those that are wanted, and reports whether one could not
// be opened that may be later.
func (r *Relay) converge(ctx context.Context, open map[key]listener) (retry bool) {
	r.mu.Lock()
	want := r.want
	r.mu.Unlock()

	wanted := make(map[key]bool, len(want))
	for _, p := range want {
		if len(p.Endpoints) > 0 {
			wanted[key{p.ID, p.Protocol, p.Listen}] = true
		}
	}
	// Closing comes first: another port may want the place.
	for k, l := range open {
		if !wanted[k] {
			l.close()
			delete(open, k)
		}
	}
	var problems []Problem
	for _, p := range want {
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
	r.publish(problems)
	return retry
}

func (r *Relay) publish(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), a.Listen.Compare(b.Listen), strings.Compare(a.Message, b.Message))
	})
	r.mu.Lock()
	same := slices.Equal(problems, r.problems)
	r.problems = problems
	r.mu.Unlock()
	if !same {
		signal(r.changed)
	}
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
		return nil, problem(ReasonListen, "%v: %s", err, advice(p, err))
	}
	return l, nil
}

// advice is what to do about a failure to listen.
func advice(p Port, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("stop the program that has it (`ss -tulnp sport = :%d` names it), or give the Service another node port", p.Listen.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give this host the address, or leave it out of --nodeport-addresses"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (LimitNOFILE)"
	case errors.Is(err, syscall.EACCES):
		return "let the program bind low ports (CAP_NET_BIND_SERVICE), or give the Service another node port"
	}
	return "it is tried again every few seconds"
}

// network is p's protocol for package net, with the family: "tcp4".
func (p Port) network() string {
	if p.Listen.Addr().Is4() {
		return p.Protocol + "4"
	}
	return p.Protocol + "6"
}
