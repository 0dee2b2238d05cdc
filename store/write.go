package store

import (
	"errors"
	"fmt"
	"sync"

	"svcctl.io/svcctl/store/object"
)

var (
	// ErrExists means that the object exists already.
	ErrExists = errors.New("already exists")
	// ErrNotFound means that the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrStale means that the object has another version than the one to replace.
	ErrStale = errors.New("the object has been modified; please apply your changes to the latest version and try again")
)

// OwnedError means that an object has another owner.
type OwnedError struct {
	Ref   object.Ref
	Owner Owner
	// Reader is the machine that reads the file of the Owner, when it is another one.
	Reader string
}

// Error implements error.
func (e *OwnedError) Error() string {
	if e.Reader != "" {
		return fmt.Sprintf("%s belongs to %s, which box %s reads: change it there, or ask that box", e.Ref, e.Owner, e.Reader)
	}
	if e.Ref.Kind == object.KindNode && IsNodeController(e.Owner.Controller) {
		return fmt.Sprintf("%s is kept by svcctl on that box as long as it runs: stop it there, and delete the Node when its condition Ready is Unknown", e.Ref)
	}
	return fmt.Sprintf("%s belongs to %s: change it there", e.Ref, e.Owner)
}

// PreconditionError means that the uid or the version of an object is not the expected one. It is
// ErrStale.
type PreconditionError struct {
	Field        string // UID or ResourceVersion
	Wanted, Have string
}

// Error implements error.
func (e *PreconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.Field, e.Wanted, e.Field, e.Have)
}

// Unwrap is ErrStale.
func (e *PreconditionError) Unwrap() error { return ErrStale }

// Write is one change that a client of the API asks for.
type Write struct {
	// Ref names the object.
	Ref object.Ref
	// Object is the whole new version with its managedFields; it is not kept. Nil with
	// Delete.
	Object object.Object
	// Delete removes the object, or marks it as going while it has finalizers or, a Namespace,
	// objects in it.
	Delete bool
	// Create refuses the write when the object exists (ErrExists).
	Create bool
	// Status takes the status and managedFields from Object and leaves all else; without it
	// the status stays. Who creates a Pod or a Node gives it its first status.
	Status bool
	// Version is the resourceVersion that the stored version must have; "" is any. UID likewise.
	Version, UID string
	// DryRun decides and allocates, and changes nothing. The dry runs of a call come after
	// its other writes, and see each other.
	DryRun bool
	By     Caller
}

// Written is the outcome of a Write.
type Written struct {
	// Object is the version that is stored afterwards, or would be; of a removal the last
	// one. What a dry run would store has no resourceVersion of its own.
	Object object.Object
	// Removed is set when the object is gone; Revision is that of its removal, 0 of a dry run.
	Removed  bool
	Revision uint64
	// Warnings are for the one who asked.
	Warnings []string
	Err      error
}

// call is a call of Write that waits. All but its writes is guarded by Store.writer.
type call struct {
	writes  []Write
	results []Written
	err     error
	done    bool
}

// writeQueue has the calls that wait for the commit under way, to share the next one: the disk takes
// its time for each.
type writeQueue struct {
	mu      sync.Mutex
	waiting []*call
}

func (q *writeQueue) add(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

// take takes out as many as go together, the first ones.
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

// maxGroup bounds the writes of several calls in one commit; a single call may have more. It bounds
// the time for which the first of them waits for the last.
const maxGroup = 1_000
