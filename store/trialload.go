package store

import (
	"encoding/json"
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// loadTrial reads what is stored of a trial.
func (s *Store) loadTrial() error {
	pairs, err := s.storage.engine.Load(trialPrefix)
	if err != nil || len(pairs) == 0 {
		return err
	}
	t := trial{before: map[object.Ref]*record{}, files: map[string]bool{}}
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
			s.allocator.keepOf(trialOwner, r.object.(*object.Service))
		}
	}
}
