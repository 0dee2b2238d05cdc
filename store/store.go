package store

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// revisionShift turns the seconds of the clock into a first revision: a million changes
// a second would have to be made for the counter to outrun the clock.
const revisionShift = 20

// Store holds the accepted objects. Its methods are safe for concurrent use.
// It has more than 15 fields: all that one transaction changes together, under two locks.
type Store struct {
	engine   engine.Engine
	shared   engine.Shared // engine, if other machines write to it; else nil
	cfg      Config
	families []string

	// writer is held by whoever changes something, from the first look to the last
	// assignment; it guards what follows up to mu.
	writer sync.Mutex
	ledger *ledger
	seed   uint64 // the least revision that the next change may have
	synced bool   // SyncFiles has succeeded once
	trial  trial  // mu guards it, too
	// unclaimed are the objects of files that have no document for them: since the file has
	// not been read yet, or cannot be read, or because somebody holds them.
	unclaimed map[string]map[object.Ref]struct{}
	// population is how many objects keep each namespace.
	population map[string]int
	waiting    map[object.Ref]struct{} // objects whose change.waits is set
	held       map[object.Ref]Decision // objects that Config.Hold keeps
	declared   int                     // Services that belong to files
	newest     time.Time               // the last creation
	head       uint64                  // the revision of what the engine has, as a rule that of the store
	partial    partial
	piece      int // see commitInPieces; tests have their own
	copies     copies
	calls      calls // of Write, that wait for the writer
	deaf       bool  // something of another machine could not be read, and nothing more is followed

	// mu guards what readers see. Only the writer changes it, and may read without.
	mu         sync.RWMutex
	revision   uint64
	records    map[object.Ref]*record
	index      index
	log        changeLog
	history    history
	census     census
	concerning uint64 // the last revision that is not chatter alone
	lists      lists
	published  chan struct{} // see Published
	files      manifest.Files
	claims     map[object.Ref][]claim
	notes      map[object.Ref][]note
	foreign    foreigners
	dependents dependents
	duplicates map[string][]manifest.Problem
	troubled   map[string]struct{} // paths with problems of their own
	reserves   bool                // see HasReserved
	sources    sources
	lost       atomic.Uint64 // see Lost

	changed chan struct{}
}

// Open reads what the engine holds. Values that two objects hold stay with the older
// one; the younger is withheld from Service and Services until it gives them up or they
// become free. The Store does not close the engine.
func Open(engine engine.Engine, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	ledger, err := cfg.ledger()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		engine: engine, piece: pieceObjects, cfg: cfg, families: cfg.families(), ledger: ledger,
		seed:       uint64(max(0, cfg.Clock().Unix())) << revisionShift,
		unclaimed:  map[string]map[object.Ref]struct{}{},
		population: map[string]int{},
		waiting:    map[object.Ref]struct{}{},
		records:    map[object.Ref]*record{},
		index:      newIndex(),
		claims:     map[object.Ref][]claim{},
		notes:      map[object.Ref][]note{},
		foreign:    foreigners{},
		dependents: newDependents(),
		duplicates: map[string][]manifest.Problem{},
		troubled:   map[string]struct{}{},
		changed:    make(chan struct{}, 1),
		published:  make(chan struct{}),
		history:    history{bounds: defaultBounds()},
		census:     newCensus(),
		lists:      lists{kinds: map[string]*kindList{}},
		sources:    newSources(),
	}
	if s.shared = sharedOf(engine); s.shared != nil {
		s.seed = 0 // a fleet has its revision from the start
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func (s *Store) load() error {
	head, err := s.engine.Load(headKey)
	if err != nil {
		return err
	}
	pairs, err := s.engine.Load(objectPrefix)
	if err != nil {
		return err
	}
	if len(head) == 0 {
		if len(pairs) > 0 {
			return fmt.Errorf("the stored data has objects but no revision: put a backup in its place")
		}
		// A new store says so at once: revisions seen by others begin after the seed.
		return s.writeHead(max(s.seed, 1))
	}
	s.revision, s.head = head[0].Revision, head[0].Revision
	marks, err := s.engine.Load(reservedKey)
	if err != nil {
		return err
	}
	s.reserves = len(marks) > 0
	if s.shared != nil {
		pairs, err := s.engine.Load(sourcePrefix)
		if err == nil {
			err = s.sources.load(pairs)
		}
		if err != nil {
			return err
		}
	}
	s.concerning = s.revision
	records := make([]*record, len(pairs))
	errs := make([]error, len(pairs))
	parallel.Do(len(pairs), parallel.Share, func(i int) { records[i], errs[i] = decodeRecord(pairs[i]) })
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	s.records = make(map[object.Ref]*record, len(records))
	// The age decides who of two Services has a value.
	sortByAge(records, func(r *record) (object.Ref, *record) { return object.RefOf(r.object), r })
	for _, r := range records {
		s.reopen(r)
	}
	s.waitForOthers()
	if err := s.loadTrial(); err != nil {
		return err
	}
	s.log.reset(s.revision)
	journal, err := s.engine.Load(journalPrefix)
	if err != nil {
		return err
	}
	s.history.load(journal, s.revision)
	return nil
}

func (s *Store) writeHead(revision uint64) error {
	err := s.write(engine.Transaction{Puts: []engine.Pair{{Key: headKey, Revision: revision}}}, revision)
	if err != nil {
		return err
	}
	s.revision, s.concerning = revision, revision
	s.log.reset(revision)
	s.history.reset(revision)
	return nil
}

// reopen registers a stored object and what it holds.
func (s *Store) reopen(r *record) {
	ref := object.RefOf(r.object)
	if created := createdAt(r.object); created.After(s.newest) {
		s.newest = created
	}
	if svc, ok := r.object.(*object.Service); ok {
		if err := s.hold(svc); err != nil {
			r.withheld = true
			s.waiting[ref] = struct{}{}
			s.notes[ref] = []note{withheldNote(r, err)}
		} else if notes := s.ledger.outside(svc, r.owner); len(notes) > 0 {
			s.notes[ref] = notes
		}
		if s.lacksIngress(svc) {
			s.waiting[ref] = struct{}{}
		}
	}
	s.setRecord(ref, r)
	s.noteClaim(ref, Owner{})
}

// withheldNote says why a stored object is not shown to those who program Services.
func withheldNote(r *record, err error) note {
	return note{path: r.owner.File, reason: ReasonConflict, message: fmt.Sprintf(
		"%v, which is older; nothing is programmed for this one: delete one of the two", err)}
}

// waitForOthers notes the load balancers that are not served on what they were given, since it
// is somebody's external IP: they get another one.
func (s *Store) waitForOthers() {
	t := s.begin()
	defer t.end()
	for ref, r := range s.records {
		svc, isService := r.object.(*object.Service)
		if !isService || r.withheld || !isOurLoadBalancer(svc) {
			continue
		}
		if slices.ContainsFunc(valuesOf(svc).ingress, func(addr netip.Addr) bool { return t.losesIngress(svc, r.since(), addr) }) {
			s.waiting[ref] = struct{}{}
		}
	}
}

// hold registers all that a stored Service has, or nothing.
func (s *Store) hold(svc *object.Service) error {
	s.ledger.begin()
	return s.ledger.holdAll(svc)
}

// setRecord puts an object in its place; nil removes it.
func (s *Store) setRecord(ref object.Ref, r *record) {
	s.lists.touch(ref)
	s.census.move(ref, s.records[ref], r)
	s.foreign.move(ref, s.records[ref], r)
	s.dependents.move(ref, s.records[ref], r)
	if old := s.records[ref]; old != nil {
		s.index.remove(old)
	}
	s.count(ref, r != nil)
	if ref.Kind == object.KindService {
		if old := s.records[ref]; old != nil && old.owner.File != "" {
			s.declared--
		}
		if r != nil && r.owner.File != "" {
			s.declared++
		}
	}
	if r == nil {
		delete(s.records, ref)
		return
	}
	s.records[ref] = r
	s.index.add(r)
}

// noteClaim keeps unclaimed, when an object that had an owner has another one, or other claims.
func (s *Store) noteClaim(ref object.Ref, before Owner) {
	if all := s.unclaimed[before.File]; all != nil {
		if delete(all, ref); len(all) == 0 {
			delete(s.unclaimed, before.File)
		}
	}
	r := s.records[ref]
	if r == nil || r.owner.File == "" || slices.ContainsFunc(s.claims[ref], func(c claim) bool { return c.path == r.owner.File }) {
		return
	}
	all := s.unclaimed[r.owner.File]
	if all == nil {
		all = map[object.Ref]struct{}{}
		s.unclaimed[r.owner.File] = all
	}
	all[ref] = struct{}{}
}

// count keeps population when an object is about to be there, or not.
func (s *Store) count(ref object.Ref, there bool) {
	was := s.records[ref] != nil
	switch {
	case was == there || !keepsNamespace(ref):
	case there:
		s.population[ref.Namespace]++
	default:
		if s.population[ref.Namespace]--; s.population[ref.Namespace] == 0 {
			delete(s.population, ref.Namespace)
		}
	}
}
