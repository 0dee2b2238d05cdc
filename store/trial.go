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
	"svcctl.io/svcctl/store/object"
)

// The keys of a trial: its head, and below the two others what was there before, of each object
// (its stored form) and each file (see trialFile).
const (
	trialPrefix       = "trial/"
	trialKey          = trialPrefix + "head"
	trialObjectPrefix = trialPrefix + "object/"
	trialFilePrefix   = trialPrefix + "file/"
)

// A Trial has changes that are rolled back unless they are confirmed: those of its Writes
// (Caller.Trial), and with Files those of files. The objects before are stored in the transaction
// of each change. After the rollback, the files that it was about are held, see GoBack.
type Trial struct {
	ID    string    `json:"id"`
	Began time.Time `json:"began"`
	// Ends is the time at which it is rolled back.
	Ends deadline.Deadline `json:"ends"`
	// User began it.
	User  string `json:"user,omitempty"`
	Files bool   `json:"files,omitempty"`
	// Back is the time at which it was rolled back; nil while it waits to be confirmed.
	Back *time.Time `json:"back,omitempty"`
}

// Pending reports whether the trial waits to be confirmed.
func (t *Trial) Pending() bool { return t != nil && t.Back == nil }

// TrialState is a Trial and what it has changed, or holds.
type TrialState struct {
	Trial
	Objects []object.Ref // by name
	Files   []string     // by path
}

var (
	// ErrFilesHeld means that files whose changes went back are held and have to be dealt with first.
	ErrFilesHeld = errors.New("changes of files were not confirmed and are held: undo them in the files, try them once more with `svcctl trial`, or take them with `svcctl confirm`")
	// ErrTrialInFleet means that the box belongs to a fleet, where a trial is about objects alone.
	ErrTrialInFleet = errors.New("in a fleet files are not tried: one box reads them for all; undo their changes where they are written; " +
		"`apply --confirm`, `delete --confirm` and `rollback --confirm` try changes of objects")
	// ErrNoTrial means that nothing waits to be confirmed.
	ErrNoTrial = errors.New("nothing waits to be confirmed")
	// ErrTrialOver means that a write belongs to a trial that is over.
	ErrTrialOver = errors.New("the trial that this change belongs to is over: nothing of it is changed any more")
)

// trial is the trial that is under way, or still holds files. Only the writer changes it, under mu.
type trial struct {
	*Trial // nil: there is none
	// before has what was there before, nil where nothing was.
	before map[object.Ref]*record
	// files are the paths of which the content before is stored.
	files map[string]bool
	// held are the files that are not taken as they are, see GoBack.
	held map[string]heldFile
}

// TrialHead is the trial without what it is about, which may be much.
func (s *Store) TrialHead() (head Trial, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.trial.Trial == nil {
		return head, false
	}
	return *s.trial.Trial, true
}

// Trial is the trial that is under way, or that went back and holds files.
func (s *Store) Trial() (state TrialState, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.trial.Trial == nil {
		return state, false
	}
	state.Trial = *s.trial.Trial
	for ref := range s.trial.before {
		state.Objects = append(state.Objects, ref)
	}
	slices.SortFunc(state.Objects, compareRefs)
	if s.trial.Pending() {
		state.Files = slices.Sorted(maps.Keys(s.trial.files))
	} else {
		state.Files = slices.Sorted(maps.Keys(s.trial.held))
	}
	return state, true
}

// BeginTrial begins a trial that ends after a duration, or lets the one that is under way end then.
// With files it is about all changes of files from now on, and about those that are held. It gives
// the trial as it is then.
func (s *Store) BeginTrial(id, user string, files bool, after time.Duration, now deadline.Reading) (Trial, error) {
	if s.storage.shared != nil {
		if files {
			return Trial{}, ErrTrialInFleet
		}
		if err := s.storage.shared.Tries(); err != nil {
			return Trial{}, err
		}
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	var begun Trial
	err := s.decide(func() (err error) {
		begun, err = s.beginTrial(id, user, files, after, now)
		return err
	})
	return begun, err
}

// beginTrial is BeginTrial once.
func (s *Store) beginTrial(id, user string, files bool, after time.Duration, now deadline.Reading) (Trial, error) {
	// What files said until now is what goes back.
	if err := s.flush(); err != nil {
		return Trial{}, fmt.Errorf("begin a trial: %w", err)
	}
	next := Trial{ID: id, Began: now.Wall.UTC().Round(0), User: user, Files: files}
	if s.trial.Pending() {
		next = *s.trial.Trial
		next.Files = next.Files || files
	}
	next.Ends = deadline.After(after, now)
	if !files && len(s.trial.held) > 0 {
		return Trial{}, ErrFilesHeld
	}
	if err := s.putTrial(&next); err != nil {
		return Trial{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial.Trial, s.trial.held = &next, nil
	if s.trial.before == nil {
		s.trial.before = map[object.Ref]*record{}
	}
	if s.trial.files == nil {
		s.trial.files = map[string]bool{}
	}
	return next, nil
}

// addTo adds the stored form to a transaction.
func (t *Trial) addTo(out *engine.Transaction, revision uint64) error {
	value, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode the trial: %w", err)
	}
	out.Puts = append(out.Puts, engine.Pair{Key: trialKey, Value: value, Revision: revision})
	return nil
}

// putTrial commits the head of the trial.
func (s *Store) putTrial(head *Trial) error {
	if s.storage.shared != nil {
		return s.shareTrial(head)
	}
	var out engine.Transaction
	if err := head.addTo(&out, s.feed.revision); err != nil {
		return err
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return fmt.Errorf("store the trial: %w", err)
	}
	return nil
}

// CountTrialFrom has the trial's end counted by the boot that now is of. It writes only after a
// reboot.
func (s *Store) CountTrialFrom(now deadline.Reading) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.trial.Pending() || s.trial.Ends.In(now) == s.trial.Ends || s.storage.shared != nil {
		return nil
	}
	next := *s.trial.Trial
	next.Ends = next.Ends.In(now)
	if err := s.putTrial(&next); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial.Trial = &next
	return nil
}

// Confirm makes what is on trial stay; of files that are held, what they say comes into force with the next
// SyncFiles. It gives what the trial was about. Errors: ErrNoTrial.
func (s *Store) Confirm() (TrialState, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	var state TrialState
	err := s.decide(func() (err error) {
		state, err = s.confirm()
		return err
	})
	return state, err
}

// confirm is Confirm once.
func (s *Store) confirm() (TrialState, error) {
	state, is := s.Trial()
	if !is {
		return state, ErrNoTrial
	}
	t := s.begin()
	t.announced = true
	s.allocator.unkeep(trialOwner)
	t.base = s.allocator.mark()
	t.extra.Deletes = s.trial.keys()
	if _, err := t.run(); err != nil {
		return state, fmt.Errorf("confirm: %w", err)
	}
	delete(s.allocator.kept, trialOwner)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial = trial{}
	return state, nil
}

// keys returns the keys of all stored records of the trial.
func (t *trial) keys() []string {
	keys := []string{trialKey}
	for ref := range t.before {
		keys = append(keys, trialObjectPrefix+objectKey(ref))
	}
	for path := range t.files {
		keys = append(keys, trialFilePrefix+path)
	}
	for path := range t.held {
		if !t.files[path] {
			keys = append(keys, trialFilePrefix+path)
		}
	}
	return keys
}

// admitTrial refuses a write of a trial that is over.
func (s *Store) admitTrial(by Caller) error {
	if by.Trial != "" && (!s.trial.Pending() || s.trial.ID != by.Trial) {
		return ErrTrialOver
	}
	return nil
}

// covers reports whether a change goes back with the trial.
func (t *trial) covers(c *change) bool {
	switch {
	case !t.Pending():
		return false
	case c.by != nil:
		return c.by.Trial != "" && c.by.Trial == t.ID
	case !t.Trial.Files:
		return false
	case c.remove:
		return c.old.owner.File != ""
	}
	return c.owner.File != ""
}

// note adds to a commit what was there before its changes. It gives what has to be merged into
// before once it is written.
func (t *trial) note(s *Store, changes []*change, out *engine.Transaction) (map[object.Ref]*record, error) {
	if !t.Pending() {
		return nil, nil
	}
	return noteBefore(s, trialObjectPrefix, t.before, t.covers, changes, out)
}

// noteBefore adds to a commit, under a prefix, what was there before those of its changes that are covered, if that is not known
// yet. It gives what is new.
func noteBefore(s *Store, prefix string, before map[object.Ref]*record, covers func(*change) bool, changes []*change, out *engine.Transaction) (map[object.Ref]*record, error) {
	noted := map[object.Ref]*record{}
	for _, c := range changes {
		_, known := before[c.ref]
		_, seen := noted[c.ref]
		if c.revision == 0 || known || seen || !covers(c) {
			continue
		}
		// Earlier changes of the same commit may be others'; what is covered begins with its own.
		pair, err := pairBefore(prefix, c.ref, c.old, s.feed.revision)
		if err != nil {
			return nil, err
		}
		noted[c.ref] = c.old
		out.Puts = append(out.Puts, pair)
	}
	return noted, nil
}

// pairBefore is the stored form of what was there before; nil: nothing.
func pairBefore(prefix string, ref object.Ref, old *record, revision uint64) (engine.Pair, error) {
	pair := engine.Pair{Key: prefix + objectKey(ref), Revision: revision}
	if old != nil {
		value, _, err := (&stored{old.owner, old.created, old.asked, old.object}).encode()
		if err != nil {
			return pair, err
		}
		pair.Value, pair.Entry = value[engine.EntryHeader:], value
	}
	return pair, nil
}

// keepFiles adds to a commit the contents of files that it replaces.
func (t *trial) keepFiles(from engine.Engine, revision uint64, out *engine.Transaction) (kept []string, err error) {
	if !t.Pending() || !t.Trial.Files {
		return nil, nil
	}
	keep := func(key string) error {
		path, is := strings.CutPrefix(key, filePrefix)
		if !is || t.files[path] {
			return nil
		}
		pairs, err := from.Load(key)
		if err != nil {
			return err
		}
		var before trialFile
		if len(pairs) > 0 && pairs[0].Key == key { // others may begin with its path
			before.was, before.content = true, pairs[0].Value
		}
		out.Puts = append(out.Puts, engine.Pair{Key: trialFilePrefix + path, Value: before.encode(), Revision: revision})
		kept = append(kept, path)
		return nil
	}
	for _, p := range slices.Clone(out.Puts) {
		if err := keep(p.Key); err != nil {
			return nil, err
		}
	}
	for _, key := range out.Deletes {
		if err := keep(key); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// noteTrial merges what note has added to a commit, once that is written.
func (s *Store) noteTrial(noted map[object.Ref]*record) {
	if len(noted) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.trial.before, noted)
}

// kept notes the paths of which keepFiles has stored the content.
func (t *trial) kept(paths []string) {
	for _, path := range paths {
		t.files[path] = true
	}
}
