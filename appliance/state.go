package appliance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"svcctl.io/svcctl/api/wire"
)

// published is what the loop tells everybody else: the newest status, and which
// revision is in the kernel. It implements api.Backend.
type published struct {
	accepted func() (accepted, concerning uint64) // store.Revisions
	rescan   func(context.Context) error
	release  func(context.Context) (wire.Released, error)
	guard    *removalGuard // nil: nothing is waited for or held

	mu         sync.Mutex
	status     wire.Status
	failure    error         // why what was accepted is not in the kernel
	programmed uint64        // every change up to this revision is in the kernel
	settled    uint64        // all waits of guard up to this one are over, and what came of them is stored
	changed    chan struct{} // closed when any of the above changes
}

func newPublished(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (wire.Released, error), first wire.Status) *published {
	return &published{accepted: accepted, rescan: rescan, release: release, status: first, changed: make(chan struct{})}
}

// publish replaces the status.
func (p *published) publish(s wire.Status, programmed uint64, failure error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.programmed, p.failure = s, programmed, failure
	if p.guard != nil {
		p.settled = p.guard.settled()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Status implements api.Backend.
func (p *published) Status() wire.Status {
	accepted, concerning := p.accepted()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	programmed := upTo(p.programmed, accepted, concerning)
	s.Revision = wire.Revision{Accepted: max(accepted, programmed), Programmed: programmed}
	s.Synced = s.Ready && p.failure == nil && programmed >= accepted && s.PendingRemovals == 0
	switch {
	case p.failure != nil:
		s.Reason = p.failure.Error()
	case s.Ready && s.PendingRemovals > 0:
		s.Reason = fmt.Sprintf("%d Services vanished from the manifests and go within %v, unless more vanish or they come back", s.PendingRemovals, removalMost)
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
func (p *published) Healthy() error { return nil }

// Ready implements api.Health.
func (p *published) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.status.Ready:
		return nil
	case p.failure != nil:
		return p.failure
	}
	return errors.New(p.status.Reason)
}

// heldError says that something is not as the manifests have it, until somebody confirms it.
type heldError struct{ services int }

func (e heldError) Error() string {
	return fmt.Sprintf("everything else is in the kernel, but %d Services that vanished from the manifests are held: "+
		"put the files back, or confirm with `svcctl release` that they are to go (`svcctl status` says why)", e.services)
}

// Synced implements api.Backend. For revision 0 the watched directories are looked at
// once more first, so that what was written to them before the call counts as accepted. What
// had vanished from them by then has gone when it returns; if it is held instead, that is an
// error for revision 0.
func (p *published) Synced(ctx context.Context, revision uint64) error {
	files := revision == 0
	if files {
		if err := p.rescan(ctx); err != nil {
			return err
		}
	}
	if p.guard != nil {
		if wait := p.guard.pending(); wait > 0 {
			if err := p.until(ctx, func() bool { return p.settled >= wait }); err != nil {
				return err
			}
		}
	}
	if files {
		revision, _ = p.accepted()
	}
	held := 0
	err := p.until(ctx, func() bool {
		accepted, concerning := p.accepted()
		held = p.status.HeldRemovals
		return p.status.Ready && p.failure == nil && upTo(p.programmed, accepted, concerning) >= revision
	})
	if err == nil && files && held > 0 {
		return heldError{held}
	}
	return err
}

// until waits until something holds, which is looked at with the lock.
func (p *published) until(ctx context.Context, holds func() bool) error {
	for {
		p.mu.Lock()
		done, changed := holds(), p.changed
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.why(ctx)
		}
	}
}

// Release implements api.Backend.
func (p *published) Release(ctx context.Context) (wire.Released, error) { return p.release(ctx) }

// why says what a caller waited for in vain.
func (p *published) why(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failure != nil:
		return p.failure
	case !p.status.Ready:
		return errors.New(p.status.Reason)
	case p.status.PendingRemovals > 0:
		return fmt.Errorf("%d Services that vanished from the manifests have not gone yet", p.status.PendingRemovals)
	}
	return ctx.Err()
}
