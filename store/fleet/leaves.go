package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// A core box serves its commits to leaves, see serve.go for the requests. While no leaf follows it keeps nothing for them.

var (
	// errDropped ends the streams of leaves, which ask again.
	errDropped = errors.New("this box does not follow as before")
	// errForgotten means that a leaf cannot continue from its position and has to read all objects.
	errForgotten = errors.New("the commits after that one are not to be had any more: read all objects")
	// errNoSuchCommit means that etcd never had the position of a leaf.
	errNoSuchCommit = errors.New("there is no such commit")
)

// leaves is the state of a core box about its leaves, under the lock of the Engine.
type leaves struct {
	log     *stream.Log  // nil: no leaf follows
	limit   atomic.Int64 // bounds the log, in bytes; 0: stream.DefaultLimit. Tests set it.
	readers int
	whole   *whole // nil: nobody reads a state as a whole
	filling sync.Mutex
	// lease has the names of the present ones: not that of this box, which ends with it at once, while they look for another.
	lease   clientv3.LeaseID
	present map[string]*leaf
}

// newLog returns an empty log of commits for leaves.
func (l *leaves) newLog(at stream.Position) *stream.Log {
	return stream.NewLog(at, cmp.Or(int(l.limit.Load()), stream.DefaultLimit))
}

// leaf is a leaf that reports here.
type leaf struct {
	heard time.Time
	told  string // its last report
	node  []byte // its Node, as JSON; nil: it has not told any
}

// add has the leaves get a commit. Engine.mu must be held.
func (l *leaves) add(h *head, ops []operation, note []byte) {
	if l.log == nil {
		return
	}
	c := &stream.Commit{Kind: stream.Change, Mod: h.mod, Head: []byte(h.text), Ops: streamed(ops)}
	if h.Note == nil {
		c.Note = note
	}
	l.log.Add(c, h.ID)
}

// addSettings has the leaves get settings of the fleet. Engine.mu must be held.
func (l *leaves) addSettings(value []byte) {
	if l.log != nil {
		l.log.Add(&stream.Commit{Kind: stream.Settings, Head: value}, "")
	}
}

// drop ends all streams: what they would get next does not follow on what they got. Engine.mu must be held.
func (l *leaves) drop() {
	if l.log != nil {
		l.log.Close(errDropped)
		l.log = nil
	}
}

func streamed(ops []operation) []stream.Op {
	all := make([]stream.Op, len(ops))
	for i := range ops {
		all[i] = stream.Op{Key: ops[i].key, Value: ops[i].value, Remove: ops[i].remove}
	}
	return all
}

// serves returns why this box serves no leaves now; nil: it does.
func (e *Engine) serves() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.origin.refusal(); err != nil {
		return err
	}
	if e.state.kind != Following {
		return &heldError{e.state.kind, e.state.why}
	}
	return nil
}

// newest waits until this box has followed all that was committed before the call.
func (e *Engine) newest(ctx context.Context) error {
	if err := e.serves(); err != nil {
		return err
	}
	now, _, err := e.askHead(ctx)
	switch {
	case err != nil:
		return err
	case now == nil:
		return &heldError{Emptied, "etcd has no objects of the fleet"}
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	if err := e.wait(ctx, func() bool { return e.read.mod >= now.mod || e.state.kind != Following }); err != nil {
		return fmt.Errorf("revision %d of etcd has not come yet", now.Revision)
	}
	return e.serves()
}

// openStream returns the stream of commits after a position. The caller calls end.
func (e *Engine) openStream(ctx context.Context, after stream.Position) (r *stream.Reader, end func(), err error) {
	if e.stands().mod < after.Mod { // it was at a box that is ahead of this one
		err = e.newest(ctx)
	} else {
		err = e.serves()
	}
	if err != nil {
		return nil, nil, err
	}
	log, end := e.follower()
	defer func() {
		if err != nil {
			end()
		}
	}()
	r, err = log.Reader(ctx, after)
	if errors.Is(err, stream.ErrBefore) {
		if err = e.fill(ctx, log, after); err == nil {
			r, err = log.Reader(ctx, after)
		}
	}
	switch {
	case errors.Is(err, stream.ErrBefore):
		err = errForgotten
	case errors.Is(err, stream.ErrOther):
		err = errNoSuchCommit
	}
	return r, end, err
}

// follower returns the log for one more leaf, which end counts out again.
func (e *Engine) follower() (log *stream.Log, end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.leaves
	if l.log == nil {
		l.log, l.readers = l.newLog(stream.Position{Mod: e.read.mod, ID: e.read.ID}), 0
	}
	log = l.log
	l.readers++
	return log, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.log != log {
			return // it was dropped
		}
		if l.readers--; l.readers == 0 {
			l.drop()
		}
	}
}

// fillTimeout bounds a look into etcd's history.
const fillTimeout = 20 * time.Second

// fill has a log reach back to a position, with what etcd knows of the time since.
func (e *Engine) fill(ctx context.Context, log *stream.Log, after stream.Position) error {
	e.leaves.filling.Lock() // leaves of a core box that went away come together, and want the same
	defer e.leaves.filling.Unlock()
	until := log.Begin()
	if until.Mod <= after.Mod {
		return nil
	}
	was, _, err := e.origin.head(ctx, after.Mod)
	switch {
	case isCompacted(err):
		return errForgotten
	case err != nil:
		return err
	case was == nil || was.ID != after.ID:
		return errNoSuchCommit
	}
	older := e.leaves.newLog(after)
	defer older.Close(errDropped)
	if err := e.history(ctx, after.Mod+1, until.Mod, older); err != nil {
		return err
	}
	older.Seal()
	if older.Begin() != after {
		return errForgotten
	}
	err = log.Prepend(older)
	if errors.Is(err, stream.ErrBefore) {
		return errForgotten
	}
	return err
}

// history adds to a log what etcd has of some of its revisions.
func (e *Engine) history(ctx context.Context, from, until int64, log *stream.Log) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	for resp := range e.watchFrom(ctx, from) {
		if resp.CompactRevision != 0 {
			return errForgotten
		}
		if err := resp.Err(); err != nil {
			return err
		}
		for _, events := range transactions(resp.Events) {
			it, err := e.decode(events)
			if err != nil {
				return err
			}
			if it.settings != nil {
				log.Add(&stream.Commit{Kind: stream.Settings, Head: it.settings}, "")
			}
			h := it.head
			if h == nil {
				continue
			}
			if h.Bundle != "" {
				if it.note, it.ops, err = e.readBundle(ctx, h, h.mod); isCompacted(err) {
					return errForgotten
				} else if err != nil {
					return err
				}
			}
			of := leaves{log: log}
			of.add(h, it.ops, it.note)
			if h.mod >= until {
				return nil
			}
		}
	}
	return ctx.Err()
}

// leafRefusal is why a leaf commits nothing.
func leafRefusal(cores []string) error {
	return &engine.AwayError{Why: fmt.Sprintf("this box is a leaf of its fleet and changes nothing itself: ask a core box, as %s", cores[0])}
}
