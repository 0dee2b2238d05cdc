package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// Commits of a box land while it looks whether etcd went back, which it did not.
func Test470_commits_while_etcd_is_looked_at(t *testing.T) {
	c := ownFleet(t)
	c.init()
	a := c.join("a")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var looks atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := a.engine.Join(t.Context()); err != nil {
				t.Error(err)
				return
			}
			looks.Add(1)
		}
	})
	deadline := time.Now().Add(patience)
	for n := 0; n < 200 || looks.Load() < 20 && time.Now().Before(deadline); n++ { // on a busy machine the looks take longer
		if err := a.create(fmt.Sprintf("s%d", n)); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	wg.Wait()
	if looks := looks.Load(); looks < 20 {
		t.Errorf("only %d looks", looks)
	}
}

// Two operators make one fleet at once, and two boxes join it at once while nobody has said which settings it has:
// one of each is first, and both boxes say the same of it.
func Test560_two_begin_at_once(t *testing.T) {
	c := ownFleet(t)
	for round := range 20 {
		config := func(name, ranges string) fleet.Config {
			cfg := c.config(name)
			cfg.Fleet, cfg.Settings = fmt.Sprintf("%s-begin%d", c.fleet, round), []byte(`{"ranges":"`+ranges+`"}`)
			return cfg
		}
		made := both(func(int) error {
			_, err := fleet.Init(t.Context(), config("init", "10.96.0.0/16"), "")
			return err
		})
		if first := made[0] == nil; first == (made[1] == nil) || !errors.Is(errors.Join(made[:]...), fleet.ErrExists) {
			t.Fatalf("a fleet is made twice at once: %v and %v", made[0], made[1])
		}
		ranges := [2]string{"10.96.0.0/16", "10.96.0.0/16"}
		if round%2 == 1 {
			ranges[1] = "10.97.0.0/16"
		}
		cfgs := [2]fleet.Config{config("a", ranges[0]), config("b", ranges[1])}
		var engines [2]*fleet.Engine
		joined := both(func(n int) (err error) {
			engines[n], err = fleet.Joined(t.Context(), cfgs[n])
			return err
		})
		if err := errors.Join(joined[:]...); err != nil {
			t.Fatal(err)
		}
		boxes := [2]*box{c.run(engines[0], cfgs[0], storeConfig), c.run(engines[1], cfgs[1], storeConfig)}
		wrote := both(func(n int) error { return boxes[n].create(fmt.Sprintf("of%d", n)) })
		want := 2 // Services
		if ranges[0] == ranges[1] {
			if err := errors.Join(wrote[:]...); err != nil {
				t.Fatal(err)
			}
		} else {
			want = 1
			for n, b := range boxes {
				stands := fleet.Following
				if wrote[n] != nil {
					stands = fleet.Differs
				}
				eventually(t, fmt.Sprintf("box %d, whose write gave %v, is %s", n, wrote[n], stands), func() bool { return b.engine.State().Kind == stands })
			}
			if (wrote[0] == nil) == (wrote[1] == nil) {
				t.Fatalf("the ranges of two boxes that differ are in force: %v, %v", wrote[0], wrote[1])
			}
		}
		eventually(t, "both boxes have what was written", func() bool {
			a, _, _ := boxes[0].List(object.KindService, "", 0)
			b, _, _ := boxes[1].List(object.KindService, "", 0)
			return len(a) == want && len(b) == want
		})
		same(t, boxes[0], boxes[1])
		boxes[0].stop()
		boxes[1].stop()
	}
}

// both does something twice at once.
func both(do func(n int) error) (errs [2]error) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for n := range errs {
		wg.Go(func() {
			<-start
			errs[n] = do(n)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// A box that was away finds addresses in its kernel that its replica does not know, and reserves them: when
// it hears whose they are, they are his. Before it decides anything it catches up.
func Test471_addresses_that_a_box_has_not_heard_of_yet(t *testing.T) {
	_, a, b := twoBoxes(t)
	b.stop()
	if err := a.create("web", "other"); err != nil {
		t.Fatal(err)
	}
	open := func(cfg fleet.Config) (*fleet.Engine, *store.Store) {
		e, err := fleet.Joined(t.Context(), cfg)
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
	caughtUp := func() { // on a busy machine it may not be done within its time
		t.Helper()
		eventually(t, "the box catches up", func() bool {
			e.CatchUp(t.Context())
			return e.State().Revision >= a.engine.State().Revision
		})
	}
	caughtUp()
	s.TakeOver()
	if svc, _, _ := s.Service("default/web"); svc == nil {
		t.Errorf("web is withheld: %v", s.Problems())
	}
	if wrong := s.CheckPools(false); len(wrong) > 0 {
		t.Errorf("the allocator and the Services disagree: %v", wrong)
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
	caughtUp()
	s.TakeOver()
	if svc, _, _ := s.Service("default/later"); svc == nil {
		t.Error("the box has not caught up")
	}
	if events, err := s.Events(before, 0); err != nil || len(events) != 1 {
		t.Errorf("its journal does not go on: %v, %v", events, err)
	}
}
