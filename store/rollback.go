package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// Rollback has the parameters of Store.Rollback: which objects to restore, and to which revision.
type Rollback struct {
	// Revision is the revision to go back to; 0 is the one before the last commit of a client.
	Revision uint64
	// Last is the revision of the last change by a client that the caller has seen. If there is a newer one, nothing is rolled back
	// (NewerChangeError). 0 disables the check.
	Last   uint64
	By     Caller
	DryRun bool // nothing is changed
}

// RolledBack is the outcome of a rollback: its revisions, and the outcome for each object.
type RolledBack struct {
	Revision uint64 // the revision whose versions were restored
	Last     uint64 // the revision of the last change by a client before the rollback; 0 if the journal has none
	Objects  []Revived
}

// NewerChangeError means that a client has changed something after the last change that the caller of a
// rollback has seen.
type NewerChangeError struct{ Last, Newest uint64 }

func (e *NewerChangeError) Error() string {
	return fmt.Sprintf("the last change by a client is revision %d, not %d: nothing was rolled back", e.Newest, e.Last)
}

// ErrNoChange means that the journal has no change by a client that a rollback could undo.
var ErrNoChange = errors.New("the journal has no change by a client of the API")

// Rollback restores the objects of the API to their versions at a revision, as far as the journal reaches back, in one
// commit. It does not change objects of files and controllers; the result lists those of files. No other write can come
// between finding the last change and undoing it. Errors: ErrExpired, ErrNoChange, *NewerChangeError.
func (s *Store) Rollback(ask Rollback) (b RolledBack, err error) {
	if ask.DryRun {
		defer s.look()()
		return s.rollback(ask)
	}
	return decided(s, func() (RolledBack, error) { return s.rollback(ask) })
}

// rollback makes one attempt of Rollback.
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
	t := s.begin()
	if err := t.admitPending(object.Ref{}, &ask.By); err != nil {
		return b, err
	}
	t.dry = ask.DryRun
	ask.By.Verb = verbRollback
	revived, err := t.restoreVersions(before, &ask.By)
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

// versionsAt returns, for each object that has changed since a revision, its version at that revision; nil if it did not exist. left has the changed
// objects that a rollback does not change. Errors: ErrExpired.
func (s *Store) versionsAt(revision uint64) (before map[object.Ref]*record.Record, left []Revived, err error) {
	events, err := s.Events(revision, 0)
	if err != nil {
		return nil, nil, err
	}
	before = map[object.Ref]*record.Record{}
	seen := map[object.Ref]bool{}
	for i := range events {
		e := &events[i]
		if seen[e.Ref] || isEphemeral(e.Ref.Kind) || e.By.Verb == verbStatus {
			continue
		}
		seen[e.Ref] = true
		owner, now := e.Owner, s.table.get(e.Ref)
		if now != nil {
			owner = now.Owner
		}
		switch _, staged := s.pending.staged().Before[e.Ref]; {
		case owner.Controller != "":
		case staged:
			left = append(left, Revived{Ref: e.Ref, Did: ReviveLeft, Why: "it is in a rollout: `svcctl fleet rollout undo` takes that back"})
		case owner.File != "":
			left = append(left, Revived{Ref: e.Ref, Did: ReviveLeft, Why: "it belongs to " + owner.File + ": change it there"})
		case e.Old == nil:
			before[e.Ref] = nil
		default:
			r := &record.Record{Object: e.Old, Owner: owner}
			if now != nil && now.Object.GetMeta().UID == e.Old.GetMeta().UID {
				r.Created, r.Asked = now.Created, now.Asked
			}
			before[e.Ref] = r
		}
	}
	return before, left, nil
}

// lastChange returns the revision of the last change by a client of an object of the API, and the revision before the commit with that change.
func (s *Store) lastChange() (revision, previous uint64, found bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var first *journal.Entry // of the commit
	for _, e := range slices.Backward(s.feed.journal.Entries()) {
		if first != nil && !e.At.Equal(first.At) {
			break
		}
		if e.By == (Caller{}) || e.By.Verb == verbStatus || isEphemeral(e.Ref.Kind) || e.Owner != (Owner{}) {
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

// Revived is the outcome of restoring one object to an earlier version.
type Revived struct {
	Ref object.Ref
	// Did is one of the constants ReviveCreated to ReviveConflict.
	Did string
	// Why is the reason for ReviveLeft or ReviveConflict; else "".
	Why string
}

// The outcomes of restoring an object.
const (
	ReviveCreated  = "created"  // it had been deleted, and was created again
	ReviveChanged  = "changed"  // it had been changed, and was changed back
	ReviveDeleted  = "deleted"  // it had been created, and was deleted
	ReviveLeft     = "left"     // it was not changed, because it belongs to a file or to a rollout
	ReviveConflict = "conflict" // it was restored and is not served: another object has one of its values
)

// The journal's verbs for restoring objects to an earlier version: by undoing a trial, or by svcctl rollback.
const (
	verbGoBack   = "go-back"
	verbRollback = "rollback"
)

// restoreVersions adds changes to the transaction that restore objects to earlier versions; a nil record removes the object. It returns the outcome
// for each object that changes.
func (t *transaction) restoreVersions(before map[object.Ref]*record.Record, by *Caller) ([]Revived, error) {
	var changes []*change
	for _, ref := range slices.SortedFunc(maps.Keys(before), record.CompareRefs) {
		was, is := before[ref], t.s.table.get(ref)
		if was == is || was != nil && is != nil && was.Object.GetMeta().ResourceVersion == is.Object.GetMeta().ResourceVersion {
			continue
		}
		c := &change{ref: ref, old: is, by: by, remove: was == nil}
		if was != nil {
			c.owner = was.Owner
		} else {
			c.owner = is.Owner
		}
		changes = append(changes, c)
	}
	l := t.s.allocator
	for _, c := range changes { // all give before anybody takes
		if c.ref.Kind == object.KindService && c.holds() {
			c.releaseAll(l)
		}
	}
	// The older of two holders keeps a value that both have.
	ordered := slices.Clone(changes)
	record.SortByAge(ordered, func(c *change) (object.Ref, *record.Record) { return c.ref, before[c.ref] })
	why := map[object.Ref]string{}
	for _, c := range ordered {
		if was := before[c.ref]; was != nil {
			if err := c.restoreVersion(t, was); err != nil {
				return nil, err
			}
			if c.record.Withheld {
				why[c.ref] = c.notes[len(c.notes)-1].message
			}
		} else {
			t.number(c)
		}
		t.settled.add(c, l.mark())
	}
	t.base = l.mark()
	revived := make([]Revived, 0, len(changes))
	for _, c := range changes {
		r := Revived{Ref: c.ref, Did: ReviveChanged, Why: why[c.ref]}
		switch {
		case r.Why != "":
			r.Did = ReviveConflict
		case c.remove:
			r.Did = ReviveDeleted
		case c.old == nil:
			r.Did = ReviveCreated
		}
		revived = append(revived, r)
	}
	return revived, nil
}

// releaseAll releases all values that the stored version of a Service holds.
func (c *change) releaseAll(l *allocator) {
	for v := range c.held().all {
		l.release(v, c.ref.Key())
	}
	if len(index.ExternalIPs(c.oldService())) > 0 {
		l.released = true // a load balancer may have waited for the address
	}
}

// restoreVersion makes an earlier version the next one, with new values of resourceVersion and generation. If another Service holds one of the values
// of the restored Service by now, the restored Service is withheld, as at a start.
func (c *change) restoreVersion(t *transaction, was *record.Record) error {
	c.next = object.Draft(was.Object)
	t.number(c)
	meta := c.next.GetMeta()
	if !t.dry {
		meta.ResourceVersion = strconv.FormatUint(c.revision, 10)
	}
	s := object.StrategyOf(c.next)
	if c.old != nil && meta.UID == c.old.Object.GetMeta().UID && s.HasGeneration && !s.SameSpec(c.old.Object, c.next) {
		meta.Generation = c.old.Object.GetMeta().Generation + 1
	}
	if err := c.encodeAs(was.Owner, record.Since{Created: was.Created, Asked: was.Asked}); err != nil {
		return err
	}
	svc, isService := c.next.(*object.Service)
	if !isService {
		return nil
	}
	if err := t.s.allocator.holdAll(svc); err != nil {
		c.record.Withheld, c.waits = true, true
		c.note(was.Owner.File, "", ReasonConflict, fmt.Sprintf(
			"it is as it was again, and %v by now; nothing is programmed for it: delete one of the two", err), false)
	}
	return nil
}
