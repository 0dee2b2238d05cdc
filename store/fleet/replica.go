package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// The keys of the replica that only this package has.
const (
	cursorKey   = "fleet/cursor"
	instanceKey = "fleet/instance"
)

// flushEvery is how often what was followed is written to the replica. What is lost is followed again.
const flushEvery = time.Second

// cursor says which state the replica has.
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
}

// replica is the file on this machine, and what waits to be written to it.
type replica struct {
	file *engine.File

	mu       sync.Mutex
	revision uint64                  // of the head in the file
	waiting  map[string]*engine.Pair // nil: is removed
	next     uint64                  // the revision of the head that goes with them
	err      error                   // why the last write failed
}

func openReplica(dir string) (*replica, error) {
	file, err := engine.OpenFile(dir)
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

// cursor is what the replica stands at; nil when it has no state of a fleet.
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

// stand notes which state the objects are of, with those that were noted before.
func (r *replica) stand(c cursor, revision uint64) error {
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	r.put(engine.Pair{Key: cursorKey, Value: value, Revision: revision})
	r.mu.Lock()
	r.next = revision
	r.mu.Unlock()
	return nil
}

// flush writes what waits, in one commit. What could not be written waits on.
func (r *replica) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return r.err
	}
	out := engine.Transaction{CompareKey: headKey, CompareRevision: r.revision}
	for key, pair := range r.waiting {
		if pair == nil {
			out.Deletes = append(out.Deletes, key)
		} else {
			out.Puts = append(out.Puts, *pair)
		}
	}
	if r.next != 0 {
		out.Puts = append(out.Puts, engine.Pair{Key: headKey, Revision: r.next})
	}
	if r.err = r.file.Commit(out); r.err != nil {
		return r.err
	}
	r.revision, r.waiting = r.next, map[string]*engine.Pair{}
	return nil
}

// load is what the file would have after a flush, which need not succeed.
func (r *replica) load(prefix string) ([]engine.Pair, error) {
	if err := r.flush(); err == nil {
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
