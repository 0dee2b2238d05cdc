package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"slices"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Health is asked by the health endpoints. Both answer at once.
type Health interface {
	// Healthy is nil while the appliance works, whatever it was given.
	Healthy() error
	// Ready is nil once everything that the appliance was given at its start is in the kernel.
	Ready() error
}

// Backend is the appliance's state that the API shows and waits for. All methods may be called
// concurrently.
type Backend interface {
	Health
	// Status returns a consistent copy, which the caller owns.
	Status() wire.Status
	// Synced returns nil when everything accepted up to revision is in the kernel;
	// revision 0 is everything accepted until the call. It waits until then, and
	// returns an error when ctx is done first or it never will be.
	Synced(ctx context.Context, revision uint64) error
	// Release releases Services that are kept in force although no object declares it, or not any more
	// (Status.HeldRemovals, Status.UnknownFrontends), and counts it.
	Release(ctx context.Context) (wire.Released, error)
}

// Config configures a Server.
type Config struct {
	Socket Socket
	// TLS configures the API over TCP; nil: it is not served there.
	TLS *TLS
	// Version is the version of the program, as v0.1.0.
	Version string
	// Waiting is set on a box that has no objects yet: its status, its version and its health are answered, and all else is refused with
	// the reason of the status.
	Waiting bool
	// Panicked, when not nil, is called for every request whose handler panicked.
	Panicked func()
	// Observe, when not nil, is called for every request that was answered. It may be called
	// concurrently, and has to be quick.
	Observe func(Call)
	// NameOf gives the Verb and the Resource of a request for objects, and "" for any other;
	// nil: there are none.
	NameOf func(*http.Request) (verb, resource string)
	// Endpoints are served in addition to those of the Server.
	Endpoints []Endpoint
	// Objects answers /, everything below /api, /apis and /openapi, and /svcctl/v1/apply, for users
	// that may at least read; when it is nil, nothing is there.
	Objects http.Handler
	// Dashboard answers /dashboard/ for users that may at least read; when it is nil, nothing is there.
	Dashboard http.Handler
	// DashboardUnauthorized answers 401 there to a request without a token, so that a browser gets a page; nil: as elsewhere.
	DashboardUnauthorized http.HandlerFunc
	// Announcements has the announced addresses; nil: the paths are not served.
	Announcements Announcements
	// Commits answers leaves below /svcctl/v1/commits; when it is nil, nothing is there. LeafWrites permits a leaf to change
	// objects in the name of its admins.
	Commits    http.Handler
	LeafWrites bool
	// Forward sends requests that change objects to a core box, on a leaf; nil: they are answered here.
	Forward http.RoundTripper
}

// Socket is the unix socket of the API.
type Socket struct {
	Path string
	// Group is the group, by name or number, whose members may do everything over
	// the socket; empty: none.
	Group string
	// Readers lets every user of the box read over the socket.
	Readers bool
}

// Announcements gives access to the announced addresses. All methods may be called concurrently.
type Announcements interface {
	List() wire.Announcements
	// Of returns the announcements of a Service, "namespace/name".
	Of(service string) []wire.Announcement
	// Watch calls send with all of them and then with changes, until ctx is done or send
	// fails; announces is set when the watcher is the announcer.
	Watch(ctx context.Context, announces bool, send func(wire.AnnouncementsEvent) error) error
	// Report takes what became of them.
	Report(wire.AnnouncerReport)
}

// TLS configures the API over TCP.
type TLS struct {
	// Tokens authenticate clients.
	Tokens *auth.Tokens
	// Revoke ends all tokens, as Tokens.RevokeAll does, for all boxes that share their key; pending has the boxes that still accept
	// them, and why. nil: the key is not shared.
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
// made, or when there is no group of that name.
func (s *Server) Listen() (net.Listener, error) {
	access := socketAccess{readers: s.cfg.Socket.Readers}
	if s.cfg.Socket.Group != "" {
		gid, err := auth.LookupGroup(s.cfg.Socket.Group)
		if err != nil {
			return nil, err
		}
		access.group, access.grouped = int(gid), true
		s.local = auth.LocalGroup(gid)
	}
	ln, err := listenUnix(s.cfg.Socket.Path, access)
	if err != nil {
		return nil, err
	}
	if why := access.barred(s.cfg.Socket.Path); why != "" {
		s.log.Warn("some permitted users cannot reach the API socket", "socket", s.cfg.Socket.Path, "why", why)
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
	return s.limits.serve(ctx, tls.NewListener(ln, of), s.Handler(), s.log, s.cfg.Panicked)
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
	s.register(mux, Answer(wire.GetStatus, s.status))
	if s.cfg.Waiting {
		reader("/", http.HandlerFunc(s.refuse))
		return s.observe(mux, s.identify(s.admit(mux)))
	}
	for _, e := range slices.Concat([]Endpoint{handle(wire.Wait.Operation, s.wait), Answer(wire.Release, s.release), Answer(wire.GetEndpoint, s.endpoint)}, s.cfg.Endpoints) {
		s.register(mux, e)
	}
	if s.cfg.Commits != nil {
		mux.Handle(commitsPath, leaves(s.streaming(s.cfg.Commits)))
		mux.Handle(commitsPath+"/", leaves(s.streaming(s.cfg.Commits)))
	}
	if s.cfg.Dashboard != nil {
		mux.Handle("/dashboard/", s.dashboard())
	}
	if s.cfg.Announcements != nil {
		s.register(mux, Handle(wire.GetAnnouncements.Operation, s.announcements))
		s.register(mux, handle(wire.ReportAnnouncements.Operation, s.announcerReport))
	}
	reader("/svcctl/v1/token", http.HandlerFunc(s.token))
	reader(profilePath, profiles())
	if s.cfg.Objects != nil {
		for _, path := range []string{"/{$}", "/api", "/api/", "/apis", "/apis/", "/openapi/", applyPath} {
			reader(path, s.streaming(s.cfg.Objects))
		}
	}
	reader("/", http.HandlerFunc(notFound))
	return s.observe(mux, s.identify(s.admit(s.forward(mux))))
}
