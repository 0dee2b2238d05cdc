package fleet_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// Commits of a box land while it looks whether etcd went back, which it did not.
func Test470_commits_while_etcd_is_looked_at(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	a := c.join("a")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	looks := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := a.engine.Join(t.Context()); err != nil {
				t.Error(err)
				return
			}
			looks++
		}
	})
	for n := range 200 {
		if err := a.create(fmt.Sprintf("s%d", n)); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	wg.Wait()
	if looks < 20 {
		t.Errorf("only %d looks", looks)
	}
}

// A box that was away finds addresses in its kernel that its replica does not know, and reserves them: when
// it hears whose they are, they are his. Before it decides anything it catches up.
func Test471_addresses_that_a_box_has_not_heard_of_yet(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	a, b := c.join("a"), c.join("b")
	b.stop()
	if err := a.create("web", "other"); err != nil {
		t.Fatal(err)
	}
	open := func(cfg fleet.Config) (*fleet.Engine, *store.Store) {
		e, err := fleet.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(e, storeConfig)
		if err != nil {
			t.Fatal(err)
		}
		return e, s
	}
	e, s := open(b.cfg)
	reserved := store.ReservedFrontend{Addr: netip.MustParseAddr(a.clusterIP("web")), Port: alloc.Port{Protocol: "TCP", Number: 80}}
	if err := s.Reserve([]store.ReservedFrontend{reserved}); err != nil {
		t.Fatal(err)
	}
	e.CatchUp(t.Context())
	s.TakeOver()
	if svc, _, _ := s.Service("default/web"); svc == nil {
		t.Errorf("web is withheld: %v", s.Problems())
	}
	if wrong := s.CheckPools(false); len(wrong) > 0 {
		t.Errorf("the ledger and the Services disagree: %v", wrong)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.create("later"); err != nil {
		t.Fatal(err)
	}
	e, s = open(b.cfg)
	defer e.Close()
	before := s.Revision()
	e.CatchUp(t.Context())
	s.TakeOver()
	if svc, _, _ := s.Service("default/later"); svc == nil {
		t.Error("the box has not caught up")
	}
	if events, err := s.Events(before, 0); err != nil || len(events) != 1 {
		t.Errorf("its journal does not go on: %v, %v", events, err)
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
	c := startEtcd(t, 1)
	c.init()
	a, b := c.join("a"), c.join("b")
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
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
	revived, err := b.Rollback(before, store.Caller{User: "test"}, false)
	if err != nil || b.Lost() != 2 {
		t.Errorf("roll back: %v, %d races lost", err, b.Lost())
	}
	// What was first is among what was changed since.
	if len(revived) != 4 || b.clusterIP("more") != "" || b.clusterIP("second") != "" || b.clusterIP("web") == "" {
		t.Errorf("%+v", revived)
	}
	same(t, a, b)
}
