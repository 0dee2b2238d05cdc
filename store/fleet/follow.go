package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// pageSize bounds the objects that are read in one call.
const pageSize = 500

// retryFollow is the wait before a follower tries again.
const retryFollow = 300 * time.Millisecond

// Run follows the fleet until ctx is done. It does not fail: what keeps it from following is its State.
func (e *Engine) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with ctx, and is waited for
		defer close(done)
		e.beatUntil(ctx)
	}()
	tidied := make(chan struct{})
	go func() {
		defer close(tidied)
		e.tidyUntil(ctx)
	}()
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		e.replica.flushUntil(ctx, e.cfg.Log)
	}()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		if c, is := e.origin.(*atCore); is {
			c.returnUntil(ctx)
		}
	}()
	for ctx.Err() == nil {
		err := e.join(ctx)
		if err == nil {
			e.note(nil)
			err = e.follow(ctx)
		}
		if ctx.Err() == nil && err != nil && !errors.Is(err, errOvertaken) && !errors.Is(err, context.Canceled) { // canceled: to begin anew
			e.stumbled(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryFollow):
		}
	}
	<-done
	<-tidied
	<-flushed
	<-returned
	return nil
}

// tidyUntil unfolds bundles beside all else.
func (e *Engine) tidyUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.untidy:
		}
		if err := e.unfold(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Log.Debug("a large commit is not unfolded yet; the next commit does it", "err", err)
		}
	}
}

// followed is a commit as the store gets it.
func followed(ops []operation, h *head, note []byte) engine.Followed {
	f := engine.Followed{Revision: h.Revision, Note: note}
	for i := range ops {
		if ops[i].remove {
			f.Deletes = append(f.Deletes, ops[i].key)
		} else {
			f.Puts = append(f.Puts, engine.Pair{Key: ops[i].key, Value: ops[i].value, Revision: h.Revision})
		}
	}
	return f
}

// enqueue hands a commit to the store. e.mu must be held.
func (e *Engine) enqueue(f engine.Followed) {
	e.queue = append(e.queue, f)
	e.signal()
	select {
	case e.arrived <- struct{}{}:
	default: // it has been told
	}
}

// errGap means that an event does not follow on the last one.
var errGap = errors.New("a commit does not follow on the one before it")

// follow follows until that fails.
func (e *Engine) follow(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	e.mu.Lock()
	e.restart = stop
	e.mu.Unlock()
	err := e.origin.follow(watch)
	e.mu.Lock()
	e.restart = nil // nobody ends what reads all objects
	e.mu.Unlock()
	if errors.Is(err, errGap) || isCompacted(err) {
		e.cfg.Log.Warn("reads all of the fleet's objects again", "err", err)
		return e.resume(ctx)
	}
	return err
}

// resume reads all objects where they cannot be followed, if etcd has the history of this box.
func (e *Engine) resume(ctx context.Context) error {
	e.mu.Lock()
	before := e.read
	e.mu.Unlock()
	if err := e.join(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	again := e.read == before
	e.mu.Unlock()
	if again { // join found that it can be followed, which it cannot
		return e.reload(ctx)
	}
	return nil
}

// take follows events, which are in order, those of one commit together.
func (e *Engine) take(ctx context.Context, events []*clientv3.Event) error {
	for _, together := range transactions(events) {
		if err := e.takeCommit(ctx, together); err != nil {
			return err
		}
	}
	return nil
}

// transactions parts events by the transactions of etcd that they are of.
func transactions(events []*clientv3.Event) (parts [][]*clientv3.Event) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
			n++
		}
		parts = append(parts, events[:n])
		events = events[n:]
	}
	return parts
}

// happened is the content of one transaction of etcd.
type happened struct {
	head     *head // nil: it is no commit
	ops      []operation
	note     []byte
	settings []byte // of the fleet; nil: they are as they were
}

// decode reads the events of one transaction. Of a head with a bundle it does not have the objects.
func (e *Engine) decode(events []*clientv3.Event) (*happened, error) {
	it := &happened{}
	for _, event := range events {
		key := strings.TrimPrefix(string(event.Kv.Key), e.prefix)
		remove := event.Type == clientv3.EventTypeDelete
		switch {
		case key == fleetKey && !remove:
			it.settings = event.Kv.Value
		case key == headKey && remove:
			return nil, &heldError{Emptied, "the objects of the fleet were removed from etcd"}
		case key == headKey:
			h, err := e.decodeHead(event.Kv.Value, event.Kv.ModRevision)
			if err != nil {
				return nil, err
			}
			it.head, it.note = h, h.Note
		case isContent(key):
			it.ops = append(it.ops, operation{key: key, value: event.Kv.Value, remove: remove})
		}
	}
	return it, nil
}

// takeCommit follows what one transaction of etcd has changed.
func (e *Engine) takeCommit(ctx context.Context, events []*clientv3.Event) error {
	it, err := e.decode(events)
	if err != nil {
		return err
	}
	if it.settings != nil {
		if err := e.takeSettings(it.settings); err != nil {
			return err
		}
	}
	h := it.head
	if h == nil { // a bundle is unfolded, which was followed already
		e.noteForeign(it.ops, events[0].Kv.ModRevision)
		return nil
	}
	e.mu.Lock()
	seen, mine := h.mod <= e.read.mod, e.flight != nil && e.flight.id == h.ID
	e.mu.Unlock()
	if h.Bundle != "" && !seen && !mine {
		if it.note, it.ops, err = e.readBundle(ctx, h, h.mod); err != nil {
			return err
		}
	}
	return e.accept(it)
}

// accept makes a commit the state, if it follows on the one before it.
func (e *Engine) accept(it *happened) error {
	h, ops := it.head, it.ops
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case h.mod <= e.read.mod:
		return nil // our own, or of before a reload
	case h.Epoch != e.read.Epoch || h.Previous != e.read.ID:
		return errGap
	case e.flight != nil && e.flight.id == h.ID:
		e.land(h)
		return nil
	}
	if err := e.readable(ops); err != nil {
		return err
	}
	objects, digest := e.content.after(ops)
	if objects != h.Objects || digest != h.Digest {
		return errGap
	}
	before := e.read
	given := e.unsealed(followed(ops, h, it.note)) // before the replica has it
	e.content.apply(ops)
	e.corrected(ops)
	e.read = h
	e.keep(ops, h)
	e.leaves.add(h, ops, it.note)
	e.state.of = max(e.state.of, h.Revision)
	if h.Revision == before.Revision && len(ops) == 0 {
		e.idle() // a bundle was unfolded
		e.signal()
		return nil
	}
	e.enqueue(given)
	if h.Bundle != "" && e.origin.refusal() == nil {
		e.tidyLater()
	}
	return nil
}

// readable returns an error when this program cannot read a commit. Then it is not even kept: after a
// start the replica has to be of use.
func (e *Engine) readable(ops []operation) error {
	for i := range ops {
		if e.cfg.Knows != nil && !ops[i].remove && !e.cfg.Knows(ops[i].key) {
			return &heldError{TooNew, fmt.Sprintf("a newer version of svcctl has written %s, which this one cannot read: upgrade this box; what is in force stays", ops[i].key)}
		}
	}
	return nil
}

// tidyLater unfolds a bundle that its writer has not unfolded in a while.
func (e *Engine) tidyLater() {
	time.AfterFunc(5*time.Second, func() {
		e.mu.Lock()
		bundle := e.read.Bundle != ""
		e.mu.Unlock()
		if bundle {
			e.tidy()
		}
	})
}

// Close implements engine.Engine.
func (e *Engine) Close() error {
	return errors.Join(e.origin.leave(), e.replica.close())
}
