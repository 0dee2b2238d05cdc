package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// The format of a fleet is raised when all boxes read the new one; until then there are no Secrets, also none of files, and from
// then on there are.
func Test574_the_format_of_a_fleet_is_raised(t *testing.T) {
	c := ownFleet(t)
	c.init()
	client := c.client()
	setFormat := func(from, to int) {
		t.Helper()
		resp, err := client.Get(t.Context(), c.key("fleet"))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(resp.Kvs[0].Value), fmt.Sprintf(`"format":%d`, from), fmt.Sprintf(`"format":%d`, to), 1)
		if _, err := client.Put(t.Context(), c.key("fleet"), text); err != nil || text == string(resp.Kvs[0].Value) {
			t.Fatal(err, text)
		}
	}
	setFormat(fleet.Format, 1)
	keys := newKeyFile(t, 1)
	a, b := c.open(c.withKeys("a", keys), storeConfig), c.open(c.withKeys("b", keys), storeConfig)
	for _, x := range []*box{a, b} {
		x.engine.ReportAs(func() fleet.Report { return fleet.Report{} })
	}
	eventually(t, "the fleet has a writer", func() bool { return a.create("web") == nil })
	if err := a.putSecret("s", "the value"); err == nil || !strings.Contains(err.Error(), "svcctl fleet upgrade") {
		t.Errorf("a Secret in a fleet that knows none: %v", err)
	}
	if _, err := a.BeginTimed("x", "test", false, time.Hour, deadline.Now()); err == nil || !strings.Contains(err.Error(), "svcctl fleet upgrade") {
		t.Errorf("a trial in a fleet that knows none: %v", err)
	}
	if _, err := a.BeginStaged(pending.Head{ID: "x"}, time.Hour); err == nil || !strings.Contains(err.Error(), "svcctl fleet upgrade") {
		t.Errorf("a rollout in a fleet that knows none: %v", err)
	}
	text := "apiVersion: v1\nkind: Secret\nmetadata: {name: filed}\nstringData: {password: of a file}\n"
	files := manifest.FilesOf(map[string]*manifest.File{"lb:secret.yaml": manifest.Decode("lb:secret.yaml", []byte(text), manifest.DefaultLimits())})
	sync := func() {
		t.Helper()
		if err := b.SyncSources(files, []store.SourceTurn{{Name: "lb", Box: "b", Instance: b.engine.Instance()}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.fresh(t)
	sync()
	if problems := b.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Message, "svcctl fleet upgrade") {
		t.Errorf("problems of a file with a Secret: %+v", problems)
	}
	put := func(key, value string) {
		t.Helper()
		if _, err := client.Put(t.Context(), c.key(key), value); err != nil {
			t.Fatal(err)
		}
	}
	upgrade := func(without ...string) error {
		t.Helper()
		from, to, err := fleet.Upgrade(t.Context(), c.config("x"), without)
		if err == nil && (from != 1 || to != fleet.Format) {
			t.Errorf("the format was %d, and is %d", from, to)
		}
		return err
	}
	refused := func(err error, words ...string) {
		t.Helper()
		for _, word := range append(words, "old") {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("the format is raised: %v, want %q", err, word)
			}
		}
	}
	eventually(t, "the boxes have reported", func() bool {
		resp, err := client.Get(t.Context(), c.key("box/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count == 2
	})
	put("box/old", `{"box":"old","version":"v1","state":"Following"}`)
	put("alive/old", "x")
	refused(upgrade(), "version v1 reads up to format 1")
	refused(upgrade("old"), "stop it first")
	if _, err := client.Delete(t.Context(), c.key("alive/old")); err != nil {
		t.Fatal(err)
	}
	refused(upgrade(), "away")
	if err := upgrade("old", "nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a box that never was is left out: %v", err)
	}
	before := b.SourcesChanged()
	if err := upgrade("old"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Secret is taken", func() bool { return a.putSecret("s", "the value") == nil })
	eventually(t, "files are read again", func() bool { return b.SourcesChanged() != before })
	b.fresh(t)
	sync()
	eventually(t, "box a has the Secret of the file", func() bool { return a.secret("filed") == "of a file" })
	if problems := b.Problems(); len(problems) != 0 {
		t.Errorf("problems afterwards: %+v", problems)
	}
	same(t, a, b)
	if from, to, err := fleet.Upgrade(t.Context(), c.config("x"), nil); from != fleet.Format || to != fleet.Format || err != nil {
		t.Errorf("once more: from %d to %d, %v", from, to, err)
	}
	// A format that this version does not read.
	setFormat(fleet.Format, fleet.Format+1)
	eventually(t, "the box says that it is too old", func() bool { return a.engine.State().Kind == fleet.TooNew })
	var away *engine.AwayError
	if err := a.create("never"); !errors.As(err, &away) || !strings.Contains(err.Error(), fmt.Sprint("format ", fleet.Format+1)) {
		t.Errorf("a write of a box that is too old gave %v", err)
	}
	if a.clusterIP("web") == "" || a.secret("s") == "" {
		t.Error("what was in force is gone")
	}
}
