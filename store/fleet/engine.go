package fleet

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// Engine is an engine.Shared that stores the pairs in etcd. The package comment describes its parts.
type Engine struct {
	presence
	filling  sync.Mutex // held while commits for leaves are read from etcd's history
	snapshot *snapshot  // nil: no leaf reads all objects
}

// Open opens the replica in the data directory and connects to etcd or a core box. The caller calls Await next.
func Open(cfg Config) (*Engine, error) {
	r, err := openReplica(cfg.Dir, cfg.DataKey)
	if err != nil {
		return nil, err
	}
	e := newEngine(cfg, r)
	if err := e.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return e, nil
}

func newEngine(cfg Config, r *replica) *Engine {
	e := &Engine{}
	e.member = member{cfg: cfg, replica: r, prefix: cfg.prefix(), reads: format, step: func() {}, between: func() {}}
	e.content, e.changed, e.arrived = newContent(), make(chan struct{}), make(chan struct{}, 1)
	e.keys, e.unreadable = map[string]sharedKey{}, map[string]string{}
	e.bundlePending, e.heartbeatNow = make(chan struct{}, 1), make(chan struct{}, 1)
	return e
}

// open loads the replica and sets up the origin.
func (e *Engine) open() error {
	c, err := e.replica.cursor()
	if err != nil {
		return err
	}
	if e.instance, err = e.replica.instance(); err != nil {
		return err
	}
	if err := e.adopt(c); err != nil {
		return err
	}
	if len(e.cfg.Cores) > 0 {
		e.origin = newCoreClient(&e.member)
	} else if e.client, err = e.cfg.recordPeerCert(&e.shown).dial(); err != nil {
		return err
	} else {
		e.origin = atEtcd{&e.member}
	}
	e.state = state{State: State{Kind: CutOff, Why: e.origin.from() + " has not answered yet", Since: time.Now()}}
	if e.read == nil {
		e.state.Kind = Waiting
	}
	return nil
}

// adopt sets the state of this box from the content of the replica. c is the position of the replica, nil if the replica is empty.
func (e *Engine) adopt(c *cursor) error {
	pairs, err := e.replica.content()
	if err != nil {
		return err
	}
	if c == nil {
		if len(pairs) > 0 || e.replica.revision != 0 {
			return fmt.Errorf("data directory %s has the objects of a single box: bring them into the fleet with "+
				"`svcctl fleet init --from %s` and give `svcctl serve` another --data-dir, or move its state.db away", e.cfg.Dir, e.cfg.Dir)
		}
		return nil
	}
	for i := range pairs {
		e.content.put(pairs[i].Key, pairs[i].Value)
	}
	if len(pairs) != c.Objects || e.content.digest != c.Digest {
		return fmt.Errorf("the replica in %s is not the state that its cursor names: move its state.db away, and all of it is read from etcd", e.cfg.Dir)
	}
	e.agreed.ID = c.Fleet
	e.read = &head{Revision: e.replica.revision, ID: c.ID, standing: c.standing, mod: c.Mod}
	e.inbox.taken, e.inbox.published = c.Mod, c.Mod
	return nil
}

// Run follows the fleet until ctx is done. It never fails: State has the reason if the fleet cannot be followed.
func (e *Engine) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { e.beatUntil(ctx) })
	tasks.Go(func() { e.runBundles(ctx) })
	tasks.Go(func() { e.replica.flushUntil(ctx, e.cfg.Log) })
	if c, is := e.origin.(*coreClient); is {
		tasks.Go(func() { c.returnUntil(ctx) })
	}
	for ctx.Err() == nil {
		err := e.join(ctx)
		if err == nil {
			e.note(nil)
			err = e.follow(ctx)
		}
		if ctx.Err() == nil && err != nil && !errors.Is(err, errOvertaken) && !errors.Is(err, context.Canceled) { // canceled: the watch is restarted
			e.noteWatchError(err)
		}
		sleep(ctx, retryFollow)
	}
	return nil
}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	return errors.Join(e.leave(), e.replica.close())
}

// Load implements engine.Engine by reading the replica. Before the first call of Follow, the replica has all commits.
func (e *Engine) Load(prefix string) ([]engine.Pair, error) {
	pairs, err := e.replica.load(prefix)
	return e.openPairs(pairs), err
}

// Scan implements engine.Engine.
func (e *Engine) Scan(prefix string, want func(key string, sum engine.Sum) bool, use func([]engine.Pair) error) error {
	return engine.ScanLoaded(e.Load, prefix, want, use)
}

// Sums implements engine.Engine.
func (e *Engine) Sums(keys []string) ([]engine.Sum, error) { return engine.SumsLoaded(e.Load, keys) }

// The keys of the replica that are not in etcd and that the store does not see.
const (
	cursorKey   = "fleet/cursor"
	instanceKey = "fleet/instance"
)

// flushEvery is the interval at which followed commits are written to the replica. After a crash, the commits that were not written are followed
// again.
const flushEvery = time.Second

// flushAgain is the wait after a failed write to the replica.
const flushAgain = 5 * time.Second

// cursor is the replica's position in the fleet's commits. It is stored in the replica.
type cursor struct {
	Fleet string `json:"fleet"` // the ID of the fleet
	// Mod, ID and the fields below are taken from the head of the last commit in the replica.
	Mod int64  `json:"mod"`
	ID  string `json:"id"`
	standing
}

// replica is the copy of the fleet's objects in a file on this machine, together with pairs that are not written to the file yet.
type replica struct {
	file *engine.File

	writing  sync.Mutex // held during a flush, also while waiting for the disk; mu is not
	revision uint64     // of the head in the file

	mu      sync.Mutex
	waiting map[string]*engine.Pair // pairs to be written, by key; nil means that the key is to be removed
	next    uint64                  // revision of the head once these pairs are written
	err     error                   // error of the last write, nil if it succeeded
}

func openReplica(dir string, key *engine.Key) (*replica, error) {
	file, err := engine.OpenFile(dir, key)
	if broken, is := errors.AsType[*engine.DamagedError](err); is {
		return nil, fmt.Errorf("%s, the replica of the fleet on this box, is damaged: %w; what the kernel has stays in force: "+
			"move the file away and start again: all of it is read from etcd", broken.Path, broken.Cause)
	}
	if err != nil {
		return nil, err
	}
	r := &replica{file: file, waiting: map[string]*engine.Pair{}}
	pairs, err := file.Load(headKey)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	for _, p := range pairs {
		if p.Key == headKey {
			r.revision = p.Revision
		}
	}
	r.next = r.revision
	return r, nil
}

// content returns the stored pairs that the digest of the head covers.
func (r *replica) content() ([]engine.Pair, error) {
	var pairs []engine.Pair
	for _, prefix := range contentPrefixes {
		more, err := r.file.Load(prefix)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, more...)
	}
	return pairs, nil
}

// cursor returns the stored position of the replica; nil if it was never written.
func (r *replica) cursor() (*cursor, error) {
	pairs, err := r.file.Load(cursorKey)
	if err != nil || len(pairs) == 0 {
		return nil, err
	}
	c := &cursor{}
	if err := json.Unmarshal(pairs[0].Value, c); err != nil {
		return nil, fmt.Errorf("read the cursor of the replica: %w", err)
	}
	return c, nil
}

// instance returns the random identifier of this data directory, which it creates if there is none.
func (r *replica) instance() (string, error) {
	pairs, err := r.file.Load(instanceKey)
	if err != nil {
		return "", err
	}
	if len(pairs) > 0 {
		return string(pairs[0].Value), nil
	}
	id := newID()
	r.put(engine.Pair{Key: instanceKey, Value: []byte(id)})
	return id, r.flush()
}

// put queues a pair for the next flush.
func (r *replica) put(pairs ...engine.Pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range pairs {
		r.waiting[pairs[i].Key] = &pairs[i]
	}
}

func (r *replica) remove(keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		r.waiting[key] = nil
	}
}

// value returns the value of a key, also if it is not flushed yet; nil if there is none.
func (r *replica) value(key string) []byte {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	p, waits := r.waiting[key]
	r.mu.Unlock()
	if waits {
		if p == nil {
			return nil
		}
		return p.Value
	}
	pairs, err := r.file.Load(key)
	if err != nil || len(pairs) == 0 || pairs[0].Key != key { // others may begin with it
		return nil
	}
	return pairs[0].Value
}

// stand queues the operations of a commit, and c, the position of the replica after that commit. The next flush writes both in one transaction.
func (r *replica) stand(ops []operation, c cursor, revision uint64) error {
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		if ops[i].Remove {
			r.waiting[ops[i].Key] = nil
		} else {
			r.waiting[ops[i].Key] = &engine.Pair{Key: ops[i].Key, Value: ops[i].Value, Revision: revision}
		}
	}
	r.waiting[cursorKey] = &engine.Pair{Key: cursorKey, Value: value, Revision: revision}
	r.next = revision
	return nil
}

// flush writes the pending pairs in one commit. After an error they stay pending.
func (r *replica) flush() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	return r.write()
}

// flushUntil flushes at intervals until ctx is done. It runs in a task of its own, so that a slow disk delays nothing else.
func (r *replica) flushUntil(ctx context.Context, log *slog.Logger) {
	for wait := flushEvery; sleep(ctx, wait); {
		if wait = flushEvery; r.flush() != nil {
			wait = flushAgain
			log.Debug("the replica is not written") // the State has the reason
		}
	}
}

// write implements flush. The caller must hold r.writing.
func (r *replica) write() error {
	r.mu.Lock()
	waiting, next, err := r.waiting, r.next, r.err
	r.waiting = map[string]*engine.Pair{}
	r.mu.Unlock()
	if len(waiting) == 0 {
		return err
	}
	out := engine.Transaction{CompareKey: headKey, CompareRevision: r.revision}
	for key, pair := range waiting {
		if pair == nil {
			out.Deletes = append(out.Deletes, key)
		} else {
			out.Puts = append(out.Puts, *pair)
		}
	}
	if next != 0 {
		out.Puts = append(out.Puts, engine.Pair{Key: headKey, Revision: next})
	}
	err = r.file.Commit(out)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err = err; err == nil {
		r.revision = next
		return nil
	}
	maps.Copy(waiting, r.waiting) // pairs that came meanwhile are newer
	r.waiting = waiting
	return err
}

// load flushes, and returns the pairs whose keys have a prefix. If the flush fails, the pending pairs are merged into those of the file.
func (r *replica) load(prefix string) ([]engine.Pair, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	if err := r.write(); err == nil {
		return r.file.Load(prefix)
	}
	pairs, err := r.file.Load(prefix)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	waiting := maps.Clone(r.waiting)
	r.mu.Unlock()
	var all []engine.Pair
	for _, p := range pairs {
		if _, changed := waiting[p.Key]; !changed {
			all = append(all, p)
		}
	}
	for key, p := range waiting {
		if p != nil && strings.HasPrefix(key, prefix) {
			all = append(all, *p)
		}
	}
	return all, nil
}

func (r *replica) close() error { return errors.Join(r.flush(), r.file.Close()) }

// snapshot returns all objects of the replica as of one head, even if they could not be written to the file.
func (r *replica) snapshot() (c *cursor, revision uint64, pairs []engine.Pair, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	_ = r.write()
	if c, err = r.cursor(); err == nil && c == nil {
		err = errors.New("this box has no objects of the fleet yet")
	}
	if err == nil {
		pairs, err = r.content()
	}
	return c, r.revision, pairs, err
}

// packPage is the number of objects in one frame of a state that pack encodes.
const packPage = 500

// pack returns all objects of the replica encoded as a stream for leaves (package stream), and the modification revision of their head.
func (r *replica) pack() (mod int64, data []byte, err error) {
	c, revision, pairs, err := r.snapshot()
	if err != nil {
		return 0, nil, err
	}
	h := &head{Revision: revision, ID: c.ID, standing: c.standing}
	text, err := h.encode()
	if err != nil {
		return 0, nil, err
	}
	var out bytes.Buffer
	packer, err := gzip.NewWriterLevel(&out, flate.BestSpeed)
	if err != nil {
		return 0, nil, err
	}
	var frame []byte
	write := func(f *stream.Commit) {
		frame = stream.Append(frame[:0], f)
		_, _ = packer.Write(frame) // a bytes.Buffer takes all
	}
	write(&stream.Commit{Kind: stream.State, Mod: c.Mod, Head: []byte(text)})
	for from := 0; from < len(pairs); from += packPage {
		page := &stream.Commit{Kind: stream.Objects}
		for _, p := range pairs[from:min(len(pairs), from+packPage)] {
			page.Ops = append(page.Ops, stream.Op{Key: p.Key, Value: p.Value})
		}
		write(page)
	}
	write(&stream.Commit{Kind: stream.End})
	err = packer.Close()
	return c.Mod, out.Bytes(), err
}
