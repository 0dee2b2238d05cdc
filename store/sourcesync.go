package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// Sources returns all sources that some box has read, sorted by name.
func (s *Store) Sources() (all []Source) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(s.sources.records)) {
		r := s.sources.records[name]
		r.Files = len(s.sources.of[name])
		all = append(all, r)
	}
	return all
}

// SourcesChanged is another number when SyncSources has something to do although no file has changed.
func (s *Store) SourcesChanged() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.changed
}

// JudgeSource decides whether a machine with these files may read a source. The machine that read it last may, with
// the same data directory, and the one that TakeSource has named; else a machine whose files are those in force, or
// of a higher generation.
func (s *Store) JudgeSource(turn SourceTurn, files manifest.Files) SourceVerdict {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.judge(turn, files)
}

// TakeSource gives the reading of a source to a machine, whatever it has in its directory. It takes
// effect when that machine reads it.
func (s *Store) TakeSource(name, box string) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.decide(func() error {
		r := s.sources.records[name]
		if r.Reader == box && r.Instance == "" {
			return nil
		}
		r.Name, r.Reader, r.Instance, r.Since = name, box, "", s.now()
		t := s.begin()
		t.sourced = &sourcesUpdate{records: map[string]Source{name: r}}
		_, err := t.run()
		if err != nil {
			return fmt.Errorf("give source %s to %s: %w", name, box, err)
		}
		return nil
	})
}

// ErrNoSource means that no box has read a source of that name.
var ErrNoSource = errors.New("no box has read a source of that name")

// ForgetSource drops the record of a source that no machine reads any more. What its files declared stays as it
// is, and belongs to the API from then on. It returns how many objects these are. Errors: ErrNoSource.
func (s *Store) ForgetSource(name string) (objects int, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() error {
		if _, known := s.sources.records[name]; !known {
			return ErrNoSource
		}
		if s.sources.reading[name] {
			return errors.New("this box reads it")
		}
		t := s.begin()
		t.sourced = &sourcesUpdate{gone: maps.Clone(s.sources.of[name]), forgotten: name}
		var all []*change
		for ref, r := range s.table.records {
			if SourceOf(r.owner.File) == name {
				c := &change{ref: ref, old: r, waits: s.outcomes.waits(ref)}
				c.next = r.object.DeepCopy()
				all = append(all, c)
			}
		}
		slices.SortFunc(all, func(a, b *change) int { return compareRefs(a.ref, b.ref) })
		if err := t.encode(all...); err != nil {
			return err
		}
		for _, c := range all { // nothing is given or taken
			c.record.withheld = c.old.withheld
			if c.record.withheld {
				c.notes = append(c.notes, s.outcomes.notes[c.ref]...)
			}
			t.settled.add(c, s.allocator.mark())
		}
		objects = len(all)
		_, err := t.run()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget source %s: %w", name, err)
	}
	return objects, nil
}

// SyncSources is SyncGuarded for sources: objects of the files of those that this machine may read become equal to
// these files, in one commit with the record of who reads. Of a source that it may not read nothing changes, and
// the verdict says why; so does nothing of a source for which there is no turn. All paths are of sources. The
// error is that of the commit, when nothing has changed; ErrConflict of package engine says that another machine was
// first: the call is to be repeated.
func (s *Store) SyncSources(files manifest.Files, turns []SourceTurn, guard RemovalGuard) (verdicts map[string]SourceVerdict, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.follow()
	verdicts = make(map[string]SourceVerdict, len(turns))
	var mine manifest.Files
	reads := map[string]SourceTurn{}
	for _, turn := range turns {
		v := s.sources.judge(turn, files)
		if verdicts[turn.Name] = v; v.OK() {
			reads[turn.Name] = turn
			mine = append(mine, ofSource(files, turn.Name)...)
		}
	}
	slices.SortFunc(mine, func(a, b *manifest.File) int { return strings.Compare(a.Path, b.Path) })
	for name := range maps.Clone(s.sources.reading) {
		if turn, still := reads[name]; !still || s.sources.records[name].Reader != turn.Box {
			s.letSource(name)
		}
	}
	_, err = s.syncFiles(mine, guard, s.updateSources(reads, mine))
	if errors.Is(err, engine.ErrConflict) {
		s.storage.lost.Add(1)
	}
	return verdicts, err
}
