package held

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// Files holds the files that a trial (a change that is undone unless it is confirmed) has changed. It stores the content of each file before the
// trial and, once the trial was undone, the tried content that is held back (ignored).
type Files struct {
	prefix string // prefix of the engine keys of the files
	stored map[string]bool
	held   map[string]file
}

// NewFiles returns an empty Files. prefix is the prefix of its engine keys.
func NewFiles(prefix string) *Files {
	return &Files{prefix: prefix, stored: map[string]bool{}, held: map[string]file{}}
}

// content is the stored form of a file: its content before the trial, and the hash of the content that is held back.
type content struct {
	was     bool // the file existed before the trial
	text    []byte
	refused bool // the content with hash is held back
	is      bool // the file existed when its content was held back
	hash    manifest.Hash
}

// These are bits of the first byte of a stored content. The byte is followed by the hash, if the file exists, and the content before the trial.
const (
	fileWas     = 1
	fileRefused = 2
	fileIs      = 4
)

func (c *content) encode() []byte {
	form := []byte{0}
	if c.was {
		form[0] |= fileWas
	}
	if c.refused {
		form[0] |= fileRefused
	}
	if c.is {
		form[0] |= fileIs
		form = append(form, c.hash[:]...)
	}
	return append(form, c.text...)
}

func decode(value []byte) (c content) {
	if len(value) == 0 {
		return c
	}
	bits, rest := value[0], value[1:]
	c.was, c.refused = bits&fileWas != 0, bits&fileRefused != 0
	if bits&fileIs != 0 && len(rest) >= sha256.Size {
		c.is, c.hash = true, manifest.Hash(rest[:sha256.Size])
		rest = rest[sha256.Size:]
	}
	if c.was {
		c.text = rest
	}
	return c
}

// file is a file with content that is held back. While its content on disk has the stored hash, its content before the trial is used instead.
type file struct {
	content
	before *manifest.File // the file before the trial; nil if it did not exist
}

func (c content) hold(path string) file {
	f := file{content: c}
	if c.was {
		f.before = manifest.Decode(path, c.text, manifest.DefaultLimits())
		f.before.Hash = sha256.Sum256(c.text)
	}
	return f
}

// Load decodes stored files. back is set if the trial was undone, so that the tried contents of the files are held back.
func (f *Files) Load(pairs []engine.Pair, back bool) {
	for _, pair := range pairs {
		if path, is := strings.CutPrefix(pair.Key, f.prefix); is {
			f.stored[path] = true
			if c := decode(pair.Value); back {
				f.held[path] = c.hold(path)
			}
		}
	}
}

// Paths returns the sorted paths of the held files or, if no file is held, of all files with a stored content.
func (f *Files) Paths() []string {
	if len(f.held) > 0 {
		return slices.Sorted(maps.Keys(f.held))
	}
	return slices.Sorted(maps.Keys(f.stored))
}

// IsHolding reports whether any file is held back.
func (f *Files) IsHolding() bool { return len(f.held) > 0 }

// Tried returns Files with the same stored contents that hold nothing back, for a trial that begins again.
func (f *Files) Tried() *Files { return &Files{f.prefix, f.stored, map[string]file{}} }

// Keys returns the engine keys of all stored files.
func (f *Files) Keys() (keys []string) {
	for path := range f.stored {
		keys = append(keys, f.prefix+path)
	}
	return keys
}

// Keep stores the current contents of the files that a commit replaces or deletes, by adding puts to the commit. It reads the contents from an
// engine, where the key of a file is the prefix copies followed by the path. Keep returns the paths, which the caller passes to Kept after the
// commit.
func (f *Files) Keep(from engine.Engine, copies string, revision uint64, out *engine.Transaction) (kept []string, err error) {
	keys := slices.Clone(out.Deletes)
	for _, p := range out.Puts {
		keys = append(keys, p.Key)
	}
	for _, key := range keys {
		path, is := strings.CutPrefix(key, copies)
		if !is || f.stored[path] {
			continue
		}
		pairs, err := from.Load(key)
		if err != nil {
			return nil, err
		}
		var c content
		if len(pairs) > 0 && pairs[0].Key == key { // other keys may begin with it
			c.was, c.text = true, pairs[0].Value
		}
		out.Puts = append(out.Puts, engine.Pair{Key: f.prefix + path, Value: c.encode(), Revision: revision})
		kept = append(kept, path)
	}
	return kept, nil
}

// Kept records the paths that Keep returned, after the commit.
func (f *Files) Kept(paths []string) {
	for _, path := range paths {
		f.stored[path] = true
	}
}

// Hold returns a Files that holds back each file that differs from its content before the trial, and adds the stored forms of these files to a
// commit.
func (f *Files) Hold(from engine.Engine, revision uint64, found manifest.Files, out *engine.Transaction) (*Files, error) {
	next := NewFiles(f.prefix)
	pairs, err := from.Load(f.prefix)
	if err != nil {
		return nil, err
	}
	for _, pair := range pairs {
		path := pair.Key[len(f.prefix):]
		c := decode(pair.Value)
		c.refused, c.is, c.hash = true, false, manifest.Hash{}
		if now := found.Get(path); now != nil {
			c.is, c.hash = true, now.Hash
		}
		if c.is == c.was && (!c.is || c.hash == sha256.Sum256(c.text)) {
			out.Deletes = append(out.Deletes, pair.Key) // it is as it was
			continue
		}
		next.stored[path], next.held[path] = true, c.hold(path)
		out.Puts = append(out.Puts, engine.Pair{Key: pair.Key, Value: c.encode(), Revision: revision})
	}
	return next, nil
}

// Effective returns the files, with content that is held back replaced by the content before the trial. released are the paths of held files that
// have changed since; they are no longer held back.
func (f *Files) Effective(files manifest.Files) (taken manifest.Files, released []string) {
	if len(f.held) == 0 {
		return files, nil
	}
	taking := map[string]*manifest.File{}
	for path, h := range f.held {
		if now := files.Get(path); (now != nil) != h.is || now != nil && now.Hash != h.hash {
			released = append(released, path)
			continue
		}
		taking[path] = h.before
	}
	return files.Updated(taking), released
}

// Without returns the Files without some paths, and adds the deletion of their keys to a commit.
func (f *Files) Without(paths []string, out *engine.Transaction) *Files {
	next := &Files{f.prefix, maps.Clone(f.stored), maps.Clone(f.held)}
	for _, path := range paths {
		out.Deletes = append(out.Deletes, f.prefix+path)
		delete(next.stored, path)
		delete(next.held, path)
	}
	return next
}
