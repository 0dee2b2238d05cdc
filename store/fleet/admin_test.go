package fleet_test

import (
	"path/filepath"
	"testing"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// Test621_one_count_of_objects: what `fleet backup`, `restore`, `init` and `status` call objects are the objects of all kinds, and not
// the files of sources, the keys and the trial that are stored beside them.
func Test621_one_count_of_objects(t *testing.T) {
	c := ownFleet(t)
	c.init()
	a := c.open(c.withKeys("a", newKeyFile(t, 1)), storeConfig)
	eventually(t, "box a may write", func() bool { return a.create("web", "old") == nil })
	for name, value := range map[string]string{fleet.TokenKey: "signs", fleet.CAKey: "certifies"} {
		if err := a.replace(t, name, "", value); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.putSecret("s", "of all"); err != nil {
		t.Fatal(err)
	}
	if v := a.reads(t, directory{"web.yaml": serviceFile("first"), "more.yaml": serviceFile("second")}, 0); !v.OK() {
		t.Fatalf("box a reads the source: %+v", v)
	}
	if _, err := a.BeginTimed("one", "test", false, time.Hour, deadline.Now()); err != nil {
		t.Fatal(err)
	}
	a.tried(t, "one")
	want := 0
	for _, kind := range []string{object.KindService, object.KindSecret, object.KindNamespace, object.KindNode, object.KindEndpointSlice} {
		all, _, err := a.List(kind, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		want += len(all)
	}
	counts := map[string]int{}
	var err error
	backup := filepath.Join(t.TempDir(), "backup")
	if _, counts["backup"], err = fleet.Backup(t.Context(), c.config("x"), backup); err != nil {
		t.Fatal(err)
	}
	if counts["restore"], err = fleet.Restore(t.Context(), c.config("x"), backup); err != nil {
		t.Fatal(err)
	}
	o, err := fleet.Look(t.Context(), c.config("x"))
	if err != nil {
		t.Fatal(err)
	}
	counts["status"] = o.Objects
	other := c.config("x")
	other.Fleet += "-other"
	if counts["init"], err = fleet.Init(t.Context(), other, backup); err != nil {
		t.Fatal(err)
	}
	for word, n := range counts {
		if n != want {
			t.Errorf("fleet %s counts %d objects, and there are %d", word, n, want)
		}
	}
}
