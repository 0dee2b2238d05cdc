package watch

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// LastGood keeps the last good content of every file, so that a file that is broken when
// the program starts has its content of before. Paths are absolute.
type LastGood interface {
	// Load returns what was put: for files whose content is known already the file, sealed and with
	// its Hash, instead of the content.
	Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error)
	// Put sets the content that is kept of a path; nil: none is kept. It does not wait for a disk,
	// so that an implementation can write the content together with what comes of it. The content
	// is not changed afterwards.
	Put(path string, content []byte)
	// Flush returns when all that was put is durable. Its error is reported, and the call
	// repeated later.
	Flush() error
}

// Memory is a LastGood that forgets when the program ends. It is safe for concurrent
// use; make it with NewMemory.
type Memory struct {
	mu       sync.Mutex
	contents map[string][]byte
}

// NewMemory has no contents.
func NewMemory() *Memory { return &Memory{contents: map[string][]byte{}} }

// Load is a copy of all contents.
func (m *Memory) Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.contents), nil, nil
}

// Put takes effect at once.
func (m *Memory) Put(path string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content == nil {
		delete(m.contents, path)
	} else {
		m.contents[path] = content
	}
}

// Flush never fails.
func (m *Memory) Flush() error { return nil }

// A saver sees to it that last good contents become durable, behind the loop's back: the
// loop must not wait for a disk.
type saver struct {
	to      LastGood
	wake    chan struct{}
	full    chan struct{} // much waits
	changed chan struct{} // the error came or went
	waiting atomic.Int64  // bytes that were put since the last flush

	mu   sync.Mutex
	last error
}

func newSaver(to LastGood) *saver {
	return &saver{to: to, wake: make(chan struct{}, 1), full: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// put sets the copy to keep of a path; nil is none. The newest wins.
func (s *saver) put(path string, content []byte) {
	s.to.Put(path, content)
	if s.waiting.Add(int64(len(content))) > flushBytes {
		signal(s.full)
	}
	signal(s.wake)
}

// retry flushes once more what failed.
func (s *saver) retry() {
	if s.err() != nil {
		signal(s.wake)
	}
}

// err is why something is not saved, or nil.
func (s *saver) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// flushAfter is the time for which contents wait to be written together with something else. Those
// without an effect, as when a comment changed, cost no more than two commits a second.
const flushAfter = 500 * time.Millisecond

// flushBytes is the size from which waiting contents are written at once: at a start all files are put, and each
// is held until it is written.
const flushBytes = 4 << 20

// run works until stop is closed, and then finishes the rest.
func (s *saver) run(stop <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-stop:
			s.flush()
			return
		}
		select {
		case <-time.After(flushAfter):
		case <-s.full:
		case <-stop:
		}
		s.flush()
	}
}

func (s *saver) flush() {
	select { // what was put until now goes now
	case <-s.wake:
	default:
	}
	s.waiting.Store(0)
	err := s.to.Flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	if (err == nil) != (s.last == nil) || err != nil && err.Error() != s.last.Error() {
		s.last = err
		signal(s.changed)
	}
}

// signal makes sure that the next receive from a channel of capacity one succeeds.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
