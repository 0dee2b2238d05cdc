package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
)

// hasKey waits until a box has a shared key.
func (b *box) hasKey(t *testing.T, name, value string) (id string) {
	t.Helper()
	eventually(t, "box "+b.cfg.Box+" has "+value, func() bool {
		var have []byte
		id, have = b.engine.SharedKey(name)
		return string(have) == value
	})
	return id
}

func (b *box) replace(t *testing.T, name, before, value string) error {
	t.Helper()
	eventually(t, "box "+b.cfg.Box+" follows", func() bool { return b.engine.State().Kind == fleet.Following && b.engine.Sharing() == nil })
	return b.engine.ReplaceKey(t.Context(), name, before, []byte(value))
}

// Test610 shares keys: what one box makes or replaces all boxes have that can open it, from the replica too. A box that
// cannot open it knows that what it had is not in force any more.
func Test610_keys_are_those_of_all_boxes(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	ofB := newKeyFile(t, 1)
	a, b, none := c.open(c.withKeys("a", newKeyFile(t, 1, 2)), storeConfig), c.open(c.withKeys("b", ofB), storeConfig), c.open(c.withoutKeys("none"), storeConfig)
	// Of several boxes that make the first one at once, one does.
	var wg sync.WaitGroup
	var errs [2]error
	for n, x := range []*box{a, b} {
		wg.Go(func() { errs[n] = x.replace(t, fleet.TokenKey, "", "of "+x.cfg.Box) })
	}
	wg.Wait()
	first := "of a"
	if errs[0] != nil {
		first = "of b"
	}
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), fleet.ErrReplaced) {
		t.Fatalf("two boxes make the first key: %v", errs)
	}
	id := a.hasKey(t, fleet.TokenKey, first)
	if other := b.hasKey(t, fleet.TokenKey, first); other != id {
		t.Errorf("box a names it %s, and box b %s", id, other)
	}
	if err := none.create("web"); err != nil {
		t.Errorf("a box without keys, which shares none, may not write: %v", err)
	}
	if id, value := none.engine.SharedKey(fleet.TokenKey); id == "" || value != nil {
		t.Errorf("a box without keys has %q, %q", id, value)
	}
	if err := none.engine.ReplaceKey(t.Context(), fleet.TokenKey, id, []byte("never")); err == nil || !strings.Contains(err.Error(), "--fleet-key-file") {
		t.Errorf("a box without keys replaces one: %v", err)
	}
	if err := b.replace(t, fleet.TokenKey, "another", "never"); !errors.Is(err, fleet.ErrReplaced) {
		t.Errorf("a key is replaced in place of one that is not in force: %v", err)
	}
	// Sealed anew by a key that box b does not have it is the same one, over a restart too.
	if all, changed, err := fleet.Reseal(t.Context(), c.withKeys("x", newKeyFile(t, 2, 1))); all != 1 || changed != 1 || err != nil {
		t.Errorf("%d of %d keys sealed anew, %v", changed, all, err)
	}
	eventually(t, "box b says that it cannot read it", func() bool { return b.engine.State().Kind == fleet.KeyMissing })
	if now := b.hasKey(t, fleet.TokenKey, first); now != id {
		t.Errorf("sealed anew it is %s, and was %s", now, id)
	}
	b.stop()
	b = c.open(c.withDir("b", ofB, b.cfg.Dir), storeConfig)
	if now := b.hasKey(t, fleet.TokenKey, first); now != id {
		t.Errorf("after a restart it is %s, and was %s", now, id)
	}
	// Replaced, it is in force no more on box b, which cannot open the new one until it has the key.
	if err := a.replace(t, fleet.TokenKey, id, "the second"); err != nil {
		t.Fatal(err)
	}
	b.hasKey(t, fleet.TokenKey, "the second") // box a seals by key 1
	ofB.has(9)
	late := c.withKeys("late", newKeyFile(t, 1))
	second := a.hasKey(t, fleet.TokenKey, "the second")
	if err := a.replace(t, fleet.TokenKey, second, "the third"); err != nil {
		t.Fatal(err)
	}
	third := a.hasKey(t, fleet.TokenKey, "the third")
	eventually(t, "box b knows that there is another one", func() bool {
		id, value := b.engine.SharedKey(fleet.TokenKey)
		return id == third && value == nil && b.engine.State().Kind == fleet.KeyMissing
	})
	ofB.has(9, 1)
	b.hasKey(t, fleet.TokenKey, "the third")
	eventually(t, "box b may write", func() bool { return b.create("more") == nil })
	c.open(late, storeConfig).hasKey(t, fleet.TokenKey, "the third")
	same(t, a, b)
	// From the replica, with etcd away.
	b.stop()
	c.kill(0)
	b = c.open(c.withDir("b", ofB, b.cfg.Dir), storeConfig)
	b.hasKey(t, fleet.TokenKey, "the third")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.engine.ReplaceKey(ctx, fleet.TokenKey, third, []byte("never")); err == nil {
		t.Error("a key is replaced while etcd is away")
	}
	text, err := os.ReadFile(filepath.Join(b.cfg.Dir, "state.db"))
	if err != nil || bytes.Contains(text, []byte("the third")) {
		t.Errorf("the replica has the key as it is (%v)", err)
	}
}

// Test611 brings a backup back: tokens end, as nobody knows which were revoked since, and the CA stays.
func Test611_tokens_end_with_a_restore(t *testing.T) {
	c := ownFleet(t)
	c.init()
	keys := newKeyFile(t, 1)
	a := c.open(c.withKeys("a", keys), storeConfig)
	for name, value := range map[string]string{fleet.TokenKey: "signs", fleet.CAKey: "certifies"} {
		if err := a.replace(t, name, "", value); err != nil {
			t.Fatal(err)
		}
	}
	backup := filepath.Join(t.TempDir(), "backup")
	if _, _, err := fleet.Backup(t.Context(), c.config("backup"), backup); err != nil {
		t.Fatal(err)
	}
	before := a.hasKey(t, fleet.TokenKey, "signs")
	if err := a.replace(t, fleet.TokenKey, before, "signs now"); err != nil {
		t.Fatal(err)
	}
	ends := func(x *box, how string) {
		t.Helper()
		eventually(t, how+" ends all tokens", func() bool { id, _ := x.engine.SharedKey(fleet.TokenKey); return id == "" })
		x.hasKey(t, fleet.CAKey, "certifies")
	}
	if _, err := fleet.Restore(t.Context(), c.config("restore"), backup); err != nil {
		t.Fatal(err)
	}
	ends(a, "fleet restore")
	if err := a.replace(t, fleet.TokenKey, "", "signs again"); err != nil {
		t.Fatal(err)
	}
	same(t, a, c.open(c.withKeys("b", keys), storeConfig))
	// Another fleet that is made of the backup has the CA.
	init := c.withKeys("init", keys)
	init.Fleet += "-other"
	if _, err := fleet.Init(t.Context(), init, backup); err != nil {
		t.Fatal(err)
	}
	other := c.withKeys("o", keys)
	other.Fleet += "-other"
	ends(c.open(other, storeConfig), "fleet init --from")
	// A box that leaves takes neither along.
	a.stop()
	if n, err := fleet.OpenSecrets(a.cfg, a.cfg.Dir); n != 0 || err != nil {
		t.Errorf("%d Secrets opened, %v", n, err)
	}
	file, err := engine.OpenFile(a.cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if pairs, err := file.Load("sealed/"); len(pairs) != 0 || err != nil {
		t.Errorf("a box that has left has %d keys of the fleet, %v", len(pairs), err)
	}
}

// Test624_a_wrong_key_and_no_Secret: a box that cannot open the keys that boxes share, in a fleet without Secrets, says so and changes
// everything but Secrets and those keys. Nothing that it changes depends on them, and no other box could open what it seals.
func Test624_a_wrong_key_and_no_Secret(t *testing.T) {
	c := ownFleet(t)
	c.init()
	file := newKeyFile(t, 9)
	a, b := c.open(c.withKeys("a", newKeyFile(t, 1)), storeConfig), c.open(c.withKeys("b", file), storeConfig)
	for name, value := range map[string]string{fleet.TokenKey: "signs", fleet.CAKey: "certifies"} {
		if err := a.replace(t, name, "", value); err != nil {
			t.Fatal(err)
		}
	}
	id := a.hasKey(t, fleet.TokenKey, "signs")
	eventually(t, "box b says what it cannot read, and what to do", func() bool {
		s := b.engine.State()
		return s.Kind == fleet.KeyMissing && strings.Contains(s.Why, "the CA of the API and the key of tokens cannot be read") && strings.Contains(s.Why, "can change no Secrets, and all else") &&
			strings.Contains(s.Why, "--fleet-key-file")
	})
	if err := b.create("web"); err != nil {
		t.Errorf("a Service: %v", err)
	}
	if err := b.putSecret("s", "sealed by another key"); err == nil || !strings.Contains(err.Error(), "another key than its fleet") {
		t.Errorf("a Secret: %v", err)
	}
	var away *engine.AwayError
	if err := b.engine.ReplaceKey(t.Context(), fleet.TokenKey, id, []byte("never")); !errors.As(err, &away) || !strings.Contains(err.Error(), "--fleet-key-file") {
		t.Errorf("the key of tokens: %v", err)
	}
	same(t, a, b)
	if a.clusterIP("web") == "" {
		t.Error("box a has not the Service of box b")
	}
	// A Secret that it cannot open is another thing: it would decide on what it cannot see.
	if err := a.putSecret("s", "as it is"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "box b has heard of the Secret", func() bool { return strings.Contains(b.engine.State().Why, "Secret default/s cannot be read") })
	if err := b.create("never"); !errors.As(err, &away) {
		t.Errorf("a Service while a Secret cannot be read: %v", err)
	}
	file.has(1)
	eventually(t, "box b may write", func() bool { return b.putSecret("t", "with the key of all") == nil })
	eventually(t, "box a reads it", func() bool { return a.secret("t") == "with the key of all" })
}
