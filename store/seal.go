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
	"svcctl.io/svcctl/store/reread"
)

// A seal is kept beside the last good copy of a file. It says that the objects of exactly this text
// were accepted as they are stored, by this program with these settings, and nothing was to be
// said about them. A start need not decode such a file, nor compare its objects with what is
// stored: it would come to the same.
//
// It is worth having for a box with many files. It is given to what depends on nothing else: to
// files of few documents, all of them EndpointSlices or Services with no more than cluster IPs.
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

const (
	sealPrefix = "seal/"
	// sealMost bounds the documents of a sealed file: the first change of it has to decode all of
	// them.
	sealMost = 32
	// sealAtOnce bounds the seals of one commit.
	sealAtOnce = 4_000
)

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

// isSettled reports whether an object is the one that a file declares, as far as can be told without
// the file.
func (s *Store) isSettled(ref object.Ref, path string) bool {
	r := s.table.records[ref]
	if r == nil || r.owner != (Owner{File: path}) || r.withheld || len(s.outcomes.notes[ref]) > 0 {
		return false
	}
	if s.outcomes.waits(ref) {
		return false
	}
	if _, held := s.declared.held[ref]; held {
		return false
	}
	meta := r.object.GetMeta()
	if len(meta.ManagedFields) > 0 || len(meta.Finalizers) > 0 || meta.DeletionTimestamp != nil {
		return false // clients have added to it
	}
	switch o := r.object.(type) {
	case *object.EndpointSlice:
		return true
	case *object.Service:
		return o.Spec.Type == object.TypeClusterIP && len(o.Spec.ExternalIPs) == 0 && len(o.Status.LoadBalancer.Ingress)+len(o.Status.Conditions) == 0
	}
	return false
}

// settledBefore reports whether a file is sealed and what its seal says is so.
func (t *transaction) settledBefore(file *manifest.File) bool {
	if file == nil {
		return false
	}
	names, sealed := file.Names()
	return sealed && !slices.ContainsFunc(names, func(name object.Ref) bool { return !t.s.isSettled(refInFile(name), file.Path) })
}

// trust notes the declarations of a sealed file. Objects that were the file's and are not in it are touched.
func (t *transaction) trust(file *manifest.File, touched map[object.Ref]struct{}) {
	declarations, _ := readDeclarations(file)
	for _, c := range declarations.all {
		t.setDeclaration(c.ref, file.Path, &c.declaration) // a file that declares it too touches it
		t.trusted = append(t.trusted, c.ref)
	}
	for ref := range t.s.declared.undeclared[file.Path] {
		if _, declared := declarations.of(ref); !declared {
			touched[ref] = struct{}{}
		}
	}
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
