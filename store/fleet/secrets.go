package fleet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// Values of secret objects (Config.Secret) are sealed by a key that the boxes share before they leave a box: in etcd, in
// its bundles and in the replica they are bytes as others, of which the digest is too. The store has them open.
//
// A box that cannot open one has the version before it, follows, and commits nothing: it would decide on
// what it cannot see. One that cannot open a shared key alone commits all but Secrets: no object depends on those keys, and
// Secrets that it sealed no other box could open.

// openedPrefix begins the keys of sealed objects: the last version that this box could open of one that it cannot
// open now.
const openedPrefix = "fleet/opened/"

// Sealing implements engine.Shared.
func (e *Engine) Sealing() error {
	e.mu.Lock()
	format, shut := e.format, e.state.shut
	e.mu.Unlock()
	if shut != "" {
		return errors.New("this box has another key than its fleet, and no other box could read what it seals: " + shut)
	}
	return e.cfg.sealing(format)
}

// Tries implements engine.Shared.
func (e *Engine) Tries() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.format >= sealedFormat {
		return nil
	}
	return &engine.AwayError{Why: fmt.Sprintf("the fleet has format %d, which has no trials: run `svcctl fleet upgrade` when all boxes have a version that reads format %d", e.format, sealedFormat)}
}

// Rolls implements engine.Shared.
func (e *Engine) Rolls() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.format >= rolloutFormat {
		return nil
	}
	return &engine.AwayError{Why: fmt.Sprintf("the fleet has format %d, which has no rollouts: run `svcctl fleet upgrade` when all boxes have a version that reads format %d", e.format, rolloutFormat)}
}

// sealing is why no Secrets may be stored in a fleet of a format; nil: they may.
func (c *Config) sealing(of int) error {
	switch {
	case c.Keys.SealsBy() == "":
		return errors.New("a fleet keeps Secrets sealed by a key that its boxes share, and this box has none: start it with --fleet-key-file")
	case of < sealedFormat:
		return fmt.Errorf("the fleet has format %d, which has no sealed Secrets: run `svcctl fleet upgrade` when all boxes have a version that reads format %d", of, sealedFormat)
	}
	return nil
}

// seal seals the value of a secret object. Other values, and those that are sealed, stay as they are.
func (c *Config) seal(key string, value []byte) ([]byte, error) {
	if c.Secret == nil || !c.Secret(key) || engine.IsSealed(value) {
		return value, nil
	}
	sealed, err := c.Keys.Seal(key, value)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w: give the keys of the fleet with --fleet-key-file", key, err)
	}
	return sealed, nil
}

// open opens the value of a secret object.
func (c *Config) open(key string, value []byte) ([]byte, error) {
	if c.Secret == nil || !c.Secret(key) {
		return value, nil
	}
	return c.Keys.Open(key, value)
}

// unsealed is a commit as the store gets it: of secret objects that this box cannot open it has nothing, and what it
// could not open before and can now is in it too. A secret object that says what it did before is left out. It
// comes before the replica has the commit. e.mu must be held.
func (e *Engine) unsealed(f engine.Followed) engine.Followed {
	f = e.takeKeys(f)
	puts := f.Puts[:0:0]
	for _, key := range f.Deletes {
		if _, was := e.shut[key]; was {
			e.reopen(key)
		}
	}
	for _, p := range f.Puts {
		if e.cfg.Secret == nil || !e.cfg.Secret(p.Key) {
			puts = append(puts, p)
			continue
		}
		before := e.replica.value(openedPrefix + p.Key)
		if _, was := e.shut[p.Key]; !was {
			before = e.replica.value(p.Key)
		}
		old, oldErr := e.cfg.open(p.Key, before)
		value, err := e.cfg.open(p.Key, p.Value)
		if err != nil {
			if _, was := e.shut[p.Key]; !was && oldErr == nil {
				e.replica.put(engine.Pair{Key: openedPrefix + p.Key, Value: before, Revision: f.Revision})
			}
			e.shut[p.Key] = err.Error()
			continue
		}
		e.reopen(p.Key)
		if oldErr != nil || !bytes.Equal(old, value) {
			p.Value = value
			puts = append(puts, p)
		}
	}
	for _, p := range e.openable() {
		if !slices.ContainsFunc(f.Puts, func(put engine.Pair) bool { return put.Key == p.Key }) {
			p.Revision = f.Revision
			puts = append(puts, p)
			e.reopen(p.Key)
		}
	}
	f.Puts = puts
	e.noteShut()
	return f
}

// reopen notes that a secret object is not shut any more. e.mu must be held.
func (e *Engine) reopen(key string) {
	if _, was := e.shut[key]; was {
		delete(e.shut, key)
		e.replica.remove(openedPrefix + key)
	}
}

// openable are the secret objects that could not be opened when they came, and can be now. e.mu must be held.
func (e *Engine) openable() (pairs []engine.Pair) {
	for _, key := range slices.Sorted(maps.Keys(e.shut)) {
		if _, _, is := splitKey(key); is {
			continue // see reopenKeys
		}
		if value, err := e.cfg.open(key, e.replica.value(key)); err == nil {
			pairs = append(pairs, engine.Pair{Key: key, Value: value})
		}
	}
	return pairs
}

// noteShut has the State say what cannot be opened. e.mu must be held.
func (e *Engine) noteShut() {
	why := ""
	e.state.blind = false
	var secrets, shared []string
	for _, key := range slices.Sorted(maps.Keys(e.shut)) {
		if _, _, is := splitKey(key); is {
			shared = append(shared, key)
		} else {
			secrets = append(secrets, key)
		}
	}
	const remedy = ": put that key into the file of --fleet-key-file, as the other boxes have it; it is read again by itself"
	switch {
	case len(secrets) > 0:
		e.state.blind = true
		_, name, _ := strings.Cut(secrets[0], objectPrefix+"Secret/") // what it was before a trial or a rollout has more in front
		why = fmt.Sprintf("Secret %s cannot be read: %s", name, e.shut[secrets[0]])
		if more := len(e.shut) - 1; more > 0 {
			why += fmt.Sprintf(" (and %d more)", more)
		}
		why += "; what this box had of it stays in force, and nothing can be changed here" + remedy
	case len(shared) > 0:
		var names []string
		for _, key := range shared {
			name, _, _ := splitKey(key)
			names = append(names, cmp.Or(map[string]string{TokenKey: "the key of tokens", CAKey: "the CA of the API"}[name], name))
		}
		why = fmt.Sprintf("of what all boxes share, %s cannot be read: %s; this box takes no tokens of the fleet but those that it knows to be in force, "+
			"and can change no Secrets, and all else%s", strings.Join(names, " and "), e.shut[shared[0]], remedy)
	}
	if why == e.state.shut {
		return
	}
	if e.state.shut == "" {
		e.state.shutSince = time.Now()
	}
	if e.state.shut = why; why != "" {
		e.cfg.Log.Warn("something that is sealed cannot be read", "fleet", e.cfg.Fleet, "why", why)
	} else {
		e.cfg.Log.Info("all that is sealed can be read", "fleet", e.cfg.Fleet)
		e.enqueue(engine.Followed{Again: true}) // files whose Secrets were refused
	}
	e.signal()
}

// loaded are pairs of the replica as the store opens on them: secret objects are open. Of those that this box cannot
// open it has the version before.
func (e *Engine) loaded(pairs []engine.Pair) []engine.Pair {
	if e.cfg.Secret == nil || !slices.ContainsFunc(pairs, func(p engine.Pair) bool { return e.cfg.Secret(p.Key) }) {
		return pairs
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	open := make([]engine.Pair, 0, len(pairs))
	for _, p := range pairs {
		value, err := e.cfg.open(p.Key, p.Value)
		if err != nil {
			e.shut[p.Key] = err.Error()
			if value, err = e.cfg.open(p.Key, e.replica.value(openedPrefix+p.Key)); err != nil {
				continue
			}
		}
		p.Value = value
		open = append(open, p)
	}
	e.noteShut()
	return open
}

// reopenShut has the store get secret objects for which the key has come: with a commit of no objects, since what
// readers see changes with a revision. It does nothing while there are none.
func (e *Engine) reopenShut(ctx context.Context) error {
	if e.client == nil { // a leaf gets them with the next commit of any box
		return nil
	}
	e.mu.Lock()
	h, can := e.read, len(e.openable()) > 0
	follows := e.state.kind == Following && len(e.queue) == 0
	e.mu.Unlock()
	if !can || !follows || h.Bundle != "" {
		return nil
	}
	next := *h
	next.ID, next.Previous, next.Box, next.Note, next.Revision = newID(), h.ID, e.cfg.Box, nil, h.Revision+1
	value, err := next.encode()
	if err != nil {
		return err
	}
	_, _, err = e.guarded(ctx, h, clientv3.OpPut(e.key(headKey), value)) // overtaken: that commit does it
	return err
}

// Reseal seals all Secrets and shared keys of a fleet by the first of the keys, in one commit. It returns how many there
// are, and how many of them were sealed by another key.
func Reseal(ctx context.Context, cfg Config) (all, changed int, err error) {
	e, err := cfg.visit()
	if err != nil {
		return 0, 0, err
	}
	defer e.client.Close()
	fleet, _, err := e.settings(ctx)
	if err == nil {
		err = cfg.sealing(fleet.Format)
	}
	if err != nil {
		return 0, 0, err
	}
	now, have, err := e.everything(ctx)
	if err != nil {
		return 0, 0, err
	}
	var ops []operation
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if !engine.IsSealed(have[key]) {
			continue
		}
		all++
		value, err := cfg.Keys.Open(key, have[key])
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w; nothing is changed", key, err)
		}
		if cfg.Keys.Sealed(have[key]) {
			continue
		}
		if value, err = cfg.Keys.Seal(key, value); err != nil {
			return 0, 0, err
		}
		ops = append(ops, operation{key: key, value: value})
	}
	if len(ops) == 0 {
		return all, 0, nil
	}
	next := &head{Revision: now.Revision + 1, ID: newID(), Previous: now.ID, Box: cfg.Box, Epoch: now.Epoch, Format: now.Format}
	next.Objects, next.Digest = e.content.after(ops)
	err = e.flip(ctx, now, next, ops)
	if errors.Is(err, errOvertaken) {
		err = errors.New("a box has changed something at the same moment, and nothing was sealed: try again")
	}
	return all, len(ops), err
}

// OpenSecrets opens the secret objects in the data directory of a box that has left its fleet, which no process has open:
// `svcctl serve` without --fleet starts from it. It returns how many there are.
func OpenSecrets(cfg Config, dir string) (opened int, err error) {
	err = engine.AsOwner(dir, func() (err error) {
		opened, err = cfg.openSecrets(dir)
		return err
	})
	return opened, err
}

func (c *Config) openSecrets(dir string) (opened int, err error) {
	file, err := engine.OpenSealed(dir, c.DataKey)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	heads, err := file.Load(headKey)
	if err != nil {
		return 0, err
	}
	var pairs []engine.Pair
	for _, prefix := range []string{objectPrefix, trialPrefix, rolloutPrefix} {
		some, err := file.Load(prefix)
		if err != nil {
			return 0, err
		}
		pairs = append(pairs, some...)
	}
	if len(heads) == 0 {
		return 0, fmt.Errorf("%s has no objects of svcctl", dir)
	}
	out := engine.Transaction{CompareKey: headKey, CompareRevision: heads[0].Revision}
	shared, err := file.Load(sealedPrefix)
	if err != nil {
		return 0, err
	}
	for _, p := range shared { // the fleet's
		out.Deletes = append(out.Deletes, p.Key)
	}
	for _, p := range pairs {
		if !c.Secret(p.Key) || !engine.IsSealed(p.Value) {
			continue
		}
		if p.Value, err = c.Keys.Open(p.Key, p.Value); err != nil {
			return 0, fmt.Errorf("%s: %w; nothing is changed", p.Key, err)
		}
		out.Puts = append(out.Puts, p)
	}
	if len(out.Puts)+len(out.Deletes) == 0 {
		return 0, nil
	}
	return len(out.Puts), file.Commit(out)
}
