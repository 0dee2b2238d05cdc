package fleet_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// besideAWrite is all that a box does without a commit of its own.
func (a *box) besideAWrite() error {
	if a.clusterIP("web") == "" {
		return errors.New("a read does not find web")
	}
	if list, _, err := a.List(object.KindService, "", 0); err != nil || len(list) == 0 {
		return fmt.Errorf("a list has %d Services: %w", len(list), err)
	}
	svc := service("dry")
	results, err := a.Write(store.Write{Ref: serviceRef("dry"), Object: svc, Create: true, DryRun: true, By: store.Caller{User: "test"}})
	if err != nil || results[0].Err != nil || results[0].Object.(*object.Service).Spec.ClusterIP == "" {
		return fmt.Errorf("a dry run: %v, %w", results, err)
	}
	if _, err := a.Rollback(store.Rollback{Revision: a.Revision(), DryRun: true}); err != nil {
		return fmt.Errorf("a dry run of a rollback: %w", err)
	}
	fork, _, err := a.Fork() // what `plan` begins with
	if err != nil {
		return fmt.Errorf("a fork: %w", err)
	}
	if err := (&box{Store: fork}).create("planned"); err != nil {
		return fmt.Errorf("a write on the fork: %w", err)
	}
	if len(a.Pools(0)) == 0 {
		return errors.New("there are no pools")
	}
	a.IngressPools()
	a.LastGood().Put("/manifests/other.yaml", []byte("# a file of another object\n"))
	if err := a.LastGood().Flush(); err != nil {
		return fmt.Errorf("the copy of a file: %w", err)
	}
	return nil
}

// Test888 has a write wait for etcd: before the call, when it has landed and its answer is outstanding, and with a slow etcd.
// Meanwhile the box reads, plans, makes dry runs and stores copies of files; and the write ends as it would without.
func Test888_a_write_that_waits_for_etcd_holds_nothing_else(t *testing.T) {
	c := ownFleet(t)
	c.init()
	other := c.join("other")
	for step, at := range []string{"before the call", "before the answer"} {
		name := fmt.Sprint("slow", step)
		cfg := c.config(name)
		e, err := fleet.Joined(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := c.run(e, cfg, storeConfig)
		eventually(t, "the box may write", func() bool { return errors.Is(a.create("web"), store.ErrExists) })
		a.stop()
		if e, err = fleet.Joined(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		held, letGo := make(chan struct{}), make(chan struct{})
		steps := 0
		var once sync.Once
		e.OnStep(func() {
			if steps++; steps == step+1 {
				once.Do(func() { close(held); <-letGo })
			}
		})
		a = c.run(e, cfg, storeConfig)
		eventually(t, "the box follows", func() bool { return e.State().Kind == fleet.Following })
		written := make(chan error, 1)
		go func() { written <- a.create(name) }()
		<-held
		rest := make(chan error, 1)
		go func() { rest <- a.besideAWrite() }()
		select {
		case err := <-rest:
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the rest waits for the write", at)
		}
		if step == 0 { // another box is first, and the write is decided once more
			if err := other.create("first"); err != nil {
				t.Error(err)
			}
		}
		select {
		case err := <-written:
			t.Fatalf("%s: the write came to its end: %v", at, err)
		default:
		}
		files := make(chan struct{})
		go func() { // waits for its turn
			defer close(files)
			a.SyncSources(manifest.Files{}, nil, nil)
		}()
		close(letGo)
		if err := <-written; err != nil || a.clusterIP(name) == "" {
			t.Errorf("%s: the write has come to %v, the address is %q", at, err, a.clusterIP(name))
		}
		<-files
		if wrong := a.CheckPools(false); len(wrong) > 0 {
			t.Errorf("%s: the allocator and the Services disagree: %v", at, wrong)
		}
		same(t, a, other)
		a.stop()
	}

	p := newProxy(t, c.urls[0])
	cfg := c.config("proxied")
	cfg.Endpoints = []string{"http://" + p.port}
	a := c.open(cfg, storeConfig)
	p.be(late)
	n := 0
	eventually(t, "a box with a slow etcd does the rest first", func() bool {
		n++
		written := make(chan error, 1)
		sent := make(chan struct{}, 1)
		go func() {
			sent <- struct{}{}
			written <- a.create(fmt.Sprint("proxied", n))
		}()
		<-sent
		for range 20 { // the write is under way meanwhile
			if err := a.besideAWrite(); err != nil {
				t.Error(err)
			}
		}
		select {
		case err := <-written:
			t.Logf("the write came first: %v", err)
			return false
		default:
			return <-written == nil
		}
	})
	p.be(passing)
	eventually(t, "the box writes again", func() bool { return a.create("last") == nil })
	same(t, a, other)
}
