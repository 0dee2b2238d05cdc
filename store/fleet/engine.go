package fleet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"svcctl.io/svcctl/store/engine"
)

const (
	// callTimeout bounds one call of etcd. A leader that is lost is replaced in less.
	callTimeout = 3 * time.Second
	// firstTry bounds the first call of a commit, which takes place once however often it is sent. Each further one has twice the time, up to callTimeout.
	firstTry = time.Second
	// settleTimeout bounds how long a commit waits to learn what became of it.
	settleTimeout = 5500 * time.Millisecond
	// followTimeout bounds how long a commit that lost waits for what came first.
	followTimeout = 5 * time.Second
	// keepaliveTime is the idle time of a connection before a keepalive ping; the server allows no
	// shorter time. keepaliveTimeout bounds the wait for its answer.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 2 * time.Second
)

// Config configures an Engine. It has more than 15 fields: what an Engine is given, and what Init and Restore are, of which each user sets some.
type Config struct {
	// Fleet names the fleet, Box this box in it.
	Fleet, Box string
	// Endpoints are the URLs of etcd's members.
	Endpoints []string
	// TLS is for https URLs; nil: the system's roots and no client certificate.
	TLS *tls.Config
	// Dir is the data directory, which has the replica.
	Dir string
	// DataKey encrypts Dir at rest, and is that of a directory for Init and Restore; nil: they are not encrypted.
	DataKey *engine.Key
	// Keys has the fleet's keys, which encrypt the values of Secret objects; nil: none.
	Keys *engine.Keys
	// Knows reports whether this program can read a key; nil: all. Secret reports whether a key is of an object whose
	// value is sealed; nil: none.
	Knows, Secret func(key string) bool
	// Import is an object of a single box as the fleet keeps it, nil: it does not; for Init and Restore.
	// When Import is nil, they are kept as they are.
	Import func(key string, value []byte) ([]byte, error)
	// Restored is the record of a source or a trial after Init or Restore, of which a data directory has one value
	// (nil: none) and etcd another one (nil: none); nil: there is none. When Restored is nil, it is the directory's.
	Restored func(key string, value, now []byte) ([]byte, error)
	// First are the pairs, with the head, of a fleet that begins with nothing; for Init.
	First []engine.Pair
	// Settings has the settings that all boxes must have in common, as JSON.
	Settings json.RawMessage
	// Flags has the flag of each field of Settings, without dashes, for messages; and Files the files of TLS, likewise.
	Flags map[string]string
	Files Files
	// Cores are the URLs of the APIs of boxes that follow etcd, for a leaf, which has no Endpoints; CoreTLS has the CA of
	// their certificates, and the certificate of this box.
	Cores   []string
	CoreTLS *tls.Config
	// Version of the program, for reports.
	Version string
	Log     *slog.Logger

	// hurry divides the times after which a leaf goes back to a core box; 0: 1. Tests set it.
	hurry time.Duration
}

func (c *Config) pace() time.Duration { return max(1, c.hurry) }

// Engine is an engine.Shared in etcd. It has more than 15 fields: what its three tasks (commits, the
// follower, the beat) have in common under one lock.
type Engine struct {
	cfg      Config
	client   *clientv3.Client
	prefix   string
	origin   origin
	leaves   leaves
	replica  *replica
	instance string          // of the data directory
	fleetID  string          // "" until it is known
	agreed   json.RawMessage // the settings of the fleet
	reads    int             // the newest format that the program reads
	format   int             // of the fleet; 0 until it is known

	arrived   chan struct{}
	untidy    chan struct{} // there is a bundle to unfold
	nudged    chan struct{} // the next beat is not waited for
	unfolding sync.Mutex
	step      func() // tests end here
	between   func() // and act here

	mu      sync.Mutex
	content *content
	// read is the newest head that was followed or committed; nil: nothing yet.
	read *head
	// known is the revision of etcd up to which all heads were seen.
	known int64
	// queue has the commits that the store has not followed yet; taken is the mod of the head that it
	// has with all that it was given, published the mod up to which its readers see the objects.
	queue     []engine.Followed
	taken     int64
	published int64
	busy      bool // something was given to the store and is not Published
	flight    *flight
	state     state
	changed   chan struct{} // closed when any of these changes
	restart   func()        // ends the watch under way
	renewed   renewal
	shown     shown
	turn      turn
	report    func() Report // nil: nobody reports
	// shut has the reasons why secret objects cannot be opened, by key.
	shut map[string]string
	// foreign are the keys of objects that somebody else has written in etcd.
	foreign map[string]bool
	// keys are the shared keys, by name.
	keys    map[string]sharedKey
	sources sourceTurns

	questions questions
	silent    silence
}

// flight is a commit under way.
type flight struct {
	id   string
	ops  []operation
	note []byte
	// landed is the head that it became, nil: it is not known to have.
	landed *head
}

// connectAgain has a member that is back tried soon, however long it was away: gRPC's own wait grows to two minutes.
var connectAgain = backoff.Config{BaseDelay: 250 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// prefix returns the prefix of all keys of the fleet.
func (c *Config) prefix() string { return "svcctl/" + c.Fleet + "/" }

// dial connects to etcd. Nothing is asked yet.
func (c *Config) dial() (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS,
		DialTimeout: callTimeout, DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallSendMsgSize: 8 << 20, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(otherMember(len(c.Endpoints))),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: connectAgain, MinConnectTimeout: callTimeout}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// Open opens the replica. Await comes next.
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
	return &Engine{
		cfg: cfg, replica: r, prefix: cfg.prefix(), content: newContent(), shut: map[string]string{}, keys: map[string]sharedKey{}, reads: format, between: func() {},
		arrived: make(chan struct{}, 1), untidy: make(chan struct{}, 1), nudged: make(chan struct{}, 1), changed: make(chan struct{}), step: func() {},
	}
}

// open takes the state of the replica.
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
		e.origin = newAtCore(e)
	} else if e.client, err = e.cfg.noting(&e.shown).dial(); err != nil {
		return err
	} else {
		e.origin = atEtcd{e}
	}
	e.state = state{kind: CutOff, why: e.origin.from() + " has not answered yet", since: time.Now()}
	if e.read == nil {
		e.state.kind = Waiting
	}
	return nil
}

// adopt takes the state of the replica.
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
	e.fleetID = c.Fleet
	e.read = &head{
		Revision: e.replica.revision, ID: c.ID, Epoch: c.Epoch, Objects: c.Objects, Digest: c.Digest, Bundle: c.Bundle, Parts: c.Parts, Format: c.Format, mod: c.Mod,
	}
	e.taken, e.published = c.Mod, c.Mod
	return nil
}

const (
	// firstWait bounds the wait for etcd of a start with a replica.
	firstWait = 2 * time.Second
	// awaitEvery is the interval at which a box without a replica tries to join its fleet.
	awaitEvery = time.Second
)

// CatchUp follows what was committed while this box was away, for a moment: then the store has it with its
// next call, before anything is decided by what it does not know yet. It comes before Run.
func (e *Engine) CatchUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	err := e.join(ctx)
	e.note(err)
	if err != nil {
		e.cfg.Log.Info("the start goes on with the replica", "fleet", e.cfg.Fleet, "err", err)
		return
	}
	now, _, err := e.askHead(ctx)
	if err != nil || now == nil {
		return
	}
	followed := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer close(followed)
		if err := e.follow(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Debug("the start goes on without what was missed", "err", err) // Run tries again
		}
	}()
	_ = e.wait(ctx, func() bool { return e.read.mod >= now.mod }) // Run goes on with what is left
	stop()
	<-followed
}

// Await waits for the objects of the fleet when there is no replica of them; the State is Waiting meanwhile. It comes before
// the store opens on the Engine.
func (e *Engine) Await(ctx context.Context) error {
	for e.stands() == nil {
		err := e.join(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e.note(err); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(awaitEvery):
		}
	}
	if err := e.loadKeys(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// The store opens on the replica, which has all that was read.
	e.queue, e.taken, e.published = nil, e.read.mod, e.read.mod
	return nil
}

func (e *Engine) key(key string) string { return e.prefix + key }

// Load implements engine.Engine. It answers from the replica, with what was not followed by the
// caller yet among it only before the first call of Follow.
func (e *Engine) Load(prefix string) ([]engine.Pair, error) {
	pairs, err := e.replica.load(prefix)
	return e.loaded(pairs), err
}

// Scan implements engine.Engine.
func (e *Engine) Scan(prefix string, want func(key string, sum engine.Sum) bool, use func([]engine.Pair) error) error {
	pairs, err := e.Load(prefix)
	if err != nil {
		return err
	}
	return engine.ScanPairs(pairs, want, use)
}

// Sums implements engine.Engine.
func (e *Engine) Sums(keys []string) ([]engine.Sum, error) {
	sums := make([]engine.Sum, len(keys))
	for i, key := range keys {
		pairs, err := e.Load(key)
		if err != nil {
			return nil, err
		}
		if len(pairs) > 0 && pairs[0].Key == key { // others may begin with it
			sums[i] = engine.SumOf(pairs[0])
		}
	}
	return sums, nil
}

// Keep implements engine.Shared.
func (e *Engine) Keep(t engine.Transaction) {
	e.replica.remove(t.Deletes...)
	e.replica.put(t.Puts...)
}

// Arrived implements engine.Shared.
func (e *Engine) Arrived() <-chan struct{} { return e.arrived }

// Follow implements engine.Shared.
func (e *Engine) Follow() []engine.Followed {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue := e.queue
	e.queue = nil
	if len(queue) > 0 {
		e.busy, e.taken = true, e.read.mod
		e.signal()
	}
	return queue
}

// Published implements engine.Shared.
func (e *Engine) Published() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy, e.published = false, e.taken
	e.idle()
	e.signal()
}

// idle moves on over heads without changes.
func (e *Engine) idle() {
	if !e.busy && len(e.queue) == 0 && e.read != nil {
		e.taken, e.published = e.read.mod, e.read.mod
	}
}

// Refuse implements engine.Shared.
func (e *Engine) Refuse(why error) {
	e.note(&heldError{TooNew, fmt.Sprintf("a commit of the fleet cannot be read by this version: %v; upgrade this box", why)})
}

// signal wakes who waits for a change. e.mu must be held.
func (e *Engine) signal() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// wait waits until something holds, which is looked at with the lock.
func (e *Engine) wait(ctx context.Context, holds func() bool) error {
	for {
		e.mu.Lock()
		done, changed := holds(), e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
