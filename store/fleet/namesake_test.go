package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/store/fleet"
)

// A machine that is cloned has the name and the data directory of the first one.
func Test658_a_copy_of_a_box(t *testing.T) {
	c := ownFleet(t)
	c.init()
	first := c.join("a")
	if err := first.create("web"); err != nil {
		t.Fatal(err)
	}
	first.stop()
	copied := first.cfg
	copied.Dir = filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied.Dir, os.DirFS(first.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	// Started anew, it has its name at once.
	a := c.open(first.cfg, storeConfig)
	has := func(b *box, kind fleet.Kind) bool { return b.engine.State().Kind == kind }
	eventually(t, "the first one has the turn", a.engine.HasTurn)
	b := c.open(copied, storeConfig)
	eventually(t, "one of the two is told", func() bool {
		return has(a, fleet.Namesake) && has(b, fleet.Following) || has(b, fleet.Namesake) && has(a, fleet.Following)
	})
	told, other := a, b
	if has(b, fleet.Namesake) {
		told, other = b, a
	}
	if why := told.engine.State().Why; !strings.Contains(why, "copy of this data directory") {
		t.Errorf("it is told: %s", why)
	}
	if told.clusterIP("web") == "" {
		t.Error("what was in force is gone")
	}
	other.stop()
	eventually(t, "the one that was told goes on", func() bool { return has(told, fleet.Following) })
	if err := told.create("more"); err != nil {
		t.Error(err)
	}
}

// A box whose name another one has writes nothing when it joins the fleet, also if the join ends after the name was asked for.
func Test1190_a_join_frees_no_name(t *testing.T) {
	c := ownFleet(t)
	c.init()
	first := c.join("a")
	eventually(t, "the first one has its name, and then the turn", first.engine.HasTurn) // else the second one may take the name
	cfg := first.cfg
	cfg.Dir = t.TempDir()
	e, err := fleet.Joined(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	held, join := func() bool { return e.State().Kind == fleet.Namesake }, make(chan struct{})
	e.OnJoin(func() { <-join })
	second := c.run(e, cfg, storeConfig)
	goOn := sync.OnceFunc(func() { close(join) })
	t.Cleanup(goOn)
	eventually(t, "the box is a namesake", held)
	goOn()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // real time: it is not Following until the next heartbeat
		if !held() {
			t.Fatalf("after the join it is %s", e.State().Kind)
		}
	}
	if err := second.create("never"); err == nil {
		t.Error("a namesake has written")
	}
	first.stop()
	eventually(t, "it goes on", func() bool { return e.State().Kind == fleet.Following })
}
