package store

import (
	"maps"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

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

// noteTrial merges what note has added to a commit, once that is written.
func (s *Store) noteTrial(noted map[object.Ref]*record) {
	if len(noted) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.trial.before, noted)
}
