package store

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// LastGood keeps the last content of each file that could be read, for those that
// cannot be read later, also after a restart. Save and Remove return when the copy is
// durable; calls that wait for the same moment share one commit, with each other and
// with SyncFiles.
type LastGood struct{ s *Store }

// LastGood is where the copies of files are kept.
func (s *Store) LastGood() LastGood { return LastGood{s} }

// copies are the copies of files. They have a lock of their own, so that callers can
// gather while a commit is under way.
type copies struct {
	mu      sync.Mutex
	pending *copyBatch // what goes with the next commit
	// written are the hashes of what is in the engine; nil until it was looked at.
	written map[string][sha256.Size]byte

	writing *copyBatch // what goes with the commit under way; guarded by Store.writer
}

// copyBatch is what one commit writes: contents, or nil to remove.
type copyBatch struct {
	contents map[string][]byte
	// done and err are guarded by Store.writer.
	done bool
	err  error
}

// Load is the content of every file that was saved and not removed, by path.
func (l LastGood) Load() (map[string][]byte, error) {
	c := &l.s.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := c.load(l.s.engine)
	if err != nil {
		return nil, fmt.Errorf("load last good copies of files: %w", err)
	}
	return files, nil
}

func (c *copies) load(engine Engine) (map[string][]byte, error) {
	pairs, err := engine.Load(filePrefix)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(pairs))
	c.written = make(map[string][sha256.Size]byte, len(pairs))
	for _, pair := range pairs {
		path := strings.TrimPrefix(pair.Key, filePrefix)
		files[path] = pair.Value
		c.written[path] = sha256.Sum256(pair.Value)
	}
	return files, nil
}

// Save keeps the content of a file in the place of what was kept for it. It writes
// nothing if that is the same.
func (l LastGood) Save(path string, content []byte) error {
	if content == nil {
		content = []byte{}
	}
	return l.set(path, content)
}

// Remove forgets a file.
func (l LastGood) Remove(path string) error { return l.set(path, nil) }

func (l LastGood) set(path string, content []byte) error {
	s := l.s
	batch, err := s.copies.join(s.engine, path, content)
	if batch == nil || err != nil {
		return err
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if !batch.done {
		// An error is that of the batch.
		_ = s.write(Transaction{CompareKey: headKey, CompareRevision: s.revision}, s.revision)
	}
	if batch.err != nil {
		return fmt.Errorf("keep a copy of %s: %w", path, batch.err)
	}
	return nil
}

// join puts a content into the next batch; there is none when it is there already.
func (c *copies) join(engine Engine, path string, content []byte) (*copyBatch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		if _, err := c.load(engine); err != nil {
			return nil, fmt.Errorf("keep a copy of %s: %w", path, err)
		}
	}
	hash, has := c.written[path]
	if content == nil && !has || content != nil && has && hash == sha256.Sum256(content) {
		return nil, nil
	}
	if c.pending == nil {
		c.pending = &copyBatch{contents: map[string][]byte{}}
	}
	c.pending.contents[path] = slices.Clone(content)
	return c.pending, nil
}

// write commits a transaction together with the copies that wait; nothing at all if
// both are empty. The writer must be held.
func (s *Store) write(t Transaction, revision uint64) error {
	s.copies.addTo(&t, revision)
	if len(t.Puts)+len(t.Deletes) == 0 {
		return nil
	}
	err := s.engine.Commit(t)
	s.copies.finish(err)
	return err
}

func (c *copies) addTo(t *Transaction, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.pending = c.pending, nil
	if c.writing == nil {
		return
	}
	for path, content := range c.writing.contents {
		if content == nil {
			t.Deletes = append(t.Deletes, filePrefix+path)
		} else {
			t.Puts = append(t.Puts, Pair{Key: filePrefix + path, Value: content, Revision: revision})
		}
	}
}

func (c *copies) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing == nil {
		return
	}
	c.writing.done, c.writing.err = true, err
	for path, content := range c.writing.contents {
		switch {
		case err != nil:
		case content == nil:
			delete(c.written, path)
		default:
			c.written[path] = sha256.Sum256(content)
		}
	}
	c.writing = nil
}
