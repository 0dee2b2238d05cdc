package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// The keys of a rollout: its head, and below the other what was in force before, of each object (its stored form; empty: it
// was not there).
const (
	rolloutPrefix       = "rollout/"
	rolloutKey          = rolloutPrefix + "head"
	rolloutObjectPrefix = rolloutPrefix + "object/"
)

// RolloutPhase is the phase of a Rollout.
type RolloutPhase string

// The phases of a rollout.
const (
	RolloutGathering   RolloutPhase = "Gathering"   // the client writes its changes, which no machine programs yet
	RolloutProgramming RolloutPhase = "Programming" // not all machines of the step have programmed them yet
	RolloutBaking      RolloutPhase = "Baking"      // all have, and are watched
	RolloutStopped     RolloutPhase = "Stopped"     // it waits for Resume or Undo
	RolloutDone        RolloutPhase = "Done"
	RolloutUndone      RolloutPhase = "Undone"
)

// A Rollout has changes that some machines of several program before all others do: those of its Writes (Caller.Rollout), and
// what controllers make of these. Objects are decided, and values are given, once for all machines; what was in force before is
// stored in the transaction of each change, and is what the other machines program (see View). There is one at a time.
// Its fields but ID, Turn and Revision are its user's, who moves it from phase to phase. It has more than 15 fields: all that another
// machine needs to go on with it.
type Rollout struct {
	ID    string       `json:"id"`
	Began time.Time    `json:"began"`
	User  string       `json:"user,omitempty"`
	Phase RolloutPhase `json:"phase"`
	// Turn counts the moves: of two machines that move it from the same Turn, one is refused (ErrRolloutMoved).
	Turn uint64 `json:"turn"`
	// Steps are the steps as they were asked for; Step is the present one, from 0.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Boxes are the machines that program the changes, sorted by name. Everyone says that all others do so too, when they are
	// heard of again.
	Boxes    []string `json:"boxes,omitempty"`
	Everyone bool     `json:"everyone,omitempty"`
	// Revision is the one that the Boxes must have programmed.
	Revision uint64 `json:"revision,omitempty"`
	// Known are the problems that a machine had when the changes came to it.
	Known map[string][]string `json:"known,omitempty"`
	// Ends is the end of the phase, if it has one. Each machine counts it by its own clocks, from the moment at which it has heard
	// of it.
	Ends deadline.Deadline `json:"ends"`
	// Within is the time that the machines of a step have to program it; Bake is how long they are observed afterwards.
	Within time.Duration `json:"within"`
	Bake   time.Duration `json:"bake"`
	// Reverts says that it is undone where it would stop by itself.
	Reverts bool `json:"reverts,omitempty"`
	// Since is when the phase began. Why is the reason of Stopped, or was undone.
	Since time.Time `json:"since"`
	Why   string    `json:"why,omitempty"`
}

// Pending reports whether some machines may program other versions than others.
func (r *Rollout) Pending() bool {
	return r != nil && r.Phase != RolloutDone && r.Phase != RolloutUndone
}

// Has reports whether a machine programs the changes.
func (r *Rollout) Has(box string) bool {
	return !r.Pending() || r.Everyone || slices.Contains(r.Boxes, box)
}

var (
	// ErrRolloutAlone means that the store belongs to one machine, not to a fleet.
	ErrRolloutAlone = errors.New("a rollout goes from box to box of a fleet, and this box belongs to none: `svcctl apply --confirm DURATION` tries a change on a box of its own")
	// ErrNoRollout means that no rollout is under way.
	ErrNoRollout = errors.New("no rollout is under way")
	// ErrRolloutOver means that a write belongs to a rollout that has begun, or is over.
	ErrRolloutOver = errors.New("the rollout that this change belongs to is over, or has been started: nothing of it is changed any more")
	// ErrRolloutMoved means that another machine has moved the rollout first.
	ErrRolloutMoved = errors.New("the rollout has advanced in the meantime: see `svcctl fleet rollout status`")
)

// RolloutError means that an object, or any other, is in a rollout, and may not be written.
type RolloutError struct {
	ID  string
	Ref object.Ref // the zero Ref: another rollout was to begin
}

// Error implements error.
func (e *RolloutError) Error() string {
	what := "rollout " + e.ID + " is under way"
	if e.Ref != (object.Ref{}) {
		what = fmt.Sprintf("%s is under way in rollout %s", e.Ref, e.ID)
	}
	return fmt.Sprintf("%s: wait until `svcctl fleet rollout status` shows that it is done, or end it with `svcctl fleet rollout undo`", what)
}

// StagedKinds are the kinds of objects that a rollout may change.
func StagedKinds() []string {
	return []string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindSecret}
}

// RolloutState is a Rollout and what it changes.
type RolloutState struct {
	Rollout
	Objects []object.Ref // by name
	// Here reports whether this machine programs the changes.
	Here bool
	// Services are the "namespace/name" of the Services that it changes, or whose endpoints, sorted.
	Services []string
}

// Rollout returns the rollout that is under way, or the last one.
func (s *Store) Rollout() (state RolloutState, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.rollout.Rollout == nil {
		return state, false
	}
	state.Rollout, state.Here = *s.rollout.Rollout, !s.rollout.outside
	keys := map[string]bool{}
	for ref, before := range s.rollout.before {
		state.Objects = append(state.Objects, ref)
		for _, r := range []*record.Record{before, s.table.records[ref]} {
			if r == nil {
				continue
			}
			if key := index.ServiceKey(r.Object); key != "" {
				keys[key] = true
			}
		}
	}
	for key := range keys {
		state.Services = append(state.Services, key)
	}
	slices.Sort(state.Services)
	slices.SortFunc(state.Objects, record.CompareRefs)
	return state, true
}

// RolloutHead returns the rollout without what it changes, which may be much.
func (s *Store) RolloutHead() (head Rollout, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.rollout.Rollout == nil {
		return head, false
	}
	return *s.rollout.Rollout, true
}

// ProgramsRollout reports whether this machine programs the changes of the rollout that is under way.
func (s *Store) ProgramsRollout() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rollout.Pending() && !s.rollout.outside
}

// RolloutLeft returns the time left of the phase by this machine's clocks; 0 when it has no end, or it is over.
func (s *Store) RolloutLeft() time.Duration {
	head, is := s.RolloutHead()
	if !is || head.Ends == (deadline.Deadline{}) {
		return 0
	}
	return head.Ends.Left(s.cfg.Clocks())
}

// BeginRollout begins a rollout: what is written with its ID (Caller.Rollout) is programmed by no machine before MoveRollout says
// by which. Unless that happens in time, its user is to undo it. Errors: ErrRolloutAlone, *RolloutError.
func (s *Store) BeginRollout(head Rollout, within time.Duration) (Rollout, error) {
	if s.storage.shared == nil {
		return Rollout{}, ErrRolloutAlone
	}
	if err := s.storage.shared.Rolls(); err != nil {
		return Rollout{}, err
	}
	head.Phase, head.Turn, head.Boxes, head.Everyone = RolloutGathering, 1, nil, false
	return head, s.changeRollout(func() error {
		if s.rollout.Pending() {
			return &RolloutError{ID: s.rollout.ID}
		}
		return s.putRollout(&head, within)
	})
}

// MoveRollout makes a rollout another phase, which ends after a time (0: it has no end), unless another machine has moved it since.
// Errors: ErrNoRollout, ErrRolloutMoved.
func (s *Store) MoveRollout(next Rollout, ends time.Duration) error {
	return s.changeRollout(func() error {
		if err := s.expectRollout(&next); err != nil {
			return err
		}
		head := next
		head.Turn++
		return s.putRollout(&head, ends)
	})
}

// FinishRollout has all machines program what a rollout has changed. Errors: as MoveRollout.
func (s *Store) FinishRollout(head Rollout) error {
	return s.changeRollout(func() error {
		if err := s.expectRollout(&head); err != nil {
			return err
		}
		t := s.endRollout(RolloutDone)
		t.base = s.allocator.mark()
		if err := s.rollout.addEnd(t); err != nil {
			return err
		}
		_, err := t.run()
		return err
	})
}

// UndoRollout makes objects what they were before a rollout, with the uids, addresses and ports that they had. What the head says of
// why stays. Errors: as MoveRollout.
func (s *Store) UndoRollout(head Rollout, by Caller) (revived []Revived, err error) {
	err = s.changeRollout(func() error {
		if err := s.expectRollout(&head); err != nil {
			return err
		}
		t := s.endRollout(RolloutUndone)
		t.rolled.Why = head.Why
		by.Verb = verbUndo
		if revived, err = t.revive(s.rollout.before, &by); err != nil {
			return err
		}
		if err := s.rollout.addEnd(t); err != nil {
			return err
		}
		_, err = t.run()
		return err
	})
	return revived, err
}

// verbUndo is the verb of the journal for what a rollout takes back.
const verbUndo = "rollout-undo"

// changeRollout has a change of the rollout decided, anew when another machine was first.
func (s *Store) changeRollout(change func() error) error {
	return s.change(func() error {
		err := change()
		if err != nil {
			s.allocator.rollback()
		} else if !s.rollout.Pending() {
			delete(s.allocator.kept, rolloutOwner)
		}
		return err
	})
}

// expectRollout reports that the rollout is not what its mover has seen.
func (s *Store) expectRollout(seen *Rollout) error {
	switch {
	case !s.rollout.Pending():
		return ErrNoRollout
	case s.rollout.ID != seen.ID || s.rollout.Turn != seen.Turn:
		return ErrRolloutMoved
	}
	return nil
}

// putRollout commits a head for all machines.
func (s *Store) putRollout(head *Rollout, ends time.Duration) error {
	t := s.begin()
	t.announced = true
	head.Since, head.Ends = s.cfg.Clock().UTC().Truncate(time.Second), deadline.Deadline{}
	if ends > 0 {
		head.Ends = deadline.After(ends, s.cfg.Clocks())
	}
	head.Revision = s.latest() + 1
	if err := head.addTo(t); err != nil {
		return err
	}
	t.rolled = &rollout{Rollout: head, before: s.rollout.before, slices: s.rollout.slices}
	if !s.rollout.Pending() {
		t.rolled.before, t.rolled.slices = map[object.Ref]*record.Record{}, map[string][]object.Ref{}
	}
	if _, err := t.run(); err != nil {
		return fmt.Errorf("store the rollout: %w", err)
	}
	s.keepEnds(rolloutEndsKey, head.endsAs())
	return nil
}

// endRollout begins the transaction in which a rollout ends.
func (s *Store) endRollout(phase RolloutPhase) *transaction {
	t := s.begin()
	t.announced = true
	s.allocator.unkeep(rolloutOwner)
	head := *s.rollout.Rollout
	head.Phase, head.Turn, head.Ends, head.Known = phase, head.Turn+1, deadline.Deadline{}, nil
	head.Since = s.cfg.Clock().UTC().Truncate(time.Second)
	t.rolled = &rollout{Rollout: &head}
	return t
}

// addEnd adds to a transaction that what was there before is needed no more.
func (r *rollout) addEnd(t *transaction) error {
	for ref := range r.before {
		t.extra.Deletes = append(t.extra.Deletes, rolloutObjectPrefix+record.Key(ref))
	}
	return t.rolled.addTo(t)
}

// addTo adds the stored form to a transaction.
func (r *Rollout) addTo(t *transaction) error {
	value, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the rollout: %w", err)
	}
	t.extra.Puts = append(t.extra.Puts, engine.Pair{Key: rolloutKey, Value: value, Revision: t.s.feed.revision})
	return nil
}

// GenerateBefore is Generate for what machines program that do not program the changes of a rollout yet (see Before): what a
// controller makes of the versions before. Without a rollout it does nothing.
func (s *Store) GenerateBefore(controller string, puts []object.Object, deletes []object.Ref) error {
	return s.changeRollout(func() error {
		if !s.rollout.Pending() {
			return nil
		}
		t := s.begin()
		t.announced, t.staged = true, map[object.Ref]*record.Record{}
		for _, o := range puts {
			r, err := t.recordBefore(Owner{Controller: controller}, o)
			if err != nil {
				return fmt.Errorf("generate %s for boxes outside of the rollout: %w", object.RefOf(o), err)
			}
			t.staged[object.RefOf(r.Object)] = r
		}
		for _, ref := range deletes {
			t.staged[ref] = nil
		}
		for ref, r := range t.staged {
			pair, err := pairBefore(rolloutObjectPrefix, ref, r, s.feed.revision)
			if err != nil {
				return err
			}
			t.extra.Puts = append(t.extra.Puts, pair)
		}
		_, err := t.run()
		return err
	})
}

// recordBefore is the record of an object that a controller has made of versions before. It has the uid and the resourceVersion
// that the object had.
func (t *transaction) recordBefore(owner Owner, o object.Object) (*record.Record, error) {
	ref := refInFile(object.RefOf(o))
	was, staged := t.s.rollout.before[ref]
	if !staged {
		was = t.s.table.records[ref]
	}
	c := &change{ref: ref, old: was, owner: owner}
	if was != nil && was.Owner != owner {
		return nil, &OwnedError{Ref: ref, Owner: was.Owner}
	}
	if c.proposeFrom(t.s, o); c.err != nil {
		return nil, c.err
	}
	r := &record.Record{Object: c.wanted, Owner: owner, Created: t.s.latest() + 1}
	if was != nil {
		r.Created, r.Asked = was.Created, was.Asked
		return r, nil
	}
	meta := r.Object.GetMeta()
	meta.UID, meta.CreationTimestamp, meta.ResourceVersion = t.s.cfg.NewUID(), t.creation(), strconv.FormatUint(t.s.latest(), 10)
	return r, nil
}
