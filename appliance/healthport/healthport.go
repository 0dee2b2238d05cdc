package healthport

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/task"
)

// retryInterval is the time between attempts to open a listener.
const retryInterval = 5 * time.Second

// Service is a Service with a health-check node port.
type Service struct {
	Namespace, Name string
	Port            uint16 // spec.healthCheckNodePort; 0: none
	LocalEndpoints  int    // number of distinct ready endpoint addresses on this host, over all ports
}

// Problem is a health-check node port that cannot listen on some address.
type Problem struct {
	Namespace, Name string
	Reason          string // one of the Reason constants
	Message         string
}

// The reasons of Problems.
const (
	// ReasonListen is the reason when a listener cannot be opened. The Event of kube-proxy has the same reason.
	ReasonListen = "FailedToStartServiceHealthcheck"
	// ReasonConflict is the reason when another Service has the same port.
	ReasonConflict = "Conflict"
)

// Servers answers HTTP requests on the health-check node ports of Services. All methods may be called concurrently.
type Servers struct {
	log       *slog.Logger
	retry     time.Duration
	listeners *listen.Reconciler[Problem]
	tasks     sync.WaitGroup

	mu        sync.RWMutex
	services  map[uint16]Service // by port
	conflicts []Problem
	addresses []netip.Addr // to listen on; empty: all addresses of the host
	synced    bool
}

// New returns Servers without any Service.
func New(log *slog.Logger) *Servers {
	return &Servers{log: log, retry: retryInterval, listeners: listen.NewReconciler[Problem](retryInterval)}
}

// Set replaces the Services and returns at once. Responses have the new numbers from then on, while Run opens and closes listeners a little later. If
// two Services have the same port, which the allocation of ports prevents, the first by namespace and name gets it.
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
	s.listeners.Trigger()
}

// SetAddresses replaces the addresses to listen on, which are the addresses for node ports. Without any, the servers listen on all present and future
// addresses of the host.
func (s *Servers) SetAddresses(addresses []netip.Addr) {
	s.mu.Lock()
	s.addresses = slices.Clone(addresses)
	s.mu.Unlock()
	s.listeners.Trigger()
}

// SetSynced sets whether the rules in the kernel are current. The initial value is false.
func (s *Servers) SetSynced(synced bool) {
	s.mu.Lock()
	s.synced = synced
	s.mu.Unlock()
}

// Problems returns the ports that do not answer, sorted by Service. The result is as of the last time that Run opened and closed listeners.
func (s *Servers) Problems() []Problem { return s.listeners.Problems() }

// Changed returns a channel that receives a value after Problems has changed.
func (s *Servers) Changed() <-chan struct{} { return s.listeners.Changed() }

func (svc Service) problem(reason, message string) Problem {
	return Problem{
		Namespace: svc.Namespace, Name: svc.Name, Reason: reason,
		Message: fmt.Sprintf("health-check node port %d does not answer: %s", svc.Port, message),
	}
}

// Run opens and closes listeners until ctx is done. It then closes all listeners and
// connections and returns nil. It may be called once. It opens sockets in the network
// namespace of the process.
func (s *Servers) Run(ctx context.Context) error {
	open := map[listenAddr]*server{}
	defer s.tasks.Wait() // the end of ctx ends the servers
	s.listeners.Run(ctx, func() ([]Problem, bool) { return s.reconcile(ctx, open) })
	return nil
}

// listenAddr is the address of a listener. The zero Addr means all addresses of the host.
type listenAddr struct {
	addr netip.Addr
	port uint16
}

func (p listenAddr) String() string {
	if p.addr.IsValid() {
		return netip.AddrPortFrom(p.addr, p.port).String()
	}
	return fmt.Sprintf(":%d", p.port)
}

// reconcile opens missing listeners and closes superfluous ones. missing reports that at least one could not be opened.
func (s *Servers) reconcile(ctx context.Context, open map[listenAddr]*server) (problems []Problem, missing bool) {
	s.mu.RLock()
	services, addresses := s.services, s.addresses
	problems = slices.Clone(s.conflicts)
	s.mu.RUnlock()
	if len(addresses) == 0 {
		addresses = []netip.Addr{{}}
	}
	wanted := make(map[listenAddr]Service, len(services)*len(addresses))
	for _, svc := range services {
		for _, addr := range addresses {
			wanted[listenAddr{addr.Unmap(), svc.Port}] = svc
		}
	}
	// Close first: the same port cannot be open on one address and on all.
	for at, srv := range open {
		failed := false
		select {
		case <-srv.done: // without close
			failed = true
		default:
		}
		if _, is := wanted[at]; !is || failed {
			srv.cancel()
			select { // until the listener is closed; connections end soon after
			case <-srv.listener.closed:
			case <-srv.done:
			}
			delete(open, at)
		}
	}
	for at, svc := range wanted {
		if open[at] != nil {
			continue
		}
		srv, err := s.serve(ctx, at)
		if err != nil {
			problems = append(problems, svc.problem(ReasonListen, fmt.Sprintf("%v: %s", err,
				listen.Advice(err, at.port, "t", "another healthCheckNodePort"))))
			missing = true
			continue
		}
		open[at] = srv
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Message, b.Message))
	})
	return problems, missing
}

// server serves the clients of one listener.
type server struct {
	listener *listener
	cancel   context.CancelFunc
	done     chan struct{} // closed when api.Serve has returned
}

// listener is a net.Listener with a channel that is closed by Close.
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

func (s *Servers) serve(ctx context.Context, at listenAddr) (*server, error) {
	socket, err := listen.TCP(ctx, at.String())
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
			if task.Sleep(ctx, s.retry) {
				s.listeners.Trigger()
			}
		}
	})
	return srv, nil
}

// answer is the body of a response, in JSON. Its fields and their order are kube-proxy's.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler returns the handler of a port. For any path, it answers for the Service that has the port at the time of the request.
func (s *Servers) handler(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "health-check node ports answer GET", http.StatusMethodNotAllowed)
			return
		}
		s.mu.RLock()
		svc, there := s.services[port]
		synced := s.synced
		s.mu.RUnlock()
		if !there { // Run is about to close the listener
			http.Error(w, "no Service has this health-check node port any more", http.StatusServiceUnavailable)
			return
		}
		svc.answer(w, synced)
	})
}

func (svc Service) answer(w http.ResponseWriter, synced bool) {
	a := answer{LocalEndpoints: svc.LocalEndpoints, ServiceProxyHealthy: synced}
	a.Service.Namespace, a.Service.Name = svc.Namespace, svc.Name
	body, err := json.Marshal(a)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	// Weighted load balancers distribute connections by it.
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(svc.LocalEndpoints))
	if svc.LocalEndpoints <= 0 || !synced {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body) // the client may be gone
}
