package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"svcctl.io/svcctl/api/wire"
)

// Health is asked by the health endpoints. Both answer at once.
type Health interface {
	// Healthy is nil while the appliance works, whatever it was given.
	Healthy() error
	// Ready is nil once everything it was given at its start is in the kernel.
	Ready() error
}

// Backend is what the API tells about and waits for. All methods may be called
// concurrently.
type Backend interface {
	Health
	// Status is a consistent picture; the caller owns it.
	Status() wire.Status
	// Synced returns nil when everything accepted up to revision is in the kernel;
	// revision 0 is everything accepted until the call. It waits until then, and
	// returns an error when ctx is done first or it never will be.
	Synced(ctx context.Context, revision uint64) error
	// Release lets those Services go that vanished from the manifests and are kept in
	// force (Status.HeldRemovals), and tells how many they were.
	Release(ctx context.Context) (services int, err error)
}

// Config is what a Server needs to know.
type Config struct {
	// Socket is the path of the unix socket.
	Socket string
	// Version is the version of the program, as v0.1.0.
	Version string
	// Panicked, when not nil, is called for every request whose handler panicked.
	Panicked func()
	// Environment gives the variables that tell where the Services of a namespace are;
	// when it is nil, nobody is told. It may be called concurrently.
	Environment func(namespace string) []wire.Variable
}

// Server answers the API's requests.
type Server struct {
	cfg     Config
	backend Backend
	log     *slog.Logger
}

// New is a Server that has not opened its socket yet.
func New(cfg Config, backend Backend, log *slog.Logger) *Server {
	return &Server{cfg: cfg, backend: backend, log: log}
}

// Listen takes the socket. It fails when another server answers on it, or when it
// cannot be made.
func (s *Server) Listen() (net.Listener, error) { return listenUnix(s.cfg.Socket) }

// Serve answers requests on ln until ctx is done, closes ln, and returns nil once
// the requests under way are finished, or cut after 2 s.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return Serve(ctx, ln, s.Handler(), s.log, s.cfg.Panicked)
}

// Handler is the whole API without a listener.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	health := HealthHandler(s.backend)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.Handle(path, health)
	}
	mux.Handle("/version", get(s.version))
	mux.Handle("/svcctl/v1/status", get(s.status))
	mux.Handle("/svcctl/v1/wait", get(s.wait))
	mux.HandleFunc("/svcctl/v1/release", s.release)
	if s.cfg.Environment != nil {
		mux.Handle("/svcctl/v1/env", get(s.environment))
	}
	mux.Handle(profilePath, profiles())
	mux.HandleFunc("/", notFound)
	return mux
}
