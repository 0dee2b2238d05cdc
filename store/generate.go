package store

import (
	"fmt"

	"svcctl.io/svcctl/store/object"
)

// Generate makes, replaces and removes the objects of a controller, all in one commit,
// or none of it. Objects that are the same as they were are left alone, and what is to be
// removed may be gone already. Errors: *OwnedError when one of them belongs to somebody
// else by now; object.Errors when one is not valid; else those of the engine.
func (s *Store) Generate(controller string, puts []object.Object, deletes []object.Ref) (result SyncResult, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		result, err = s.generate(controller, puts, deletes)
		return err
	})
	return result, err
}

// generate is Generate once.
func (s *Store) generate(controller string, puts []object.Object, deletes []object.Ref) (SyncResult, error) {
	t := s.begin()
	owner := Owner{Controller: controller}
	for _, o := range puts {
		ref := refInFile(object.RefOf(o))
		c := &change{ref: ref, old: s.table.records[ref], owner: owner}
		if c.old != nil && c.old.owner != owner {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, &OwnedError{ref, c.old.owner})
		}
		if c.proposeFrom(s, o); c.err != nil {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, c.err)
		}
		t.changes[ref] = c
	}
	for _, ref := range deletes {
		old := s.table.records[ref]
		if old == nil {
			continue
		}
		if old.owner != owner {
			return SyncResult{}, fmt.Errorf("remove generated %s: %w", ref, &OwnedError{ref, old.owner})
		}
		t.changes[ref] = &change{ref: ref, old: old, owner: owner, remove: true}
	}
	result, err := t.run()
	if err != nil {
		return SyncResult{}, fmt.Errorf("write what the %s controller generates: %w", controller, err)
	}
	return result, nil
}
