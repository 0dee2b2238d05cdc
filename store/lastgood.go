package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/reread"
)

// LastGood keeps the last content of each file that could be read, for those that
// cannot be read later, also after a restart. A copy goes with the next commit,
// as a rule that of the objects in it, and so costs none of its own. Large ones, and those
// just after others, wait for Flush, so that a commit of objects is not much larger than
// they are.
type LastGood struct{ s *Store }

// LastGood returns the storage of the copies of files.
func (s *Store) LastGood() LastGood { return LastGood{s} }

// Load is every file that was put and not removed, by path: of most what Seal has sealed, of the
// others the content.
func (l LastGood) Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error) {
	if contents, sealed, err = l.load(); err != nil {
		err = fmt.Errorf("load last good copies of files: %w", err)
	}
	return contents, sealed, err
}

func (l LastGood) load() (map[string][]byte, map[string]*manifest.File, error) {
	seals, err := l.loadSeals()
	if err != nil {
		return nil, nil, err
	}
	contents, sealed, written := map[string][]byte{}, make(map[string]*manifest.File, len(seals)), make(map[string]writtenCopy, len(seals))
	isOther := func(key string, sum engine.Sum) bool {
		path := strings.TrimPrefix(key, filePrefix)
		one, has := seals[path]
		if !has || one.sum != sum {
			return true // it is of another text
		}
		sealed[path], written[path] = one.file, writtenCopy{one.file.Hash, true}
		return false
	}
	err = l.s.storage.engine.Scan(filePrefix, isOther, func(pairs []engine.Pair) error {
		hashes := make([]manifest.Hash, len(pairs))
		eachPair(pairs, func(i int, pair engine.Pair) { hashes[i] = sha256.Sum256(pair.Value) })
		for i, pair := range pairs {
			path := strings.TrimPrefix(pair.Key, filePrefix)
			contents[path], written[path] = slices.Clone(pair.Value), writtenCopy{hashes[i], false}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	c := &l.s.storage.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = written
	return contents, sealed, nil
}

// eachPair calls f for all pairs, on all CPUs.
func eachPair(pairs []engine.Pair, f func(i int, pair engine.Pair)) {
	parallel.Do(len(pairs), parallel.Share, func(i int) { f(i, pairs[i]) })
}

// Put sets the copy that is kept of a file; nil removes it. It does not wait: the content is
// durable after Flush at the latest. It may not be changed any more.
func (l LastGood) Put(path string, content []byte) {
	c := &l.s.storage.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(path, fileCopy{content: content})
}

// Flush returns when all that was put is durable. After an error it still waits for a
// commit. Much is written in several commits: each takes memory for all that is in it, and
// those of objects wait for it.
func (l LastGood) Flush() error {
	for more := true; more; {
		var err error
		if more, err = l.flushSome(); err != nil {
			return fmt.Errorf("keep copies of files: %w", err)
		}
	}
	return nil
}

func (l LastGood) flushSome() (more bool, err error) {
	s := l.s
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	more = s.storage.copies.take()
	return more, s.write(engine.Transaction{}, s.feed.revision)
}

// A seal is kept beside the last good copy of a file. It records that the objects of exactly this text
// were accepted as they are stored, by this program with these settings, without a
// warning. A start need not decode such a file, nor compare its objects with the stored ones: the
// result would be the same.
//
// It is worth having for a box with many files. It is given to what depends on nothing else: to
// files of at most sealMost documents, all of them EndpointSlices or Services with no more than cluster IPs.
type seal struct {
	By      string       `json:"by"` // see sealedBy
	Hash    []byte       `json:"hash"`
	Objects []object.Ref `json:"objects"` // as the text has them, in its order
	// Copy is the engine.Sum of the copy of the file, whose text has Hash: while it is the same, the copy need not be
	// read. Older programs have not written it.
	Copy []byte `json:"copy,omitempty"`
	// Versions are the resourceVersions of the objects as they are stored: those that were stored
	// again may be what another text, program or setting made of them.
	Versions []string `json:"versions"`
}

// loadSeals gives the sealed files whose objects are those of the seal, with the sums of their copies.
func (l LastGood) loadSeals() (map[string]sealedCopy, error) {
	by := l.s.sealedBy()
	if by == "" {
		return nil, nil
	}
	sealed, decode := map[string]sealedCopy{}, l.decode
	err := l.s.storage.engine.Scan(sealPrefix, nil, func(pairs []engine.Pair) error {
		files := make([]sealedCopy, len(pairs))
		eachPair(pairs, func(i int, pair engine.Pair) {
			var one seal
			if !reread.Into(pair.Value, &one) {
				one = seal{}
				if json.Unmarshal(pair.Value, &one) != nil {
					return
				}
			}
			var hash manifest.Hash
			var sum engine.Sum
			if one.By != by || copy(hash[:], one.Hash) != len(hash) || copy(sum[:], one.Copy) != len(sum) || !l.s.areStored(&one) {
				return // another program judged it, or its objects were stored again
			}
			path := strings.Clone(strings.TrimPrefix(pair.Key, sealPrefix))
			files[i] = sealedCopy{manifest.Sealed(path, hash, one.Objects, decode), sum}
		})
		for _, f := range files {
			if f.file != nil {
				sealed[f.file.Path] = f
			}
		}
		return nil
	})
	return sealed, err
}

// sealedCopy is a file that was sealed when its copy had a sum.
type sealedCopy struct {
	file *manifest.File
	sum  engine.Sum
}

// decode reads a file from its copy; nil when there is none that can be read.
func (l LastGood) decode(path string) *manifest.File {
	pairs, err := l.s.storage.engine.Load(filePrefix + path)
	if err != nil || len(pairs) == 0 || pairs[0].Key != filePrefix+path { // others may begin with its path
		return nil
	}
	f := manifest.Decode(path, pairs[0].Value, manifest.DefaultLimits())
	f.Hash = sha256.Sum256(pairs[0].Value)
	return f
}

// sealedBy names the program and all settings by which documents are judged; "" when the program
// has no name: then nothing is sealed.
func (s *Store) sealedBy() string {
	if s.cfg.Program == "" {
		return ""
	}
	c := &s.cfg
	text, err := json.Marshal([]any{c.Program, c.ClusterIPRanges, c.NodePorts, c.NodePortSpace, c.Pools, c.Objects, c.LegacyIPs, c.Pinned})
	if err != nil {
		return "" // a setting that JSON has no form for
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// areStored reports whether the objects of a seal are still those that were stored when it was made.
func (s *Store) areStored(one *seal) bool {
	if len(one.Versions) != len(one.Objects) {
		return false
	}
	for i, name := range one.Objects {
		if o, _ := s.Get(refInFile(name)); o == nil || o.GetMeta().ResourceVersion != one.Versions[i] {
			return false
		}
	}
	return true
}
