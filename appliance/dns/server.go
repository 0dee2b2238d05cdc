package dns

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/resolve"
)

const (
	// idleTimeout is the time after which an idle TCP connection is closed (RFC 7766, section 6.2.3, asks for a few seconds).
	idleTimeout = 5 * time.Second
	// stopTimeout is the longest wait for questions in progress when the server stops.
	stopTimeout = time.Second
	// received is the size of the largest UDP message that is read, in bytes.
	received = 4096
)

// Server is a DNS server for the names of Services.
type Server struct {
	cfg        Config
	log        *slog.Logger
	index      *index
	namespaces []ClientNamespace // the most specific first
	upstreams  *upstreams
	limiter    *limiter
	started    time.Time
	local      atomic.Pointer[map[netip.Addr]bool]

	sockets []socket
	ctx     context.Context // the context of Run, for upstream queries
	stop    context.CancelFunc
}

// socket is the server for one address and protocol.
type socket struct {
	server *dns.Server
	close  func() error
}

// Listen opens the addresses, and fails if one is in use. Questions are answered once Run runs.
func Listen(cfg Config, log *slog.Logger) (*Server, error) {
	s := newServer(cfg, log)
	for _, address := range cfg.Addresses {
		if err := s.listen(address); err != nil {
			return nil, errors.Join(fmt.Errorf(
				"open --dns-listen %s: %w: give an address of this host that no other DNS server uses", address, err), s.Close())
		}
	}
	return s, nil
}

func newServer(cfg Config, log *slog.Logger) *Server {
	if cfg.Count == nil {
		cfg.Count = func(string) {}
	}
	s := &Server{
		cfg: cfg, log: log, index: newIndex(&cfg), namespaces: byLength(cfg.Namespaces),
		upstreams: &upstreams{log: log, servers: cfg.Upstreams, asking: make(chan struct{}, maxAsking)}, limiter: newLimiter(), started: time.Now(),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// listen opens one address for TCP and UDP. With port 0, UDP uses the port that TCP got.
func (s *Server) listen(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	stream, err := listen.TCP(s.ctx, address)
	if err != nil {
		return err
	}
	at := stream.Addr().(*net.TCPAddr).AddrPort()
	if port == "0" {
		address = net.JoinHostPort(host, strconv.Itoa(int(at.Port())))
	}
	packets, err := listen.UDP(s.ctx, address)
	if err != nil {
		return errors.Join(err, stream.Close())
	}
	if addr := at.Addr().Unmap().WithZone(""); !addr.IsUnspecified() {
		s.index.server.add(addr)
	}
	stream = newGate(stream)
	s.sockets = append(s.sockets,
		socket{s.serverOn(&dns.Server{Listener: stream}), stream.Close},
		socket{s.serverOn(&dns.Server{PacketConn: packets, UDPSize: received}), packets.Close})
	return nil
}

func (s *Server) serverOn(server *dns.Server) *dns.Server {
	server.Handler, server.MsgAcceptFunc = s, accept
	server.IdleTimeout = func() time.Duration { return idleTimeout }
	return server
}

// accept decides by the header of a message whether it is handled: only queries are.
func accept(h dns.Header) dns.MsgAcceptAction {
	const opcodes = 0xf << 11
	action := dns.DefaultMsgAcceptFunc(h)
	if action == dns.MsgAccept && h.Bits&opcodes != dns.OpcodeQuery<<11 {
		return dns.MsgRejectNotImplemented
	}
	return action
}

// Addresses returns the UDP addresses of the server.
func (s *Server) Addresses() []netip.AddrPort {
	var all []netip.AddrPort
	for _, socket := range s.sockets {
		if conn := socket.server.PacketConn; conn != nil {
			all = append(all, conn.LocalAddr().(*net.UDPAddr).AddrPort())
		}
	}
	return all
}

// Update replaces the records of Services by "namespace/name"; an input without a Service deletes them. It must not be called concurrently.
// It does not block answers.
func (s *Server) Update(changed map[string]resolve.Input) { s.index.update(changed, time.Now()) }

// Complete records that Update was called with all Services. Before that, unknown names get SERVFAIL instead of NXDOMAIN.
func (s *Server) Complete() { s.index.complete.Store(true) }

// Services returns the "namespace/name" of all Services with records.
func (s *Server) Services() []string { return s.index.known() }

// SetLocal sets the addresses of this host. Questions from them may go to upstreams.
func (s *Server) SetLocal(addrs []netip.Addr) {
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		local[a] = true
	}
	s.local.Store(&local)
}

// Run answers questions until ctx is done and then returns nil. An error names the address that failed.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, len(s.sockets))
	for _, socket := range s.sockets {
		go func() { ended <- socket.server.ActivateAndServe() }()
	}
	var err error
	running := len(s.sockets)
	select {
	case <-ctx.Done():
	case err = <-ended:
		running--
		err = fmt.Errorf("answer DNS: %w", err)
	}
	s.stop()
	s.shutdown()
	for range running {
		<-ended
	}
	return err
}

// shutdown closes the addresses. It waits for questions in progress, for at most stopTimeout.
func (s *Server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	for _, socket := range s.sockets {
		_ = socket.server.ShutdownContext(ctx) // it was not started yet, or the time is up: Close ends it
	}
	_ = s.Close()
}

// Close closes the addresses. Run does it too.
func (s *Server) Close() error {
	var errs []error
	for _, socket := range s.sockets {
		if err := socket.close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Config configures a Server. Its values must have been validated.
type Config struct {
	// Addresses are the listening addresses for UDP and TCP as host:port; an empty host
	// means all.
	Addresses []string
	// Domain is the zone in lower case, without a trailing dot: "cluster.local". It has
	// at most MaxDomain bytes.
	Domain string
	// Upstreams are the resolvers for names outside the server's zones, in order of preference. Without any, questions for such names are refused.
	Upstreams []netip.AddrPort
	// Internal are the networks that may use the upstreams. This host always may.
	Internal []netip.Prefix
	// ServiceRanges are the ranges of cluster IPs. The server is authoritative for their reverse zones.
	ServiceRanges []netip.Prefix
	// Namespaces maps clients to namespaces.
	Namespaces []ClientNamespace
	// Count, if not nil, is called with the result of every answer, one of Results. It
	// must not block.
	Count func(result string)
}

// The results of questions, as metrics count them.
const (
	resultSuccess = "success" // NOERROR, with or without records
	resultNoName  = "nxdomain"
	resultFailed  = "failed" // SERVFAIL and others, also because an upstream failed
	resultRefused = "refused"
	resultBad     = "bad" // FORMERR or BADVERS: the message is malformed, or its EDNS version unknown
	resultLimited = "limited"
)

// Results lists all results of questions for metrics. Messages that are not queries are not counted.
var Results = []string{resultSuccess, resultNoName, resultFailed, resultRefused, resultBad, resultLimited}

// MaxDomain is the maximum length of the domain in bytes, so that every name fits into
// 255 bytes (RFC 1035, section 2.3.4): three labels of 63 for an endpoint, a Service and
// a namespace, and "svc" precede it.
const MaxDomain = 255 - 3*(63+1) - (3 + 1) - 2

// ClientNamespace assigns a namespace to the clients in a prefix. They may omit the namespace and the domain in names.
type ClientNamespace struct {
	Prefix    netip.Prefix
	Namespace string
}

// byLength sorts namespaces by prefix length, longest first.
func byLength(all []ClientNamespace) []ClientNamespace {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b ClientNamespace) int { return b.Prefix.Bits() - a.Prefix.Bits() })
	return sorted
}

// At most answersPerSecond answers over UDP are sent to one network of clients, with bursts of answersAtOnce. This limits the traffic that an
// attacker with forged source addresses can direct to a network. A network has a prefix length of network4 or network6 bits, as in BIND's response
// rate limiting.
const (
	answersPerSecond = 1000
	answersAtOnce    = 2000
	network4         = 24
	network6         = 56
)

// buckets is the number of token buckets, a power of two: 128 KiB for any number of clients. Networks with the same hash share a bucket;
// the hash is seeded and unpredictable.
const buckets = 1 << 14

// limiter has a token bucket for each network of clients. A bucket holds the time, on the Server's clock, at which its answers so far would
// have been due at the allowed rate (the virtual scheduling of ITU-T I.371): a single number, which needs no lock.
type limiter struct {
	seed maphash.Seed
	due  [buckets]atomic.Int64 // in nanoseconds on the Server's clock
}

func newLimiter() *limiter { return &limiter{seed: maphash.MakeSeed()} }

// allow reports whether another answer may be sent to a client now, and counts it.
func (l *limiter) allow(client netip.Addr, now time.Duration) bool {
	bits := network4
	if client.Is6() {
		bits = network6
	}
	network, _ := client.Prefix(bits) // an address is not shorter than that
	bucket := &l.due[maphash.Comparable(l.seed, network)%buckets]
	const gap = int64(time.Second) / answersPerSecond
	for {
		old := bucket.Load()
		due := max(old, int64(now)) + gap
		if due-int64(now) > answersAtOnce*gap {
			return false
		}
		if bucket.CompareAndSwap(old, due) {
			return true
		}
	}
}

// maxConnections is the largest number of open TCP connections, maxConnectionsEach the largest number for one client. A client is an IPv4 address, or
// an IPv6 network with a prefix of clientBits, which one host may own.
const (
	maxConnections     = 256
	maxConnectionsEach = 32
	clientBits         = 64
)

// acceptAgain is the wait after a failed accept, for example without free descriptors (EMFILE). It doubles up to acceptAgainAtMost.
const acceptAgain, acceptAgainAtMost = 5 * time.Millisecond, time.Second

// gate is a listener that closes connections above a limit at once. Only Close ends it.
type gate struct {
	net.Listener
	closed chan struct{}
	close  func() error

	mu   sync.Mutex
	open map[netip.Prefix]int
	all  int
}

func newGate(l net.Listener) *gate {
	g := &gate{Listener: l, closed: make(chan struct{}), open: map[netip.Prefix]int{}}
	g.close = sync.OnceValue(func() error { close(g.closed); return l.Close() })
	return g
}

// Close stops the listener.
func (g *gate) Close() error { return g.close() }

// Accept waits for a connection within the limits. It retries after errors, with a pause, and returns only net.ErrClosed: its caller would
// retry without a pause after a temporary error, and stop after others.
func (g *gate) Accept() (net.Conn, error) {
	wait := acceptAgain
	for {
		conn, err := g.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			select {
			case <-g.closed:
				return nil, net.ErrClosed
			case <-time.After(wait):
			}
			wait = min(2*wait, acceptAgainAtMost)
			continue
		}
		wait = acceptAgain
		if client := clientOf(conn.RemoteAddr()); g.enter(client) {
			return &gatedConn{Conn: conn, leave: sync.OnceFunc(func() { g.leave(client) })}, nil
		}
		_ = conn.Close() // the client sees that
	}
}

// clientOf returns the prefix by which the connections of a client are counted; the zero Prefix for an address that is not IP.
func clientOf(remote net.Addr) netip.Prefix {
	client, _ := addressOf(remote)
	if !client.IsValid() {
		return netip.Prefix{}
	}
	bits := client.BitLen()
	if client.Is6() {
		bits = clientBits
	}
	network, _ := client.Prefix(bits) // an address is not shorter than that
	return network
}

func (g *gate) enter(client netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxConnections || g.open[client] >= maxConnectionsEach {
		return false
	}
	g.all++
	g.open[client]++
	return true
}

func (g *gate) leave(client netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.open[client]--; g.open[client] == 0 {
		delete(g.open, client)
	}
}

type gatedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and counts it as closed.
func (c *gatedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
