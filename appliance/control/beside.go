package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
)

// besideRetry is how long Beside waits after a write that failed.
const besideRetry = time.Second

// Beside runs the controllers in a task of its own, for a store whose writes wait for other machines:
// healing, which is the loop's, must not. It stands in their place in the loop. Objects that one box
// writes for all are written by the box that has the turn; its own Node by each.
type Beside struct {
	cluster   *ClusterObjects
	endpoints *Endpoints
	store     *store.Store
	hasTurn   func() bool
	log       *slog.Logger
	wake      chan struct{}

	mu       sync.Mutex
	facts    *node.Facts
	problems []resolve.Problem
}

// NewBeside is a Beside around the controllers, which nobody else may use.
func NewBeside(cluster *ClusterObjects, endpoints *Endpoints, objects *store.Store, hasTurn func() bool, log *slog.Logger) *Beside {
	return &Beside{cluster: cluster, endpoints: endpoints, store: objects, hasTurn: hasTurn, log: log, wake: make(chan struct{}, 1)}
}

// Facts takes the facts of the host, as the loop's controller of cluster objects. It does not wait.
func (b *Beside) Facts(facts *node.Facts) {
	b.mu.Lock()
	changed := facts != nil && facts != b.facts
	if changed {
		b.facts = facts
	}
	b.mu.Unlock()
	if changed {
		b.awake()
	}
}

func (b *Beside) awake() {
	select {
	case b.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Problems are those of the controller of endpoints, as of its last run.
func (b *Beside) Problems() []resolve.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.problems
}

// Run runs the controllers after each change, until ctx is done. changed gives a channel that is closed
// when the turn may have changed.
func (b *Beside) Run(ctx context.Context, changed func() <-chan struct{}) error {
	told := ""
	for ctx.Err() == nil {
		published, turned := b.store.Published(), changed()
		err := b.sync()
		wait := time.Hour
		switch {
		case err == nil:
			told = ""
		default:
			wait = besideRetry
			if err.Error() != told {
				told = err.Error()
				b.log.Warn("objects of this box are not written yet", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-published:
		case <-turned:
		case <-b.wake:
		case <-time.After(wait):
			continue
		}
		if err != nil { // what changes meanwhile is no reason to try sooner
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
	return nil
}

func (b *Beside) sync() error {
	b.mu.Lock()
	facts := b.facts
	b.mu.Unlock()
	err := b.cluster.syncNode(facts)
	if !b.hasTurn() {
		return err
	}
	err = errors.Join(err, b.cluster.KeepNamespaces(), b.cluster.syncServiceCIDR(), b.endpoints.Sync())
	problems := b.endpoints.Problems()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = problems
	return err
}

// AsCluster and AsEndpoints are what the loop runs in place of the controllers.
func (b *Beside) AsCluster() LoopCluster { return LoopCluster{b} }

// AsEndpoints is for the loop, see AsCluster.
func (b *Beside) AsEndpoints() LoopEndpoints { return LoopEndpoints{b} }

// LoopCluster hands the facts on.
type LoopCluster struct{ beside *Beside }

// Sync hands the facts on, and never fails.
func (c LoopCluster) Sync(facts *node.Facts) error { c.beside.Facts(facts); return nil }

// LoopEndpoints tells the problems.
type LoopEndpoints struct{ beside *Beside }

// Sync does nothing: Beside does it.
func (LoopEndpoints) Sync() error { return nil }

// Problems are those of Beside.
func (e LoopEndpoints) Problems() []resolve.Problem { return e.beside.Problems() }
