package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// rolloutEndsKey has when the phase ends by the clocks of this machine. It is this machine's alone.
const rolloutEndsKey = "ends/rollout"

// rollout is the rollout that is under way, or the last one. Only the writer changes it, under mu, together with the
// objects: no reader sees the changes without what was there before.
type rollout struct {
	*Rollout // nil: there was none
	// before has what is in force on the machines that do not program the changes, nil where nothing is.
	before map[object.Ref]*record.Record
	// slices are the EndpointSlices in before, by their Service.
	slices map[string][]object.Ref
	// outside is set when this machine does not program the new versions.
	outside bool
}

// set notes what was there before.
func (r *rollout) set(ref object.Ref, before *record.Record) {
	if ref.Kind == object.KindEndpointSlice {
		if was := r.before[ref]; was != nil {
			key := index.ServiceKey(was.Object)
			r.slices[key] = slices.DeleteFunc(slices.Clone(r.slices[key]), func(other object.Ref) bool { return other == ref })
		}
		if before != nil {
			key := index.ServiceKey(before.Object)
			r.slices[key] = append(slices.Clone(r.slices[key]), ref)
		}
	}
	r.before[ref] = before
}

// stages reports whether a change belongs to the rollout: a write of it, or what a controller makes of an object in it.
func (r *rollout) stages(c *change) bool {
	switch {
	case !r.Pending():
		return false
	case c.by != nil:
		return c.by.Rollout != "" && c.by.Rollout == r.ID
	case c.ref.Kind != object.KindEndpointSlice && c.ref.Kind != object.KindEndpoints, c.controller() == "":
		return false
	}
	for _, o := range []object.Object{record.ObjectOf(c.old), c.next} {
		if o == nil {
			continue
		}
		key := index.ServiceKey(o)
		if _, is := r.before[object.ServiceRef(key)]; is {
			return true
		}
		if _, is := r.before[endpointsRef(key)]; is && c.ref.Kind != object.KindEndpoints {
			return true
		}
	}
	return false
}

// controller names the controller that a change is of, "" for none.
func (c *change) controller() string {
	if c.remove && c.old != nil {
		return c.old.Owner.Controller
	}
	return c.owner.Controller
}

func endpointsRef(key string) object.Ref {
	ref := object.ServiceRef(key)
	ref.Kind = object.KindEndpoints
	return ref
}

// admitRollout refuses a write to an object that is in a rollout, and a write of a rollout that it may not have.
func (t *transaction) admitRollout(ref object.Ref, by *Caller) error {
	r := &t.s.rollout
	if by.Rollout == "" {
		_, staged := r.before[ref]
		if last := t.last[ref]; last != nil && last.by != nil && last.by.Rollout != "" {
			staged = true
		}
		if r.Pending() && staged {
			return &RolloutError{ID: r.ID, Ref: ref}
		}
		return nil
	}
	if r.Pending() && r.ID == by.Rollout && *by == garbageOf(r.ID) {
		return nil
	}
	_, tried := t.s.trial.before[ref]
	switch old := t.record(ref); {
	case !r.Pending() || r.ID != by.Rollout || r.Phase != RolloutGathering:
		return ErrRolloutOver
	case t.s.trial.Pending() && tried:
		return &OnTrialError{ref}
	case old != nil && old.Owner.File != "":
		return &OwnedError{Ref: ref, Owner: old.Owner}
	}
	return nil
}

// refuseUnstaged refuses a change that all machines would have at once.
func (c *change) refuseUnstaged() error {
	if c.by == nil || c.by.Rollout == "" || c.revision == 0 || c.by.Manager == garbageCollector.Manager || slices.Contains(StagedKinds(), c.ref.Kind) {
		return nil
	}
	return object.Errors{{Type: object.FieldValueForbidden, Field: "kind", Detail: fmt.Sprintf(
		"a rollout changes objects of the kinds %s alone: apply a %s without --rollout", strings.Join(StagedKinds(), ", "), c.ref.Kind)}}
}

// OnTrialError means that an object is on trial, and cannot be in a rollout.
type OnTrialError struct{ Ref object.Ref }

// Error implements error.
func (e *OnTrialError) Error() string {
	return fmt.Sprintf("%s is on trial: `svcctl confirm`, or take it back with `svcctl confirm --back`, first", e.Ref)
}

// note adds to a commit what was there before its changes. It gives what has to be set once it is written.
func (r *rollout) note(s *Store, changes []*change, out *engine.Transaction) (map[object.Ref]*record.Record, error) {
	if !r.Pending() {
		return map[object.Ref]*record.Record{}, nil
	}
	return noteBefore(s, rolloutObjectPrefix, r.before, r.stages, changes, out)
}

// publishRollout makes what a transaction says of the rollout visible, and notes what machines that program other versions than
// until now have to look at. It reports whether there is any. Store.mu must be held.
func (s *Store) publishRollout(t *transaction) (moved bool) {
	for ref, before := range t.staged {
		if s.rollout.outside { // what a controller has made for boxes like this one is no change of the objects themselves
			s.feed.log.addChange(t.revision, ref, s.rollout.before[ref], before)
			moved = true
		}
		s.rollout.set(ref, before)
	}
	if t.rolled == nil {
		return moved
	}
	was := s.rollout
	s.rollout = *t.rolled
	s.rollout.outside = s.rollout.Pending() && !s.rollout.Has(s.cfg.Box)
	turned := was.outside != s.rollout.outside
	note := func(before, other map[object.Ref]*record.Record) {
		for ref, r := range before {
			if was, is := other[ref]; turned || s.rollout.outside && (!is || was != r) {
				s.feed.log.addChange(t.revision, ref, r, s.table.records[ref])
			}
		}
	}
	note(was.before, s.rollout.before)
	note(s.rollout.before, was.before)
	return true // if all is the same, the revision is to be reported as programmed
}

// keepStaged keeps what Services had before the rollout that is under way from others.
func (t *transaction) keepStaged() {
	r := &t.s.rollout
	if t.rolled != nil {
		r = t.rolled
	}
	if !r.Pending() {
		return
	}
	for ref, before := range r.before {
		if before != nil && ref.Kind == object.KindService {
			t.s.allocator.keepOf(rolloutOwner, before.Object.(*object.Service))
		}
	}
}

func isRolloutKey(key string) bool { return strings.HasPrefix(key, rolloutPrefix) }

// loadRollout reads what is stored of a rollout.
func (s *Store) loadRollout() error {
	pairs, err := s.storage.engine.Load(rolloutPrefix)
	if err != nil || len(pairs) == 0 {
		return err
	}
	r := rollout{before: map[object.Ref]*record.Record{}, slices: map[string][]object.Ref{}}
	if err := r.take(&engine.Followed{Puts: pairs}); err != nil {
		return err
	}
	if r.Rollout == nil {
		return errors.New("the stored data has what was there before a rollout, and no rollout: put a backup in its place")
	}
	if s.storage.shared != nil {
		s.countRollout(r.Rollout)
	}
	r.outside = r.Pending() && !r.Has(s.cfg.Box)
	s.rollout = r
	s.begin().keepStaged()
	s.allocator.begin()
	return nil
}

// take takes what stored pairs, or a commit, say.
func (r *rollout) take(f *engine.Followed) error {
	return rolloutKeys.takeOver(f, func(value []byte) error {
		if r.Rollout = nil; value == nil {
			return nil
		}
		r.Rollout = &Rollout{}
		return json.Unmarshal(value, r.Rollout)
	}, func(ref object.Ref, before *record.Record, known bool) {
		if r.set(ref, before); !known {
			delete(r.before, ref)
		}
	})
}

// endsAs names the end of a phase.
func (r *Rollout) endsAs() *ends {
	return &ends{fmt.Sprint(r.ID, "/", r.Turn), r.Ends.Wall, r.Ends}
}

// countRollout makes the end of a phase the one that this machine counts to.
func (s *Store) countRollout(head *Rollout) {
	if head.Ends == (deadline.Deadline{}) {
		return
	}
	head.Ends = s.countHere(rolloutEndsKey, head.endsAs().ID, head.Ends)
}

// takeOverRollout returns the rollout as a commit of another machine leaves it; nil: unchanged. The writer must be held.
func (s *Store) takeOverRollout(f *engine.Followed) (*rollout, error) {
	if !rolloutKeys.concern(f) {
		return nil, nil
	}
	next := rollout{Rollout: s.rollout.Rollout, before: maps.Clone(s.rollout.before), slices: maps.Clone(s.rollout.slices)}
	if next.before == nil {
		next.before, next.slices = map[object.Ref]*record.Record{}, map[string][]object.Ref{}
	}
	if err := next.take(f); err != nil {
		return nil, err
	}
	if next.Rollout != nil && (s.rollout.Rollout == nil || next.ID != s.rollout.ID || next.Turn != s.rollout.Turn) {
		s.countRollout(next.Rollout)
	}
	return &next, nil
}
