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

// The keys of the replica that only this package has.
const (
	cursorKey   = "fleet/cursor"
	instanceKey = "fleet/instance"
)

// flushEvery is the interval at which followed commits are written to the replica. Lost ones are
// followed again.
const flushEvery = time.Second

// flushAgain is the wait after one that failed.
const flushAgain = 5 * time.Second

// cursor is the position of the replica.
type cursor struct {
	Fleet string `json:"fleet"` // its id
	// Mod and ID are of the head, Epoch, Objects and Digest likewise.
	Mod     int64  `json:"mod"`
	ID      string `json:"id"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Objects int    `json:"objects"`
	Digest  sum    `json:"digest"`
	Bundle  string `json:"bundle,omitempty"`
	Parts   int    `json:"parts,omitempty"`
	Format  int    `json:"format,omitempty"`
}

// replica is the file on this machine, and what waits to be written to it.
type replica struct {
	file *engine.File

	writing  sync.Mutex // one flush at a time; it is held while the disk is waited for, mu is not
	revision uint64     // of the head in the file

	mu      sync.Mutex
	waiting map[string]*engine.Pair // nil: is removed
	next    uint64                  // the revision of the head that goes with them
	err     error                   // why the last write failed
}

func openReplica(dir string, key *engine.Key) (*replica, error) {
	file, err := engine.OpenSealed(dir, key)
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

// content gives the pairs that the digest of the head is of.
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

// cursor is the position of the replica; nil when it has no state of a fleet.
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

// instance is the identifier of this data directory, made when it has none.
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

// put notes a pair for the next flush.
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

// value returns the value of a key; nil: there is none.
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
	pair, _, err := r.file.Get(key)
	if err != nil {
		return nil
	}
	return pair.Value
}

// stand notes operations on objects, and the position after them, for the next flush: one commit has all of it.
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

// flushUntil flushes until ctx is done, in a task of its own: a slow disk delays nothing else.
func (r *replica) flushUntil(ctx context.Context, log *slog.Logger) {
	for wait := flushEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait = flushEvery; r.flush() != nil {
			wait = flushAgain
			log.Debug("the replica is not written") // the State has the reason
		}
	}
}

// write is flush with writing held.
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

// load returns the content of the file after a flush, which need not succeed.
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

// snapshot returns all objects of the replica as of one head, also if pending writes fail.
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

// packPage is the number of objects in a frame of a state.
const packPage = 500

// pack returns all objects of the replica as a stream.
func (r *replica) pack() (mod int64, data []byte, err error) {
	c, revision, pairs, err := r.snapshot()
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
