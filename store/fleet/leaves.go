package fleet

import (
	"context"
	"errors"
	"time"

	"svcctl.io/svcctl/store/fleet/stream"
)

// A core box serves its commits to leaves, see serve.go for the requests. While no leaf follows it keeps nothing for them.

// snapshot has all objects as of one head, packed, for the leaves that read them at the same time.
type snapshot struct {
	readers int // under position.mu
	ready   chan struct{}
	// mod, data and err are there when it is ready.
	mod  int64
	data []byte
	err  error
}

// openStream returns the stream of commits after a position. The caller calls end.
func (e *Engine) openStream(ctx context.Context, after stream.Position) (r *stream.Reader, end func(), err error) {
	if e.newestRead().mod < after.Mod { // it was at a box that is ahead of this one
		err = e.newest(ctx)
	} else {
		err = e.serves()
	}
	if err != nil {
		return nil, nil, err
	}
	log, end := e.openLog()
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

// openLog returns the log for one more leaf, and counts the leaf; end subtracts it.
func (e *Engine) openLog() (log *stream.Log, end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.feed
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

// fill extends a log back to a position, from the history that etcd keeps.
func (e *Engine) fill(ctx context.Context, log *stream.Log, after stream.Position) error {
	e.filling.Lock() // leaves of a core box that went away come together, from the same position
	defer e.filling.Unlock()
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
	older := e.feed.newLog(after)
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

// history adds to a log the commits of some revisions that etcd keeps.
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
			of := leafFeed{log: log}
			of.add(h, it.ops, it.note)
			if h.mod >= until {
				return nil
			}
		}
	}
	return ctx.Err()
}

// openSnapshot returns all objects as of a head with at least the mod least. The caller calls end.
func (e *Engine) openSnapshot(ctx context.Context, least int64) (w *snapshot, end func(), err error) {
	if err := e.newest(ctx); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	w = e.snapshot
	mine := w == nil
	if !mine {
		select {
		case <-w.ready:
			mine = w.err != nil || w.mod < least
		default:
		}
	}
	if mine {
		w = &snapshot{ready: make(chan struct{})}
		e.snapshot = w
	}
	w.readers++
	e.mu.Unlock()
	end = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if w.readers--; w.readers == 0 && e.snapshot == w {
			e.snapshot = nil
		}
	}
	if mine {
		w.mod, w.data, w.err = e.replica.pack()
		close(w.ready)
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		end()
		return nil, nil, ctx.Err()
	}
	if err = w.err; err == nil && w.mod < least {
		err = errors.New("the replica of this box is behind: its disk may be full")
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return w, end, nil
}
