package listen

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Reconciler runs a function when the desired state has changed. P is the type of the
// problems. All methods may be called concurrently.
type Reconciler[P comparable] struct {
	retry   time.Duration
	trigger chan struct{} // capacity 1: the desired state has changed
	changed chan struct{} // capacity 1: the problems have changed

	mu       sync.Mutex
	problems []P
}

// NewReconciler returns a Reconciler that retries at the given interval.
func NewReconciler[P comparable](retry time.Duration) *Reconciler[P] {
	return &Reconciler[P]{retry: retry, trigger: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Trigger makes Run call its function soon.
func (r *Reconciler[P]) Trigger() { signal(r.trigger) }

// Pending reports whether Run has not yet taken up the last Trigger.
func (r *Reconciler[P]) Pending() bool { return len(r.trigger) > 0 }

// Problems returns the problems of the last run.
func (r *Reconciler[P]) Problems() []P {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.problems)
}

// Changed is signaled after Problems has changed.
func (r *Reconciler[P]) Changed() <-chan struct{} { return r.changed }

// Run calls reconcile at once, after each Trigger, and after the retry interval if
// reconcile asked for it, until ctx is done. The problems must come in a stable order.
func (r *Reconciler[P]) Run(ctx context.Context, reconcile func() (problems []P, retry bool)) {
	timer := time.NewTimer(0)
	timer.Stop()
	for {
		problems, retry := reconcile()
		r.publish(problems)
		if retry {
			timer.Reset(r.retry)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.trigger:
		case <-timer.C:
		}
	}
}

func (r *Reconciler[P]) publish(problems []P) {
	r.mu.Lock()
	same := slices.Equal(problems, r.problems)
	r.problems = problems
	r.mu.Unlock()
	if !same {
		signal(r.changed)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}
