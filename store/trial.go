package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

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
	slices.SortFunc(state.Objects, record.CompareRefs)
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
	return decided(s, func() (Trial, error) { return s.beginTrial(id, user, files, after, now) })
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
		s.trial.before = map[object.Ref]*record.Record{}
	}
	if s.trial.files == nil {
		s.trial.files = map[string]bool{}
	}
	return next, nil
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
// SyncFiles. It gives what the trial was about. With unchanged only the trial of that ID is confirmed, while it has no change and
// covers no files. Errors: ErrNoTrial.
func (s *Store) Confirm(unchanged string) (TrialState, error) {
	return decided(s, func() (TrialState, error) { return s.confirm(unchanged) })
}

// confirm is Confirm once.
func (s *Store) confirm(unchanged string) (TrialState, error) {
	state, is := s.Trial()
	if !is || unchanged != "" && (state.ID != unchanged || state.Trial.Files || len(state.Objects) > 0) {
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

// admitTrial refuses a write of a trial that is over.
func (s *Store) admitTrial(by Caller) error {
	if by.Trial != "" && (!s.trial.Pending() || s.trial.ID != by.Trial) {
		return ErrTrialOver
	}
	return nil
}

// shareTrial commits the head of a trial for all machines.
func (s *Store) shareTrial(head *Trial) error {
	t := s.begin()
	t.announced = true
	if err := head.addTo(&t.extra, s.feed.revision); err != nil {
		return err
	}
	if _, err := t.run(); err != nil {
		return fmt.Errorf("store the trial: %w", err)
	}
	s.keepEnds(trialEndsKey, &ends{head.ID, head.Ends.Wall, head.Ends})
	return nil
}

// TrialLeft returns the time left of the trial that is under way, by this machine's clocks.
func (s *Store) TrialLeft() (left time.Duration, pending bool) {
	head, is := s.TrialHead()
	if !is || !head.Pending() {
		return 0, false
	}
	return head.Ends.Left(s.cfg.Clocks()), true
}

// GoBack takes back what a trial has changed: objects are what they were, with the uids, addresses and
// ports that they had. Files that differ from what they were before the trial are held: the next SyncFiles
// take them as they were, until they change once more, or Confirm. found is what the files say now.
// Errors: ErrNoTrial.
func (s *Store) GoBack(found manifest.Files) ([]Revived, error) {
	return decided(s, func() ([]Revived, error) { return s.goBack(found) })
}

// goBack is GoBack once.
func (s *Store) goBack(found manifest.Files) ([]Revived, error) {
	if !s.trial.Pending() {
		return nil, ErrNoTrial
	}
	head := *s.trial.Trial
	now := s.cfg.Clock().UTC().Round(0)
	head.Back = &now
	t := s.begin()
	t.announced = true
	// The copies of files that wait are stored first, with what was there before them.
	if err := s.flush(); err != nil {
		return nil, fmt.Errorf("go back: %w", err)
	}
	held, err := s.trial.holdFiles(s.storage.engine, s.feed.revision, found, &t.extra)
	if err != nil {
		return nil, fmt.Errorf("go back: %w", err)
	}
	for ref := range s.trial.before {
		t.extra.Deletes = append(t.extra.Deletes, trialObjectPrefix+record.Key(ref))
	}
	if len(held) == 0 {
		t.extra.Deletes = append(t.extra.Deletes, trialKey)
	} else if err := head.addTo(&t.extra, s.feed.revision); err != nil {
		return nil, err
	}
	s.allocator.unkeep(trialOwner)
	revived, err := t.revive(s.trial.before, &Caller{User: "svcctl", Verb: verbGoBack})
	if err == nil {
		_, err = t.run()
	}
	if err != nil {
		s.allocator.rollback()
		return nil, fmt.Errorf("go back: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial = trial{}
	delete(s.allocator.kept, trialOwner)
	if len(held) > 0 {
		s.trial = trial{Trial: &head, held: held, files: map[string]bool{}}
		for path := range held {
			s.trial.files[path] = true
		}
	}
	return revived, nil
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
		return c.old.Owner.File != ""
	}
	return c.owner.File != ""
}

// note adds to a commit what was there before its changes. It gives what has to be merged into
// before once it is written.
func (t *trial) note(s *Store, changes []*change, out *engine.Transaction) (map[object.Ref]*record.Record, error) {
	if !t.Pending() {
		return nil, nil
	}
	return noteBefore(s, trialObjectPrefix, t.before, t.covers, changes, out)
}

// noteBefore adds to a commit, under a prefix, what was there before those of its changes that are covered, if that is not known
// yet. It gives what is new.
func noteBefore(s *Store, prefix string, before map[object.Ref]*record.Record, covers func(*change) bool, changes []*change, out *engine.Transaction) (map[object.Ref]*record.Record, error) {
	noted := map[object.Ref]*record.Record{}
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

// noteTrial merges what note has added to a commit, once that is written.
func (s *Store) noteTrial(noted map[object.Ref]*record.Record) {
	if len(noted) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.trial.before, noted)
}

// trialFile has the content of a file before a trial, and after the trial went back the content that is not taken.
type trialFile struct {
	was     bool // it was there
	content []byte
	refused bool // what follows is not taken
	is      bool // it is there
	hash    manifest.Hash
}

// The first byte of a stored trialFile has these bits; the hash follows, if it is there, and the
// content.
const (
	fileWas     = 1
	fileRefused = 2
	fileIs      = 4
)

func (f *trialFile) encode() []byte {
	form := []byte{0}
	if f.was {
		form[0] |= fileWas
	}
	if f.refused {
		form[0] |= fileRefused
	}
	if f.is {
		form[0] |= fileIs
		form = append(form, f.hash[:]...)
	}
	return append(form, f.content...)
}

func decodeTrialFile(value []byte) (f trialFile) {
	if len(value) == 0 {
		return f
	}
	bits, rest := value[0], value[1:]
	f.was, f.refused = bits&fileWas != 0, bits&fileRefused != 0
	if bits&fileIs != 0 && len(rest) >= sha256.Size {
		f.is, f.hash = true, manifest.Hash(rest[:sha256.Size])
		rest = rest[sha256.Size:]
	}
	if f.was {
		f.content = rest
	}
	return f
}

// heldFile is a file that is taken to be as it was before a trial, as long as it is what the trial
// found.
type heldFile struct {
	trialFile
	before *manifest.File // nil: it was not there
}

func (f trialFile) hold(path string) heldFile {
	h := heldFile{trialFile: f}
	if f.was {
		h.before = manifest.Decode(path, f.content, manifest.DefaultLimits())
		h.before.Hash = sha256.Sum256(f.content)
	}
	return h
}

// loadTrial reads what is stored of a trial.
func (s *Store) loadTrial() error {
	pairs, err := s.storage.engine.Load(trialPrefix)
	if err != nil || len(pairs) == 0 {
		return err
	}
	t := trial{before: map[object.Ref]*record.Record{}, files: map[string]bool{}}
	files := map[string]trialFile{}
	for _, pair := range pairs {
		switch key := pair.Key; {
		case key == trialKey:
			t.Trial = &Trial{}
			if err := json.Unmarshal(pair.Value, t.Trial); err != nil {
				return fmt.Errorf("read stored %s: %w", key, err)
			}
		case strings.HasPrefix(key, trialObjectPrefix):
			of, r, err := decodeBefore(pair, trialObjectPrefix)
			if err != nil {
				return err
			}
			t.before[of] = r
		case strings.HasPrefix(key, trialFilePrefix):
			path := strings.TrimPrefix(key, trialFilePrefix)
			t.files[path] = true
			files[path] = decodeTrialFile(pair.Value)
		}
	}
	if t.Trial == nil {
		return fmt.Errorf("the stored data has what was there before a trial, and no trial: put a backup in its place")
	}
	if t.Pending() && s.storage.shared != nil {
		t.Ends = s.countHere(trialEndsKey, t.ID, t.Ends)
	}
	if !t.Pending() {
		t.held = map[string]heldFile{}
		for path, f := range files {
			t.held[path] = f.hold(path)
		}
	}
	s.trial = t
	s.allocator.begin()
	s.keepTried()
	s.allocator.begin()
	return nil
}

// keepTried keeps what Services had before the trial that is under way from others.
func (s *Store) keepTried() {
	if !s.trial.Pending() {
		return
	}
	for ref, r := range s.trial.before {
		if r != nil && ref.Kind == object.KindService {
			s.allocator.keepOf(trialOwner, r.Object.(*object.Service))
		}
	}
}
