package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// Engine is an engine.Shared in etcd. The package comment names its parts.
type Engine struct {
	presence
	filling  sync.Mutex // one look into the history of etcd for leaves at a time
	snapshot *snapshot  // nil: no leaf reads all objects
}

// Open opens the replica. The next call is Await.
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

// open loads the replica and connects to the origin.
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

// adopt makes the content of the replica the state of this box.
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
	e.read = &head{
		Revision: e.replica.revision, ID: c.ID, Epoch: c.Epoch, Objects: c.Objects, Digest: c.Digest, Bundle: c.Bundle, Parts: c.Parts, Format: c.Format, mod: c.Mod,
	}
	e.inbox.taken, e.inbox.published = c.Mod, c.Mod
	return nil
}

// Run follows the fleet until ctx is done. It does not fail: the State has what keeps it from following.
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
		select {
		case <-ctx.Done():
		case <-time.After(retryFollow):
		}
	}
	return nil
}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	return errors.Join(e.leave(), e.replica.close())
}

// Load implements engine.Engine, from the replica. Before the first call of Follow that has all commits.
func (e *Engine) Load(prefix string) ([]engine.Pair, error) {
	pairs, err := e.replica.load(prefix)
	return e.openPairs(pairs), err
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
