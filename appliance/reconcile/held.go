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

// unreserving is the store asked to reserve nothing any more. It has to wait for the store's writer, which a
// commit to etcd may hold for seconds: the loop goes on meanwhile.
type unreserving struct {
	answer chan error // nil: the store is not asked
	last   error      // the answer before: what is asked again has failed until it has not
}

// settleOrphans ends the search for objects that declare what the kernel serves, once all of it is
// declared or released. It never waits: the store is asked beside the loop, and its answer wakes the loop.
func (l *Loop) settleOrphans() error {
	o, u := l.planner.orphans, &l.unreserving
	switch {
	case o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0:
		return nil
	case u.answer == nil:
		answer := make(chan error, 1)
		u.answer = answer
		go func() {
			answer <- l.opts.Store.Unreserve()
			l.Wake()
		}()
		return u.last
	}
	select {
	case u.last = <-u.answer:
		u.answer = nil
	default:
		return u.last
	}
	if u.last != nil {
		return u.last
	}
	l.planner.orphans = nil
	l.observed.unsynced = l.observed.snapshot != nil // objects that wait for a value may have it now
	return nil
}

// finishUnreserving waits for the store's answer to a pending request: the loop writes nothing after its end.
func (l *Loop) finishUnreserving() {
	if l.unreserving.answer != nil {
		l.unreserving.last, l.unreserving.answer = <-l.unreserving.answer, nil
	}
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
