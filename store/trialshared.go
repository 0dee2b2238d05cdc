package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// In a store that other machines write to a trial is of all of them. Its head, and what was there before each change, are
// committed with the changes, and any machine may confirm it or take it back. Clocks of machines differ: each
// counts the time by its own, from the moment at which it has heard of the trial.

// trialEndsKey has when the trial ends by the clocks of this machine. It is this machine's alone.
const trialEndsKey = "ends/trial"

// ends is the value of trialEndsKey, and of rolloutEndsKey.
type ends struct {
	// ID and Of name what ends, as it is stored for all.
	ID string    `json:"id"`
	Of time.Time `json:"of"`
	// Here is its end on this machine.
	Here deadline.Deadline `json:"here"`
}

// isTrialKey reports whether a key of the engine is of a trial.
func isTrialKey(key string) bool { return strings.HasPrefix(key, trialPrefix) }

// keepEnds stores when something ends on this machine.
func (s *Store) keepEnds(key string, of *ends) {
	value, err := json.Marshal(of)
	if err != nil {
		return // numbers and a time always have a form
	}
	s.storage.shared.Keep(engine.Transaction{Puts: []engine.Pair{{Key: key, Value: value, Revision: s.feed.revision}}})
}

// countHere is the end, stored for all, of what id names as this machine counts to it: what it has counted before, also before it
// was started anew, or else the whole time from now on.
func (s *Store) countHere(key, id string, of deadline.Deadline) (here deadline.Deadline) {
	now := s.cfg.Clocks()
	pairs, err := s.storage.engine.Load(key)
	var known ends
	if err == nil && len(pairs) == 1 && json.Unmarshal(pairs[0].Value, &known) == nil && known.ID == id && known.Of.Equal(of.Wall) {
		here = known.Here.In(now)
	} else {
		here = deadline.After(of.Most, now)
	}
	s.keepEnds(key, &ends{id, of.Wall, here})
	return here
}

// takeOverTrial takes over what a commit of another machine says of a trial. The writer must be held.
func (s *Store) takeOverTrial(f *engine.Followed) error {
	next, changed := trial{Trial: s.trial.Trial, before: maps.Clone(s.trial.before)}, false
	if next.before == nil {
		next.before = map[object.Ref]*record{}
	}
	for _, key := range f.Deletes {
		if !isTrialKey(key) {
			continue
		}
		changed = true
		if ref, is := refOfKey(strings.TrimPrefix(key, trialObjectPrefix)); is {
			delete(next.before, ref)
		} else if key == trialKey {
			next.Trial = nil
		}
	}
	for _, pair := range f.Puts {
		switch {
		case pair.Key == trialKey:
			head := &Trial{}
			if err := json.Unmarshal(pair.Value, head); err != nil {
				return fmt.Errorf("read stored %s: %w", pair.Key, err)
			}
			head.Ends = s.countHere(trialEndsKey, head.ID, head.Ends)
			next.Trial = head
		case strings.HasPrefix(pair.Key, trialObjectPrefix):
			ref, r, err := decodeBefore(pair, trialObjectPrefix)
			if err != nil {
				return err
			}
			next.before[ref] = r
		case !isTrialKey(pair.Key):
			continue
		}
		changed = true
	}
	if !changed {
		return nil
	}
	if next.Trial == nil {
		next = trial{}
	} else {
		next.files = map[string]bool{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial = next
	return nil
}
