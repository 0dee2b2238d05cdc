package reconcile

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/engine"
)

// reasonDiskFull is the reason of the problem that nothing can be stored.
const reasonDiskFull = "DiskFull"

// release lets go what is kept in force although no object declares it, or not any more. It
// returns how much that was.
func (l *Loop) release() (r wire.Released) {
	if services, files, engaged := l.opts.Removals.release(); engaged {
		r.Services, r.Files = services, files
		l.observed.unsynced = true
		l.log.Info("what vanished from the manifests is released", "services", r.Services, "files", r.Files)
	}
	if o := l.planner.orphans; o != nil && l.adopted {
		r.Frontends = o.release()
		l.log.Info("what the kernel serves and no object declares is released", "frontends", r.Frontends)
	}
	return r
}

// settleOrphans ends the search for objects that declare what the kernel serves, once all of it is
// declared or released.
func (l *Loop) settleOrphans() error {
	o := l.planner.orphans
	if o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0 {
		return nil
	}
	if err := l.opts.Store.Unreserve(); err != nil {
		return err
	}
	l.planner.orphans = nil
	l.observed.unsynced = l.observed.snapshot != nil // objects that wait for a value may have it now
	return nil
}

// noteFull keeps that the disk is full for the status. It replaces the error by one that counts the
// files that are not stored for that.
func (l *Loop) noteFull(err error) error {
	l.observed.full = nil
	if !errors.Is(err, engine.ErrNoSpace) {
		return err
	}
	l.observed.full = err
	if !l.observed.unsynced || l.observed.snapshot == nil {
		return fmt.Errorf("not everything is stored yet (disk full); what was in force stays in force: %w", err)
	}
	return unstoredError{l.opts.Store.CountUnstored(l.observed.snapshot.Files), err}
}

// unstoredError counts the files that are not stored because the disk is full.
type unstoredError struct {
	files int
	error
}

func (e unstoredError) Error() string {
	what := "1 file is"
	if e.files != 1 {
		what = fmt.Sprintf("%d files are", e.files)
	}
	return what + " not stored yet (disk full); what was in force stays in force"
}

func (e unstoredError) Unwrap() error { return e.error }
