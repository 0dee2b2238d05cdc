package store

import (
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// Store holds the accepted objects. Its methods are safe for concurrent use. It has more than 15 fields: one for each of its parts.
type Store struct {
	cfg Config

	// writer is held during a change, from the first look to the last assignment; it guards the
	// fields up to mu.
	writer    sync.Mutex
	storage   storage
	allocator *allocator
	numbers   numbers
	queue     writeQueue

	// mu guards what readers see. Only the writer changes it, and may read without.
	mu       sync.RWMutex
	table    table
	feed     feed
	declared declarations
	outcomes outcomes
	trial    trial
	rollout  rollout
	sources  sources
	reserves bool // see HasReserved

	host atomic.Pointer[Host] // see SetHost
}

// numbers bound the next revision and the next creation time from below.
type numbers struct {
	seed   uint64    // the least revision that the next change may have
	newest time.Time // the last creation
}

// sawCreation notes when an object was created.
func (n *numbers) sawCreation(at time.Time) {
	if at.After(n.newest) {
		n.newest = at
	}
}

func (s *Store) writeHead(revision uint64) error {
	err := s.write(engine.Transaction{Puts: []engine.Pair{{Key: headKey, Revision: revision}}}, revision)
	if err != nil {
		return err
	}
	s.feed.restart(revision)
	return nil
}

// hold registers all that a stored Service has, or nothing.
func (s *Store) hold(svc *object.Service) error {
	s.allocator.begin()
	return s.allocator.holdAll(svc)
}

// SetHost has changes that begin from now on ask this snapshot. Until the first one nothing is refused or
// passed over for the sake of the host.
func (s *Store) SetHost(h Host) { s.host.Store(&h) }

// hostNow is the newest snapshot.
func (s *Store) hostNow() Host {
	if h := s.host.Load(); h != nil {
		return *h
	}
	return unknownHost{}
}

// now is the time of day as objects have it.
func (s *Store) now() time.Time { return s.cfg.Clock().UTC().Truncate(time.Second) }

// latest is the revision that the next one follows on.
func (s *Store) latest() uint64 { return max(s.feed.revision, s.numbers.seed, s.storage.head) }

// secretsRefused returns why Secrets are not accepted; nil: they are.
func (s *Store) secretsRefused(kind string) error {
	if s.storage.shared == nil || kind != object.KindSecret {
		return nil
	}
	if err := s.storage.shared.Sealing(); err != nil {
		return object.Errors{{Type: object.FieldValueForbidden, Field: "data", Detail: err.Error()}}
	}
	return nil
}

// IsShared reports whether other machines write to the store too.
func (s *Store) IsShared() bool { return s.storage.shared != nil }

// write commits a transaction; see storage.commit. The writer must be held.
func (s *Store) write(t engine.Transaction, revision uint64) error {
	kept, err := s.storage.commit(t, revision, &s.trial)
	if err != nil || len(kept) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial.kept(kept)
	return nil
}

// flush writes the copies of files that wait. The writer must be held.
func (s *Store) flush() error {
	for more := true; more; {
		more = s.storage.copies.take()
		if err := s.write(engine.Transaction{}, s.feed.revision); err != nil {
			return err
		}
	}
	return nil
}
