package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// writer serializes the calls that change the store. While one of them waits for other machines to commit, calls that change only data of this
// machine may run.
type writer struct {
	// turn is a lock: a send to the channel, of capacity 1, acquires it. A call that changes the store holds it from its first read to its last
	// assignment, even while it waits for other machines. A mutex cannot be used, because waiting for a mutex does not advance virtual time
	// (testing/synctest).
	turn chan struct{}
	// state guards the data that such a call depends on. It is held together with turn, except while a shared engine commits. During that time a call
	// may hold state alone if it changes nothing that other machines share; it reads the store and the allocator as they were before the commit.
	state sync.Mutex
}

// Lock implements sync.Locker, for a call that changes the store.
func (w *writer) Lock() { w.turn <- struct{}{}; w.state.Lock() }

// Unlock implements sync.Locker.
func (w *writer) Unlock() { w.state.Unlock(); <-w.turn }

// look begins a call that reads the data guarded by the writer and commits no shared data. It does not wait for other machines. It applies their
// latest commits first, unless a commit of this machine is in progress. The caller must call end.
func (s *Store) look() (end func()) {
	select {
	case s.writer.turn <- struct{}{}:
	default:
		s.writer.state.Lock()
		return s.writer.state.Unlock
	}
	s.writer.state.Lock()
	s.follow()
	return s.writer.Unlock
}

// write commits a transaction, which must directly follow storage.head; an empty one is not committed. A transaction that is not shared with other
// machines also writes pending file copies (see copies.addTo) and the file contents that a trial restores. The caller holds writer.state, and
// writer.turn too if other machines share the transaction.
func (s *Store) write(t engine.Transaction, revision uint64) error {
	d := &s.storage
	if head := slices.IndexFunc(t.Puts, func(p engine.Pair) bool { return p.Key == headKey }); d.shared != nil && head >= 0 {
		t.CompareKey, t.CompareRevision = headKey, d.head
		if err := s.send(t); err != nil {
			return err
		}
		d.head = t.Puts[head].Revision
		return nil
	}
	d.copies.addTo(&t, revision)
	d.partial.addTo(&t)
	if len(d.later.Puts) > 0 { // else a start would copy its puts, and a large removal sort its deletions
		t.Puts, t.Deletes = append(without(slices.Clone(d.later.Puts), t.Deletes), t.Puts...), slices.Concat(d.later.Deletes, t.Deletes)
	}
	t.CompareKey, t.CompareRevision = headKey, d.head
	var kept []string
	var err error
	if timed := s.pending.timed(); timed.Pending() && timed.Files {
		kept, err = s.pending.files.Keep(d.engine, filePrefix, revision, &t)
	}
	if err == nil && len(t.Puts)+len(t.Deletes) != 0 {
		err = d.engine.Commit(t)
	}
	d.copies.finish(err)
	if d.refused = err != nil; err != nil {
		return err
	}
	d.partial, d.later = nil, engine.Transaction{}
	for _, pair := range t.Puts {
		if pair.Key == headKey {
			d.head = pair.Revision
		}
	}
	if len(kept) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pending.files.Kept(kept)
	}
	return nil
}

// without returns the puts whose keys are not among deletes. It reuses the array of puts.
func without(puts []engine.Pair, deletes []string) []engine.Pair {
	gone := slices.Sorted(slices.Values(deletes))
	return slices.DeleteFunc(puts, func(p engine.Pair) bool { _, is := slices.BinarySearch(gone, p.Key); return is })
}

// laterMost bounds the number of revisions that are published before they are committed. A crash loses them, so the next process skips this many
// revisions.
const laterMost = 1_000

// mayWait reports whether a commit may be combined with the next one. It may if a crash in between would lose nothing, because the commit only
// changes EndpointSlices of files, which the next process reads again. The copies of these files must be pending too, so that a commit follows soon.
func (t *transaction) mayWait(changes []*change) bool {
	s, d := t.s, &t.s.storage
	if d.shared != nil || d.refused || !d.copies.wait() || t.revision > d.head+laterMost || s.pending.timed().Head != nil || s.pending.staged().Pending() ||
		len(t.extra.Puts)+len(t.extra.Deletes) > 0 {
		return false
	}
	return !slices.ContainsFunc(changes, func(c *change) bool {
		return c.revision != 0 && (c.ref.Kind != object.KindEndpointSlice || c.old == nil || c.by != nil || c.owner.File == "" || c.owner != c.old.Owner)
	})
}

// send commits data that other machines share. During the commit it releases writer.state and gives the allocator an empty undo list, for calls that
// take writer.state meanwhile.
func (s *Store) send(t engine.Transaction) error {
	undo, released := s.allocator.undo, s.allocator.released
	s.allocator.undo = nil
	s.writer.state.Unlock()
	defer func() {
		s.writer.state.Lock()
		s.allocator.undo, s.allocator.released = undo, released
	}()
	return s.storage.engine.Commit(t)
}

// run allocates values for the changes of the transaction, and for waiting Services whenever values were released. Then it commits and publishes the
// changes. After an error all allocations are undone.
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

// commit writes the new versions, the previous versions if a trial, a rollout or the journal needs them, and the pending file copies. Then it
// publishes the changes.
func (t *transaction) commit(joint []*change) (SyncResult, error) {
	s := t.s
	if t.isFresh(joint) {
		return t.commitInPieces(joint)
	}
	if err := t.encode(joint...); err != nil {
		return SyncResult{}, err
	}
	changes := slices.Concat(t.order, joint)
	ends, err := t.endNamespaces(changes)
	if err != nil {
		return SyncResult{}, err
	}
	changes = append(changes, ends...)
	before := s.latest()
	if (!t.sourced.isEmpty() || t.pending.sets[pending.Staged] != nil || t.announced && s.storage.shared != nil) && t.revision == before {
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
	if err := t.noteBefore(changes, &out); err != nil {
		return SyncResult{}, err
	}
	out.Puts, out.Deletes = append(out.Puts, t.extra.Puts...), append(out.Deletes, t.extra.Deletes...)
	if t.sourced != nil {
		if err := t.sourced.addTo(&out, revision); err != nil {
			return SyncResult{}, err
		}
	}
	if later := &s.storage.later; t.mayWait(changes) {
		later.Puts, later.Deletes = append(without(later.Puts, out.Deletes), out.Puts...), append(later.Deletes, out.Deletes...)
	} else if err := s.write(out, revision); err != nil {
		return SyncResult{}, err
	}
	result := t.publish(changes, revision, update)
	if s.storage.shared != nil {
		s.storage.shared.Published()
	}
	return result, nil
}

// addObjects adds the final version of each object to an engine transaction; repeated is set if an object
// may be among the changes more than once.
func addObjects(out *engine.Transaction, changes []*change, revision uint64, repeated bool) {
	out.Puts = slices.Grow(out.Puts, len(changes)+1)
	seen := map[object.Ref]bool{}
	for _, c := range slices.Backward(changes) {
		if c.revision == 0 || seen[c.ref] {
			continue
		}
		if repeated {
			seen[c.ref] = true
		}
		if c.remove {
			out.Deletes = append(out.Deletes, record.Key(c.ref))
		} else {
			out.Puts = append(out.Puts, engine.Pair{Key: record.Key(c.ref), Value: c.encoded[engine.EntryHeader:], Revision: revision, Entry: c.encoded})
		}
	}
}

// publish makes committed changes visible to readers and wakes the followers of the store.
func (t *transaction) publish(changes []*change, revision uint64, update journal.Update) SyncResult {
	s := t.s
	result := SyncResult{Revision: revision}
	s.allocator.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems.Store(nil)
	s.declared.update(t.files, t.declarations, t.duplicates)
	s.sources.publish(t.sourced)
	s.table.grow(len(changes))
	if t.revision-max(s.feed.revision, s.numbers.seed) > maxLogged {
		s.feed.log.reset(revision)
	}
	for _, ref := range t.trusted {
		owner := s.table.records[ref].Owner
		s.declared.noteOwner(ref, owner, owner)
	}
	dataplane, ephemeral := false, false
	for _, c := range changes {
		if c.remove || c.record != nil && !c.same {
			result.Changes++
		}
		s.outcomes.set(c.ref, append(c.notes, c.outcome...), c.waits)
		if c.revision != 0 && !c.same {
			s.feed.log.addChange(c.revision, c.ref, c.old, c.record)
			dataplane, ephemeral = dataplane || !isEphemeral(c.ref.Kind), ephemeral || isEphemeral(c.ref.Kind)
		}
		if c.revision != 0 || c.same {
			s.table.set(c.ref, c.record)
		}
		s.declared.noteOwner(c.ref, record.OwnerOf(c.old), record.OwnerOf(s.table.records[c.ref]))
	}
	s.pack(s.cfg.Whole)
	dataplane = s.publishPending(t) || dataplane
	s.feed.advance(revision, update, dataplane, ephemeral)
	return result
}

// isEphemeral reports whether objects of a kind (Leases, Events) never affect the dataplane.
func isEphemeral(kind string) bool { return object.StrategyOfKind(kind).Ephemeral }

// isFresh reports whether all changes create objects, and there are more changes than the journal has room for.
func (t *transaction) isFresh(changes []*change) bool {
	if t.s.storage.shared != nil || len(changes) <= max(t.s.storage.piece, t.s.feed.journal.Bounds().Entries) || len(t.order) > 0 || t.s.pending.timed().Pending() {
		return false
	}
	return !slices.ContainsFunc(changes, func(c *change) bool { return c.old != nil || c.remove })
}

// commitInPieces is like commit, for many new objects, but uses several engine transactions. All values are allocated before the first one, and
// readers see no change before the last one. If the process crashes in between, the next start finds some of the objects, with their values, and adds
// the others. If a commit fails, the next one removes the objects that were already written.
func (t *transaction) commitInPieces(changes []*change) (SyncResult, error) {
	s := t.s
	var update journal.Update
	var written partial
	pieces := slices.Collect(slices.Chunk(changes, s.storage.piece))
	encoded := make(chan error, 1)
	encoded <- t.encode(pieces[0]...)
	for i, some := range pieces {
		if err := <-encoded; err != nil {
			s.storage.partial = written
			return SyncResult{}, err
		}
		revision := t.revision
		if i+1 < len(pieces) { // while this one waits for the disk
			go func() { encoded <- t.encode(pieces[i+1]...) }()
		}
		var out engine.Transaction
		addObjects(&out, some, revision, false)
		if len(out.Puts) > 0 {
			for _, pair := range out.Puts {
				written = append(written, pair.Key)
			}
			out.Puts = append(out.Puts, engine.Pair{Key: headKey, Revision: revision})
			if !update.Reset {
				update = s.feed.journal.Restart(revision)
				update.AddTo(&out)
			}
			if err := s.write(out, revision); err != nil {
				s.storage.partial = written[:len(written)-len(out.Puts)+1]
				if i+1 < len(pieces) {
					<-encoded
				}
				return SyncResult{}, err
			}
		}
		for _, c := range some {
			c.encoded, c.wanted = nil, nil
		}
	}
	if len(written) == 0 {
		return t.publish(changes, s.feed.revision, update), nil
	}
	update.Revision = t.revision
	return t.publish(changes, t.revision, update), nil
}

// journalOf returns the journal entries of the changes that have a revision, in their order.
func journalOf(changes []*change) []journal.Change {
	entries := make([]journal.Change, 0, len(changes))
	for _, c := range changes {
		if c.revision == 0 {
			continue
		}
		entries = append(entries, journal.Change{Revision: c.revision, Ref: c.ref, Owner: c.ownerOf(), By: c.by, Old: record.ObjectOf(c.old)})
	}
	return entries
}

// commitNote is the value of the head pair: data that other machines need for their journals and that the objects do not contain. If a commit changes
// an object several times, the note holds only the last change.
type commitNote struct {
	At      time.Time    `json:"at"`
	Changes []noteChange `json:"changes"` // in the order of their revisions
}

type noteChange struct {
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	Revision  uint64  `json:"revision"`
	By        *Caller `json:"by,omitempty"`
}

// headValue returns the value to write to the head pair with a commit of these changes: a commitNote in JSON if the store is shared, otherwise nil.
func (s *Store) headValue(changes []*change) ([]byte, error) {
	if s.storage.shared == nil {
		return nil, nil
	}
	n := commitNote{At: s.cfg.Clock().UTC()}
	last := make(map[object.Ref]uint64, len(changes))
	for _, c := range changes {
		last[c.ref] = max(last[c.ref], c.revision)
	}
	for _, c := range changes {
		if c.revision == 0 || last[c.ref] != c.revision {
			continue
		}
		n.Changes = append(n.Changes, noteChange{c.ref.Kind, c.ref.Namespace, c.ref.Name, c.revision, c.by})
	}
	text, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("encode what a commit changes: %w", err)
	}
	return text, nil
}

// SyncResult is the outcome of one sync of files into the store.
type SyncResult struct {
	// Revision is the store's revision after the call.
	Revision uint64
	// Changes counts the objects that were written or removed.
	Changes int
}

// examineWaiting adds the Services that wait for released values to the transaction. It reports whether it added any.
func (t *transaction) examineWaiting() bool {
	found := false
	examine := func(ref object.Ref) {
		if t.changes[ref] == nil {
			t.examine(ref)
			found = true
		}
	}
	for ref := range t.s.outcomes.waiting {
		examine(ref)
	}
	for ref, c := range t.last {
		if c.waits {
			examine(ref)
		}
	}
	return found
}

// encode gives new versions their revisions and encodes them. It drops those that are equal to
// the old version.
func (t *transaction) encode(changes ...*change) error {
	errs := make([]error, len(changes))
	parallel.Do(len(changes), parallel.Share, func(i int) { errs[i] = t.dropUnchanged(changes[i]) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range changes {
		if c.next != nil || c.remove {
			t.number(c)
		}
		if c.next != nil {
			t.setServerFields(c)
		}
	}
	parallel.Do(len(changes), parallel.Share, func(i int) { errs[i] = changes[i].encode() })
	return errors.Join(errs...)
}

// dropUnchanged drops the new version of a change if it is equal to the old one.
func (t *transaction) dropUnchanged(c *change) error {
	if c.next == nil || c.before() == nil || c.old.Withheld {
		return nil
	}
	digest, err := (&record.Record{Object: c.next, Owner: c.sameOwner(), Created: c.old.Created, Asked: c.old.Asked}).Sum()
	if err != nil || digest != c.old.Digest {
		return err
	}
	if !t.s.declared.synced && c.by == nil && c.owner.File != "" { // what was read from the engine is in the file, too
		c.record = &record.Record{Object: c.next, Owner: c.owner, Digest: digest, Created: c.old.Created, Asked: c.old.Asked}
		c.same = true
	}
	c.next = nil
	return nil
}

// encode sets the record of the new version and its encoded form.
func (c *change) encode() error {
	if c.next == nil {
		return nil
	}
	return c.encodeAs(c.owner, record.SinceNow(c.before(), c.next, c.revision))
}

// encodeAs is like encode, with a given owner and creation data.
func (c *change) encodeAs(owner Owner, since record.Since) error {
	r := &record.Record{Object: c.next, Owner: owner, Created: since.Created, Asked: since.Asked}
	var err error
	if c.encoded, r.Digest, err = r.Encode(); err != nil {
		return err
	}
	c.record = r
	return nil
}

// sameOwner returns the owner with which a new version is compared to the old one. For a write by a client it is the old owner, because a client that
// changes nothing does not become the owner of a controller's object.
func (c *change) sameOwner() Owner {
	if c.by != nil {
		return c.old.Owner
	}
	return c.owner
}

// number assigns the next revision to a change. It does nothing in a dry run.
func (t *transaction) number(c *change) {
	if t.dry {
		return
	}
	t.revision++
	c.revision = t.revision
}

// creation returns the creation time for new objects of this transaction. It is the current time, but not earlier than the creation of any existing
// object, so that after the clock was set back a newer object does not appear older. All objects of one transaction share it.
func (t *transaction) creation() *time.Time {
	if t.created == nil {
		s, now := t.s, t.s.now()
		if now.Before(s.numbers.newest) && s.storage.shared == nil { // the age is the revision; a clock of another box may be ahead
			now = s.numbers.newest.Add(time.Second)
		}
		s.numbers.newest, t.created = now, &now
	}
	return t.created
}

// setServerFields sets the metadata fields of a new version that the server owns, among them resourceVersion, uid and creationTimestamp.
func (t *transaction) setServerFields(c *change) {
	meta := c.next.GetMeta()
	if !t.dry {
		meta.ResourceVersion = strconv.FormatUint(c.revision, 10)
	}
	if c.before() == nil {
		meta.UID, meta.CreationTimestamp = t.s.cfg.NewUID(), t.creation()
		if object.StrategyOf(c.next).HasGeneration {
			meta.Generation = 1
		}
		return
	}
	if s := object.StrategyOf(c.next); s.HasGeneration && !s.SameSpec(c.old.Object, c.next) {
		meta.Generation++
	}
}
