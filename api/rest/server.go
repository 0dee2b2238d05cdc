package rest

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Config configures a Server.
type Config struct {
	Objects *store.Store
	// Log gets internal errors; nil is slog.Default().
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Look brings what the store knows of the host up to date (store.SetHost) for a Service that is about to be
	// written. It is called without a lock; nil does nothing.
	Look func(*object.Service)
	// Computed gives the objects of kinds that follow from no stored ones, by the name of the kind, in any order.
	// They are the caller's.
	Computed map[string]func() []object.Object
	// Conditions computes those of Services; nil: they have what is stored.
	Conditions Conditions
	// MaxWatches bounds concurrent watches; 0 means 1,500.
	MaxWatches int
}

// defaultMaxWatches is enough for 150 clients that watch ten kinds each.
const defaultMaxWatches = 1500

// maxViews bounds the lists and watches of Endpoints and IPAddresses: each holds some megabytes
// for ten thousand Services, as long as its client takes.
const maxViews = 64

// maxBatches bounds the concurrent batches; others wait.
const maxBatches = 2

// Server answers requests for objects.
type Server struct {
	store    *store.Store
	log      *slog.Logger
	now      func() time.Time
	computed map[string]func() []object.Object
	// conditions is nil when Services have what is stored.
	conditions Conditions
	look       func(*object.Service)
	watches    chan struct{} // holds one for each watch
	views      chan struct{} // holds one for each list or watch of what is computed
	encoded    *encodings
	guards     guards // of writes
	bodies     bodies
}

// New is a Server.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Look == nil {
		cfg.Look = func(*object.Service) {}
	}
	if cfg.MaxWatches == 0 {
		cfg.MaxWatches = defaultMaxWatches
	}
	return &Server{
		store: cfg.Objects, computed: cfg.Computed, conditions: cfg.Conditions, log: cfg.Log, now: cfg.Now, look: cfg.Look,
		watches: make(chan struct{}, cfg.MaxWatches), views: make(chan struct{}, min(cfg.MaxWatches, maxViews)), encoded: newEncodings(),
		guards: guards{batches: make(chan struct{}, maxBatches)},
	}
}

// guards coordinates concurrent writes.
type guards struct {
	// namespaces is held for reading by a create, from the look for its namespace until the object
	// exists, and for writing by the removal of a namespace.
	namespaces sync.RWMutex
	// events counts the Events that were created since they were counted last.
	events atomic.Int64
	// batches holds one for each batch that is worked on.
	batches chan struct{}
}
