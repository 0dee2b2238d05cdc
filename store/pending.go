package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/held"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// pendingSets has the trial (timed set) and the rollout (staged set), and the files of the trial. Only the writer changes them, under
// Store.mu and together with the objects, so that readers never see changes without the versions before them.
type pendingSets struct {
	sets  [2]*pending.Set
	files *held.Files
}

func newPendingSets() pendingSets {
	return pendingSets{[2]*pending.Set{pending.New(pending.Timed, nil), pending.New(pending.Staged, nil)}, held.NewFiles(pending.Timed.FilePrefix())}
}

func (p *pendingSets) timed() *pending.Set  { return p.sets[pending.Timed] }
func (p *pendingSets) staged() *pending.Set { return p.sets[pending.Staged] }

// pendingUpdate has the changes of a transaction to pending sets: new sets and files, nil for those that do not change, and versions to be added to
// the present sets.
type pendingUpdate struct {
	sets   [2]*pending.Set
	files  *held.Files
	before [2]map[object.Ref]*record.Record
}

// PendingHead returns the head of the set of a kind, without the objects in it, which may be many. The last staged set is returned after
// its end, too.
func (s *Store) PendingHead(k pending.Kind) (head pending.Head, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.pending.sets[k].Head == nil {
		return head, false
	}
	return *s.pending.sets[k].Head, true
}

// Pending returns the set of a kind. For Timed, it is the trial that is under way, or that was undone and for which files are still held. For Staged,
// it is the rollout that is under way, or else the last one.
func (s *Store) Pending(k pending.Kind) (state pending.State, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	set := s.pending.sets[k]
	if set.Head == nil {
		return state, false
	}
	state.Head, state.Here = *set.Head, !set.Outside
	keys := map[string]bool{}
	for ref, before := range set.Before {
		state.Objects = append(state.Objects, ref)
		for _, r := range []*record.Record{before, s.table.get(ref)} {
			if r == nil {
				continue
			}
			if key := index.ServiceKey(r.Object); key != "" {
				keys[key] = true
			}
		}
	}
	slices.SortFunc(state.Objects, record.CompareRefs)
	state.Services = slices.Sorted(maps.Keys(keys))
	if k == pending.Timed {
		state.Files = s.pending.files.Paths()
	}
	return state, true
}

// PendingLeft returns the time until a trial or the phase of a rollout ends, by this machine's clocks. It returns false if that has no end time, or
// is over already.
func (s *Store) PendingLeft(k pending.Kind) (left time.Duration, ends bool) {
	head, is := s.PendingHead(k)
	if !is || !head.Pending() || head.Ends == (deadline.Deadline{}) {
		return 0, false
	}
	return head.Ends.Left(s.cfg.Clocks()), true
}

// ProgramsStaged reports whether this machine already programs the changes of the rollout that is under way.
func (s *Store) ProgramsStaged() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pending.staged().Pending() && !s.pending.staged().Outside
}

// changePending calls change, which changes a set, and calls it again if another machine committed first.
func (s *Store) changePending(change func() error) error {
	return s.change(func() error {
		if err := change(); err != nil {
			s.allocator.rollback()
			return err
		}
		for _, k := range pending.Kinds {
			if !s.pending.sets[k].Pending() {
				delete(s.allocator.kept, k.Holder())
			}
		}
		return nil
	})
}

// BeginTimed begins a trial (timed set) that is undone after a duration, or sets a new end for the one under way. With files set it
// includes all changes of files from now on, and the files that are held. It returns the head of the set. Errors: ErrFilesShared,
// ErrFilesHeld.
func (s *Store) BeginTimed(id, user string, files bool, after time.Duration, now deadline.Reading) (begun pending.Head, err error) {
	if s.storage.shared != nil {
		if files {
			return begun, pending.ErrFilesShared
		}
		if err := s.storage.shared.Tries(); err != nil {
			return begun, err
		}
	}
	err = s.changePending(func() error {
		// The content of files until now is the one that is restored.
		if err := s.flush(); err != nil {
			return fmt.Errorf("begin a trial: %w", err)
		}
		begun = pending.Head{ID: id, Began: now.Wall.UTC().Round(0), User: user, Files: files}
		if timed := s.pending.timed(); timed.Pending() {
			begun = *timed.Head
			begun.Files = begun.Files || files
		}
		begun.Ends = deadline.After(after, now)
		if !files && s.pending.files.IsHolding() {
			return pending.ErrFilesHeld
		}
		return s.putHead(pending.Timed, begun)
	})
	return begun, err
}

// CountFrom converts the end of the trial to the clock of the current boot, of which now is a reading. It only writes after a reboot.
func (s *Store) CountFrom(now deadline.Reading) error {
	return s.changePending(func() error {
		timed := s.pending.timed()
		if !timed.Pending() || timed.Ends.In(now) == timed.Ends || s.storage.shared != nil {
			return nil
		}
		next := *timed.Head
		next.Ends = next.Ends.In(now)
		return s.putHead(pending.Timed, next)
	})
}

// putHead commits head as the head of the set of a kind. If no set of the kind is under way, it begins a new one.
func (s *Store) putHead(k pending.Kind, head pending.Head) error {
	t := s.begin()
	t.announced = true
	if k == pending.Staged {
		head.Revision = s.latest() + 1
	}
	next := s.pending.sets[k].With(&head)
	if !s.pending.sets[k].Pending() {
		next = pending.New(k, &head)
	}
	if err := next.AddHead(s.feed.revision, &t.extra); err != nil {
		return err
	}
	t.pending.sets[k], t.pending.files = next, s.pending.files
	if k == pending.Timed {
		t.pending.files = s.pending.files.Tried()
	}
	if _, err := t.run(); err != nil {
		return fmt.Errorf("store the %s: %w", k, err)
	}
	if s.storage.shared != nil {
		s.keepEnd(k, &pending.LocalEnd{ID: head.EndID(), Of: head.Ends.Wall, Here: head.Ends})
	}
	return nil
}

// endSet adds the end of a set to a transaction: it releases the values kept for Services and deletes the versions. head replaces the set's
// head; nil deletes it.
func (t *transaction) endSet(k pending.Kind, head *pending.Head) error {
	t.announced = true
	t.s.allocator.unkeep(k.Holder())
	t.base = t.s.allocator.mark()
	t.pending.sets[k] = pending.New(k, head)
	return t.s.pending.sets[k].AddEnd(head, t.s.feed.revision, &t.extra)
}

// Confirm makes the changes of the trial final, and returns the set. The held content of files takes effect with the next SyncFiles. If unchanged is
// not "", Confirm only ends the trial with that ID, and only if it has no changes and no files. Errors: ErrNoTimed.
func (s *Store) Confirm(unchanged string) (state pending.State, err error) {
	err = s.changePending(func() error {
		var is bool
		state, is = s.Pending(pending.Timed)
		if !is || unchanged != "" && (state.ID != unchanged || state.Head.Files || len(state.Objects) > 0) {
			return pending.ErrNoTimed
		}
		t := s.begin()
		if err := t.endSet(pending.Timed, nil); err != nil {
			return err
		}
		t.extra.Deletes = append(t.extra.Deletes, s.pending.files.Keys()...)
		t.pending.files = newPendingSets().files
		if _, err := t.run(); err != nil {
			return fmt.Errorf("confirm: %w", err)
		}
		return nil
	})
	return state, err
}

// GoBack undoes the changes of the trial. It restores objects with the uids, addresses and ports that they had. Files with another content than
// before the trial are held: SyncFiles uses the content before the trial until the file changes, or Confirm is called. found has the present files.
// Errors: ErrNoTimed.
func (s *Store) GoBack(found manifest.Files) (restored []Revived, err error) {
	err = s.changePending(func() error {
		if !s.pending.timed().Pending() {
			return pending.ErrNoTimed
		}
		if restored, err = s.goBack(found); err != nil {
			return fmt.Errorf("go back: %w", err)
		}
		return nil
	})
	return restored, err
}

func (s *Store) goBack(found manifest.Files) ([]Revived, error) {
	t := s.begin()
	// The copies of files that wait are stored first, with the content before them.
	if err := s.flush(); err != nil {
		return nil, err
	}
	files, err := s.pending.files.Hold(s.storage.engine, s.feed.revision, found, &t.extra)
	if err != nil {
		return nil, err
	}
	t.pending.files = files
	var head *pending.Head
	if files.IsHolding() {
		now := s.cfg.Clock().UTC().Round(0)
		back := *s.pending.timed().Head
		back.Back, head = &now, &back
	}
	if err := t.endSet(pending.Timed, head); err != nil {
		return nil, err
	}
	restored, err := t.restoreVersions(s.pending.timed().Before, &Caller{User: "svcctl", Verb: verbGoBack})
	if err == nil {
		_, err = t.run()
	}
	return restored, err
}

// takeFiles returns the files with which SyncFiles works: found, but with the content before the trial for the files that are held.
func (s *Store) takeFiles(found manifest.Files) (manifest.Files, error) {
	taken, released := s.pending.files.Effective(found)
	if len(released) == 0 {
		return taken, nil
	}
	var out engine.Transaction
	files := s.pending.files.Without(released, &out)
	if !files.IsHolding() {
		out.Deletes = append(out.Deletes, append(files.Keys(), pending.Timed.HeadKey())...)
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return manifest.Files{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending.files = files; !files.IsHolding() {
		s.pending.files, s.pending.sets[pending.Timed] = newPendingSets().files, pending.New(pending.Timed, nil)
	}
	return taken, nil
}

// pendingView returns the change in the form that pending.Set.Belongs takes.
func (c *change) pendingView() *pending.Change {
	return &pending.Change{Ref: c.ref, Old: c.old, Next: c.next, Owner: c.ownerOf(), By: c.by}
}

// admitPending returns an error if a client's change of an object conflicts with a trial or a rollout. This is so if the set that the change belongs
// to accepts no more changes; if the object is in a rollout and the change is not; or if the change belongs to a rollout, and the object to a trial
// or a file.
func (t *transaction) admitPending(ref object.Ref, by *Caller) error {
	timed, staged := t.s.pending.timed(), t.s.pending.staged()
	if id := pending.Timed.IDOf(by); id != "" && (!timed.Pending() || timed.ID != id) {
		return pending.ErrTimedOver
	}
	id := pending.Staged.IDOf(by)
	if id == "" {
		last := t.last[ref]
		if staged.Pending() && (staged.Has(ref) || last != nil && pending.Staged.IDOf(last.by) != "") {
			return &pending.StagedError{ID: staged.ID, Ref: ref}
		}
		return nil
	}
	if staged.Pending() && staged.ID == id && *by == garbageOf(id) {
		return nil
	}
	switch old := t.record(ref); {
	case !staged.Pending() || staged.ID != id || staged.Phase != pending.Gathering:
		return pending.ErrStagedOver
	case timed.Pending() && timed.Has(ref):
		return &pending.TimedError{Ref: ref}
	case old != nil && old.Owner.File != "":
		return &OwnedError{Ref: ref, Owner: old.Owner}
	}
	return nil
}

// refuseUnstaged returns an error for a change in a rollout to a kind that rollouts cannot change, because all machines would have it at once.
func (c *change) refuseUnstaged() error {
	if pending.Staged.IDOf(c.by) == "" || c.revision == 0 || c.by.Manager == garbageCollector.Manager || slices.Contains(StagedKinds(), c.ref.Kind) {
		return nil
	}
	return object.Errors{{Type: object.FieldValueForbidden, Field: "kind", Detail: fmt.Sprintf(
		"a rollout changes objects of the kinds %s alone: apply a %s without --rollout", strings.Join(StagedKinds(), ", "), c.ref.Kind)}}
}

// noteBefore adds to out the stored version of each object that a change brings into a set. It skips objects that are in the set already.
func (t *transaction) noteBefore(changes []*change, out *engine.Transaction) error {
	for _, set := range t.s.pending.sets {
		noted := t.pending.before[set.Kind]
		if noted == nil {
			noted = map[object.Ref]*record.Record{}
			t.pending.before[set.Kind] = noted
		}
		for _, c := range changes {
			if _, seen := noted[c.ref]; c.revision == 0 || seen || set.Has(c.ref) || !set.Belongs(c.pendingView()) {
				continue
			}
			// Earlier changes of the same commit may be others': the set begins with its own.
			if err := set.Kind.AddBefore(c.ref, c.old, t.s.feed.revision, out); err != nil {
				return err
			}
			noted[c.ref] = c.old
		}
	}
	return nil
}

// publishPending makes the changes of a transaction to pending sets visible to readers. It adds to the change log the objects of which this machine
// now programs another version. moved is false if there are certainly none. Store.mu must be held.
func (s *Store) publishPending(t *transaction) (moved bool) {
	for k, versions := range t.pending.before {
		set := s.pending.sets[k]
		for ref, before := range versions {
			if set.Outside { // a controller made it for machines like this one: the objects themselves do not change
				s.feed.log.addChange(t.revision, ref, set.Before[ref], before)
				moved = true
			}
			set.Put(ref, before)
		}
	}
	if t.pending.files != nil {
		s.pending.files = t.pending.files
	}
	for k, is := range t.pending.sets {
		if is == nil {
			continue
		}
		was := s.pending.sets[k]
		s.pending.sets[k] = is
		if is.Kind != pending.Staged {
			continue
		}
		is.Outside = is.Pending() && !is.Head.Has(s.cfg.Box)
		note := func(before, other *pending.Set) {
			for ref, r := range before.Before {
				if o, has := other.Before[ref]; was.Outside != is.Outside || is.Outside && (!has || o != r) {
					s.feed.log.addChange(t.revision, ref, r, s.table.get(ref))
				}
			}
		}
		note(was, is)
		note(is, was)
		moved = true // if all is the same, the revision is to be reported as programmed
	}
	return moved
}

// keepBefore reserves in the allocator the values that Services gave up in the sets under way, so that they can be restored.
func (t *transaction) keepBefore() {
	for k, set := range t.s.pending.sets {
		if t.pending.sets[k] != nil {
			set = t.pending.sets[k]
		}
		for ref, before := range set.Before {
			if set.Pending() && before != nil && ref.Kind == object.KindService {
				t.s.allocator.keepOf(set.Kind.Holder(), before.Object.(*object.Service))
			}
		}
	}
}

// loadPending loads the stored sets.
func (s *Store) loadPending() error {
	for _, k := range pending.Kinds {
		pairs, err := s.storage.engine.Load(k.Prefix())
		if err != nil {
			return err
		}
		set, headed, err := s.pending.sets[k].Follow(&engine.Followed{Puts: pairs})
		if err != nil {
			return err
		}
		if len(pairs) > 0 && !headed {
			return fmt.Errorf("the stored data has what was there before a %s, and no %s: put a backup in its place", k, k)
		}
		if headed && s.storage.shared != nil {
			s.countHere(set)
		}
		set.Outside = k == pending.Staged && set.Pending() && !set.Head.Has(s.cfg.Box)
		s.pending.sets[k] = set
		if k == pending.Timed {
			s.pending.files.Load(pairs, !set.Pending())
		}
	}
	s.begin().keepBefore()
	s.allocator.begin()
	return nil
}

// In a store that other machines write to a set is of all of them: any machine may end it. Clocks of machines differ: each counts the time
// by its own, from the moment at which it learned of the set.

// keepEnd stores the end of a set for this machine.
func (s *Store) keepEnd(k pending.Kind, end *pending.LocalEnd) {
	value, err := json.Marshal(end)
	if err != nil {
		return // numbers and a time always have a form
	}
	s.storage.shared.Keep(engine.Transaction{Puts: []engine.Pair{{Key: k.EndKey(), Value: value, Revision: s.feed.revision}}})
}

// countHere converts the end of a set, which all machines share, to the clocks of this machine. If this machine has stored its own end for it,
// perhaps before a restart, it uses that. Else the whole duration begins now.
func (s *Store) countHere(set *pending.Set) {
	if !set.Pending() || set.Ends == (deadline.Deadline{}) {
		return
	}
	now, of := s.cfg.Clocks(), set.Ends
	pairs, err := s.storage.engine.Load(set.Kind.EndKey())
	var known pending.LocalEnd
	if err == nil && len(pairs) == 1 && json.Unmarshal(pairs[0].Value, &known) == nil && known.ID == set.EndID() && known.Of.Equal(of.Wall) {
		set.Ends = known.Here.In(now)
	} else {
		set.Ends = deadline.After(of.Most, now)
	}
	s.keepEnd(set.Kind, &pending.LocalEnd{ID: set.EndID(), Of: of.Wall, Here: set.Ends})
}

// followPending adds to the transaction the pending sets as they are after a commit of another machine.
func (t *transaction) followPending(f *engine.Followed) error {
	for k, set := range t.s.pending.sets {
		next, headed, err := set.Follow(f)
		if err != nil {
			return err
		}
		if next == set {
			continue
		}
		if next.Head == nil {
			next = pending.New(next.Kind, nil)
		} else if headed {
			t.s.countHere(next)
		}
		t.pending.sets[k] = next
	}
	return nil
}

// errPendingFiles means that a data directory cannot be brought into a fleet during a trial of files.
var errPendingFiles = errors.New("the box has a trial of files under way, or holds files since one went back: start it once more, and run `svcctl confirm` or `svcctl confirm --back` first")

// restoreTimed returns the stored head of a trial, changed so that the whole duration of the trial begins now.
func restoreTimed(value []byte) ([]byte, error) {
	if value == nil {
		return nil, nil
	}
	var head pending.Head
	if err := json.Unmarshal(value, &head); err != nil {
		return nil, fmt.Errorf("read the stored trial: %w", err)
	}
	if head.Files || !head.Pending() {
		return nil, errPendingFiles
	}
	head.Ends = deadline.After(head.Ends.Most, deadline.Now())
	return json.Marshal(&head)
}
