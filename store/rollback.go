package store

import (
	"errors"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
)

// Rollback asks for objects as they were at a revision.
type Rollback struct {
	// Revision is the revision to go back to; 0 is the one before the last commit of a client.
	Revision uint64
	// Last is the last change by a client that the caller knows of: after a newer one nothing is rolled back
	// (NewerChangeError). 0 is any.
	Last   uint64
	By     Caller
	DryRun bool // nothing is changed
}

// RolledBack lists the effects of a rollback.
type RolledBack struct {
	Revision uint64 // the one that the objects are back at
	Last     uint64 // the last change by a client before it; 0 when the journal knows of none
	Objects  []Revived
}

// NewerChangeError reports that a client changed something after the change that the caller of a rollback
// knows of.
type NewerChangeError struct{ Last, Newest uint64 }

func (e *NewerChangeError) Error() string {
	return fmt.Sprintf("the last change by a client is revision %d, not %d: nothing was rolled back", e.Newest, e.Last)
}

// ErrNoChange reports that the journal knows of no change by a client.
var ErrNoChange = errors.New("the journal has no change by a client of the API")

// Rollback makes the objects of the API what they were at a revision, as far as the journal knows, in
// one commit. What belongs to files and controllers is left; of the files' it says so. No write comes between
// finding the last change and taking it back. Errors: ErrExpired, ErrNoChange, *NewerChangeError.
func (s *Store) Rollback(ask Rollback) (b RolledBack, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		b, err = s.rollback(ask)
		return err
	})
	return b, err
}

// rollback is Rollback once.
func (s *Store) rollback(ask Rollback) (RolledBack, error) {
	b := RolledBack{Revision: ask.Revision}
	last, previous, found := s.lastChange()
	switch {
	case ask.Last > 0 && last != ask.Last:
		return b, &NewerChangeError{Last: ask.Last, Newest: last}
	case ask.Revision == 0 && !found:
		return b, ErrNoChange
	case ask.Revision == 0:
		b.Revision = previous
	}
	b.Last = last
	before, left, err := s.versionsAt(b.Revision)
	if err != nil {
		return b, err
	}
	if err := s.admitTrial(ask.By); err != nil {
		return b, err
	}
	t := s.begin()
	t.dry = ask.DryRun
	ask.By.Verb = verbRollback
	revived, err := t.revive(before, &ask.By)
	if err == nil && !ask.DryRun {
		_, err = t.run()
	}
	if err != nil || ask.DryRun {
		s.allocator.rollback()
	}
	if err != nil {
		return b, fmt.Errorf("roll back: %w", err)
	}
	b.Objects = append(revived, left...)
	return b, nil
}

// versionsAt are the objects that have changed since a revision as they were then, nil for those that were not there, and
// those that are left as they are. Errors: ErrExpired.
func (s *Store) versionsAt(revision uint64) (before map[object.Ref]*record, left []Revived, err error) {
	events, err := s.Events(revision, 0)
	if err != nil {
		return nil, nil, err
	}
	before = map[object.Ref]*record{}
	seen := map[object.Ref]bool{}
	for i := range events {
		e := &events[i]
		if seen[e.Ref] || isEphemeral(e.Ref.Kind) {
			continue
		}
		seen[e.Ref] = true
		owner, now := e.Owner, s.table.records[e.Ref]
		if now != nil {
			owner = now.owner
		}
		_, staged := s.rollout.before[e.Ref]
		switch {
		case owner.Controller != "":
		case staged:
			left = append(left, Revived{Ref: e.Ref, Did: ReviveLeft, Why: "it is in a rollout: `svcctl rollout undo` takes that back"})
		case owner.File != "":
			left = append(left, Revived{Ref: e.Ref, Did: ReviveLeft, Why: "it belongs to " + owner.File + ": change it there"})
		case e.Old == nil:
			before[e.Ref] = nil
		default:
			r := &record{object: e.Old, owner: owner}
			if now != nil && now.object.GetMeta().UID == e.Old.GetMeta().UID {
				r.created, r.asked = now.created, now.asked
			}
			before[e.Ref] = r
		}
	}
	return before, left, nil
}

// lastChange is the last change of the API's objects by a client, and the revision before the commit that it is of.
func (s *Store) lastChange() (revision, previous uint64, found bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var first *journal.Entry // of the commit
	for _, e := range slices.Backward(s.feed.journal.Entries()) {
		if first != nil && !e.At.Equal(first.At) {
			break
		}
		if e.By == (Caller{}) || isEphemeral(e.Ref.Kind) || e.Owner != (Owner{}) {
			continue
		}
		if first == nil {
			revision = e.Revision
		}
		first = e
	}
	if first == nil {
		return 0, 0, false
	}
	return revision, first.Previous, true
}
