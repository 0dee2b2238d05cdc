package watch

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// LastGood keeps the last good content of every file, so that a file that is broken when
// the program starts still says what it said before. Paths are absolute.
//
// Save and Remove are called for changed content only, and from several goroutines at
// once (never for the same path), so that an implementation can put many of them into
// one transaction. What they return is reported, and the call repeated later.
type LastGood interface {
	Load() (map[string][]byte, error)
	Save(path string, content []byte) error
	Remove(path string) error
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
func (m *Memory) Load() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.contents), nil
}

// Save never fails.
func (m *Memory) Save(path string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents[path] = slices.Clone(content)
	return nil
}

// Remove never fails.
func (m *Memory) Remove(path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contents, path)
	return nil
}

// saveWorkers is how many calls of LastGood run at once: a group for one transaction.
const saveWorkers = 64

// A saver writes last good contents behind the loop's back: the loop must not wait for
// a disk.
type saver struct {
	to      LastGood
	wake    chan struct{}
	changed chan struct{} // the error came or went

	mu     sync.Mutex
	todo   map[string][]byte // nil content: remove
	failed map[string][]byte
	last   error
}

func newSaver(to LastGood) *saver {
	return &saver{to: to, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		todo: map[string][]byte{}, failed: map[string][]byte{}}
}

// put sets what is to be kept of a path; nil is nothing. The newest wins.
func (s *saver) put(path string, content []byte) {
	s.mu.Lock()
	s.todo[path] = content
	delete(s.failed, path)
	s.mu.Unlock()
	signal(s.wake)
}

// retry puts what failed up again.
func (s *saver) retry() {
	s.mu.Lock()
	for path, content := range s.failed {
		s.todo[path] = content
	}
	clear(s.failed)
	s.mu.Unlock()
	signal(s.wake)
}

// err is why something is not saved, or nil.
func (s *saver) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// saveRest is how long a path rests after it was saved: a file that changes all the time
// costs no more than two commits a second. What a path has first is saved at once.
const saveRest = 500 * time.Millisecond

// run works until stop is closed, and then off what is left.
func (s *saver) run(stop <-chan struct{}) {
	saved := map[string]time.Time{} // what rests
	var rested <-chan time.Time
	for {
		select {
		case <-s.wake:
		case <-rested:
		case <-stop:
			s.flush(s.due(nil))
			return
		}
		now := time.Now()
		maps.DeleteFunc(saved, func(_ string, at time.Time) bool { return now.Sub(at) >= saveRest })
		todo := s.due(saved)
		s.flush(todo)
		now = time.Now()
		for path := range todo {
			saved[path] = now
		}
		rested = nil
		if s.waits() {
			rested = time.After(saveRest)
		}
	}
}

// due takes out what is to be saved now: of what does not rest.
func (s *saver) due(resting map[string]time.Time) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := map[string][]byte{}
	for path, content := range s.todo {
		if _, rests := resting[path]; !rests {
			todo[path] = content
			delete(s.todo, path)
		}
	}
	return todo
}

// waits tells whether something is to be saved.
func (s *saver) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.todo) > 0
}

func (s *saver) flush(todo map[string][]byte) {
	if len(todo) == 0 {
		return
	}
	paths := make(chan string)
	var workers sync.WaitGroup
	for range min(saveWorkers, len(todo)) {
		workers.Go(func() {
			for path := range paths {
				s.save(path, todo[path])
			}
		})
	}
	for path := range todo {
		paths <- path
	}
	close(paths)
	workers.Wait()

	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) == 0 && s.last != nil {
		s.last = nil
		signal(s.changed)
	}
}

func (s *saver) save(path string, content []byte) {
	var err error
	if content == nil {
		err = s.to.Remove(path)
	} else {
		err = s.to.Save(path, content)
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, newer := s.todo[path]; !newer {
		s.failed[path] = content
	}
	if s.last == nil || s.last.Error() != err.Error() {
		s.last = fmt.Errorf("%w", err)
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
