package store

import "svcctl.io/svcctl/store/object"

// Recent is the revision that the newest changes follow on, so many of those that are about
// some objects, or all that are known: what Events is asked for then. A nil about counts all.
func (s *Store) Recent(changes int, about func(object.Ref) bool) (after uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	entries := s.feed.history.entries
	for i := len(entries) - 1; i >= 0; i-- {
		if about != nil && !about(entries[i].ref) {
			continue
		}
		if changes--; changes < 0 {
			return entries[i].revision
		}
	}
	return s.feed.history.since
}
