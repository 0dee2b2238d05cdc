package store

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
)

// Store holds the accepted objects. Its methods are safe for concurrent use.
type Store struct {
	cfg Config

	// writer is held during a change, from its first read to its last write. writer.state guards the fields from here to mu.
	writer    writer
	storage   storage
	allocator *allocator
	numbers   numbers
	queue     writeQueue

	// mu guards the fields in accepted. Only the writer changes them, so the writer reads them without mu.
	mu sync.RWMutex
	accepted

	host atomic.Pointer[Host] // see SetHost
	// problems is the last result of Problems; nil after a change. It is set while mu is held, at least for reading.
	problems atomic.Pointer[[]manifest.Problem]
}

// accepted is the state that readers see: the objects, their changes, and the declarations and outcomes of files and writes.
type accepted struct {
	table    *table
	feed     feed
	declared declarations
	outcomes outcomes
	pending  pendingSets
	sources  sources
	reserves bool // see HasReserved
}

// numbers has lower bounds for the next revision and for the next creation time.
type numbers struct {
	seed   uint64    // the least revision that the next change may have
	newest time.Time // the newest creation time
}

// sawCreation raises the lower bound for creation times to that of an object.
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

// hold registers all values of a stored Service in the allocator, or none of them.
func (s *Store) hold(svc *object.Service) error {
	s.allocator.begin()
	return s.allocator.holdAll(svc)
}

// SetHost sets the host snapshot for changes that begin from now on. Before the first call, no change is
// refused and no address avoided because of the host.
func (s *Store) SetHost(h Host) { s.host.Store(&h) }

// hostNow returns the newest host snapshot.
func (s *Store) hostNow() Host { return *s.host.Load() }

// now returns the current time as object metadata has it: UTC, in whole seconds.
func (s *Store) now() time.Time { return s.cfg.Clock().UTC().Truncate(time.Second) }

// latest returns the highest revision given so far; the next change gets the one after it.
func (s *Store) latest() uint64 { return max(s.feed.revision, s.numbers.seed, s.storage.head) }

// secretsRefused returns the reason that Secrets are not accepted; nil if they are.
func (s *Store) secretsRefused(kind string) error {
	if s.storage.shared == nil || kind != object.KindSecret {
		return nil
	}
	if err := s.storage.shared.Sealing(); err != nil {
		return object.Errors{{Type: object.FieldValueForbidden, Field: "data", Detail: err.Error()}}
	}
	return nil
}

// IsShared reports whether the store belongs to a fleet, so that other machines write to it, too.
func (s *Store) IsShared() bool { return s.storage.shared != nil }

// flush commits the file copies that wait. The writer must be held.
func (s *Store) flush() error {
	for more := true; more; {
		more = s.storage.copies.take()
		if err := s.write(engine.Transaction{}, s.feed.revision); err != nil {
			return err
		}
	}
	return nil
}

// The default range of node ports, as in Kubernetes.
const (
	defaultNodePortFirst = 30000
	defaultNodePortLast  = 32767
)

// LoadBalancerClass is the value of spec.loadBalancerClass for this product, which also serves
// Services without a class. Load balancers of any other class are left to other products.
const LoadBalancerClass = "svcctl.io/load-balancer"

// Rules validate the annotations of a single object. Their methods must not block.
type Rules interface {
	Remarks(o object.Object) []annotation.Remark
}

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Config configures a Store. Only ClusterIPRanges has no default.
type Config struct {
	// ClusterIPRanges has the ranges of cluster IPs: one prefix, or one for each family, the
	// primary family first.
	ClusterIPRanges []netip.Prefix
	// NodePorts is the range of node ports and health-check node ports; zero means 30000-32767.
	NodePorts PortRange
	// NodePortSpace decides whether a node port number in one protocol is also taken in the others.
	NodePortSpace alloc.Space
	// Pools has the ranges of load balancer IPs, the preferred ones first. If it is empty, no load balancer IPs are allocated.
	Pools []alloc.Pool
	// Objects has the options of validation.
	Objects object.Options
	// Rules adds checks of annotations to object.Validate; nil adds none.
	Rules Rules
	// Pinned refuses Services that do not specify all their addresses and ports. So several machines that share only the documents, and no store, use
	// the same values.
	Pinned bool
	// LegacyIPs accepts addresses with leading zeros in files and reads them as decimal.
	LegacyIPs bool
	// Box is the name of this machine among those that share the store. A rollout names the machines that program its changes.
	Box string
	// Whole is the number of EndpointSlices and Services that Pack leaves uncompressed; 0 means 256.
	Whole int
	// Program identifies the exact build of the program. Seals written by another build are ignored. If Program is "", all seals are ignored and none
	// are written (see LastGood.Seal).
	Program string
	// Clock is the time of day, for creation timestamps and the first revision; nil
	// means time.Now. Nothing else depends on it.
	Clock func() time.Time
	// Clocks reads the clocks by which this machine ends a trial or a rollout phase that several machines share; nil means deadline.Now.
	Clocks func() deadline.Reading
	// NewUID makes the uid of a new object; nil means a random UUID.
	NewUID func() string
}

func (c Config) withDefaults() Config {
	if c.NodePorts == (PortRange{}) {
		c.NodePorts = PortRange{defaultNodePortFirst, defaultNodePortLast}
	}
	c.Whole = cmp.Or(c.Whole, keepWhole)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Clocks == nil {
		c.Clocks = deadline.Now
	}
	if c.NewUID == nil {
		c.NewUID = randomUIDs()
	}
	return c
}

// randomUIDs returns a source of random UUIDs (RFC 9562, version 4), safe for concurrent use. Several UUIDs share one string allocation:
// single ones would fragment the heap.
func randomUIDs() func() string {
	const size, atOnce = 36, 28 // a KiB
	var mu sync.Mutex
	var text string
	return func() (uid string) {
		mu.Lock()
		defer mu.Unlock()
		if text == "" {
			all := make([]byte, 0, size*atOnce)
			var random [16 * atOnce]byte
			rand.Read(random[:]) // never fails
			for b := range slices.Chunk(random[:], 16) {
				b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
				all = fmt.Appendf(all, "%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
			}
			text = string(all)
		}
		uid, text = text[:size], text[size:]
		return uid
	}
}

// Open loads the objects that the engine stores. If two objects have the same value, the older one keeps it. The younger one is withheld: Service and
// Services omit it until the value becomes free or the object gives it up. The caller has to close the engine.
func Open(engine engine.Engine, cfg Config) (*Store, error) {
	return open(engine, cfg, (*Store).loadRecords)
}

// open is Open with a function that supplies the stored objects.
func open(engine engine.Engine, cfg Config, stored func(*Store) ([]*record.Record, error)) (*Store, error) {
	cfg = cfg.withDefaults()
	allocator, err := cfg.newAllocator()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg: cfg, allocator: allocator, writer: writer{turn: make(chan struct{}, 1)},
		storage: storage{engine: engine, shared: sharedOf(engine), piece: pieceObjects},
		numbers: numbers{seed: uint64(max(0, cfg.Clock().Unix())) << record.RevisionShift},
		accepted: accepted{
			table: newTable(), feed: feed{journal: journal.New(journal.DefaultBounds()), published: make(chan struct{}), ephemeral: make(chan struct{}), changed: make(chan struct{}, 1)}, declared: newDeclarations(), outcomes: outcomes{notes: map[object.Ref][]note{}, waiting: map[object.Ref]struct{}{}},
			sources: newSources(), pending: newPendingSets(),
		},
	}
	s.SetHost(unknownHost{})
	if s.storage.shared != nil {
		s.numbers.seed = 0 // a fleet has its revision from the start
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if err := s.load(stored); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func (s *Store) load(stored func(*Store) ([]*record.Record, error)) error {
	head, err := s.storage.engine.Load(headKey)
	if err != nil {
		return err
	}
	records, err := stored(s)
	if err != nil {
		return err
	}
	if len(head) == 0 {
		if len(records) > 0 {
			return fmt.Errorf("the stored data has objects but no revision: put a backup in its place")
		}
		// A new store signals at once: revisions seen by others begin after the seed.
		return s.writeHead(max(s.numbers.seed, 1))
	}
	s.feed.revision, s.storage.head = head[0].Revision, head[0].Revision
	if s.storage.shared == nil {
		s.numbers.seed = max(s.numbers.seed, s.feed.revision+laterMost)
	}
	marks, err := s.storage.engine.Load(reservedKey)
	if err != nil {
		return err
	}
	s.reserves = len(marks) > 0
	if s.storage.shared != nil {
		pairs, err := s.storage.engine.Load(sourcePrefix)
		if err == nil {
			_, err = s.sources.follow(&engine.Followed{Puts: pairs})
		}
		if err != nil {
			return err
		}
	}
	s.feed.dataplane = s.feed.revision
	s.table.grow(len(records))
	// The older of two Services has a value.
	record.SortByAge(records, func(r *record.Record) (object.Ref, *record.Record) { return object.RefOf(r.Object), r })
	for _, r := range records {
		s.reopen(r)
	}
	s.waitForOthers(records)
	if err := s.loadPending(); err != nil {
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
func (s *Store) loadRecords() (records []*record.Record, err error) {
	err = s.storage.engine.Scan(record.ObjectPrefix, nil, func(pairs []engine.Pair) error {
		some := make([]*record.Record, len(pairs))
		errs := make([]error, len(pairs))
		parallel.Do(len(pairs), parallel.Share, func(i int) { some[i], errs[i] = record.Decode(pairs[i]) })
		records = append(records, some...)
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			return errs[i]
		}
		return nil
	})
	return records, err
}

// reopen registers a stored object, and the values that it holds.
func (s *Store) reopen(r *record.Record) {
	ref := object.RefOf(r.Object)
	s.numbers.sawCreation(record.CreatedAt(r.Object))
	if svc, ok := r.Object.(*object.Service); ok {
		if err := s.hold(svc); err != nil {
			r.Withheld = true
			s.outcomes.waiting[ref] = struct{}{}
			s.outcomes.notes[ref] = []note{withheldNote(r, err)}
		} else if notes := s.allocator.outside(svc, r.Owner); len(notes) > 0 {
			s.outcomes.notes[ref] = notes
		}
		if s.lacksIngress(svc) {
			s.outcomes.waiting[ref] = struct{}{}
		}
	}
	s.table.set(ref, r)
	s.declared.noteOwner(ref, Owner{}, r.Owner)
}

// waitForOthers records that load balancers wait for another address, if theirs is not served because
// it is an external IP of another Service.
func (s *Store) waitForOthers(records []*record.Record) {
	t := s.begin()
	for _, r := range records {
		svc, isService := r.Object.(*object.Service)
		if !isService || r.Withheld || !isOurLoadBalancer(svc) {
			continue
		}
		if slices.ContainsFunc(valuesOf(svc).ingress, func(addr netip.Addr) bool { return t.losesIngress(svc, svc, r.Since(), addr) }) {
			s.outcomes.waiting[object.RefOf(svc)] = struct{}{}
		}
	}
}

// storage is the persistent side of the store: the engine, and a summary of its content. The caller holds writer.state.
type storage struct {
	engine engine.Engine
	shared engine.Shared // engine, if other machines write to it; else nil
	// head is the revision that the engine has. It is that of the store unless commits wait in later.
	head    uint64
	later   engine.Transaction // commits that wait, see mayWait; of pairs with the same key the last one counts
	refused bool               // the last commit failed
	partial partial
	piece   int // objects in one transaction of commitInPieces: pieceObjects, fewer in tests
	copies  copies
	failed  bool          // a commit of another machine could not be read, and no further ones are taken over
	lost    atomic.Uint64 // see Store.Lost
}

// pieceObjects is the number of objects in one engine transaction when many are new, as at a first
// start: a commit needs more memory, for encoded objects and their pages, than the objects
// themselves.
const pieceObjects = 4_000

// partial has the keys of objects that an interrupted first start has stored and not published, because a later piece could not
// be written. The next transaction deletes them.
type partial []string

// addTo adds deletions of the keys to a transaction, except for keys that the transaction writes.
func (p partial) addTo(t *engine.Transaction) {
	if len(p) == 0 {
		return
	}
	puts := make(map[string]struct{}, len(t.Puts))
	for _, pair := range t.Puts {
		puts[pair.Key] = struct{}{}
	}
	for _, key := range p {
		if _, put := puts[key]; !put {
			t.Deletes = append(t.Deletes, key)
		}
	}
}

// sharedOf returns the engine as an engine.Shared; nil if no other machines write to it.
func sharedOf(e engine.Engine) engine.Shared {
	shared, _ := e.(engine.Shared)
	return shared
}
