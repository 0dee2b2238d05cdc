package fleet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// Values of secret objects (Config.Secret) are sealed by a key that the boxes share before they leave a box: etcd, its bundles and
// the replica have them sealed, and the digest covers the sealed form. The store has them open.
//
// A box that cannot open one keeps its last version, follows, and commits nothing: it would decide without that
// object. One that cannot open a shared key alone commits all but Secrets: no object depends on those keys, and
// no other box could open the Secrets that it seals.

// Boxes have secrets in common that are no objects: the key that signs the tokens of the API, and the CA of its
// certificates. Each is a pair sealed/NAME/ID, sealed with its key as the value of a Secret is. A value that
// takes the place of another one has another ID. The ID can be read without a key: a box that cannot open a
// value finds out whether its own one is still in force.

// vault decrypts Secrets and shared keys, and records those that this box cannot decrypt.
type vault struct {
	position
	keys map[string]sharedKey // by name
	// unreadable has the reasons why secret objects and shared keys cannot be opened, by key.
	unreadable map[string]string
	// foreign are the keys of objects in etcd that a program other than svcctl has written.
	foreign map[string]bool
}

// openedPrefix is the prefix of replica keys. For each Secret or shared key that this box cannot decrypt now, such a key holds the last sealed
// version that it could decrypt.
const openedPrefix = "fleet/opened/"

// The names of shared keys: the key that signs tokens, and the CA.
const (
	TokenKey = "tokens"
	CAKey    = "ca"
)

// sharedKey is a key that the boxes of the fleet share, in decrypted form if this box can decrypt it.
type sharedKey struct {
	id    string
	value []byte // nil if this box cannot decrypt it
}

// splitKey splits the etcd key of a shared key into its name and the ID of its value.
func splitKey(key string) (name, id string, is bool) {
	rest, is := strings.CutPrefix(key, sealedPrefix)
	if !is {
		return "", "", false
	}
	name, id, _ = strings.Cut(rest, "/")
	return name, id, true
}

// isNamed reports whether an etcd key belongs to the shared key with a given name.
func isNamed(key, name string) bool {
	of, _, is := splitKey(key)
	return is && of == name
}

// SharedKey returns the shared key of a name, and its ID. The ID is "" if there is none; the value is nil if this
// box cannot decrypt it.
func (e *vault) SharedKey(name string) (id string, value []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.keys[name]
	return k.id, k.value
}

// Sharing returns the reason that this box can share no keys; nil if it can.
func (e *vault) Sharing() error {
	e.mu.Lock()
	format := e.agreed.Format
	e.mu.Unlock()
	switch {
	case e.cfg.Keys.SealsBy() == "":
		return errors.New("this box has no key that its fleet shares: start it with --fleet-key-file")
	case format < accessFormat:
		return fmt.Errorf("the fleet has format %d, and boxes share no tokens before format %d: run `svcctl fleet upgrade` when all boxes read it", format, accessFormat)
	}
	return nil
}

// Sealing implements engine.Shared.
func (e *vault) Sealing() error {
	e.mu.Lock()
	format, shut := e.agreed.Format, e.state.unreadable
	e.mu.Unlock()
	if shut != "" {
		return errors.New("this box has another key than its fleet, and no other box could read what it seals: " + shut)
	}
	return e.cfg.sealing(format)
}

// plainSecrets returns the operations of a commit for the store, with Secrets decrypted. It leaves out Secrets that this box
// cannot decrypt and those whose content is unchanged, and adds those that have become readable. It must run before the replica
// has the commit. e.mu must be held.
func (e *vault) plainSecrets(f engine.Followed) engine.Followed {
	f = e.takeKeys(f)
	puts := f.Puts[:0:0]
	for _, key := range f.Deletes {
		if _, was := e.unreadable[key]; was {
			e.markReadable(key)
		}
	}
	for _, p := range f.Puts {
		if e.cfg.Secret == nil || !e.cfg.Secret(p.Key) {
			puts = append(puts, p)
			continue
		}
		before := e.replica.value(openedPrefix + p.Key)
		if _, was := e.unreadable[p.Key]; !was {
			before = e.replica.value(p.Key)
		}
		old, oldErr := e.cfg.open(p.Key, before)
		value, err := e.cfg.open(p.Key, p.Value)
		if err != nil {
			if _, was := e.unreadable[p.Key]; !was && oldErr == nil {
				e.replica.put(engine.Pair{Key: openedPrefix + p.Key, Value: before, Revision: f.Revision})
			}
			e.unreadable[p.Key] = err.Error()
			continue
		}
		e.markReadable(p.Key)
		if oldErr != nil || !bytes.Equal(old, value) {
			p.Value = value
			puts = append(puts, p)
		}
	}
	for _, p := range e.openable() {
		if !slices.ContainsFunc(f.Puts, func(put engine.Pair) bool { return put.Key == p.Key }) {
			p.Revision = f.Revision
			puts = append(puts, p)
			e.markReadable(p.Key)
		}
	}
	f.Puts = puts
	e.updateUnreadable()
	return f
}

// markReadable records that the value of a key can be decrypted. e.mu must be held.
func (e *vault) markReadable(key string) {
	if _, was := e.unreadable[key]; was {
		delete(e.unreadable, key)
		e.replica.remove(openedPrefix + key)
	}
}

// openable returns the unreadable Secrets that can be decrypted now. e.mu must be held.
func (e *vault) openable() (pairs []engine.Pair) {
	for _, key := range slices.Sorted(maps.Keys(e.unreadable)) {
		if _, _, is := splitKey(key); is {
			continue // see openSharedKeys
		}
		if value, err := e.cfg.open(key, e.replica.value(key)); err == nil {
			pairs = append(pairs, engine.Pair{Key: key, Value: value})
		}
	}
	return pairs
}

// updateUnreadable sets the state from the values that cannot be decrypted. e.mu must be held.
func (e *vault) updateUnreadable() {
	why := ""
	e.state.blind = false
	var secrets, shared []string
	for _, key := range slices.Sorted(maps.Keys(e.unreadable)) {
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
		_, name, _ := strings.Cut(secrets[0], objectPrefix+"Secret/") // the key of a version before a trial or a rollout has a longer prefix
		why = fmt.Sprintf("Secret %s cannot be read: %s", name, e.unreadable[secrets[0]])
		if more := len(e.unreadable) - 1; more > 0 {
			why += fmt.Sprintf(" (and %d more)", more)
		}
		why += "; what this box had of it stays in force, and nothing can be changed here" + remedy
	case len(shared) > 0:
		var names []string
		for _, key := range shared {
			name, _, _ := splitKey(key)
			names = append(names, cmp.Or(map[string]string{TokenKey: "the key of tokens", CAKey: "the CA of the API"}[name], name))
		}
		why = fmt.Sprintf("of what all boxes share, %s cannot be read: %s; this box accepts only those tokens of the fleet that it has seen in force, "+
			"and can change no Secrets, and all else%s", strings.Join(names, " and "), e.unreadable[shared[0]], remedy)
	}
	if why == e.state.unreadable {
		return
	}
	if e.state.unreadable == "" {
		e.state.unreadableSince = time.Now()
	}
	if e.state.unreadable = why; why != "" {
		e.cfg.Log.Warn("something that is sealed cannot be read", "fleet", e.cfg.Fleet, "why", why)
	} else {
		e.cfg.Log.Info("all that is sealed can be read", "fleet", e.cfg.Fleet)
		e.enqueue(engine.Followed{Again: true}) // files whose Secrets were refused
	}
	e.signal()
}

// openPairs decrypts the Secrets among pairs of the replica. If this box cannot decrypt a Secret, it returns the last version that the box could
// decrypt, if there is one.
func (e *vault) openPairs(pairs []engine.Pair) []engine.Pair {
	if e.cfg.Secret == nil || !slices.ContainsFunc(pairs, func(p engine.Pair) bool { return e.cfg.Secret(p.Key) }) {
		return pairs
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	open := make([]engine.Pair, 0, len(pairs))
	for _, p := range pairs {
		value, err := e.cfg.open(p.Key, p.Value)
		if err != nil {
			e.unreadable[p.Key] = err.Error()
			if value, err = e.cfg.open(p.Key, e.replica.value(openedPrefix+p.Key)); err != nil {
				continue
			}
		}
		p.Value = value
		open = append(open, p)
	}
	e.updateUnreadable()
	return open
}

// takeKeys removes the shared keys from the operations of a commit, and decrypts and stores them. It must run before the replica has
// the commit. e.mu must be held.
func (e *vault) takeKeys(f engine.Followed) engine.Followed {
	deletes := f.Deletes[:0:0]
	for _, key := range f.Deletes {
		name, id, is := splitKey(key)
		if !is {
			deletes = append(deletes, key)
			continue
		}
		e.markReadable(key)
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
			e.markReadable(p.Key)
		case had.id == id && had.value != nil: // the same value, sealed by another key
			before := e.replica.value(p.Key)
			if _, err := e.cfg.Keys.Open(p.Key, before); err == nil {
				e.replica.put(engine.Pair{Key: openedPrefix + p.Key, Value: before, Revision: f.Revision})
			}
			value = had.value
		}
		e.markUnreadable(p.Key, err)
		e.keys[name] = sharedKey{id, value}
		if had.id != id || !bytes.Equal(had.value, value) {
			e.signal()
		}
	}
	f.Puts, f.Deletes = puts, deletes
	return f
}

// markUnreadable records that a shared key cannot be decrypted, unless this box has no key file and so uses no shared keys. e.mu must be
// held.
func (e *vault) markUnreadable(key string, err error) {
	if err != nil && e.cfg.Keys.SealsBy() != "" {
		e.unreadable[key] = err.Error()
	}
}

// loadKeys decrypts the shared keys in the replica.
func (e *vault) loadKeys() error {
	pairs, err := e.replica.load(sealedPrefix)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range pairs {
		name, id, _ := splitKey(p.Key)
		value, err := e.cfg.Keys.Open(p.Key, p.Value)
		if err != nil {
			e.markUnreadable(p.Key, err)
			if value, err = e.cfg.Keys.Open(p.Key, e.replica.value(openedPrefix+p.Key)); err != nil {
				value = nil
			}
		}
		e.keys[name] = sharedKey{id, value}
	}
	e.updateUnreadable()
	return nil
}

// openSharedKeys decrypts shared keys that were unreadable and whose key is in the key file now.
func (e *vault) openSharedKeys() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.unreadable {
		name, id, is := splitKey(key)
		if !is || e.keys[name].id != id {
			continue
		}
		if value, err := e.cfg.Keys.Open(key, e.replica.value(key)); err == nil {
			e.keys[name] = sharedKey{id, value}
			e.markReadable(key)
			e.signal()
		}
	}
	e.updateUnreadable()
}

// noteForeign checks the operations of an etcd transaction without a head. A transaction that applies a bundle writes the objects that this
// box has already. Any other write is by another program. It is recorded and not followed: a box that reads all objects finds a wrong
// digest. mod is the revision of etcd.
func (e *vault) noteForeign(ops []operation, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if mod <= e.read.mod { // older than the objects of this box
		return
	}
	for i := range ops {
		op := &ops[i]
		if has, is := e.content.sums[op.Key]; op.Remove && !is || !op.Remove && is && has == sumOf(op.Key, op.Value) {
			delete(e.foreign, op.Key)
			continue
		}
		if e.foreign == nil {
			e.foreign = map[string]bool{}
		}
		e.foreign[op.Key] = true
		what := "written"
		if op.Remove {
			what = "removed"
		}
		e.cfg.Log.Warn("another program than the boxes of the fleet has "+what+" a key in etcd; it is not followed", "key", e.key(op.Key))
		e.signal()
	}
}

// forgetForeign removes those keys from the recorded foreign writes that a later commit has written. e.mu must be held.
func (e *vault) forgetForeign(ops []operation) {
	for i := range ops {
		delete(e.foreign, ops[i].Key)
	}
}

// foreignKeys returns a text with the keys that another program has written or removed; "" for none. e.mu must be held.
func (e *vault) foreignKeys() string {
	switch keys := slices.Sorted(maps.Keys(e.foreign)); len(keys) {
	case 0:
		return ""
	case 1:
		return e.key(keys[0])
	default:
		return fmt.Sprintf("%s and %d more", e.key(keys[0]), len(keys)-1)
	}
}
