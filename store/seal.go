package store

import (
	"encoding/json"
	"fmt"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

const (
	// sealMost bounds the documents of a sealed file: the first change of it has to decode all of
	// them.
	sealMost = 32
	// sealAtOnce bounds the seals of one commit.
	sealAtOnce = 4_000
)

// Seal writes the seals of files that have none. It is called when a start is over and at the
// end: what changed in between is read anew after a crash. The Files that it returns say the same as
// those that were sealed, and hold no documents: they may take their places.
func (l LastGood) Seal() (sealed []*manifest.File, err error) {
	for more := true; more; {
		var some []*manifest.File
		if some, more, err = l.sealSome(); err != nil {
			return sealed, fmt.Errorf("seal copies of files: %w", err)
		}
		sealed = append(sealed, some...)
	}
	return sealed, nil
}

func (l LastGood) sealSome() (sealed []*manifest.File, more bool, err error) {
	s := l.s
	s.writer.Lock()
	defer s.writer.Unlock()
	by := s.sealedBy()
	if by == "" || !s.declared.synced {
		return nil, false, nil
	}
	var seals []seal
	var copies []string // their keys
	decode := l.decode
	for _, file := range s.declared.files {
		hash, has := s.storage.copies.sealable(file.Path)
		if !has || hash != file.Hash || isSealed(file) {
			continue
		}
		names, versions, settled := s.settled(file)
		if !settled {
			continue
		}
		seals = append(seals, seal{By: by, Hash: hash[:], Objects: names, Versions: versions})
		copies = append(copies, filePrefix+file.Path)
		sealed = append(sealed, manifest.Sealed(file.Path, hash, names, decode))
		if more = len(seals) >= sealAtOnce; more {
			break
		}
	}
	if len(seals) == 0 {
		return nil, false, nil
	}
	sums, err := s.storage.engine.Sums(copies)
	if err != nil {
		return nil, false, err
	}
	var out engine.Transaction
	for i := range seals {
		seals[i].Copy = sums[i][:]
		value, err := json.Marshal(seals[i])
		if err != nil {
			return nil, false, err
		}
		out.Puts = append(out.Puts, engine.Pair{Key: sealPrefix + sealed[i].Path, Value: value, Revision: s.feed.revision})
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return nil, false, err
	}
	s.storage.copies.mu.Lock()
	defer s.storage.copies.mu.Unlock()
	for _, f := range sealed {
		if w, has := s.storage.copies.written[f.Path]; has && w.hash == f.Hash {
			s.storage.copies.written[f.Path] = writtenCopy{f.Hash, true}
		}
	}
	return sealed, more, nil
}

// sealable is the hash of the copy of a file that is durable and has no seal.
func (c *copies) sealable(path string) (hash manifest.Hash, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, has := c.written[path]
	return w.hash, has && !w.sealed
}

// settled reports whether all objects of a file are stored as it says and nothing is to be said
// about them, and gives their names and versions.
func (s *Store) settled(file *manifest.File) (names []object.Ref, versions []string, settled bool) {
	if file.Err != nil || len(file.Problems) > 0 || len(file.Documents) > sealMost || len(s.declared.duplicates[file.Path]) > 0 {
		return nil, nil, false
	}
	for i := range file.Documents {
		name := object.RefOf(file.Documents[i].Object)
		ref := refInFile(name)
		if !s.isSettled(ref, file.Path) {
			return nil, nil, false
		}
		names, versions = append(names, name), append(versions, s.table.records[ref].object.GetMeta().ResourceVersion)
	}
	return names, versions, true
}
