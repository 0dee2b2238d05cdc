package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
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

// pastKeys are the keys of a trial or of a rollout: head has its head, and objects begins those of what was there before it.
type pastKeys struct{ prefix, head, objects string }

var (
	trialKeys   = pastKeys{trialPrefix, trialKey, trialObjectPrefix}
	rolloutKeys = pastKeys{rolloutPrefix, rolloutKey, rolloutObjectPrefix}
)

// concern reports whether a commit of another machine says anything of it.
func (k pastKeys) concern(f *engine.Followed) bool {
	is := func(key string) bool { return strings.HasPrefix(key, k.prefix) }
	return slices.ContainsFunc(f.Deletes, is) || slices.ContainsFunc(f.Puts, func(p engine.Pair) bool { return is(p.Key) })
}

// takeOver gives what a commit says of it: the head (nil: it is gone), and what was there before (known: it is stored, as nil where
// nothing was).
func (k pastKeys) takeOver(f *engine.Followed, head func(value []byte) error, before func(ref object.Ref, r *record.Record, known bool)) error {
	for _, key := range f.Deletes {
		if key == k.head {
			if err := head(nil); err != nil {
				return err
			}
		} else if ref, is := record.RefOfKey(strings.TrimPrefix(key, k.objects)); is && strings.HasPrefix(key, k.objects) {
			before(ref, nil, false)
		}
	}
	for _, pair := range f.Puts {
		switch {
		case pair.Key == k.head:
			if err := head(pair.Value); err != nil {
				return fmt.Errorf("read stored %s: %w", pair.Key, err)
			}
		case strings.HasPrefix(pair.Key, k.objects):
			ref, r, err := decodeBefore(pair, k.objects)
			if err != nil {
				return err
			}
			before(ref, r, true)
		}
	}
	return nil
}

// takeOverTrial takes over what a commit of another machine says of a trial. The writer must be held.
func (s *Store) takeOverTrial(f *engine.Followed) error {
	if !trialKeys.concern(f) {
		return nil
	}
	next := trial{Trial: s.trial.Trial, before: map[object.Ref]*record.Record{}, files: map[string]bool{}}
	maps.Copy(next.before, s.trial.before)
	err := trialKeys.takeOver(f, func(value []byte) error {
		if next.Trial = nil; value == nil {
			return nil
		}
		next.Trial = &Trial{}
		if err := json.Unmarshal(value, next.Trial); err != nil {
			return err
		}
		next.Ends = s.countHere(trialEndsKey, next.ID, next.Ends)
		return nil
	}, func(ref object.Ref, r *record.Record, known bool) {
		if next.before[ref] = r; !known {
			delete(next.before, ref)
		}
	})
	if err != nil {
		return err
	}
	if next.Trial == nil {
		next = trial{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial = next
	return nil
}
