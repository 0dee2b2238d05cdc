package fleet_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// Test614 brings backups back. Sources stay with who reads them, and nobody else may who differs; a trial that was under
// way in the backup is under way again, from the start, and one of now is over.
func Test614_sources_and_trials_in_a_restore(t *testing.T) {
	c := ownFleet(t)
	c.init()
	keys := newKeyFile(t, 1)
	a, b := c.open(c.withKeys("a", keys), storeConfig), c.open(c.withKeys("b", keys), storeConfig)
	backup := func(name string) string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), name)
		if _, _, err := fleet.Backup(t.Context(), c.config("backup"), dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	restore := func(dir string) {
		t.Helper()
		if _, err := fleet.Restore(t.Context(), c.config("restore"), dir); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "box a may write", func() bool { return a.create("web", "old") == nil })
	if err := a.putSecret("s", "as it was"); err != nil {
		t.Fatal(err)
	}
	first, second := directory{"web.yaml": serviceFile("first")}, directory{"web.yaml": serviceFile("second")}
	if v := a.reads(t, first, 0); !v.OK() {
		t.Fatalf("box a reads the source: %+v", v)
	}
	plain := backup("plain")
	if _, err := a.BeginTimed("one", "test", false, time.Hour, deadline.Now()); err != nil {
		t.Fatal(err)
	}
	a.tried(t, "one")
	trying := backup("trying")
	if _, err := a.Confirm(""); err != nil {
		t.Fatal(err)
	}
	if err := a.TakeSource("lb", "b"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "box b has followed, and reads the source", func() bool {
		v := b.reads(t, second, 0)
		return v.OK() && b.clusterIP("second") != ""
	})
	if _, err := b.BeginTimed("two", "test", false, time.Hour, deadline.Now()); err != nil {
		t.Fatal(err)
	}
	restore(plain)
	for _, x := range []*box{a, b} {
		eventually(t, "what was in the backup is in force, and no trial", func() bool {
			_, is := x.Pending(pending.Timed)
			return !is && x.clusterIP("first") != "" && x.clusterIP("second") == "" && x.clusterIP("fresh") == ""
		})
		if all := x.Sources(); len(all) != 1 || all[0].Name != "lb" || all[0].Reader != "b" || all[0].Files != 1 {
			t.Errorf("sources of box %s: %+v", x.cfg.Box, all)
		}
	}
	if v := a.reads(t, second, 0); v.OK() || v.Differs != "lb:web.yaml" {
		t.Errorf("a box that does not agree with what was brought back reads it: %+v", v)
	}
	same(t, a, b)
	restore(trying)
	for _, x := range []*box{a, b} {
		eventually(t, "the trial of the backup is under way", func() bool {
			state, is := x.Pending(pending.Timed)
			return is && state.ID == "one" && len(state.Objects) == 4 && x.secret("s") == "on trial" && x.clusterIP("old") == ""
		})
		if left, _ := x.PendingLeft(pending.Timed); left < 30*time.Minute {
			t.Errorf("box %s has %v left of it", x.cfg.Box, left)
		}
	}
	if _, err := b.GoBack(manifest.Files{}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*box{a, b} {
		eventually(t, "it went back", func() bool { return x.clusterIP("old") != "" && x.secret("s") == "as it was" })
	}
	if v := b.reads(t, first, 0); !v.OK() {
		t.Errorf("who reads the source does so no more: %+v", v)
	}
	same(t, a, b)
}

// A box of its own brings a trial of objects into a fleet, and none of files.
func TestInitWithATrial(t *testing.T) {
	c := ownFleet(t)
	for _, files := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "single")
		file, err := engine.OpenFile(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(file, storeConfig)
		if err != nil {
			t.Fatal(err)
		}
		single := &box{Store: s}
		if err := single.create("web"); err != nil {
			t.Fatal(err)
		}
		if _, err := single.BeginTimed("x", "test", files, time.Hour, deadline.Now()); err != nil {
			t.Fatal(err)
		}
		if r, err := single.Write(store.Write{Ref: serviceRef("web"), Delete: true, By: store.Caller{Trial: "x"}}); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = fleet.Init(t.Context(), c.config("init"), dir)
		if files {
			if err == nil || !strings.Contains(err.Error(), "svcctl confirm") {
				t.Errorf("a trial of files came into a fleet: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		a := c.join("a")
		eventually(t, "the box takes it back", func() bool { _, err := a.GoBack(manifest.Files{}); return err == nil })
		if a.clusterIP("web") == "" {
			t.Error("the Service is not back")
		}
	}
}
