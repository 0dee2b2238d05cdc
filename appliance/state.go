package appliance

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// published is what the loop tells everybody else: the newest status, and which
// revision is in the kernel. It implements api.Backend.
type published struct {
	accepted func() (accepted, concerning uint64) // store.Revisions
	rescan   func(context.Context) error
	release  func(context.Context) (services int, err error)

	mu         sync.Mutex
	status     wire.Status
	unstored   manifest.Files // what the files say that could not be stored; nil: all is
	failure    error          // why what was accepted is not in the kernel
	programmed uint64         // every change up to this revision is in the kernel
	changed    chan struct{}  // closed when any of the above changes
}

func newPublished(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (int, error), first wire.Status) *published {
	return &published{accepted: accepted, rescan: rescan, release: release, status: first, changed: make(chan struct{})}
}

// publish replaces the status.
func (p *published) publish(s wire.Status, programmed uint64, failure error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.programmed, p.failure = s, programmed, failure
	close(p.changed)
	p.changed = make(chan struct{})
}

// keep notes what could not be stored of the files, for who asks about it.
func (p *published) keep(unstored manifest.Files) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unstored = unstored
}

// notStored is where a file declares an object that could not be stored, if one does.
func (p *published) notStored(ref object.Ref) *wire.NotStored {
	p.mu.Lock()
	files, failure := p.unstored, p.failure
	p.mu.Unlock()
	if failure == nil {
		return nil
	}
	for _, f := range files {
		for i := range f.Documents {
			d := &f.Documents[i]
			declared := object.RefOf(d.Object)
			declared.Namespace = cmp.Or(declared.Namespace, "default")
			if declared == ref {
				return &wire.NotStored{File: f.Path, Line: d.Line, Why: failure.Error()}
			}
		}
	}
	return nil
}

// Status implements api.Backend.
func (p *published) Status() wire.Status {
	accepted, concerning := p.accepted()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	programmed := upTo(p.programmed, accepted, concerning)
	s.Revision = wire.Revision{Accepted: max(accepted, programmed), Programmed: programmed}
	s.Synced = s.Ready && p.failure == nil && programmed >= accepted
	if p.failure != nil {
		s.Reason = p.failure.Error()
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

// Synced implements api.Backend. For revision 0 the watched directories are looked at
// once more first, so that what was written to them before the call counts as accepted.
func (p *published) Synced(ctx context.Context, revision uint64) error {
	if revision == 0 {
		if err := p.rescan(ctx); err != nil {
			return err
		}
		revision, _ = p.accepted()
	}
	for {
		accepted, concerning := p.accepted()
		p.mu.Lock()
		done, changed := p.status.Ready && p.failure == nil && upTo(p.programmed, accepted, concerning) >= revision, p.changed
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
func (p *published) Release(ctx context.Context) (services int, err error) { return p.release(ctx) }

// why says what a caller waited for in vain.
func (p *published) why(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failure != nil:
		return p.failure
	case !p.status.Ready:
		return errors.New(p.status.Reason)
	}
	return ctx.Err()
}
