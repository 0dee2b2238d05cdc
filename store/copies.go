package store

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// copies are the copies of files. They have a lock of their own, so that they can be put
// while a commit is under way.
type copies struct {
	mu      sync.Mutex
	pending map[string]fileCopy // what waits for a commit, by path
	size    int                 // of the contents in pending, in bytes
	rode    time.Time           // when copies went with objects
	writing map[string]fileCopy // what goes with the commit under way
	// written has the copies in the engine; nil until they were loaded.
	written map[string]writtenCopy
}

// writtenCopy is a copy that is in the engine.
type writtenCopy struct {
	hash   manifest.Hash
	sealed bool // its seal is, too
}

// fileCopy is the copy of a file.
type fileCopy struct {
	content []byte // nil: nothing
	hash    manifest.Hash
}

func (c *copies) put(path string, file fileCopy) {
	if c.pending == nil {
		c.pending = map[string]fileCopy{}
	}
	c.size += len(file.content) - len(c.pending[path].content)
	c.pending[path] = file
}

// take makes what waits part of the next commit, and reports whether that is not all.
func (c *copies) take() (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size <= flushAtOnce {
		c.writing, c.pending, c.size = c.pending, nil, 0
		return false
	}
	c.writing = map[string]fileCopy{}
	size := 0
	for _, path := range slices.Sorted(maps.Keys(c.pending)) { // neighbors share pages
		file := c.pending[path]
		if size += len(file.content); size > flushAtOnce && len(c.writing) > 0 {
			break
		}
		c.writing[path] = file
		c.size -= len(file.content)
		delete(c.pending, path)
	}
	return true
}

// addTo adds the copies that differ from those in the engine.
func (c *copies) addTo(t *engine.Transaction, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.writing == nil && len(c.pending) > 0 && c.size <= rideAlong && now.Sub(c.rode) >= rideEvery {
		c.writing, c.pending, c.size, c.rode = c.pending, nil, 0, now
	}
	for path, file := range c.writing {
		was, has := c.written[path]
		if file.content != nil {
			file.hash = sha256.Sum256(file.content)
		}
		switch {
		case has && file.hash == was.hash, !has && file.content == nil && c.written != nil:
			delete(c.writing, path)
		case file.content == nil:
			t.Deletes = append(t.Deletes, filePrefix+path, sealPrefix+path)
		default:
			c.writing[path] = file
			t.Puts = append(t.Puts, engine.Pair{Key: filePrefix + path, Value: file.content, Revision: revision})
		}
	}
}

// finish notes what became of a commit: what it could not write waits for the next one,
// unless there is something newer.
func (c *copies) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for path, file := range c.writing {
			if _, newer := c.pending[path]; !newer {
				c.put(path, file)
			}
		}
		c.writing = nil
		return
	}
	for path, file := range c.writing {
		switch {
		case c.written == nil:
		case file.content == nil:
			delete(c.written, path)
		default:
			c.written[path] = writtenCopy{hash: file.hash}
		}
	}
	c.writing = nil
}

const (
	// rideAlong bounds the copies that go with a commit of objects, in bytes.
	rideAlong = 64 << 10
	// rideEvery is the least time between two commits with copies. A copy has its whole file, and
	// the page that it is written with has the copies of other files too.
	rideEvery = 500 * time.Millisecond
	// flushAtOnce bounds one commit of copies alone, in bytes.
	flushAtOnce = 4 << 20
)
