package reconcile

import (
	"context"
	"errors"
	"sync"

	"svcctl.io/svcctl/api/wire"
)

// Board shows the newest status and which revision is in the kernel to other goroutines.
// It implements api.Backend.
type Board struct {
	accepted func() (accepted, concerning uint64) // store.Revisions
	rescan   func(context.Context) error
	release  func(context.Context) (services int, err error)

	mu         sync.Mutex
	status     wire.Status
	failure    error         // why what was accepted is not in the kernel
	programmed uint64        // every change up to this revision is in the kernel
	changed    chan struct{} // closed when any of the above changes
}

// NewBoard shows first until the loop publishes. accepted is store.Revisions; rescan has the manifests read
// once more, and release lets held Services go.
func NewBoard(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (int, error), first wire.Status) *Board {
	return &Board{accepted: accepted, rescan: rescan, release: release, status: first, changed: make(chan struct{})}
}

// publish replaces the status.
func (b *Board) publish(s wire.Status, programmed uint64, failure error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.programmed, b.failure = s, programmed, failure
	close(b.changed)
	b.changed = make(chan struct{})
}

// Status implements api.Backend.
func (b *Board) Status() wire.Status {
	accepted, concerning := b.accepted()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	programmed := upTo(b.programmed, accepted, concerning)
	s.Revision = wire.Revision{Accepted: max(accepted, programmed), Programmed: programmed}
	s.Synced = s.Ready && b.failure == nil && programmed >= accepted
	if b.failure != nil {
		s.Reason = b.failure.Error()
	}
	return s
}

// upTo is the revision up to which everything is programmed that is to be programmed: when
// the kernel has all that concerns it, what came later is no change to it.
func upTo(programmed, accepted, concerning uint64) uint64 {
	if programmed >= concerning {
		return max(programmed, accepted)
	}
	return programmed
}

// Healthy implements api.Health: the loop answers as long as the process lives.
func (b *Board) Healthy() error { return nil }

// Ready implements api.Health.
func (b *Board) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.status.Ready:
		return nil
	case b.failure != nil:
		return b.failure
	}
	return errors.New(b.status.Reason)
}

// Synced implements api.Backend. For revision 0 the watched directories are looked at
// once more first, so that what was written to them before the call counts as accepted.
func (b *Board) Synced(ctx context.Context, revision uint64) error {
	if revision == 0 {
		if err := b.rescan(ctx); err != nil {
			return err
		}
		revision, _ = b.accepted()
	}
	for {
		accepted, concerning := b.accepted()
		b.mu.Lock()
		done, changed := b.status.Ready && b.failure == nil && upTo(b.programmed, accepted, concerning) >= revision, b.changed
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return b.why(ctx)
		}
	}
}

// Release implements api.Backend.
func (b *Board) Release(ctx context.Context) (services int, err error) { return b.release(ctx) }

// why says what a caller waited for in vain.
func (b *Board) why(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failure != nil:
		return b.failure
	case !b.status.Ready:
		return errors.New(b.status.Reason)
	}
	return ctx.Err()
}
