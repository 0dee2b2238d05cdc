package store

import (
	"maps"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
)

// run allocates, commits and publishes what was examined.
func (t *transaction) run() (SyncResult, error) {
	changes := t.allocate()
	for t.s.allocator.released && t.examineWaiting() {
		changes = t.allocate()
	}
	result, err := t.commit(changes)
	if err != nil {
		t.s.allocator.rollback()
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
	if (!t.sourced.isEmpty() || t.rolled != nil || t.announced && s.storage.shared != nil) && t.revision == before {
		t.revision++ // other machines follow heads
	}
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
	staged, err := s.rollout.note(s, changes, &out)
	if err != nil {
		return SyncResult{}, err
	}
	maps.Copy(staged, t.staged)
	t.staged = staged
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
	s.allocator.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.declared.update(t.files, t.declarations, t.duplicates)
	s.sources.publish(t.sourced)
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
	dataplane = s.publishRollout(t) || dataplane
	s.feed.advance(revision, update, dataplane)
	return result
}

// isEphemeral reports whether nothing of the dataplane follows from objects of a kind.
func isEphemeral(kind string) bool { return object.StrategyOfKind(kind).Ephemeral }

// pieceObjects bounds the objects of one commit when many are new, as at a first start: a commit
// takes more memory, for encoded objects and the pages that they are written to, than the objects
// themselves.
const pieceObjects = 4_000

// isFresh reports whether the changes are more than the journal holds, all of objects that are new.
func (t *transaction) isFresh(changes []*change) bool {
	if t.s.storage.shared != nil || len(changes) <= max(t.s.storage.piece, t.s.feed.journal.Bounds().Entries) || len(t.order) > 0 || t.s.trial.Pending() {
		return false
	}
	for _, c := range changes {
		if c.old != nil || c.remove {
			return false
		}
	}
	return true
}

// commitInPieces is commit for new objects. All is decided before the first commit, and readers see
// nothing before the last one. When the process dies in between, the next start finds a part of the
// objects, with their values, and adds the others; when a commit fails, the next one removes those
// that were written.
func (t *transaction) commitInPieces(changes []*change) (SyncResult, error) {
	s := t.s
	var update journal.Update
	var written partial
	for rest := changes; len(rest) > 0; {
		some := rest[:min(s.storage.piece, len(rest))]
		if err := t.encode(some...); err != nil {
			s.storage.partial = written
			return SyncResult{}, err
		}
		var out engine.Transaction
		addObjects(&out, some, t.revision, false)
		if len(out.Puts) > 0 {
			for _, pair := range out.Puts {
				written = append(written, pair.Key)
			}
			out.Puts = append(out.Puts, engine.Pair{Key: headKey, Revision: t.revision})
			if !update.Reset {
				update = s.feed.journal.Restart(t.revision)
				update.AddTo(&out)
			}
			if err := s.write(out, t.revision); err != nil {
				s.storage.partial = written[:len(written)-len(out.Puts)+1]
				return SyncResult{}, err
			}
		}
		for _, c := range some {
			c.encoded, c.wanted = nil, nil
		}
		rest = rest[len(some):]
	}
	if len(written) == 0 {
		return t.publish(changes, s.feed.revision, update), nil
	}
	update.Revision = t.revision
	return t.publish(changes, t.revision, update), nil
}

// partial are the keys of objects that were written and are not there, as others that belong to
// them could not be written.
type partial []string

// addTo removes those that a transaction does not write.
func (p partial) addTo(t *engine.Transaction) {
	if len(p) == 0 {
		return
	}
	puts := make(map[string]struct{}, len(t.Puts))
	for _, pair := range t.Puts {
		puts[pair.Key] = struct{}{}
	}
	for _, key := range p {
		if _, put := puts[key]; !put {
			t.Deletes = append(t.Deletes, key)
		}
	}
}
