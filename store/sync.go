package store

import (
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// SyncResult is what one call has changed.
type SyncResult struct {
	// Revision is that of the store afterwards.
	Revision uint64
	// Created, Updated and Deleted count objects; Refused counts those whose documents
	// were looked at and not accepted.
	Created, Updated, Deleted, Refused int
}

// SyncFiles makes the objects that belong to files equal to these files. It looks only
// at the files that are not the same pointers as in the previous call, and at objects
// that wait for something that was released. All it changes is one commit; what cannot be
// accepted is among Problems afterwards, and does not keep the rest from being accepted.
// The error is that of the commit: nothing has changed then, and the call may be repeated.
// The files are kept, and may not be changed.
func (s *Store) SyncFiles(files manifest.Files) (SyncResult, error) { return s.SyncGuarded(files, nil) }

// SyncGuarded is SyncFiles with a guard that may hold removals; nil removes what no file has a document for.
func (s *Store) SyncGuarded(files manifest.Files, guard RemovalGuard) (result SyncResult, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		result, err = s.syncFiles(files, guard)
		return err
	})
	return result, err
}

// syncFiles is SyncGuarded once.
func (s *Store) syncFiles(files manifest.Files, guard RemovalGuard) (SyncResult, error) {
	files, err := s.takeFiles(files)
	if err != nil {
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	t := s.begin()
	refs := t.readFiles(files)
	if !s.declared.synced {
		for ref := range s.outcomes.waiting {
			refs = append(refs, ref)
		}
	}
	for ref := range s.declared.held {
		refs = append(refs, ref)
	}
	t.removes = true
	t.examine(refs...)
	held := t.holdRemovals(guard)
	s.ledger.vanished = held
	t.base.released = !maps.Equal(held, s.declared.held) // who waits for a value of theirs is told otherwise
	t.removes = false                                    // what is examined from here on was not decided upon
	result, err := t.run()
	if err != nil {
		s.ledger.vanished = s.declared.held
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	s.declared.synced, s.declared.held = true, held
	return result, nil
}

// run allocates, commits and publishes what was examined.
func (t *transaction) run() (SyncResult, error) {
	changes := t.allocate()
	for t.s.ledger.released && t.examineWaiting() {
		changes = t.allocate()
	}
	result, err := t.commit(changes)
	if err != nil {
		t.s.ledger.rollback()
		return SyncResult{}, err
	}
	return result, nil
}

// commit writes all that is new, what was there before, and the copies of files that
// wait, and publishes it.
func (t *transaction) commit(joint []*change) (SyncResult, error) {
	s := t.s
	if t.isFresh(joint) {
		return t.commitInPieces(joint)
	}
	if err := t.encode(joint...); err != nil {
		return SyncResult{}, err
	}
	changes := joint
	if len(t.order) > 0 {
		changes = append(t.order, joint...)
	}
	ends, err := t.endNamespaces(changes)
	if err != nil {
		return SyncResult{}, err
	}
	changes = append(changes, ends...)
	before := s.latest()
	var out engine.Transaction
	addObjects(&out, changes, t.revision, len(changes) > len(joint))
	revision := s.feed.revision
	var update journal.Update
	if t.revision != before {
		revision = t.revision
		value, err := s.headValue(changes)
		if err != nil {
			return SyncResult{}, err
		}
		out.Puts = append(out.Puts, engine.Pair{Key: headKey, Value: value, Revision: revision})
		if update, err = s.feed.journal.Plan(journalOf(changes), s.feed.revision, s.cfg.Clock()); err != nil {
			return SyncResult{}, err
		}
		update.AddTo(&out)
	}
	noted, err := s.trial.note(s, changes, &out)
	if err != nil {
		return SyncResult{}, err
	}
	out.Puts, out.Deletes = append(out.Puts, t.extra.Puts...), append(out.Deletes, t.extra.Deletes...)
	if err := s.write(out, revision); err != nil {
		return SyncResult{}, err
	}
	s.noteTrial(noted)
	result := t.publish(changes, revision, update)
	if s.storage.shared != nil {
		s.storage.shared.Published()
	}
	return result, nil
}

// addObjects adds to a transaction what becomes of each object in the end; repeated says that an object may be
// among the changes more than once.
func addObjects(out *engine.Transaction, changes []*change, revision uint64, repeated bool) {
	out.Puts = slices.Grow(out.Puts, len(changes)+1)
	seen := map[object.Ref]struct{}{}
	for _, c := range slices.Backward(changes) {
		if c.revision == 0 {
			continue
		}
		if _, later := seen[c.ref]; later {
			continue
		}
		if repeated {
			seen[c.ref] = struct{}{}
		}
		if c.remove {
			out.Deletes = append(out.Deletes, objectKey(c.ref))
		} else {
			out.Puts = append(out.Puts, engine.Pair{Key: objectKey(c.ref), Value: c.encoded[engine.EntryHeader:], Revision: revision, Entry: c.encoded})
		}
	}
}

// publish makes what was committed visible.
func (t *transaction) publish(changes []*change, revision uint64, update journal.Update) SyncResult {
	s := t.s
	result := SyncResult{Revision: revision}
	s.ledger.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.declared.update(t.files, t.claims, t.duplicates)
	s.table.grow(len(changes))
	if t.revision-max(s.feed.revision, s.numbers.seed) > maxLogged {
		s.feed.log.reset(revision)
	}
	for _, ref := range t.trusted {
		owner := s.table.get(ref).owner
		s.declared.noteOwner(ref, owner, owner)
	}
	dataplane := false
	for _, c := range changes {
		result.count(c)
		s.outcomes.set(c.ref, append(c.notes, c.outcome...), c.waits)
		if c.revision != 0 && !c.same {
			s.feed.log.addChange(c)
			dataplane = dataplane || !isEphemeral(c.ref.Kind)
		}
		if c.revision != 0 || c.same {
			s.table.set(c.ref, c.record)
		}
		s.declared.noteOwner(c.ref, ownerOf(c.old), ownerOf(s.table.get(c.ref)))
	}
	s.feed.advance(revision, update, dataplane)
	return result
}

// isEphemeral reports whether nothing of the dataplane follows from objects of a kind.
func isEphemeral(kind string) bool { return object.StrategyOfKind(kind).Ephemeral }

func (r *SyncResult) count(c *change) {
	switch {
	case c.remove:
		r.Deleted++
	case c.record != nil && c.old == nil:
		r.Created++
	case c.record != nil && !c.same:
		r.Updated++
	}
	if c.err != nil {
		r.Refused++
	}
}
