package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/resolve"
)

const (
	// idleTimeout closes an idle TCP connection (RFC 7766, section 6.2.3, asks for a few
	// seconds).
	idleTimeout = 5 * time.Second
	// stopTimeout bounds the wait for running answers when the server stops.
	stopTimeout = time.Second
	// received is the size in bytes of the largest UDP question that is read.
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
	ctx     context.Context // of Run, for what is asked upstream
	stop    context.CancelFunc
}

// socket is one address with one protocol.
type socket struct {
	server *dns.Server
	close  func() error
}

// Listen opens the addresses, and fails if one is in use. Nothing is answered before Run.
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
		upstreams: newUpstreams(cfg.Upstreams, log), limiter: newLimiter(), started: time.Now(),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// listen opens one address. With port 0, UDP gets the port of TCP.
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

// accept filters messages by their header: only questions pass.
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

// Update replaces Services by "namespace/name"; an input without a Service deletes one.
// It must not be called concurrently. It waits for nothing and blocks no answers.
func (s *Server) Update(changed map[string]resolve.Input) { s.index.update(changed, time.Now()) }

// Complete means that Update has passed all Services. Until then unknown names get no
// answer instead of a negative one.
func (s *Server) Complete() { s.index.complete.Store(true) }

// Services returns the "namespace/name" of the known Services.
func (s *Server) Services() []string { return s.index.known() }

// SetLocal sets the addresses of this host.
func (s *Server) SetLocal(addrs []netip.Addr) {
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		local[a] = true
	}
	s.local.Store(&local)
}

// Run answers until ctx is done and then returns nil. An error names the address that
// failed.
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

// shutdown lets questions that are being answered finish, for a moment.
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
