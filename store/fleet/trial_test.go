package fleet_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// machine has the clocks of a box.
type machine struct {
	mu  sync.Mutex
	now deadline.Reading
}

func (m *machine) clocks() deadline.Reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *machine) passes(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall, m.now.Up = m.now.Wall.Add(d), m.now.Up+d
}

// tried makes changes on trial: web gets a label, old goes, and fresh comes; the Secret is another one.
func (b *box) tried(t *testing.T, id string) {
	t.Helper()
	by := store.Caller{User: "test", Trial: id}
	web := b.service("web")
	web.Metadata.Labels = map[string]string{"on": "trial"}
	s, _ := b.Get(secretRef("s"))
	secret := object.DeepCopy(s).(*object.Secret)
	secret.Data["password"] = []byte("on trial")
	results, err := b.Write(
		store.Write{Ref: serviceRef("web"), Object: web, By: by}, store.Write{Ref: serviceRef("old"), Delete: true, By: by},
		store.Write{Ref: serviceRef("fresh"), Object: service("fresh"), Create: true, By: by}, store.Write{Ref: secretRef("s"), Object: secret, By: by},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// A trial is one of all boxes: each has it, keeps what it gave up, and counts the time by its own clocks; any of them confirms
// it or takes it back, whatever became of the box that began it.
func Test578_any_box_ends_a_trial(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	keys := newKeyFile(t, 1)
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	off := []time.Duration{0, time.Hour, -time.Hour} // their clocks differ
	var machines []*machine
	var boxes []*box
	open := func(n int, dir string) *box {
		of, cfg := storeConfig, c.withKeys(string(rune('a'+n)), keys)
		of.Clocks = machines[n].clocks
		if dir != "" {
			cfg.Dir = dir
		}
		return c.open(cfg, of)
	}
	for n := range off {
		machines = append(machines, &machine{now: deadline.Reading{Wall: start.Add(off[n]), Boot: fmt.Sprint("boot", n), Up: time.Duration(n+1) * time.Hour}})
		boxes = append(boxes, open(n, ""))
	}
	a, b := boxes[0], boxes[1]
	all := func(what string, holds func(x *box) bool) {
		t.Helper()
		for _, x := range boxes {
			eventually(t, what+" on box "+x.cfg.Box, func() bool { return x.Fresh(t.Context()) == nil && holds(x) })
		}
	}
	begin := func(x *box, n int, id string) {
		t.Helper()
		if _, err := x.BeginTimed(id, "test", false, time.Hour, machines[n].clocks()); err != nil {
			t.Fatal(err)
		}
		x.tried(t, id)
	}
	eventually(t, "box a may write", func() bool { return a.create("web", "old") == nil })
	if err := a.putSecret("s", "as it was"); err != nil {
		t.Fatal(err)
	}
	old, uid := a.clusterIP("old"), metaOf(a, "web").UID
	takesOld := func(x *box, name string) error {
		svc := service(name)
		svc.Spec.ClusterIP = old
		r, err := x.Write(store.Write{Ref: serviceRef(name), Object: svc, Create: true, By: store.Caller{User: "test"}})
		if err == nil {
			err = r[0].Err
		}
		return err
	}
	if _, err := a.BeginTimed("x", "test", true, time.Hour, machines[0].clocks()); !errors.Is(err, pending.ErrFilesShared) {
		t.Errorf("a trial of files: %v", err)
	}

	begin(a, 0, "one")
	all("the trial is known", func(x *box) bool {
		state, is := x.Pending(pending.Timed)
		left, pending := x.PendingLeft(pending.Timed)
		return is && state.ID == "one" && len(state.Objects) == 4 && pending && left == time.Hour && x.secret("s") == "on trial" && x.clusterIP("old") == ""
	})
	if err := takesOld(boxes[2], "thief"); err == nil {
		t.Error("an address of the trial is given to another Service")
	}
	r, err := b.Write(store.Write{Ref: serviceRef("late"), Object: service("late"), Create: true, By: store.Caller{Trial: "zero"}})
	if err != nil || !errors.Is(r[0].Err, pending.ErrTimedOver) {
		t.Errorf("a write of another trial: %v %v", err, r)
	}
	a.stop() // for good, as far as the others know
	machines[1].passes(20 * time.Minute)
	b.stop()
	machines[1].passes(20 * time.Minute)
	b = open(1, b.cfg.Dir)
	if left, pending := b.PendingLeft(pending.Timed); !pending || left != 20*time.Minute {
		t.Errorf("after 40 minutes and a restart %v are left (pending: %v)", left, pending)
	}
	boxes = []*box{b, boxes[2]}
	machines[1].passes(time.Hour)
	if left, _ := b.PendingLeft(pending.Timed); left != 0 {
		t.Errorf("%v are left when the time is over", left)
	}
	if left, _ := boxes[1].PendingLeft(pending.Timed); left != time.Hour {
		t.Errorf("on another box, whose clock stands still, %v are left", left)
	}
	eventually(t, "box b may take it back", func() bool {
		_, err := b.GoBack(manifest.Files{})
		return err == nil || errors.Is(err, pending.ErrNoTimed)
	})
	a = open(0, a.cfg.Dir)
	boxes = []*box{a, b, boxes[1]}
	all("all is as it was", func(x *box) bool {
		_, is := x.Pending(pending.Timed)
		return !is && x.clusterIP("old") == old && x.clusterIP("fresh") == "" && x.secret("s") == "as it was" &&
			metaOf(x, "web").UID == uid && metaOf(x, "web").Labels == nil
	})
	same(t, a, b)
	same(t, a, boxes[2])

	begin(b, 1, "two")
	all("the second trial is known", func(x *box) bool {
		state, _ := x.Pending(pending.Timed)
		return state.ID == "two" && len(state.Objects) == 4
	})
	if state, err := boxes[2].Confirm(""); err != nil || len(state.Objects) != 4 {
		t.Fatalf("box c confirms %+v, %v", state, err)
	}
	all("it stays", func(x *box) bool {
		_, is := x.Pending(pending.Timed)
		return !is && x.clusterIP("old") == "" && x.clusterIP("fresh") != "" && x.secret("s") == "on trial"
	})
	if _, err := a.GoBack(manifest.Files{}); !errors.Is(err, pending.ErrNoTimed) {
		t.Errorf("what is confirmed goes back: %v", err)
	}
	if err := takesOld(a, "heir"); err != nil {
		t.Errorf("the address is not free after the trial: %v", err)
	}
	same(t, a, b)
	// One box confirms while another takes it back: one of the two does.
	for n := range 5 {
		id := fmt.Sprint("race", n)
		if _, err := a.BeginTimed(id, "test", false, time.Hour, machines[0].clocks()); err != nil {
			t.Fatal(err)
		}
		if r, err := a.Write(store.Write{Ref: serviceRef(id), Object: service(id), Create: true, By: store.Caller{Trial: id}}); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
		all("the trial is known", func(x *box) bool { state, _ := x.Pending(pending.Timed); return state.ID == id })
		var confirmed, back error
		var wg sync.WaitGroup
		wg.Go(func() { _, confirmed = a.Confirm("") })
		wg.Go(func() { _, back = b.GoBack(manifest.Files{}) })
		wg.Wait()
		for _, err := range []error{confirmed, back} {
			if err != nil && !errors.Is(err, pending.ErrNoTimed) {
				t.Fatal(err)
			}
		}
		if (confirmed == nil) == (back == nil) {
			t.Fatalf("box a confirms (%v) and box b takes back (%v)", confirmed, back)
		}
		all("one of the two is so", func(x *box) bool { return (x.clusterIP(id) != "") == (confirmed == nil) })
	}
	same(t, a, b)
	resp, err := c.client().Get(t.Context(), c.key("trial/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != 0 {
		t.Errorf("etcd has %d keys of trials, %v", resp.Count, err)
	}
	c.hasNothingOf("s", "as it was", "on trial")
}
