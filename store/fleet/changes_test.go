package fleet_test

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// An export of a box of a fleet is that of a box of its own.
func TestExportOfABoxOfAFleet(t *testing.T) {
	_, a, b := twoBoxes(t, "web")
	var export bytes.Buffer
	if err := b.Export(&export, "test"); err != nil {
		t.Fatal(err)
	}
	memory := engine.NewMemory()
	header, err := store.Import(memory, &export, false)
	if err != nil || header.Revision != a.Revision() {
		t.Fatalf("%+v, %v", header, err)
	}
	alone, err := store.Open(memory, storeConfig)
	if err != nil {
		t.Fatal(err)
	}
	restored := &box{Store: alone}
	if got := restored.clusterIP("web"); got != a.clusterIP("web") || alone.Revision() != a.Revision() {
		t.Errorf("web is at %q, and the revision is %d", got, alone.Revision())
	}
	if b, err := alone.Rollback(store.Rollback{DryRun: true}); err != nil || b.Last == 0 {
		t.Errorf("its journal does not know the last change: %+v, %v", b, err)
	}
}

// overtakenBy has another box change something just before the next commit of this one.
func (b *box) overtakenBy(other *box, name string) {
	var once sync.Once
	b.engine.OnStep(func() {
		once.Do(func() {
			if err := other.create(name); err != nil {
				panic(err)
			}
		})
	})
}

// Whatever a box commits, it decides anew when another one was first.
func TestWhatLosesARaceIsDecidedAnew(t *testing.T) {
	_, a, b := twoBoxes(t, "web")
	before := a.Revision()
	if err := a.create("more"); err != nil {
		t.Fatal(err)
	}
	waiting := service("waiting")
	waiting.Spec.Type = object.TypeLoadBalancer
	if r, err := a.Write(store.Write{Ref: serviceRef("waiting"), Object: waiting, Create: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	same(t, a, b)

	b.overtakenBy(a, "first")
	pool := alloc.Pool{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.9")}
	if changed, err := b.SetPools([]alloc.Pool{pool}); err != nil || !changed {
		t.Errorf("pools: %v, %v", changed, err)
	}
	if o, _ := b.Get(serviceRef("waiting")); len(o.(*object.Service).Status.LoadBalancer.Ingress) != 1 || b.Lost() != 1 {
		t.Errorf("%+v, %d races lost", o, b.Lost())
	}

	b.overtakenBy(a, "second")
	back, err := b.Rollback(store.Rollback{Revision: before, By: store.Caller{User: "test"}})
	if err != nil || b.Lost() != 2 {
		t.Errorf("roll back: %v, %d races lost", err, b.Lost())
	}
	// What was first is among what was changed since.
	if len(back.Objects) != 4 || b.clusterIP("more") != "" || b.clusterIP("second") != "" || b.clusterIP("web") == "" {
		t.Errorf("%+v", back)
	}
	same(t, a, b)
}
