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
