package fleet

import (
	"context"
	"errors"
)

// Format is the newest one that this program reads.
const Format = format

// OnJoin has f called after the settings of the fleet were read, and before its head is.
func (e *Engine) OnJoin(f func()) { e.between = f }

// OpenOld is Open of a program that reads up to a format; for f see OnJoin.
func OpenOld(ctx context.Context, cfg Config, format int, f func()) (*Engine, error) {
	r, err := openReplica(cfg.Dir, cfg.DataKey)
	if err != nil {
		return nil, err
	}
	e := newEngine(cfg, r)
	e.reads, e.between = format, f
	if err := e.open(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return e, nil
}

// OnStep has f called before and after each call of etcd that commits something.
func (e *Engine) OnStep(f func()) { e.step = f }

// Sweep does the cleaning of the box with the turn once.
func (e *Engine) Sweep(ctx context.Context) error { return e.sweep(ctx) }

// Join looks whether etcd has the history of this box, as the follower does.
func (e *Engine) Join(ctx context.Context) error { return e.join(ctx) }

// Kept reports whether a core box keeps commits for leaves, and for how many.
func (e *Engine) Kept() (log bool, leaves int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leaves.log == nil {
		return false, 0
	}
	return true, e.leaves.readers
}

// LimitStream has core boxes keep less for leaves, until the function that it returns is called.
func LimitStream(bytes int) (restore func()) {
	streamLimit.Store(int64(bytes))
	return func() { streamLimit.Store(0) }
}
