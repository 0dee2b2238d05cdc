package healthport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/api"
)

// retryInterval is how long it takes to try again to open a listener.
const retryInterval = 5 * time.Second

// Service is a Service with a health-check node port.
type Service struct {
	Namespace, Name string
	Port            uint16 // spec.healthCheckNodePort; 0: none
	LocalEndpoints  int    // ready endpoint addresses on this box: its ports do not multiply them
}

// Problem is a health-check node port that does not answer, or not on all addresses.
type Problem struct {
	Namespace, Name string
	Reason          string // one of the Reason constants
	Message         string
}

// The reasons of Problems.
const (
	// ReasonListen is the reason of the event that kube-proxy reports for it.
	ReasonListen = "FailedToStartServiceHealthcheck"
	// ReasonConflict: another Service has the port.
	ReasonConflict = "Conflict"
)

// Servers answers for Services. All methods may be called concurrently.
type Servers struct {
	log     *slog.Logger
	retry   time.Duration
	dirty   chan struct{} // there are other ports or addresses
	changed chan struct{}
	tasks   sync.WaitGroup

	mu        sync.RWMutex
	services  map[uint16]Service // by port
	conflicts []Problem
	addresses []netip.Addr // empty: all of the host
	synced    bool
	problems  []Problem
}

// New is Servers that answer nowhere yet.
func New(log *slog.Logger) *Servers {
	return &Servers{log: log, retry: retryInterval, dirty: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Set has exactly these Services answered for, and returns at once: numbers hold from
// now on, listeners as soon as Run gets to it. Of two Services with one port, which
// allocation prevents, the first by name has it.
func (s *Servers) Set(services []Service) {
	ordered := slices.Clone(services)
	slices.SortFunc(ordered, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	byPort := make(map[uint16]Service, len(ordered))
	var conflicts []Problem
	for _, svc := range ordered {
		if svc.Port == 0 {
			continue
		}
		if holder, taken := byPort[svc.Port]; taken {
			conflicts = append(conflicts, svc.problem(ReasonConflict, fmt.Sprintf(
				"Service %s/%s has it: give one of them another port", holder.Namespace, holder.Name)))
			continue
		}
		byPort[svc.Port] = svc
	}
	s.mu.Lock()
	s.services, s.conflicts = byPort, conflicts
	s.mu.Unlock()
	signal(s.dirty)
}

// SetAddresses has the ports answer on these addresses of the host, those of node
// ports. None: on all that it has, also those that come later.
func (s *Servers) SetAddresses(addresses []netip.Addr) {
	s.mu.Lock()
	s.addresses = slices.Clone(addresses)
	s.mu.Unlock()
	signal(s.dirty)
}

// SetSynced sets whether the rules in the kernel are current. The initial value is false.
func (s *Servers) SetSynced(synced bool) {
	s.mu.Lock()
	s.synced = synced
	s.mu.Unlock()
}

// Problems are the ports that do not answer, sorted by Service. They are as of the last
// time Run got to it: see Changed.
func (s *Servers) Problems() []Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.problems)
}

// Changed is signaled after Problems has changed.
func (s *Servers) Changed() <-chan struct{} { return s.changed }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is signaled already
	}
}

func (svc Service) problem(reason, message string) Problem {
	return Problem{
		Namespace: svc.Namespace, Name: svc.Name, Reason: reason,
		Message: fmt.Sprintf("health-check node port %d does not answer: %s", svc.Port, message),
	}
}

// Run does what the setters say until ctx is done. It then closes all listeners and
// connections and returns nil. It may be called once. The sockets are made in the
// network namespace of the process.
func (s *Servers) Run(ctx context.Context) error {
	open := map[place]*server{}
	defer s.tasks.Wait() // ctx is done, and so are the servers soon
	retry := time.NewTimer(0)
	retry.Stop()
	for {
		if s.converge(ctx, open) {
			retry.Reset(s.retry)
		} else {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.dirty:
		case <-retry.C:
		}
	}
}

// place is where a server listens. The zero Addr stands for all addresses of the host.
type place struct {
	addr netip.Addr
	port uint16
}

func (p place) String() string {
	if p.addr.IsValid() {
		return netip.AddrPortFrom(p.addr, p.port).String()
	}
	return fmt.Sprintf(":%d", p.port)
}

// converge makes the listeners those that are wanted, and reports whether one is missing.
func (s *Servers) converge(ctx context.Context, open map[place]*server) (missing bool) {
	s.mu.RLock()
	services, addresses, problems := s.services, s.addresses, slices.Clone(s.conflicts)
	s.mu.RUnlock()
	if len(addresses) == 0 {
		addresses = []netip.Addr{{}}
	}
	wanted := make(map[place]Service, len(services)*len(addresses))
	for _, svc := range services {
		for _, addr := range addresses {
			wanted[place{addr.Unmap(), svc.Port}] = svc
		}
	}
	// Closing comes first: a port on one address and on all excludes itself.
	for at, srv := range open {
		if _, is := wanted[at]; !is || srv.failed() {
			srv.close()
			delete(open, at)
		}
	}
	for at, svc := range wanted {
		if open[at] != nil {
			continue
		}
		srv, err := s.serve(ctx, at)
		if err != nil {
			problems = append(problems, svc.problem(ReasonListen, fmt.Sprintf("%v: %s", err, advice(at, err))))
			missing = true
			continue
		}
		open[at] = srv
	}
	s.publish(problems)
	return missing
}

func (s *Servers) publish(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Message, b.Message))
	})
	s.mu.Lock()
	same := slices.Equal(problems, s.problems)
	s.problems = problems
	s.mu.Unlock()
	if !same {
		signal(s.changed)
	}
}

// advice is what to do about a failure to listen.
func advice(at place, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("stop the program that has it (`ss -tlnp sport = :%d` names it), or give the Service another healthCheckNodePort", at.port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give this host the address, or leave it out of --nodeport-addresses"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (LimitNOFILE)"
	case errors.Is(err, syscall.EACCES):
		return "let the program bind low ports (CAP_NET_BIND_SERVICE), or give the Service another healthCheckNodePort"
	}
	return "it is tried again every few seconds"
}

// server is one listener and those who serve its clients.
type server struct {
	listener *listener
	cancel   context.CancelFunc
	done     chan struct{} // closed when nobody serves any more
}

// listener tells when it is closed.
type listener struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() { close(l.closed) })
	return err
}

func (s *Servers) serve(ctx context.Context, at place) (*server, error) {
	var lc net.ListenConfig
	socket, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	srv := &server{listener: &listener{Listener: socket, closed: make(chan struct{})}, cancel: cancel, done: make(chan struct{})}
	s.tasks.Go(func() {
		err := api.Serve(ctx, srv.listener, s.handler(at.port), s.log, nil)
		close(srv.done)
		if err != nil {
			s.log.Warn("a health-check node port stopped answering: it is opened again", "listen", at, "retry", s.retry, "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(s.retry):
				signal(s.dirty)
			}
		}
	})
	return srv, nil
}

// failed reports whether nobody serves although nobody closed the server.
func (s *server) failed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// close returns when the listener is closed. Connections are closed soon after.
func (s *server) close() {
	s.cancel()
	select {
	case <-s.listener.closed:
	case <-s.done:
	}
}
