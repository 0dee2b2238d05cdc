package store

import (
	"fmt"
	"strconv"

	"svcctl.io/svcctl/store/object"
)

// GenerateBefore is Generate for what machines program that do not program the changes of a rollout yet (see Before): what a
// controller makes of the versions before. Without a rollout it does nothing.
func (s *Store) GenerateBefore(controller string, puts []object.Object, deletes []object.Ref) error {
	return s.changeRollout(func() error {
		if !s.rollout.Pending() {
			return nil
		}
		t := s.begin()
		t.announced, t.staged = true, map[object.Ref]*record{}
		for _, o := range puts {
			r, err := t.recordBefore(Owner{Controller: controller}, o)
			if err != nil {
				return fmt.Errorf("generate %s for boxes outside of the rollout: %w", object.RefOf(o), err)
			}
			t.staged[object.RefOf(r.object)] = r
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
func (t *transaction) recordBefore(owner Owner, o object.Object) (*record, error) {
	ref := refInFile(object.RefOf(o))
	was, staged := t.s.rollout.before[ref]
	if !staged {
		was = t.s.table.records[ref]
	}
	c := &change{ref: ref, old: was, owner: owner}
	if was != nil && was.owner != owner {
		return nil, &OwnedError{Ref: ref, Owner: was.owner}
	}
	if c.proposeFrom(t.s, o); c.err != nil {
		return nil, c.err
	}
	r := &record{object: c.wanted, owner: owner, created: t.s.latest() + 1}
	if was != nil {
		r.created, r.asked = was.created, was.asked
		return r, nil
	}
	meta := r.object.GetMeta()
	meta.UID, meta.CreationTimestamp, meta.ResourceVersion = t.s.cfg.NewUID(), t.creation(), strconv.FormatUint(t.s.latest(), 10)
	return r, nil
}
