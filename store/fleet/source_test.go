package fleet_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// directory is the files of source lb, by relative path.
type directory map[string]string

func (d directory) files() manifest.Files {
	files := map[string]*manifest.File{}
	for _, name := range slices.Sorted(maps.Keys(d)) {
		f := manifest.Decode(store.SourcePath("lb", name), []byte(d[name]), manifest.DefaultLimits())
		f.Hash = sha256.Sum256([]byte(d[name]))
		files[f.Path] = f
	}
	return manifest.FilesOf(files)
}

// serviceFile declares Services, each in four lines behind its separator.
func serviceFile(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: 80}]}\n", name)
	}
	return b.String()
}

// reads has a box read source lb, as often as others are first.
func (b *box) reads(t *testing.T, d directory, generation uint64) store.SourceVerdict {
	t.Helper()
	turn := store.SourceTurn{Name: "lb", Box: b.cfg.Box, Instance: b.engine.Instance(), Generation: generation}
	for {
		b.TakeOver() // as SyncSources does before it decides
		verdict := b.JudgeSource(turn, d.files())
		err := b.SyncSources(d.files(), []store.SourceTurn{turn}, nil)
		if away := (*engine.AwayError)(nil); errors.Is(err, engine.ErrConflict) || errors.As(err, &away) {
			time.Sleep(time.Millisecond)
			continue // another box was first, or this one has just started
		}
		if err != nil {
			t.Fatal(err)
		}
		return verdict
	}
}

// fresh waits until a box has all that was committed.
func (b *box) fresh(t *testing.T) {
	t.Helper()
	if err := b.Fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func Test472_files_of_a_source_are_known_on_all_boxes(t *testing.T) {
	c, a, b := twoBoxes(t)
	d := directory{"web.yaml": serviceFile("one", "two")}
	if v := a.reads(t, d, 0); !v.OK() {
		t.Fatalf("the first box may not read: %+v", v)
	}
	b.fresh(t)
	if path, line := b.Location(serviceRef("two")); path != "lb:web.yaml" || line != 7 {
		t.Errorf("box b finds default/two in %s, line %d", path, line)
	}
	if b.clusterIP("two") == "" || b.clusterIP("two") != a.clusterIP("two") {
		t.Errorf("box a has %q, box b %q", a.clusterIP("two"), b.clusterIP("two"))
	}
	// A comment changes no object, and moves all of them.
	before, version := b.Revision(), metaOf(b, "two").ResourceVersion
	d["web.yaml"] = "# a comment\n" + d["web.yaml"]
	a.reads(t, d, 0)
	b.fresh(t)
	if _, line := b.Location(serviceRef("two")); line != 8 || metaOf(b, "two").ResourceVersion != version || b.Revision() == before {
		t.Errorf("after a comment: line %d, resourceVersion %s, revision %d", line, metaOf(b, "two").ResourceVersion, b.Revision())
	}
	// What belongs to a file is changed where it is read.
	changed := b.service("two")
	changed.Metadata.Labels = map[string]string{"a": "b"}
	for _, w := range []store.Write{{Ref: serviceRef("two"), Object: changed}, {Ref: serviceRef("two"), Delete: true}} {
		results, err := b.Write(w)
		if err != nil {
			t.Fatal(err)
		}
		var owned *store.OwnedError
		if !errors.As(results[0].Err, &owned) || !strings.Contains(owned.Error(), "lb:web.yaml") {
			t.Errorf("a write on the box that does not read: %v", results[0].Err)
		}
	}
	results, err := a.Write(store.Write{Ref: serviceRef("two"), Object: changed})
	if err != nil || results[0].Err != nil {
		t.Errorf("a write on the box that reads: %v %v", err, results)
	}
	// Another box's file does not get what belongs to this one.
	other := manifest.FilesOf(map[string]*manifest.File{"other:web.yaml": manifest.Decode("other:web.yaml", []byte(serviceFile("two", "three")), manifest.DefaultLimits())})
	b.fresh(t)
	if err := b.SyncSources(other, []store.SourceTurn{{Name: "other", Box: "b", Instance: "x"}}, nil); err != nil {
		t.Fatal(err)
	}
	a.fresh(t)
	if path, _ := a.Location(serviceRef("two")); path != "lb:web.yaml" {
		t.Errorf("default/two is of %s", path)
	}
	if path, _ := a.Location(serviceRef("three")); path != "other:web.yaml" {
		t.Errorf("default/three is of %s", path)
	}
	if problems := b.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Message, "lb:web.yaml, which keeps it") {
		t.Errorf("problems of box b: %+v", problems)
	}
	same(t, a, b)
	// A start has it from the replica.
	cfg := b.cfg
	b.stop()
	b = c.open(cfg, storeConfig)
	if path, line := b.Location(serviceRef("two")); path != "lb:web.yaml" || line != 8 {
		t.Errorf("after a start box b finds default/two in %s, line %d", path, line)
	}
}

func (b *box) service(name string) *object.Service {
	o, _ := b.Get(serviceRef(name))
	if o == nil {
		return nil
	}
	return object.DeepCopy(o).(*object.Service)
}

func metaOf(b *box, name string) *object.ObjectMeta { return b.service(name).GetMeta() }

func Test473_only_who_agrees_reads_a_source(t *testing.T) {
	c, a, b := twoBoxes(t)
	now := directory{"web.yaml": serviceFile("one", "two"), "more/x.yaml": serviceFile("x")}
	old := directory{"web.yaml": serviceFile("one"), "more/x.yaml": serviceFile("x")}
	if v := a.reads(t, now, 0); !v.OK() {
		t.Fatalf("the first box may not read: %+v", v)
	}
	b.fresh(t)
	revision := b.Revision()
	for what, d := range map[string]directory{"an old clone": old, "a file less": {"web.yaml": now["web.yaml"]}, "nothing": {}} {
		if v := b.reads(t, d, 0); v.OK() || v.Reader != "a" || !strings.HasPrefix(v.Differs, "lb:") {
			t.Errorf("%s: %+v", what, v)
		}
	}
	if b.Revision() != revision || b.clusterIP("two") == "" {
		t.Fatalf("a box that may not read has changed something: revision %d to %d", revision, b.Revision())
	}
	// Who has the same content takes over, and its changes are in force; the former reader reverts nothing.
	uid := metaOf(b, "two").UID
	if v := b.reads(t, now, 0); !v.OK() {
		t.Fatalf("a box that agrees may not read: %+v", v)
	}
	newer := directory{"web.yaml": serviceFile("two", "three"), "more/x.yaml": serviceFile("x")}
	if v := b.reads(t, newer, 0); !v.OK() {
		t.Fatalf("the reader may not change its files: %+v", v)
	}
	a.reads(t, now, 0) // it may not have heard of it yet
	a.fresh(t)
	if v := a.reads(t, now, 0); v.OK() || v.Reader != "b" || v.Differs != "lb:web.yaml" {
		t.Errorf("the former reader: %+v", v)
	}
	same(t, a, b)
	if a.service("one") != nil || a.service("three") == nil || metaOf(a, "two").UID != uid {
		t.Errorf("box a has one %v, three %v", a.service("one") != nil, a.service("three") != nil)
	}
	// Somebody says so.
	if err := b.TakeSource("lb", "a"); err != nil {
		t.Fatal(err)
	}
	a.fresh(t)
	if v := b.reads(t, newer, 0); v.OK() || !v.Given {
		t.Errorf("who has lost the source, with what is in force: %+v", v)
	}
	if v := a.reads(t, now, 7); !v.OK() {
		t.Errorf("who was given the source may not read it: %+v", v)
	}
	b.fresh(t)
	if b.service("one") == nil || b.service("three") != nil {
		t.Error("what the new reader has is not in force")
	}
	// A higher generation agrees, a lower one does not.
	if v := b.reads(t, newer, 6); !v.Behind {
		t.Errorf("generation 6 of 7: %+v", v)
	}
	if v := b.reads(t, newer, 8); !v.OK() {
		t.Errorf("generation 8 of 7: %+v", v)
	}
	if s := b.Sources(); len(s) != 1 || s[0].Reader != "b" || s[0].Generation != 8 || s[0].Files != 2 {
		t.Errorf("sources: %+v", s)
	}
	// The same box with an empty data directory has to agree; with its own it goes on where it was.
	cfg := b.cfg
	b.stop()
	b = c.open(cfg, storeConfig)
	last := directory{"web.yaml": serviceFile("last")}
	if v := b.reads(t, last, 0); !v.OK() {
		t.Errorf("the reader after a start: %+v", v)
	}
	if b.service("last") == nil || b.service("x") != nil {
		t.Error("files that changed while the reader was stopped are not in force")
	}
	b.stop()
	cfg.Dir = t.TempDir()
	b = c.open(cfg, storeConfig)
	if v := b.reads(t, old, 0); v.OK() {
		t.Errorf("a box of the same name with an old clone and no data: %+v", v)
	}
}

func Test474_names_that_another_box_gives_free(t *testing.T) {
	_, a, b := twoBoxes(t)
	d := directory{"web.yaml": serviceFile("one", "two")}
	a.reads(t, d, 0)
	if r, err := b.Write(store.Write{Ref: serviceRef("api"), Object: service("api"), Create: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	// A name that the API had is the file's once the API's object is gone, whichever box was asked.
	d["api.yaml"] = serviceFile("api")
	a.reads(t, d, 0)
	if path, _ := a.Location(serviceRef("api")); path != "" {
		t.Fatalf("default/api is of %q", path)
	}
	changed := a.SourcesChanged()
	if r, err := b.Write(store.Write{Ref: serviceRef("api"), Delete: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	a.fresh(t)
	if a.SourcesChanged() == changed {
		t.Fatal("nobody is told that a claimed object has gone")
	}
	a.reads(t, d, 0)
	if path, _ := a.Location(serviceRef("api")); path != "lb:api.yaml" {
		t.Fatalf("default/api is of %q", path)
	}
}

// A source that no box has any more is forgotten: its objects stay as they are, and are the API's.
func Test575_a_source_is_forgotten(t *testing.T) {
	c, a, b := twoBoxes(t)
	d := directory{"web.yaml": serviceFile("one", "two")}
	if v := a.reads(t, d, 0); !v.OK() {
		t.Fatalf("the first box may not read: %+v", v)
	}
	b.fresh(t)
	one := b.service("one")
	if _, err := a.ForgetSource("lb"); err == nil || !strings.Contains(err.Error(), "this box reads it") {
		t.Errorf("who reads a source forgot it: %v", err)
	}
	if _, err := b.ForgetSource("other"); !errors.Is(err, store.ErrNoSource) {
		t.Errorf("a source that is none is forgotten: %v", err)
	}
	a.stop()
	other := c.join("c")
	eventually(t, "box c may write", func() bool { return other.create("first") == nil })
	b.fresh(t)
	b.overtakenBy(other, "meanwhile")
	if n, err := b.ForgetSource("lb"); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	late := c.join("late")
	a = c.open(a.cfg, storeConfig)
	for _, x := range []*box{a, b, late} {
		eventually(t, "a box that starts follows", func() bool { return x.Fresh(t.Context()) == nil })
		if list := x.Sources(); len(list) != 0 {
			t.Errorf("box %s has sources %+v", x.cfg.Box, list)
		}
		if path, _ := x.Location(serviceRef("one")); path != "" {
			t.Errorf("box %s has default/one of %s", x.cfg.Box, path)
		}
		if x.clusterIP("one") != one.Spec.ClusterIP || metaOf(x, "one").UID != one.Metadata.UID {
			t.Errorf("box %s has default/one at %s", x.cfg.Box, x.clusterIP("one"))
		}
	}
	for _, name := range []string{"one", "two"} { // any box may change them
		if r, err := late.Write(store.Write{Ref: serviceRef(name), Delete: true}); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
	}
	b.fresh(t)
	if err := b.create("one"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
	resp, err := c.client().Get(t.Context(), c.key("source/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != 0 {
		t.Errorf("etcd has %d keys of sources, %v", resp.Count, err)
	}
}
