package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// revisionShift turns the seconds of the clock into a first revision: a million changes
// a second would have to be made for the counter to outrun the clock.
const revisionShift = 20

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

// Open reads what the engine holds. Values that two objects hold stay with the older
// one; the younger is withheld from Service and Services until it gives them up or they
// become free. The Store does not close the engine.
func Open(engine engine.Engine, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	allocator, err := cfg.newAllocator()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg: cfg, allocator: allocator,
		storage: storage{engine: engine, shared: sharedOf(engine), piece: pieceObjects},
		numbers: numbers{seed: uint64(max(0, cfg.Clock().Unix())) << revisionShift},
		table:   newTable(), feed: newFeed(), declared: newDeclarations(), outcomes: newOutcomes(), sources: newSources(),
	}
	if s.storage.shared != nil {
		s.numbers.seed = 0 // a fleet has its revision from the start
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func (s *Store) load() error {
	head, err := s.storage.engine.Load(headKey)
	if err != nil {
		return err
	}
	records, err := s.loadRecords()
	if err != nil {
		return err
	}
	if len(head) == 0 {
		if len(records) > 0 {
			return fmt.Errorf("the stored data has objects but no revision: put a backup in its place")
		}
		// A new store says so at once: revisions seen by others begin after the seed.
		return s.writeHead(max(s.numbers.seed, 1))
	}
	s.feed.revision, s.storage.head = head[0].Revision, head[0].Revision
	marks, err := s.storage.engine.Load(reservedKey)
	if err != nil {
		return err
	}
	s.reserves = len(marks) > 0
	if s.storage.shared != nil {
		pairs, err := s.storage.engine.Load(sourcePrefix)
		if err == nil {
			err = s.sources.load(pairs)
		}
		if err != nil {
			return err
		}
	}
	s.feed.dataplane = s.feed.revision
	s.table.grow(len(records))
	// The age decides who of two Services has a value.
	sortByAge(records, func(r *record) (object.Ref, *record) { return object.RefOf(r.object), r })
	for _, r := range records {
		s.reopen(r)
	}
	s.waitForOthers()
	if err := errors.Join(s.loadTrial(), s.loadRollout()); err != nil {
		return err
	}
	s.feed.log.reset(s.feed.revision)
	entries, err := s.storage.engine.Load(journalPrefix)
	if err != nil {
		return err
	}
	s.feed.journal.Load(entries, s.feed.revision)
	return nil
}

// loadRecords reads all stored objects.
func (s *Store) loadRecords() (records []*record, err error) {
	err = s.storage.engine.Scan(objectPrefix, nil, func(pairs []engine.Pair) error {
		some := make([]*record, len(pairs))
		errs := make([]error, len(pairs))
		parallel.Do(len(pairs), parallel.Share, func(i int) { some[i], errs[i] = decodeRecord(pairs[i]) })
		records = append(records, some...)
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			return errs[i]
		}
		return nil
	})
	return records, err
}

func (s *Store) writeHead(revision uint64) error {
	err := s.write(engine.Transaction{Puts: []engine.Pair{{Key: headKey, Revision: revision}}}, revision)
	if err != nil {
		return err
	}
	s.feed.restart(revision)
	return nil
}

// reopen registers a stored object and what it holds.
func (s *Store) reopen(r *record) {
	ref := object.RefOf(r.object)
	s.numbers.sawCreation(createdAt(r.object))
	if svc, ok := r.object.(*object.Service); ok {
		if err := s.hold(svc); err != nil {
			r.withheld = true
			s.outcomes.waiting[ref] = struct{}{}
			s.outcomes.notes[ref] = []note{withheldNote(r, err)}
		} else if notes := s.allocator.outside(svc, r.owner); len(notes) > 0 {
			s.outcomes.notes[ref] = notes
		}
		if s.lacksIngress(svc) {
			s.outcomes.waiting[ref] = struct{}{}
		}
	}
	s.table.set(ref, r)
	s.declared.noteOwner(ref, Owner{}, r.owner)
}

// withheldNote is the note about a stored object that is withheld from the dataplane.
func withheldNote(r *record, err error) note {
	return note{path: r.owner.File, reason: ReasonConflict, message: fmt.Sprintf(
		"%v, which is older; nothing is programmed for this one: delete one of the two", err)}
}

// waitForOthers notes the load balancers whose address is not served because it is an external IP
// of another Service: they get another one.
func (s *Store) waitForOthers() {
	t := s.begin()
	for ref, r := range s.table.records {
		svc, isService := r.object.(*object.Service)
		if !isService || r.withheld || !isOurLoadBalancer(svc) {
			continue
		}
		if slices.ContainsFunc(valuesOf(svc).ingress, func(addr netip.Addr) bool { return t.losesIngress(svc, r.since(), addr) }) {
			s.outcomes.waiting[ref] = struct{}{}
		}
	}
}

// hold registers all that a stored Service has, or nothing.
func (s *Store) hold(svc *object.Service) error {
	s.allocator.begin()
	return s.allocator.holdAll(svc)
}
