package store

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/store/object"
)

var (
	// ErrNotFound says that there is no such object.
	ErrNotFound = errors.New("not found")
	// ErrStale says that the object is not the version any more that was to be replaced.
	ErrStale = errors.New("the object has been modified; please apply your changes to the latest version and try again")
)

// OwnedError says that an object belongs to somebody else.
type OwnedError struct {
	Ref   object.Ref
	Owner Owner
}

// Error implements error.
func (e *OwnedError) Error() string {
	return fmt.Sprintf("%s belongs to %s: change it there", e.Ref, e.Owner)
}

// Put creates an object or replaces it by another version, and gives the version that is
// stored, with what the server says about it. The object is not kept. A resourceVersion
// in it must be that of the stored version. Errors: object.Errors when it is not valid,
// or a value that it asks for is not to be had; alloc.ErrFull; *OwnedError; ErrStale;
// ErrNotFound for a resourceVersion of nothing; else those of the engine.
func (s *Store) Put(o object.Object, owner Owner) (object.Object, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	ref := refInFile(object.RefOf(o))
	old := s.records[ref]
	version := o.GetMeta().ResourceVersion
	switch {
	case old != nil && old.owner != owner:
		return nil, &OwnedError{ref, old.owner}
	case old == nil && version != "":
		return nil, fmt.Errorf("put %s: %w", ref, ErrNotFound)
	case old != nil && version != "" && version != old.object.GetMeta().ResourceVersion:
		return nil, fmt.Errorf("put %s: %w", ref, ErrStale)
	}
	t := s.begin()
	c := &change{ref: ref, old: old, owner: owner}
	t.changes[ref] = c
	c.want(s, o.DeepCopy())
	c.contest(t.claimsOn(ref), owner)
	if err := t.runOne(c); err != nil {
		return nil, fmt.Errorf("put %s: %w", ref, err)
	}
	return s.records[ref].object, nil
}

// Delete removes an object. A file that claims it becomes its owner. Errors: ErrNotFound,
// *OwnedError, else those of the engine.
func (s *Store) Delete(ref object.Ref, owner Owner) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	old := s.records[ref]
	switch {
	case old == nil:
		return fmt.Errorf("delete %s: %w", ref, ErrNotFound)
	case old.owner != owner:
		return &OwnedError{ref, old.owner}
	}
	t := s.begin()
	c := &change{ref: ref, old: old, owner: owner, remove: true}
	t.changes[ref] = c
	if err := t.runOne(c); err != nil {
		return fmt.Errorf("delete %s: %w", ref, err)
	}
	if len(s.claims[ref]) == 0 {
		return nil
	}
	t = s.begin()
	t.examine(ref)
	if _, err := t.run(); err != nil {
		return fmt.Errorf("delete %s: give it to the file that claims it: %w", ref, err)
	}
	return nil
}

// runOne is run for a change that somebody waits for: if it is not accepted, nothing is
// changed and nothing is noted.
func (t *transaction) runOne(c *change) error {
	if c.err == nil {
		t.allocate()
	}
	if c.err != nil {
		t.s.ledger.rollback()
		return c.err
	}
	if _, err := t.run(); err != nil {
		return err
	}
	return c.err
}
