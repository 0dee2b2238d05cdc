package fleet

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// whole is a state as a whole, packed, for the leaves that read it at the same time.
type whole struct {
	readers int // under the lock of the Engine
	ready   chan struct{}
	// mod, data and err are there when it is ready.
	mod  int64
	data []byte
	err  error
}

// openWhole returns a state of a commit or of a later one. The caller calls end.
func (e *Engine) openWhole(ctx context.Context, least int64) (w *whole, end func(), err error) {
	if err := e.newest(ctx); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	w = e.leaves.whole
	mine := w == nil
	if !mine {
		select {
		case <-w.ready:
			mine = w.err != nil || w.mod < least
		default:
		}
	}
	if mine {
		w = &whole{ready: make(chan struct{})}
		e.leaves.whole = w
	}
	w.readers++
	e.mu.Unlock()
	end = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if w.readers--; w.readers == 0 && e.leaves.whole == w {
			e.leaves.whole = nil
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

// packPage is the number of objects in a frame of a state.
const packPage = 500

// whole reads all that the replica has, which is one state, whether what waits can be written or not.
func (r *replica) whole() (c *cursor, revision uint64, pairs []engine.Pair, err error) {
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

// pack gives all that the replica has as a stream.
func (r *replica) pack() (mod int64, data []byte, err error) {
	c, revision, pairs, err := r.whole()
	if err != nil {
		return 0, nil, err
	}
	h := &head{Revision: revision, ID: c.ID, Epoch: c.Epoch, Objects: c.Objects, Digest: c.Digest, Bundle: c.Bundle, Parts: c.Parts, Format: c.Format}
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
