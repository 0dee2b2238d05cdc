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
