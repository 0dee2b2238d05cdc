package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// Boxes have secrets in common that are no objects: the key that signs the tokens of the API, and the CA of its
// certificates. Each is a pair sealed/NAME/ID, sealed with its key as the value of a Secret is. A value that
// takes the place of another one has another ID. The ID can be read without a key: a box that cannot open a
// value knows whether the one that it has is in force still.

// The names of shared keys.
const (
	TokenKey = "tokens"
	CAKey    = "ca"
)

// sharedKey is a shared key as this box has it.
type sharedKey struct {
	id    string
	value []byte // nil: this box cannot open it
}

// ErrReplaced means that the key in force is not the one that was to be replaced.
var ErrReplaced = errors.New("another box has replaced it")

// SharedKey returns the value that all boxes have in common under a name, and its ID. The ID is "" while there
// is none; the value is nil when this box cannot open it.
func (e *Engine) SharedKey(name string) (id string, value []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.keys[name]
	return k.id, k.value
}

// Sharing is why no keys can be shared; nil: they can.
func (e *Engine) Sharing() error {
	e.mu.Lock()
	format := e.format
	e.mu.Unlock()
	switch {
	case e.cfg.Keys.SealsBy() == "":
		return errors.New("this box has no key that its fleet shares: start it with --fleet-key-file")
	case format < accessFormat:
		return fmt.Errorf("the fleet has format %d, and boxes share no tokens before format %d: run `svcctl fleet upgrade` when all boxes read it", format, accessFormat)
	}
	return nil
}

// ReplaceKey makes a value the one that all boxes have under a name, in place of the one with an ID, "" for none.
// Errors: ErrReplaced; engine.AwayError when nothing was changed, and others when that is not known.
func (e *Engine) ReplaceKey(ctx context.Context, name, before string, value []byte) error {
	if err := e.origin.refusal(); err != nil {
		return err
	}
	if err := e.Sharing(); err != nil {
		return &engine.AwayError{Why: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	id := newID()
	put := operation{key: sealedPrefix + name + "/" + id}
	var err error
	if put.value, err = e.cfg.Keys.Seal(put.key, value); err != nil {
		return &engine.AwayError{Why: err.Error()}
	}
	for {
		e.mu.Lock()
		h, has, refusal, shut := e.read, e.keys[name].id, e.state.refusal(), e.state.shut
		ops := []operation{put}
		if before != "" {
			ops = append(ops, operation{key: sealedPrefix + name + "/" + before, remove: true})
		}
		next := &head{Revision: h.Revision + 1, ID: newID(), Previous: h.ID, Box: e.cfg.Box, Epoch: h.Epoch, Format: h.Format}
		next.Objects, next.Digest = e.content.after(ops)
		e.mu.Unlock()
		switch {
		case has == id:
			return nil // it took place, whatever was answered
		case refusal != nil:
			return refusal
		case shut != "":
			return &engine.AwayError{Why: shut}
		case has != before:
			return ErrReplaced
		}
		switch err := e.putKeys(ctx, h, next, ops); {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", engine.ErrUnsettled, err)
		case err != nil:
			return e.away(err)
		}
	}
}

// putKeys tries once to make a head with operations on shared keys follow on another one, and waits until this box
// has followed what came of that.
func (e *Engine) putKeys(ctx context.Context, h, next *head, ops []operation) error {
	if h.Bundle != "" {
		if err := e.unfold(ctx); err != nil {
			return err
		}
	} else {
		value, err := next.encode()
		if err != nil {
			return err
		}
		all := []clientv3.Op{clientv3.OpPut(e.key(headKey), value)}
		for i := range ops {
			all = append(all, e.op(&ops[i]))
		}
		if _, _, err := e.guarded(ctx, h, all...); err != nil && !isUnknown(err) {
			return err
		} // else it is seen in what follows
	}
	return e.wait(ctx, func() bool { return e.read.mod != h.mod || e.state.refusal() != nil })
}

// takeKeys takes shared keys out of a commit that the store gets. It comes before the replica has the commit. e.mu must
// be held.
func (e *Engine) takeKeys(f engine.Followed) engine.Followed {
	deletes := f.Deletes[:0:0]
	for _, key := range f.Deletes {
		name, id, is := splitKey(key)
		if !is {
			deletes = append(deletes, key)
			continue
		}
		e.reopen(key)
		if e.keys[name].id == id {
			delete(e.keys, name)
		}
	}
	puts := f.Puts[:0:0]
	for _, p := range f.Puts {
		name, id, is := splitKey(p.Key)
		if !is {
			puts = append(puts, p)
			continue
		}
		value, err := e.cfg.Keys.Open(p.Key, p.Value)
		had := e.keys[name]
		switch {
		case err == nil:
			e.reopen(p.Key)
		case had.id == id && had.value != nil: // it is the same one, sealed by another key
			if before := e.replica.value(p.Key); e.keyed(p.Key, before) {
				e.replica.put(engine.Pair{Key: openedPrefix + p.Key, Value: before, Revision: f.Revision})
			}
			value = had.value
		}
		e.shutKey(p.Key, err)
		e.keys[name] = sharedKey{id, value}
		if had.id != id || !bytes.Equal(had.value, value) {
			e.signal()
		}
	}
	f.Puts, f.Deletes = puts, deletes
	return f
}

// keyed reports whether a value is sealed by a key that this box has.
func (e *Engine) keyed(key string, value []byte) bool {
	_, err := e.cfg.Keys.Open(key, value)
	return err == nil
}

// shutKey notes that a shared key cannot be opened. A box that has no keys at all is one of its own as to them. e.mu
// must be held.
func (e *Engine) shutKey(key string, err error) {
	if err != nil && e.cfg.Keys.SealsBy() != "" {
		e.shut[key] = err.Error()
	}
}

// loadKeys takes the shared keys of the replica.
func (e *Engine) loadKeys() error {
	pairs, err := e.replica.load(sealedPrefix)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range pairs {
		name, id, is := splitKey(p.Key)
		if !is {
			continue
		}
		value, err := e.cfg.Keys.Open(p.Key, p.Value)
		if err != nil {
			e.shutKey(p.Key, err)
			if value, err = e.cfg.Keys.Open(p.Key, e.replica.value(openedPrefix+p.Key)); err != nil {
				value = nil
			}
		}
		e.keys[name] = sharedKey{id, value}
	}
	e.noteShut()
	return nil
}

// reopenKeys opens shared keys for which the key has come.
func (e *Engine) reopenKeys() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.shut {
		name, id, is := splitKey(key)
		if !is || e.keys[name].id != id {
			continue
		}
		if value, err := e.cfg.Keys.Open(key, e.replica.value(key)); err == nil {
			e.keys[name] = sharedKey{id, value}
			e.reopen(key)
			e.signal()
		}
	}
	e.noteShut()
}

// splitKey gives the name and the ID in the key of a shared key.
func splitKey(key string) (name, id string, is bool) {
	rest, is := strings.CutPrefix(key, sealedPrefix)
	if !is {
		return "", "", false
	}
	name, id, _ = strings.Cut(rest, "/")
	return name, id, true
}

// isNamed reports whether a key is that of a shared key of a name.
func isNamed(key, name string) bool {
	of, _, is := splitKey(key)
	return is && of == name
}
