package reconcile

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// The reasons of the problem that nothing can be stored.
const (
	reasonDiskFull   = "DiskFull"
	reasonDiskFailed = "DiskFailed"
)

// release ends the holds of Services and frontends that no object declares, or not any more. It
// returns their numbers.
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
	if o := l.planner.orphans; o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0 {
		return nil
	}
	if err := l.opts.Store.Unreserve(); err != nil {
		return err
	}
	l.planner.orphans = nil
	l.observed.unsynced = l.observed.snapshot != nil // objects that wait for a value may have it now
	return nil
}

// noteUnstored keeps why nothing can be stored for the status. It replaces the error by one that counts the
// files that are not stored for that.
func (l *Loop) noteUnstored(err error) error {
	l.observed.disk = nil
	if _, failed := errors.AsType[*engine.DiskError](err); !failed && !errors.Is(err, engine.ErrNoSpace) {
		return err
	}
	l.observed.disk = err
	return unstoredError{len(l.observed.unstored), err}
}

// diskProblem is the problem of the status while nothing can be stored; false: it can be.
func (l *Loop) diskProblem() (p manifest.Problem, is bool) {
	if l.observed.disk == nil {
		return p, false
	}
	if disk, failed := errors.AsType[*engine.DiskError](l.observed.disk); failed {
		return manifest.Problem{Reason: reasonDiskFailed, Message: disk.Error() + "; what is stored stays in force"}, true
	}
	return manifest.Problem{Reason: reasonDiskFull, Message: fmt.Sprintf(
		"the disk of %s is full: free space there. Tried again every %d s; nothing in force is lost", l.opts.DataDir, int(retryLast.Seconds()))}, true
}

// unstoredError counts the files that are not stored because of the disk; 0: something else is not.
type unstoredError struct {
	files int
	error
}

func (e unstoredError) Error() string {
	what := "not everything is"
	switch {
	case e.files == 1:
		what = "1 file is not"
	case e.files > 1:
		what = fmt.Sprintf("%d files are not", e.files)
	}
	why := "disk full"
	if !errors.Is(e.error, engine.ErrNoSpace) {
		why = "disk failed"
	}
	return what + " stored yet (" + why + "); what was in force stays in force"
}

func (e unstoredError) Unwrap() error { return e.error }
