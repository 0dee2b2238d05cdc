package fleet_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// keyFile is a file with the keys of a fleet.
type keyFile struct {
	t    testing.TB
	path string
}

func newKeyFile(t testing.TB, keys ...byte) keyFile {
	t.Helper()
	f := keyFile{t, filepath.Join(t.TempDir(), "keys")}
	f.has(keys...)
	return f
}

// has puts another file into place.
func (f keyFile) has(keys ...byte) {
	f.t.Helper()
	var text strings.Builder
	for _, key := range keys {
		text.WriteString(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key}, 32)) + "\n")
	}
	if err := errors.Join(os.WriteFile(f.path+".new", []byte(text.String()), 0o600), os.Rename(f.path+".new", f.path)); err != nil {
		f.t.Fatal(err)
	}
}

func (f keyFile) keys() *engine.Keys {
	f.t.Helper()
	keys, err := engine.ReadKeys(f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	return keys
}

// withKeys is the configuration of a box that has these keys.
func (c *cluster) withKeys(name string, f keyFile) fleet.Config {
	cfg := c.config(name)
	cfg.Keys = f.keys()
	return cfg
}

func secretRef(name string) object.Ref {
	return object.Ref{Kind: object.KindSecret, Namespace: "default", Name: name}
}

// putSecret creates a Secret, or gives it another value.
func (b *box) putSecret(name, value string) error {
	s := &object.Secret{
		TypeMeta: object.TypeMeta{Kind: object.KindSecret, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"password": []byte(value)},
	}
	before, _ := b.Get(secretRef(name))
	results, err := b.Write(store.Write{Ref: secretRef(name), Object: s, Create: before == nil, By: store.Caller{User: "test"}})
	if err == nil {
		err = results[0].Err
	}
	return err
}

// secret is the value of a Secret; "" when there is none.
func (b *box) secret(name string) string {
	o, _ := b.Get(secretRef(name))
	if o == nil {
		return ""
	}
	return string(o.(*object.Secret).Data["password"])
}

// hasNothingOf asserts that etcd has a Secret, and its value in no revision.
func (c *cluster) hasNothingOf(name string, values ...string) {
	c.t.Helper()
	client := c.client()
	resp, err := client.Get(c.t.Context(), "", clientv3.WithPrefix())
	if err != nil {
		c.t.Fatal(err)
	}
	there := false
	for rev := resp.Header.Revision; rev > 0; rev-- {
		resp, err := client.Get(c.t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(rev))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			there = there || strings.HasSuffix(string(kv.Key), "object/Secret/default/"+name)
			for _, value := range values {
				if bytes.Contains(kv.Value, []byte(value)) || bytes.Contains(kv.Value, []byte(base64.StdEncoding.EncodeToString([]byte(value)))) {
					c.t.Fatalf("%s has the value at revision %d", kv.Key, rev)
				}
			}
		}
	}
	if !there {
		c.t.Errorf("etcd has no Secret %s", name)
	}
}

// A box that cannot open a Secret says so, has the version before it, over a restart too, and changes nothing. With the
// key it goes on.
func Test571_a_box_lacks_the_key_of_a_Secret(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	ofA, ofB := newKeyFile(t, 1), newKeyFile(t, 1)
	a, b := c.open(c.withKeys("a", ofA), storeConfig), c.open(c.withKeys("b", ofB), storeConfig)
	if err := a.putSecret("s", "the first value"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "box b has it", func() bool { return b.secret("s") == "the first value" })
	ofA.has(3, 1)
	if err := a.putSecret("s", "the second value"); err != nil {
		t.Fatal(err)
	}
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	lacks := func(when string) {
		t.Helper()
		eventually(t, "box b follows "+when, func() bool { return b.clusterIP("web") != "" })
		eventually(t, "box b says so "+when, func() bool {
			s := b.engine.State()
			return s.Kind == fleet.KeyMissing && strings.Contains(s.Why, "Secret default/s cannot be read") && strings.Contains(s.Why, "--fleet-key-file")
		})
		if got := b.secret("s"); got != "the first value" {
			t.Errorf("%s box b has %q", when, got)
		}
		var away *engine.AwayError
		if err := b.create("never"); !errors.As(err, &away) || !strings.Contains(err.Error(), "--fleet-key-file") {
			t.Errorf("%s a write gave %v", when, err)
		}
		if err := b.Fresh(t.Context()); err != nil {
			t.Errorf("%s a fresh read gave %v", when, err)
		}
	}
	lacks("without the key")
	b.stop()
	b = c.open(c.withDir("b", ofB, b.cfg.Dir), storeConfig)
	lacks("after a restart")
	before := b.Revision()
	ofB.has(1, 3)
	eventually(t, "box b has the second value", func() bool { return b.secret("s") == "the second value" })
	if changes := b.Changes(before); !changes.All && len(changes.Secrets) != 1 {
		t.Errorf("who follows box b is to look at %+v", changes)
	}
	eventually(t, "box b may write", func() bool { return b.create("more") == nil })
	if err := b.putSecret("s", "the third value"); err != nil { // by key 1, which both have
		t.Fatal(err)
	}
	eventually(t, "box a has it", func() bool { return a.secret("s") == "the third value" })
	same(t, a, b)
	// A box with no key, and one with another from the start, have all but the Secret, until that is gone.
	other, none := c.open(c.withKeys("other", newKeyFile(t, 9)), storeConfig), c.open(c.withoutKeys("none"), storeConfig)
	for _, x := range []*box{other, none} {
		eventually(t, "it says so", func() bool { return x.engine.State().Kind == fleet.KeyMissing })
		if x.secret("s") != "" || x.clusterIP("web") != a.clusterIP("web") {
			t.Errorf("%s has %q, and web at %s", x.cfg.Box, x.secret("s"), x.clusterIP("web"))
		}
	}
	if err := none.putSecret("s", "never"); err == nil || !strings.Contains(err.Error(), "--fleet-key-file") {
		t.Errorf("a Secret on a box without a key: %v", err)
	}
	if r, err := a.Write(store.Write{Ref: secretRef("s"), Delete: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	eventually(t, "a box with another key may write", func() bool { return other.create("x") == nil })
	eventually(t, "a box without a key may write", func() bool { return none.create("y") == nil })
	c.hasNothingOf("s", "the first value", "the second value", "the third value")
}

func (c *cluster) withDir(name string, f keyFile, dir string) fleet.Config {
	cfg := c.withKeys(name, f)
	cfg.Dir = dir
	return cfg
}

func (c *cluster) withoutKeys(name string) fleet.Config { return c.config(name) }

// A new key takes the place of the old one: both open, the new one seals, all Secrets are sealed anew, the old one goes.
func Test572_the_key_of_a_fleet_is_changed(t *testing.T) {
	c := ownFleet(t)
	c.init()
	ofA, ofB := newKeyFile(t, 1), newKeyFile(t, 1)
	a, b := c.open(c.withKeys("a", ofA), storeConfig), c.open(c.withKeys("b", ofB), storeConfig)
	const secrets = 5
	for n := range secrets {
		if err := a.putSecret(fmt.Sprint("s", n), "the value"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "box b has them", func() bool { return b.secret("s4") == "the value" })
	version := func() string {
		o, _ := b.Get(secretRef("s0"))
		return o.GetMeta().ResourceVersion
	}
	before, revision := version(), b.Revision()
	for _, f := range []keyFile{ofA, ofB} {
		f.has(1, 2)
	}
	for _, f := range []keyFile{ofA, ofB} {
		f.has(2, 1)
	}
	if all, changed, err := fleet.Reseal(t.Context(), c.withKeys("x", newKeyFile(t, 2))); err == nil {
		t.Errorf("%d of %d Secrets were sealed anew without the old key", changed, all)
	}
	both := c.withKeys("x", newKeyFile(t, 2, 1))
	for i, want := range []int{secrets, 0} {
		if all, changed, err := fleet.Reseal(t.Context(), both); all != secrets || changed != want || err != nil {
			t.Errorf("time %d: %d of %d Secrets sealed anew, %v", i+1, changed, all, err)
		}
	}
	for _, f := range []keyFile{ofA, ofB} {
		f.has(2)
	}
	eventually(t, "box b follows", func() bool { return b.Revision() > revision })
	if events, err := b.Events(revision, 0); version() != before || err != nil || len(events) != 0 {
		t.Errorf("what is sealed anew is changed: %s, then %s; %v %v", before, version(), events, err)
	}
	if err := b.putSecret("s0", "another value"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "box a has it", func() bool { return a.secret("s0") == "another value" })
	late := c.open(c.withKeys("late", newKeyFile(t, 2)), storeConfig)
	if late.secret("s0") != "another value" || late.secret("s4") != "the value" {
		t.Errorf("a box with the new key has %q and %q", late.secret("s0"), late.secret("s4"))
	}
	old := c.open(c.withKeys("old", newKeyFile(t, 1)), storeConfig)
	eventually(t, "a box with the old key is named", func() bool { return old.engine.State().Kind == fleet.KeyMissing })
	same(t, a, b)
}

// Secrets come into a fleet, start from the replica, go through a backup and leave, sealed wherever they are at rest.
func Test573_Secrets_on_all_ways_of_a_fleet(t *testing.T) {
	c := startEtcd(t, 1)
	dir := filepath.Join(t.TempDir(), "single")
	file, err := engine.OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	single, err := store.Open(file, storeConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&box{Store: single}).putSecret("s", "the value"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Init(t.Context(), c.config("init"), dir); err == nil || !strings.Contains(err.Error(), "--fleet-key-file") {
		t.Fatalf("a Secret came into the fleet without a key: %v", err)
	}
	keys := newKeyFile(t, 1)
	if _, err := fleet.Init(t.Context(), c.withKeys("init", keys), dir); err != nil {
		t.Fatal(err)
	}
	cfg := c.withKeys("a", keys)
	if cfg.DataKey, err = engine.NewKey(bytes.Repeat([]byte{7}, 32)); err != nil {
		t.Fatal(err)
	}
	a := c.open(cfg, storeConfig)
	if got := a.secret("s"); got != "the value" {
		t.Errorf("the fleet has %q", got)
	}
	if err := a.putSecret("s", "the newer one"); err != nil { // the journal has the value before
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	if _, _, err := fleet.Backup(t.Context(), c.config("backup"), backup); err != nil {
		t.Fatal(err)
	}
	a.stop()
	for _, where := range []string{backup, a.cfg.Dir} {
		text, err := os.ReadFile(filepath.Join(where, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range []string{"the value", "the newer one"} {
			if bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString([]byte(value)))) {
				t.Errorf("%s has %q as it is", where, value)
			}
		}
	}
	c.kill(0)
	a = c.open(a.cfg, storeConfig)
	if got := a.secret("s"); got != "the newer one" {
		t.Errorf("a start without etcd has %q", got)
	}
	c.start(0)
	c.ready()
	eventually(t, "the box may write", func() bool { return a.putSecret("s", "the newest") == nil })
	if _, err := fleet.Restore(t.Context(), c.config("restore"), backup); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was in the backup is in force", func() bool { return a.secret("s") == "the newer one" })
	c.hasNothingOf("s", "the value", "the newer one", "the newest")
	a.stop()
	outside := func() (*box, error) {
		file, err := engine.OpenFile(a.cfg.Dir, a.cfg.DataKey)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		s, err := store.Open(file, storeConfig)
		if err != nil {
			err = errors.Join(err, file.Close())
		}
		return &box{Store: s}, err
	}
	if _, err := outside(); err == nil || !strings.Contains(err.Error(), "svcctl fleet leave") {
		t.Errorf("a box of its own began with what is sealed: %v", err)
	}
	for _, want := range []int{1, 0} {
		if n, err := fleet.OpenSecrets(a.cfg, a.cfg.Dir); n != want || err != nil {
			t.Errorf("%d Secrets opened, %v", n, err)
		}
	}
	if b, err := outside(); err != nil || b.secret("s") != "the newer one" {
		t.Errorf("outside of the fleet: %v", err)
	}
}
