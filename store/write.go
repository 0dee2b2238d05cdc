package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

var (
	// ErrExists means that the object exists already.
	ErrExists = errors.New("already exists")
	// ErrNotFound means that the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrStale means that the stored object is not the version that the write was to replace.
	ErrStale = errors.New("the object has been modified; please apply your changes to the latest version and try again")
)

// OwnedError means that a write was refused because the object belongs to another owner.
type OwnedError struct {
	Ref   object.Ref
	Owner Owner
	// Reader is the machine that reads the file of the owner; "" if it is this one, or Owner is not a file.
	Reader string
	// Of is the object from which a controller generated this one; the zero Ref if there is none, or it is a Service.
	Of object.Ref
}

// OwnedByController returns the error for changing an object that a controller generated. It names the object from which it
// was generated, unless that is a Service.
func OwnedByController(o object.Object, owner Owner) *OwnedError {
	e := &OwnedError{Ref: object.RefOf(o), Owner: owner}
	for _, of := range o.GetMeta().OwnerReferences {
		if object.Deref(of.Controller) && of.Kind != object.KindService {
			e.Of = object.Ref{Kind: of.Kind, Namespace: e.Ref.Namespace, Name: of.Name}
		}
	}
	return e
}

// Error implements error.
func (e *OwnedError) Error() string {
	if e.Reader != "" {
		return fmt.Sprintf("%s belongs to %s, which box %s reads: change it there, or ask that box", e.Ref, e.Owner, e.Reader)
	}
	if e.Ref.Kind == object.KindNode && IsNodeController(e.Owner.Controller) {
		return fmt.Sprintf("%s is kept by svcctl on that box as long as it runs: stop it there, and delete the Node when its condition Ready is Unknown", e.Ref)
	}
	if e.Of != (object.Ref{}) {
		return fmt.Sprintf("%s belongs to %s: change that", e.Ref, e.Of)
	}
	return fmt.Sprintf("%s belongs to %s: change it there", e.Ref, e.Owner)
}

// PreconditionError means that the uid or the version of an object is not the expected one. It wraps
// ErrStale.
type PreconditionError struct {
	Field        string // UID or ResourceVersion
	Wanted, Have string
}

// Error implements error.
func (e *PreconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.Field, e.Wanted, e.Field, e.Have)
}

// Unwrap returns ErrStale.
func (e *PreconditionError) Unwrap() error { return ErrStale }

// Write is one change that a client of the API asks for.
type Write struct {
	// Ref names the object.
	Ref object.Ref
	// Object is the whole new version with its managedFields; the store keeps no reference
	// to it. Nil with Delete.
	Object object.Object
	// Delete removes the object. While it has finalizers, or is a Namespace with objects in it, it is only marked as being deleted.
	Delete bool
	// Create refuses the write when the object exists (ErrExists).
	Create bool
	// Status makes the write change only the status and managedFields. Without Status, a write does not change the status, except that the creation
	// of a Pod or a Node sets it.
	Status bool
	// Version and UID are the resourceVersion and the uid that the stored object must have; "" accepts any.
	Version, UID string
	// DryRun makes the write return its result without changing anything. The dry runs in a call come after its other writes, and each sees the
	// results of all writes and dry runs before it.
	DryRun bool
	By     Caller
}

// Written is the outcome of one Write: the object after it, warnings, or the error.
type Written struct {
	// Object is the version that is stored after the write, or that would be after a dry run. After a removal it is the last version. The version of
	// a dry run has no resourceVersion of its own.
	Object object.Object
	// Removed is set when the object is gone. Revision is then that of its removal; 0 in a dry run.
	Removed  bool
	Revision uint64
	// Warnings are for the client of the request.
	Warnings []string
	Err      error
}

// call is a call of Write that waits for its turn. All fields but writes are guarded by Store.writer.
type call struct {
	writes  []Write
	results []Written
	err     error
	done    bool
}

// writeQueue has the calls that wait for the commit under way. They share the next commit, because each
// takes the time of an fsync.
type writeQueue struct {
	mu      sync.Mutex
	waiting []*call
}

func (q *writeQueue) add(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

// take removes and returns the first calls of the queue, as many as one commit may have.
func (q *writeQueue) take() []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.waiting) && (n == 0 || size+len(q.waiting[n].writes) <= maxGroup) {
		size += len(q.waiting[n].writes)
		n++
	}
	group := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return group
}

// maxGroup is the number of writes that several calls may have in one commit; a single call may have
// more. It bounds how long the first call waits for the last.
const maxGroup = 1_000

// Write makes changes in one commit. Each write is accepted or refused separately, in order, and sees the results of the earlier ones. Concurrent
// calls may share a commit. The returned error is that of the engine; nothing has changed then.
//
// Metadata fields that only the server sets keep their stored values. An object that belongs to a file still does after a client has written to it.
// If the store allocates the IPs of a load balancer, a write of its status does not change the IPs, only their ipMode and ports, and the conditions.
// A write that changes nothing makes no new version. A deleted object is removed when its last finalizer is; if a file declares the object, it is
// then created from the file.
//
// Errors of single writes: object.Errors if the object is invalid or a requested value is not available; alloc.ErrFull; *OwnedError; ErrExists;
// ErrNotFound, also if a Version or UID was given and the object does not exist; ErrStale.
func (s *Store) Write(writes ...Write) ([]Written, error) {
	c := &call{writes: writes, results: make([]Written, len(writes))}
	if !slices.ContainsFunc(writes, func(w Write) bool { return !w.DryRun }) {
		defer s.look()()
		defer s.allocator.rollback()
		s.begin().dryRun(c)
		return c.results, nil
	}
	s.queue.add(c)
	s.writer.Lock()
	defer s.writer.Unlock()
	for !c.done {
		s.writeGroup(s.queue.take())
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.results, nil
}

// write decides on one write, allocates values, and adds it to the transaction.
func (t *transaction) write(w *Write) Written {
	ref := refInFile(w.Ref)
	if err := t.admitPending(ref, &w.By); err != nil {
		return Written{Err: err}
	}
	c := &change{ref: ref, old: t.record(ref), by: &w.By}
	if err := t.s.secretsRefused(ref.Kind); err != nil && !w.Delete {
		return Written{Err: err}
	}
	if w.Create && c.old != nil {
		return Written{Err: t.refuseExisting(ref, w)}
	}
	if err := c.checkPreconditions(t.s, w); err != nil {
		return Written{Err: err}
	}
	warnings, err := c.propose(t, w)
	if err == nil {
		err = t.stage(c)
	}
	if err != nil {
		return Written{Err: err}
	}
	for _, n := range c.outcome {
		warnings = append(warnings, n.message)
	}
	written := Written{Warnings: warnings, Removed: c.remove}
	if c.remove {
		written.Revision = c.revision
	}
	if r := t.record(ref); r != nil {
		written.Object = r.Object
	} else {
		written.Object = c.old.Object
	}
	return written
}

// stage allocates values for a change and adds it to the transaction, so that later
// changes see it. If it is refused, its allocations are undone.
func (t *transaction) stage(c *change) error {
	l := t.s.allocator
	before := l.mark()
	if err := c.allocate(t); err != nil {
		l.back(before)
		return err
	}
	revision := t.revision
	err := t.encode(c)
	if err == nil {
		err = c.refuseUnstaged()
	}
	if err != nil {
		l.back(before)
		t.revision = revision
		return err
	}
	t.settled.add(c, l.mark())
	t.noteWritten(c)
	return nil
}

// allocate allocates the values of one Service, without regard to other changes of the transaction (see transaction.allocate). Objects of other kinds
// need none.
func (c *change) allocate(t *transaction) error {
	if c.ref.Kind != object.KindService {
		c.next = c.wanted
		return nil
	}
	c.restart()
	if c.next != nil || c.remove {
		c.release(t)
	}
	if c.next == nil {
		return nil
	}
	for _, step := range allocation {
		if err := step(c, t); err != nil {
			return err
		}
	}
	return nil
}

// errAbandoned is the error of a call that shared its commit with one that panicked.
var errAbandoned = errors.New("another change, made at the same moment, failed unexpectedly: nothing was changed, try again")

// writeGroup executes some calls in order, in one commit.
func (s *Store) writeGroup(group []*call) {
	for _, c := range group {
		c.done, c.err = true, errAbandoned
	}
	if err := s.decide(func() error { return s.tryGroup(group) }); err != nil {
		for _, c := range group {
			c.err = err
		}
	}
}

// tryGroup makes one attempt of writeGroup.
func (s *Store) tryGroup(group []*call) error {
	t := s.begin()
	finished := false
	defer func() {
		if !finished {
			s.allocator.rollback()
		}
	}()
	for _, c := range group {
		t.serve(c)
	}
	err := t.finish()
	finished = true
	for _, c := range group {
		if c.err = err; err == nil {
			for i := range c.results { // the call may have got what others in the commit have released
				result, change := &c.results[i], t.changes[refInFile(c.writes[i].Ref)]
				if change != nil && change.record != nil && change.old != nil && change.old.Object == result.Object {
					result.Object = change.record.Object
				}
			}
		}
	}
	return err
}

// serve adds the writes of a call to the transaction, except dry runs, which it makes separately.
func (t *transaction) serve(c *call) {
	dry := false
	for i := range c.writes {
		if dry = dry || c.writes[i].DryRun; !c.writes[i].DryRun {
			c.results[i] = t.write(&c.writes[i])
		}
	}
	if dry {
		t.dryRun(c)
		return
	}
	t.warnOfFamilies(c)
}

// warnOfFamilies adds a warning to each write of a Service or an EndpointSlice in a call, if after the call all endpoints of the Service are of one
// IP family and its cluster IP is of the other.
func (t *transaction) warnOfFamilies(c *call) {
	var changed map[string][]*object.EndpointSlice // by Service, made when it is needed
	for i := range c.writes {
		written := &c.results[i]
		if written.Err != nil || c.writes[i].Delete || c.writes[i].Status {
			continue
		}
		key := index.ServiceKey(written.Object)
		slice, isSlice := written.Object.(*object.EndpointSlice)
		if _, isService := written.Object.(*object.Service); key == "" || !isService && !isSlice {
			continue
		}
		r := t.record(object.ServiceRef(key))
		if r == nil {
			continue
		}
		svc := r.Object.(*object.Service)
		if isSlice && slices.Contains(svc.Spec.IPFamilies, slice.AddressType) {
			continue // the usual case, which does not look at the other slices
		}
		if changed == nil {
			changed = t.changedSlices()
		}
		if _, why := annotation.OtherFamily(svc, t.slicesOf(key, changed)); why != "" {
			written.Warnings = append(written.Warnings, fmt.Sprintf("Service %s: %s", key, why))
		}
	}
}

// changedSlices returns the slices that the transaction wrote, by Service.
func (t *transaction) changedSlices() map[string][]*object.EndpointSlice {
	changed := map[string][]*object.EndpointSlice{}
	for ref := range t.last {
		if r := t.record(ref); ref.Kind == object.KindEndpointSlice && r != nil {
			key := index.ServiceKey(r.Object)
			changed[key] = append(changed[key], r.Object.(*object.EndpointSlice))
		}
	}
	return changed
}

// slicesOf returns the EndpointSlices of a Service as of this transaction: those in written[key], and the stored ones that the transaction does not
// change.
func (t *transaction) slicesOf(key string, written map[string][]*object.EndpointSlice) []*object.EndpointSlice {
	_, stored, _ := t.s.table.service(key)
	all := slices.Clone(written[key])
	for _, slice := range stored {
		if t.last[object.RefOf(slice)] == nil {
			all = append(all, slice)
		}
	}
	return all
}

// dryRun makes the dry runs of a call, and undoes all their effects.
func (t *transaction) dryRun(c *call) {
	settled, last, held, newest := len(t.order), maps.Clone(t.last), t.base, t.s.numbers.newest
	t.dry = true
	for i := range c.writes {
		if c.writes[i].DryRun {
			c.results[i] = t.write(&c.writes[i])
		}
	}
	t.dry = false
	t.warnOfFamilies(c)
	t.s.allocator.back(held)
	t.order, t.last, t.base, t.s.numbers.newest = t.order[:settled], last, held, newest
}

// finish commits the settled changes, with their consequences for other objects: a removed object that a file declares is created from the file,
// and waiting Services get values.
func (t *transaction) finish() error {
	if len(t.order) == 0 {
		t.s.allocator.rollback()
		return nil
	}
	for ref := range t.last {
		if t.record(ref) == nil && len(t.declarationsOf(ref)) > 0 {
			t.examine(ref)
		}
	}
	if _, err := t.run(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
