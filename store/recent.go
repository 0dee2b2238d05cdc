package store

// Recent is the revision that the newest changes follow on, so many of them, or all that
// are known: what Events is asked for then.
func (s *Store) Recent(changes int) (after uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	entries := s.history.entries
	if first := len(entries) - changes; first > 0 {
		return entries[first-1].revision
	}
	return s.history.since
}
