package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

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
