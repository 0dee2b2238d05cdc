package fleet

import "context"

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
