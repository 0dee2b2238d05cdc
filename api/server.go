package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Health is asked by the health endpoints. Both answer at once.
type Health interface {
	// Healthy is nil while the appliance works, whatever it was given.
	Healthy() error
	// Ready is nil once everything it was given at its start is in the kernel.
	Ready() error
}

// Backend is the appliance's state that the API shows and waits for. All methods may be called
// concurrently.
type Backend interface {
	Health
	// Status returns a consistent copy; the caller owns it.
	Status() wire.Status
	// Synced returns nil when everything accepted up to revision is in the kernel;
	// revision 0 is everything accepted until the call. It waits until then, and
	// returns an error when ctx is done first or it never will be.
	Synced(ctx context.Context, revision uint64) error
	// Release lets go what is kept in force although no object declares it, or not any more
	// (Status.HeldRemovals, Status.UnknownFrontends), and tells how much that was.
	Release(ctx context.Context) (wire.Released, error)
}

// Config configures a Server. It has more than 15 fields: one for every part of the appliance that a route
// answers from. Each is wired on its own, and a Server without one answers as if the route were not there.
type Config struct {
	// Socket is the path of the unix socket.
	Socket string
	// SocketGroup is the group, by name or number, whose members may do everything over
	// the socket; empty: none.
	SocketGroup string
	// SocketReaders lets every user of the box read over the socket.
	SocketReaders bool
	// Version is the version of the program, as v0.1.0.
	Version string
	// Panicked, when not nil, is called for every request whose handler panicked.
	Panicked func()
	// Observe, when not nil, is told of every request that was answered. It may be called
	// concurrently, and has to be quick.
	Observe func(Call)
	// NameOf gives the Verb and the Resource of a request for objects, and "" for any other;
	// nil: there are none.
	NameOf func(*http.Request) (verb, resource string)
	// Environment returns the environment variables of the Services of a namespace; nil: the path
	// is not served. It may be called concurrently.
	Environment func(namespace string) []wire.Variable
	// Objects answers /, what is below /api, /apis and /openapi, and /svcctl/v1/apply, for users
	// that may at least read; when it is nil, nothing is there.
	Objects http.Handler
	// Journal returns the newest changes of objects, at most limit of them, the oldest first,
	// without those of Events unless withEvents is set; nil: the path is not served. It may be
	// called concurrently.
	Journal func(limit int, withEvents bool) ([]wire.JournalEntry, error)
	// Allocations returns the ranges with their holders, and with repair corrects what does not
	// agree with the Services; nil: the path is not served. It may be called concurrently.
	Allocations func(repair bool) wire.Allocations
	// Health returns the checked endpoints of a Service, of a namespace, or all, when name, or
	// both, are empty; nil: the path is not served. It may be called concurrently.
	Health func(namespace, name string) []wire.EndpointHealth
	// Probe connects to each TCP endpoint of a Service, until ctx is done; nil: the path is not served. While others
	// are asked it returns an error.
	Probe func(ctx context.Context, namespace, name string) ([]wire.Probed, error)
	// Service returns the state of a Service, and Setup the appliance's directories and
	// certificate; nil: the paths are not served. They may be called concurrently. client is a
	// client whose endpoint is asked for; the zero AddrPort: none; port 0: any port.
	Service func(namespace, name string, client netip.AddrPort) wire.ServiceState
	Setup   func() wire.Setup
	// Traffic returns the connections of Services; nil: the path is not served.
	Traffic Traffic
	// Trace follows packets; nil: the path is not served.
	Trace Trace
	// Dashboard answers /dashboard/ for users that may at least read; when it is nil, nothing is there.
	Dashboard http.Handler
	// DashboardUnauthorized answers 401 for who shows no token there, so that a browser gets a page; nil: as elsewhere.
	DashboardUnauthorized http.HandlerFunc
	// Announcements has the announced addresses; nil: the path is not served.
	Announcements Announcements
	// Changes rolls changes back and exports the store; nil: the paths are not served.
	Changes Changes
	// Plan returns what a request would change in the kernel; nil: the path is not served. Errors that a client can act on are
	// *wire.Failure. It may be called concurrently.
	Plan func(w http.ResponseWriter, r *http.Request) (*wire.KernelPlan, error)
	// Rollouts are the staged rollouts of a fleet; nil: the paths are not served.
	Rollouts Rollouts
	// Fleet is the fleet that the box belongs to; nil: none.
	Fleet Fleet
	// Commits answers leaves below /svcctl/v1/commits; when it is nil, nothing is there. LeafWrites says that a leaf is believed who
	// its admins are, and may change objects for them.
	Commits    http.Handler
	LeafWrites bool
	// Forward sends requests that change objects to a core box, on a leaf; nil: they are answered here.
	Forward http.RoundTripper
	// TLS configures the API over TCP; nil: it is not served there.
	TLS *TLS
	// Waiting is set on a box that has no objects yet: its status, its version and its health are answered, and all else is refused with
	// the reason of the status.
	Waiting bool
}

// Announcements gives access to the announced addresses. All methods may be called concurrently.
type Announcements interface {
	List() wire.Announcements
	// Of returns the announcements of a Service, "namespace/name".
	Of(service string) []wire.Announcement
	// Watch calls send with all of them and then with what changes, until ctx is done or send
	// fails; announces says that the watcher is the announcer.
	Watch(ctx context.Context, announces bool, send func(wire.AnnouncementsEvent) error) error
	// Report takes what became of them.
	Report(wire.AnnouncerReport)
}

// TLS configures the API over TCP.
type TLS struct {
	// Tokens tell who a client is.
	Tokens *auth.Tokens
	// Revoke ends all tokens, as Tokens.RevokeAll does, for all boxes that share their key; pending says which do not know
	// of it yet, and why. nil: the key is not shared.
	Revoke func(ctx context.Context) (pending, err error)
	// Certificate is tls.Config.GetCertificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// CA gives the certificate of the CA that clients should trust, PEM; nil when it is
	// none of ours.
	CA func() []byte
	// Leaves identifies the box of a client certificate; nil: no certificates are requested.
	Leaves *auth.Leaves
	// Address is the address that it listens on, host:port, with the actual port.
	Address string
}

// Server answers the API's requests.
type Server struct {
	cfg     Config
	backend Backend
	log     *slog.Logger
	local   auth.Local
	limits  limits
	onTLS   budget // what clients on TLS have under way
	onUnix  budget
}

// New is a Server that has not opened its socket yet.
func New(cfg Config, backend Backend, log *slog.Logger) *Server {
	return &Server{cfg: cfg, backend: backend, log: log, limits: defaultLimits}
}

// Listen takes the socket. It fails when another server answers on it, when it cannot be
// made, or when there is no SocketGroup of that name.
func (s *Server) Listen() (net.Listener, error) {
	access := socketAccess{readers: s.cfg.SocketReaders}
	if s.cfg.SocketGroup != "" {
		gid, err := auth.LookupGroup(s.cfg.SocketGroup)
		if err != nil {
			return nil, err
		}
		access.group, access.grouped = int(gid), true
		s.local = auth.LocalGroup(gid)
	}
	ln, err := listenUnix(s.cfg.Socket, access)
	if err != nil {
		return nil, err
	}
	if why := access.barred(s.cfg.Socket); why != "" {
		s.log.Warn("some permitted users cannot reach the API socket", "socket", s.cfg.Socket, "why", why)
	}
	return ln, nil
}

// Serve answers requests on the socket until ctx is done, closes it, and returns nil once
// the requests under way are finished, or cut after 2 s.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.limits.serve(ctx, ln, s.Handler(), s.log, s.cfg.Panicked)
}

// ServeTLS is Serve for a TCP listener, whose clients speak TLS. Config.TLS must be there.
func (s *Server) ServeTLS(ctx context.Context, ln net.Listener) error {
	of := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: s.cfg.TLS.Certificate,
	}
	if leaves := s.cfg.TLS.Leaves; leaves != nil {
		plain := of.Clone()
		of.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			asks := plain.Clone()
			asks.ClientAuth, asks.ClientCAs = tls.RequestClientCert, leaves.CAs() // each request has it verified
			return asks, nil
		}
	}
	secure := tls.NewListener(ln, of)
	return s.limits.serve(ctx, secure, s.Handler(), s.log, s.cfg.Panicked)
}

// Handler returns the whole API without a listener. The user of a request follows from the Peer in
// its context, which Serve puts there, else from its token.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	health := HealthHandler(s.backend)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.Handle(path, health)
	}
	// Clients generated from the OpenAPI document of Kubernetes, as that for Python, ask for
	// /version/.
	for _, path := range []string{"/version", "/version/{$}"} {
		mux.Handle(path, get(s.version))
	}
	reader := func(path string, h http.Handler) { mux.Handle(path, needs(auth.Reader, h)) }
	route(mux, wire.GetStatus, s.status)
	if s.cfg.Waiting {
		reader("/", http.HandlerFunc(s.refuse))
		return s.observe(mux, s.identify(s.admit(mux)))
	}
	operation(mux, wire.Wait.Operation, http.HandlerFunc(s.wait))
	route(mux, wire.Release, s.release)
	route(mux, wire.GetEndpoint, s.endpoint)
	if s.cfg.Fleet != nil {
		route(mux, wire.GetFleet, s.fleet)
		route(mux, wire.GetSources, s.sources)
		route(mux, wire.TakeSource, s.takeSource)
		route(mux, wire.ForgetSource, s.forgetSource)
		route(mux, wire.AcceptFleet, s.acceptFleet)
	}
	if s.cfg.Commits != nil {
		mux.Handle(commitsPath, leaves(s.unhurried(s.cfg.Commits)))
		mux.Handle(commitsPath+"/", leaves(s.unhurried(s.cfg.Commits)))
	}
	if s.cfg.Environment != nil {
		route(mux, wire.GetEnvironment, s.environment)
	}
	if s.cfg.Journal != nil {
		operation(mux, wire.GetJournal.Operation, http.HandlerFunc(s.journal))
	}
	if s.cfg.Allocations != nil {
		route(mux, wire.GetAllocations, s.allocations)
		route(mux, wire.Repair, s.repair)
	}
	if s.cfg.Service != nil {
		route(mux, wire.GetService, s.service)
	}
	if s.cfg.Traffic != nil {
		route(mux, wire.GetTraffic, s.traffic)
		route(mux, wire.GetConnections, s.connections)
		route(mux, wire.Kill, s.kill)
	}
	if s.cfg.Changes != nil {
		route(mux, wire.BeginTrial, s.beginTrial)
		route(mux, wire.ConfirmTrial, s.confirmTrial)
		route(mux, wire.EndTrial, s.endTrial)
		route(mux, wire.UndoTrial, s.undoTrial)
		route(mux, wire.Rollback, s.rollback)
		operation(mux, wire.Export.Operation, s.unhurried(http.HandlerFunc(s.export)))
	}
	if s.cfg.Rollouts != nil {
		route(mux, wire.GetRollout, s.rollout)
		route(mux, wire.BeginRollout, s.beginRollout)
		for _, verb := range wire.RolloutMoves() {
			route(mux, wire.MoveRollout(verb), s.moveRollout(verb))
		}
	}
	if s.cfg.Plan != nil {
		operation(mux, wire.Plan.Operation, s.unhurried(http.HandlerFunc(s.plan)))
	}
	if s.cfg.Trace != nil {
		operation(mux, wire.Trace.Operation, http.HandlerFunc(s.trace))
	}
	if s.cfg.Dashboard != nil {
		mux.Handle("/dashboard/", s.dashboard())
	}
	if s.cfg.Announcements != nil {
		operation(mux, wire.GetAnnouncements.Operation, s.unhurried(http.HandlerFunc(s.announcements)))
		operation(mux, wire.ReportAnnouncements.Operation, http.HandlerFunc(s.announcerReport))
	}
	if s.cfg.Health != nil {
		route(mux, wire.GetHealth, s.health)
	}
	if s.cfg.Probe != nil {
		route(mux, wire.Probe, s.probe)
	}
	if s.cfg.Setup != nil {
		route(mux, wire.GetSetup, s.setup)
	}
	reader("/svcctl/v1/token", http.HandlerFunc(s.token))
	reader(profilePath, profiles())
	if s.cfg.Objects != nil {
		for _, path := range []string{"/{$}", "/api", "/api/", "/apis", "/apis/", "/openapi/", applyPath} {
			reader(path, s.unhurried(s.cfg.Objects))
		}
	}
	reader("/", http.HandlerFunc(notFound))
	return s.observe(mux, s.identify(s.admit(s.forward(mux))))
}
