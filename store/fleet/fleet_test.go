package fleet_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// same checks that two boxes have the same objects at the same revision.
func same(t *testing.T, a, b *box) {
	t.Helper()
	eventually(t, "both boxes at one revision", func() bool { return a.Revision() == b.Revision() })
	for _, kind := range []string{object.KindService, object.KindNamespace} {
		left, _, err := a.List(kind, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		right, _, err := b.List(kind, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) != len(right) {
			t.Fatalf("%d and %d objects of kind %s", len(left), len(right), kind)
		}
		for i := range left {
			l, r := left[i].GetMeta(), right[i].GetMeta()
			if l.Name != r.Name || l.UID != r.UID || l.ResourceVersion != r.ResourceVersion {
				t.Fatalf("one box has %s %s %s, the other one %s %s %s", l.Name, l.UID, l.ResourceVersion, r.Name, r.UID, r.ResourceVersion)
			}
		}
	}
	for _, each := range []*box{a, b} {
		if wrong := each.CheckPools(false); len(wrong) > 0 {
			t.Fatalf("%s: the allocator and the Services disagree: %v", each.cfg.Box, wrong)
		}
	}
}

func Test450_a_write_on_one_box_is_there_on_all(t *testing.T) {
	_, a, b := twoBoxes(t)
	before := b.Revision()
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	if err := b.Fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.clusterIP("web") == "" || b.clusterIP("web") != a.clusterIP("web") {
		t.Fatalf("box a gave %q and box b has %q", a.clusterIP("web"), b.clusterIP("web"))
	}
	events, err := b.Events(before, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 || events[0].Ref != serviceRef("web") || events[0].By.User != "test" || events[0].Old != nil {
		t.Fatalf("box b's journal has %+v", events)
	}
	if changes := b.Changes(before); len(changes.Services) != 1 || changes.All {
		t.Fatalf("box b is to look at %+v", changes)
	}
	results, err := b.Write(store.Write{Ref: serviceRef("web"), Delete: true})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	eventually(t, "box a removes web", func() bool { return a.clusterIP("web") == "" })
	same(t, a, b)
}

func Test451_boxes_that_allocate_at_once_never_give_a_value_twice(t *testing.T) {
	c := ownFleet(t)
	c.init()
	boxes := []*box{c.join("a"), c.join("b"), c.join("c")}
	each := 60
	if text := os.Getenv("SVCCTL_FLEET_EACH"); text != "" { // make fleet
		var err error
		if each, err = strconv.Atoi(text); err != nil || each%3 != 0 {
			t.Fatalf("SVCCTL_FLEET_EACH=%s: want a multiple of 3", text)
		}
	}
	var wg sync.WaitGroup
	for i, b := range boxes {
		wg.Go(func() {
			for n := range each {
				name := fmt.Sprintf("s-%d-%d", i, n)
				if err := b.create(name); err != nil {
					t.Errorf("create %s: %v", name, err)
					return
				}
				if n%3 == 2 { // gives its value back
					if r, err := b.Write(store.Write{Ref: serviceRef(name), Delete: true}); err != nil || r[0].Err != nil {
						t.Errorf("delete %s: %v %v", name, err, r)
					}
				}
			}
		})
	}
	wg.Wait()
	lost := uint64(0)
	for _, b := range boxes {
		lost += b.Lost()
		same(t, boxes[0], b)
	}
	if lost == 0 {
		t.Error("no race was lost: the test shows nothing")
	}
	t.Logf("%d lost races", lost)
	held := map[string]string{}
	list, _, _ := boxes[0].List(object.KindService, "", 0)
	if len(list) != 3*each*2/3 {
		t.Errorf("%d Services", len(list))
	}
	for _, o := range list {
		svc := o.(*object.Service)
		if other := held[svc.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s have %s", other, svc.Metadata.Name, svc.Spec.ClusterIP)
		}
		held[svc.Spec.ClusterIP] = svc.Metadata.Name
	}
}

func Test452_a_name_that_two_boxes_create_is_one_box_s(t *testing.T) {
	_, a, b := twoBoxes(t)
	for n := range 20 {
		name := fmt.Sprintf("s%d", n)
		var errs [2]error
		var wg sync.WaitGroup
		wg.Go(func() { errs[0] = a.create(name) })
		wg.Go(func() { errs[1] = b.create(name) })
		wg.Wait()
		if won := errs[0] == nil; won == (errs[1] == nil) {
			t.Fatalf("%s: box a %v, box b %v", name, errs[0], errs[1])
		}
		for _, err := range errs {
			if err != nil && !errors.Is(err, store.ErrExists) {
				t.Fatal(err)
			}
		}
	}
	same(t, a, b)
}

func Test453_a_large_commit_is_one(t *testing.T) {
	c, a, b := twoBoxes(t)
	var names []string
	for n := range 1_500 {
		names = append(names, fmt.Sprintf("s%d", n))
	}
	before := b.Revision()
	if err := a.create(names...); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	eventually(t, "box b has all of it", func() bool {
		list, _, _ := b.List(object.KindService, "", 0)
		seen[len(list)] = true
		return len(list) == len(names)
	})
	if len(seen) > 2 {
		t.Errorf("box b saw parts of it: %v", seen)
	}
	if events, err := b.Events(before, 0); err != nil || len(events) != len(names) {
		t.Errorf("box b's journal has %d changes, %v", len(events), err)
	}
	if err := b.create("after"); err != nil { // follows on what is unfolded
		t.Fatal(err)
	}
	same(t, a, b)
	late := c.join("late")
	same(t, a, late)
}

func Test454_a_box_starts_from_its_replica_while_etcd_is_away(t *testing.T) {
	c := startEtcd(t, 1)
	a, b := c.twoBoxes(t, "web")
	address := b.clusterIP("web")
	b.stop()
	if err := a.create("later"); err != nil {
		t.Fatal(err)
	}
	c.kill(0)
	again := c.open(b.cfg, storeConfig)
	if got := again.clusterIP("web"); got != address {
		t.Fatalf("web has %q, and had %q", got, address)
	}
	var away *engine.AwayError
	if err := again.create("never"); !errors.As(err, &away) {
		t.Fatalf("a write without etcd gave %v", err)
	}
	if err := again.Fresh(t.Context()); !errors.As(err, &away) {
		t.Fatalf("a fresh read without etcd gave %v", err)
	}
	c.start(0)
	c.ready()
	eventually(t, "the box that was away follows", func() bool { return again.clusterIP("later") != "" })
	if _, err := again.Events(again.Revision()-1, 0); err != nil {
		t.Errorf("its journal does not go on: %v", err)
	}
	eventually(t, "it may write again", func() bool { return again.create("now") == nil })
	same(t, a, again)
}
