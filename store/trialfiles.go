package store

import (
	"crypto/sha256"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// trialFile has the content of a file before a trial, and after the trial went back the content that is not taken.
type trialFile struct {
	was     bool // it was there
	content []byte
	refused bool // what follows is not taken
	is      bool // it is there
	hash    manifest.Hash
}

// The first byte of a stored trialFile has these bits; the hash follows, if it is there, and the
// content.
const (
	fileWas     = 1
	fileRefused = 2
	fileIs      = 4
)

func (f *trialFile) encode() []byte {
	form := []byte{0}
	if f.was {
		form[0] |= fileWas
	}
	if f.refused {
		form[0] |= fileRefused
	}
	if f.is {
		form[0] |= fileIs
		form = append(form, f.hash[:]...)
	}
	return append(form, f.content...)
}

func decodeTrialFile(value []byte) (f trialFile) {
	if len(value) == 0 {
		return f
	}
	bits, rest := value[0], value[1:]
	f.was, f.refused = bits&fileWas != 0, bits&fileRefused != 0
	if bits&fileIs != 0 && len(rest) >= sha256.Size {
		f.is, f.hash = true, manifest.Hash(rest[:sha256.Size])
		rest = rest[sha256.Size:]
	}
	if f.was {
		f.content = rest
	}
	return f
}

// heldFile is a file that is taken to be as it was before a trial, as long as it is what the trial
// found.
type heldFile struct {
	trialFile
	before *manifest.File // nil: it was not there
}

func (f trialFile) hold(path string) heldFile {
	h := heldFile{trialFile: f}
	if f.was {
		h.before = manifest.Decode(path, f.content, manifest.DefaultLimits())
		h.before.Hash = sha256.Sum256(f.content)
	}
	return h
}

// holdFiles makes what the trial has found in files what is not taken. It gives the held files, and adds
// their stored forms to a transaction.
func (t *trial) holdFiles(s *Store, found manifest.Files, out *engine.Transaction) (map[string]heldFile, error) {
	held := map[string]heldFile{}
	pairs, err := s.storage.engine.Load(trialFilePrefix)
	if err != nil {
		return nil, err
	}
	for _, pair := range pairs {
		path := pair.Key[len(trialFilePrefix):]
		f := decodeTrialFile(pair.Value)
		f.refused, f.is, f.hash = true, false, manifest.Hash{}
		if now := found.Get(path); now != nil {
			f.is, f.hash = true, now.Hash
		}
		if f.is == f.was && (!f.is || f.hash == sha256.Sum256(f.content)) {
			out.Deletes = append(out.Deletes, pair.Key) // it is as it was
			continue
		}
		held[path] = f.hold(path)
		out.Puts = append(out.Puts, engine.Pair{Key: pair.Key, Value: f.encode(), Revision: s.feed.revision})
	}
	return held, nil
}

// effective are files with those that are held as they were before the trial. A file that is not
// what the trial found any more is held no longer: let are those.
func (t *trial) effective(files manifest.Files) (taken manifest.Files, let []string) {
	if len(t.held) == 0 {
		return files, nil
	}
	taken = slices.Clone(files)
	for path, h := range t.held {
		i, there := taken.Find(path)
		if there != h.is || there && taken[i].Hash != h.hash {
			let = append(let, path)
			continue
		}
		switch {
		case there && h.before != nil:
			taken[i] = h.before
		case there:
			taken = slices.Delete(taken, i, i+1)
		case h.before != nil:
			taken = slices.Insert(taken, i, h.before)
		}
	}
	return taken, let
}

// takeFiles are the files that are taken of those that were found.
func (s *Store) takeFiles(found manifest.Files) (manifest.Files, error) {
	taken, let := s.trial.effective(found)
	return taken, s.letFiles(let)
}

// letFiles forgets files that are held no longer, and with the last one the trial.
func (s *Store) letFiles(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	var out engine.Transaction
	for _, path := range paths {
		out.Deletes = append(out.Deletes, trialFilePrefix+path)
	}
	over := len(paths) == len(s.trial.held)
	if over {
		out.Deletes = s.trial.keys()
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range paths {
		delete(s.trial.held, path)
		delete(s.trial.files, path)
	}
	if over {
		s.trial = trial{}
	}
	return nil
}
