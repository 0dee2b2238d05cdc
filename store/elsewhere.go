package store

import "svcctl.io/svcctl/store/object"

// isReadElsewhere reports whether an object of a file is another machine's to change.
func (s *Store) isReadElsewhere(owner Owner) bool {
	return s.storage.shared != nil && owner.File != "" && !s.sources.reading[SourceOf(owner.File)]
}

// position returns the line and column of an object's field in a file; of a file that another machine reads, or that
// was not read yet, the line of the object; 0 when it is not known.
func (s *Store) position(ref object.Ref, path, field string) (line, column int) {
	if line, column = s.declared.position(ref, path, field); line == 0 {
		line = s.sources.files[path].Lines[lineKey(ref)]
	}
	return line, column
}

// ReadElsewhere is the machine that reads the file of an object, when that is another one; "" otherwise.
func (s *Store) ReadElsewhere(ref object.Ref) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.table.records[ref]; r != nil && s.isReadElsewhere(r.owner) {
		return s.sources.records[SourceOf(r.owner.File)].Reader
	}
	return ""
}

// readsAnew reports whether the objects of a file are compared with files for the first time.
func (t *transaction) readsAnew(path string) bool {
	if t.s.storage.shared == nil {
		return !t.s.declared.synced
	}
	return t.sourced != nil && t.sourced.fresh[SourceOf(path)]
}
