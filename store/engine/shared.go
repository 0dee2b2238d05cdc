package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Shared is an Engine whose objects other machines change too. Its user has a state, which only
// Follow and Commit advance: a Commit succeeds only if no other machine has committed since that
// state, and fails with ErrConflict otherwise, as soon as Follow has the other commit.
//
// Follow, Published and Commits that put the head are called by one goroutine at a time. During such a Commit others may call Keep,
// and Commit what belongs to this machine alone.
type Shared interface {
	Engine
	// Follow gives what others have committed since the last call, in order. It does not wait.
	Follow() []Followed
	// Arrived has a value when Follow may have something.
	Arrived() <-chan struct{}
	// Published makes everything that Follow returned and Commit accepted visible to readers.
	Published()
	// Refuse reports a change from Follow that cannot be read: nothing more is followed or committed
	// until a newer program starts.
	Refuse(why error)
	// Keep writes pairs that belong to this machine alone, within a second.
	Keep(t Transaction)
	// Sealing is why pairs that are secret cannot be committed; nil: they can.
	Sealing() error
	// Tries is why there can be no trials; nil: there can.
	Tries() error
	// Rolls is why there can be no rollouts; nil: there can.
	Rolls() error
	// Fresh returns when readers see all that any machine committed before the call.
	Fresh(ctx context.Context) error
}

// Alone is a Shared in memory to which no other machine writes: for a copy of a store, and for tests.
type Alone struct{ *Memory }

// Follow implements Shared; so do the other methods.
func (Alone) Follow() []Followed          { return nil }
func (Alone) Arrived() <-chan struct{}    { return nil }
func (Alone) Published()                  {}
func (Alone) Refuse(error)                {}
func (Alone) Keep(Transaction)            {}
func (Alone) Sealing() error              { return nil }
func (Alone) Tries() error                { return nil }
func (Alone) Rolls() error                { return nil }
func (Alone) Fresh(context.Context) error { return nil }

// Followed is a commit of another machine.
type Followed struct {
	// Revision is the revision of the head afterwards, Note the value that the head was put with.
	Revision uint64
	Note     []byte
	Puts     []Pair
	Deletes  []string
	// Reload is set for the difference to a state that was read as a whole: the commits in between are
	// not known, and Note is empty.
	Reload bool
	// Again is set when nothing has changed, and files are to be tried again for values that they were
	// refused.
	Again bool
}

// AwayError means that a commit, or a read, has not been sent, or was refused. Nothing was changed.
type AwayError struct {
	Why   string
	Since time.Time // the zero Time: now
}

// Error implements error.
func (e *AwayError) Error() string {
	if e.Since.IsZero() {
		return e.Why
	}
	return fmt.Sprintf("%s, since %s", e.Why, e.Since.UTC().Format(time.RFC3339))
}

// ErrUnsettled means that the outcome of a commit is unknown. If it took place, Follow returns it
// later.
var ErrUnsettled = errors.New("no answer came in time, and the change may have been made or not: look before you try again")
