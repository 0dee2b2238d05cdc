package store

import (
	"fmt"
	"time"

	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
)

// ErrExpired means that the history does not have the revision, which is too old or in the
// future. A client has to read everything again (HTTP 410).
var ErrExpired = journal.ErrExpired

// Event is one change of one object.
type Event struct {
	Revision uint64
	At       time.Time
	Ref      object.Ref
	// Old is nil when the object came, New when it went.
	Old, New object.Object
	By       Caller
	Owner    Owner
}

// Events are the changes after a revision in order, at most limit (0: no limit); ErrExpired when
// not all are known any more, or the revision is not there yet. Nothing of them may be changed.
func (s *Store) Events(after uint64, limit int) ([]Event, error) {
	return s.EventsAbout(after, limit, nil)
}

// EventsAbout is Events for who only cares about some objects: the versions of all others are
// left out, which saves the work of reading them. nil means all objects.
func (s *Store) EventsAbout(after uint64, limit int, about func(object.Ref) bool) ([]Event, error) {
	s.mu.RLock()
	entries, err := s.feed.journal.After(after, s.feed.revision)
	if limit > 0 && len(entries) > limit {
		entries = entries[:limit]
	}
	versions := make([][2]journal.Version, len(entries))
	for i, e := range entries {
		if about == nil || about(e.Ref) {
			versions[i] = [2]journal.Version{e.Before(), e.After(objectOf(s.table.get(e.Ref)))}
		}
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %d", err, after)
	}
	events, d := make([]Event, len(entries)), journal.Decoder{}
	for i, e := range entries {
		event := Event{Revision: e.Revision, At: e.At, Ref: e.Ref, By: e.By, Owner: e.Owner}
		if event.Old, err = d.Decode(e.Ref, versions[i][0]); err != nil {
			return nil, err
		}
		if event.New, err = d.Decode(e.Ref, versions[i][1]); err != nil {
			return nil, err
		}
		events[i] = event
	}
	return events, nil
}

// Published is closed with the next change. Take it before looking.
func (s *Store) Published() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.published
}

// Recent is the revision that the newest changes follow on, so many of those that are about
// some objects, or all that are known: what Events is asked for then. A nil about counts all.
func (s *Store) Recent(changes int, about func(object.Ref) bool) (after uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.journal.Recent(changes, about)
}
