package rest

import (
	"log/slog"
	"net/http"
	"time"

	"svcctl.io/svcctl/store"
)

// Config is what a Server needs to know.
type Config struct {
	Objects *store.Store
	// Log is told of errors that are the server's own; nil is slog.Default().
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// MaxWatches is how many watches there may be at a time; 0 means DefaultMaxWatches.
	MaxWatches int
}

// DefaultMaxWatches is enough for 150 clients that watch ten kinds each.
const DefaultMaxWatches = 1500

// maxViewWatches bounds the watches of Endpoints and IPAddresses: each holds a few megabytes
// for ten thousand Services.
const maxViewWatches = 64

// Server answers requests for objects.
type Server struct {
	store   *store.Store
	log     *slog.Logger
	now     func() time.Time
	watches chan struct{} // holds one for each watch
	// viewWatches holds one for each watch of what is computed.
	viewWatches chan struct{}
	encoded     *encodings
	guards      guards // of writes
}

// New is a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxWatches == 0 {
		cfg.MaxWatches = DefaultMaxWatches
	}
	return &Server{
		store: cfg.Objects, log: cfg.Log, now: cfg.Now,
		watches: make(chan struct{}, cfg.MaxWatches), viewWatches: make(chan struct{}, min(cfg.MaxWatches, maxViewWatches)), encoded: newEncodings(),
		guards: guards{batches: make(chan struct{}, maxBatches)},
	}
}

// Handler answers everything below /api, /apis and /openapi. Who asks is in the context of
// a request (auth.With).
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }
