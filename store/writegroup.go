package store

import (
	"errors"
	"fmt"
	"maps"
	"sync"
)

// maxGroup is how many writes of several calls go into one commit; a single call may have
// more. It bounds how long the first of them waits for the last.
const maxGroup = 1_000

// errAbandoned is what a call is told that went into a commit together with one that ended
// in a panic.
var errAbandoned = errors.New("another change, made at the same moment, failed unexpectedly: nothing was changed, try again")

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

// writeGroup makes the changes of some calls in one commit, call after call.
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

// tryGroup is writeGroup once.
func (s *Store) tryGroup(group []*call) error {
	t := s.begin()
	finished := false
	defer func() {
		if !finished {
			s.ledger.rollback()
		}
	}()
	for _, c := range group {
		t.serve(c)
	}
	err := t.finish()
	finished = true
	for _, c := range group {
		if c.err = err; err == nil {
			t.updateResults(c)
		}
	}
	return err
}

// serve makes what a call asks for part of the transaction, its dry runs apart.
func (t *transaction) serve(c *call) {
	dry := false
	for i := range c.writes {
		if dry = dry || c.writes[i].DryRun; !c.writes[i].DryRun {
			c.results[i] = t.write(&c.writes[i])
		}
	}
	if dry {
		t.dryRun(c)
	}
}

// dryRun decides the dry runs of a call, and takes everything back.
func (t *transaction) dryRun(c *call) {
	settled, last, held, newest := len(t.order), maps.Clone(t.last), t.base, t.s.numbers.newest
	t.dry = true
	for i := range c.writes {
		if c.writes[i].DryRun {
			c.results[i] = t.write(&c.writes[i])
		}
	}
	t.dry = false
	t.s.ledger.back(held)
	t.order, t.last, t.base, t.s.numbers.newest = t.order[:settled], last, held, newest
}

// finish commits what is settled, together with what comes of it for others: files get the
// names that have become free, and who waits the values.
func (t *transaction) finish() error {
	if len(t.order) == 0 {
		t.s.ledger.rollback()
		return nil
	}
	for ref := range t.last {
		if t.record(ref) == nil && len(t.claimsOn(ref)) > 0 {
			t.examine(ref)
		}
	}
	if _, err := t.run(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// updateResults puts the versions into the answers to a call that got what others in the commit have
// released.
func (t *transaction) updateResults(c *call) {
	for i := range c.results {
		result, change := &c.results[i], t.changes[refInFile(c.writes[i].Ref)]
		if change != nil && change.record != nil && change.old != nil && change.old.object == result.Object {
			result.Object = change.record.object
		}
	}
}
