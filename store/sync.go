package store

import (
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/engine"
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
func (s *Store) SyncFiles(files manifest.Files) (result SyncResult, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		result, err = s.syncFiles(files, nil)
		return err
	})
	return result, err
}

// syncFiles is SyncFiles once. sourced is what it changes of sources; nil: the files are of no source.
func (s *Store) syncFiles(files manifest.Files, sourced *sourcesUpdate) (SyncResult, error) {
	files, err := s.takeFiles(files)
	if err != nil {
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	t := s.begin()
	defer t.end()
	t.sourced = sourced
	refs := t.readFiles(files)
	for ref := range s.sources.stale {
		refs = append(refs, ref)
	}
	if !s.synced {
		for ref := range s.waiting {
			refs = append(refs, ref)
		}
	}
	for ref := range s.held {
		refs = append(refs, ref)
	}
	t.removes = true
	t.examine(refs...)
	held := t.hold()
	s.ledger.vanished = held
	t.base.released = !maps.Equal(held, s.held) // who waits for a value of theirs is told otherwise
	t.removes = false                           // what is examined from here on was not decided upon
	result, err := t.run()
	if err != nil {
		s.ledger.vanished = s.held
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	s.synced, s.held = true, held
	clear(s.sources.stale)
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
	if err := t.prepare(joint...); err != nil {
		return SyncResult{}, err
	}
	changes := joint
	if len(t.settled) > 0 {
		changes = append(t.settled, joint...)
	}
	ends, err := t.endNamespaces(changes)
	if err != nil {
		return SyncResult{}, err
	}
	changes = append(changes, ends...)
	before := s.latest()
	if !t.sourced.isEmpty() && t.revision == before {
		t.revision++ // other machines follow heads
	}
	var out engine.Transaction
	addObjects(&out, changes, t.revision, len(changes) > len(joint))
	revision := s.revision
	var journal journalUpdate
	if t.revision != before {
		revision = t.revision
		value, err := s.headValue(changes)
		if err != nil {
			return SyncResult{}, err
		}
		out.Puts = append(out.Puts, engine.Pair{Key: headKey, Value: value, Revision: revision})
		if journal, err = s.history.plan(changes, s.revision, s.cfg.Clock()); err != nil {
			return SyncResult{}, err
		}
		journal.addTo(&out)
	}
	noted, err := s.trial.note(s, changes, &out)
	if err != nil {
		return SyncResult{}, err
	}
	out.Puts, out.Deletes = append(out.Puts, t.extra.Puts...), append(out.Deletes, t.extra.Deletes...)
	if t.sourced != nil {
		if err := t.sourced.addTo(&out, revision); err != nil {
			return SyncResult{}, err
		}
	}
	if err := s.write(out, revision); err != nil {
		return SyncResult{}, err
	}
	s.noteTrial(noted)
	result := t.publish(changes, revision, journal)
	if s.shared != nil {
		s.shared.Published()
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
func (t *transaction) publish(changes []*change, revision uint64, journal journalUpdate) SyncResult {
	s := t.s
	result := SyncResult{Revision: revision}
	s.ledger.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	t.publishFiles()
	s.sources.publish(t.sourced)
	if len(s.records) == 0 {
		s.records = make(map[object.Ref]*record, len(changes))
	}
	if t.revision-max(s.revision, s.seed) > maxLogged {
		s.log.reset(revision)
	}
	for _, ref := range t.trusted {
		s.noteClaim(ref, s.records[ref].owner)
	}
	programmed := false
	for _, c := range changes {
		result.count(c)
		s.publishNotes(c)
		switch {
		case c.same:
			s.setRecord(c.ref, c.record)
		case c.revision != 0:
			s.publishObject(c)
			programmed = programmed || !isChatter(c.ref.Kind)
		}
		before := Owner{}
		if c.old != nil {
			before = c.old.owner
		}
		s.noteClaim(c.ref, before)
	}
	if revision != s.revision {
		s.revision = revision
		s.history.apply(journal)
		close(s.published)
		s.published = make(chan struct{})
	}
	if programmed {
		s.concerning = revision
		select {
		case s.changed <- struct{}{}:
		default: // it says so already
		}
	}
	return result
}

// isChatter reports whether objects of a kind are only for clients to talk to each other.
func isChatter(kind string) bool { return kind == object.KindEvent || kind == object.KindLease }

func (s *Store) publishObject(c *change) {
	var before, now string
	if c.old != nil {
		before = serviceKeyOf(c.old.object)
		s.log.addService(c.revision, before)
	}
	if c.record != nil {
		now = serviceKeyOf(c.record.object)
	}
	if now != before {
		s.log.addService(c.revision, now)
	}
	if c.ref.Kind == object.KindPod {
		s.log.addPod(c.revision, c.ref.Key())
	}
	if c.ref.Kind == object.KindSecret {
		s.log.addSecret(c.revision, c.ref.Key())
	}
	s.setRecord(c.ref, c.record)
}

// publishNotes replaces what is said about an object.
func (s *Store) publishNotes(c *change) {
	if notes := append(c.notes, c.outcome...); len(notes) > 0 {
		s.notes[c.ref] = notes
	} else {
		delete(s.notes, c.ref)
	}
	if c.waits {
		s.waiting[c.ref] = struct{}{}
	} else {
		delete(s.waiting, c.ref)
	}
}

func (t *transaction) publishFiles() {
	s := t.s
	s.files = t.files
	if len(s.claims) == 0 {
		s.claims, t.claims = t.claims, nil
	}
	for ref, claims := range t.claims {
		if len(claims) == 0 {
			delete(s.claims, ref)
		} else {
			s.claims[ref] = claims
		}
	}
	for path, duplicates := range t.duplicates {
		delete(s.troubled, path)
		delete(s.duplicates, path)
		if len(duplicates) > 0 {
			s.duplicates[path] = duplicates
			s.troubled[path] = struct{}{}
		}
		if file := t.files.Get(path); file != nil && (file.Err != nil || len(file.Problems) > 0) {
			s.troubled[path] = struct{}{}
		}
	}
}

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
