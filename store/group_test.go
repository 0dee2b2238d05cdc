package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// gather makes calls while the engine is busy with another one, and gives their errors.
func gather(t *testing.T, b *box, n int, fault faulty.Fault, write func(i int) ([]Written, error)) []error {
	t.Helper()
	busy, ready := make(chan struct{}), make(chan struct{})
	first := true
	b.engine.Inject(func(engine.Transaction) faulty.Fault {
		if first {
			first = false
			close(busy)
			<-ready
			return faulty.NoFault
		}
		return fault
	})
	errs := make([]error, n)
	var writers sync.WaitGroup
	writers.Go(func() { b.ask(Write{Ref: object.RefOf(configMap("first", "")), Object: configMap("first", "1")}) })
	<-busy
	for i := range n {
		writers.Go(func() { _, errs[i] = write(i) })
	}
	for waiting := 0; waiting < n; {
		time.Sleep(time.Millisecond)
		b.s.queue.mu.Lock()
		waiting = len(b.s.queue.waiting)
		b.s.queue.mu.Unlock()
	}
	close(ready)
	writers.Wait()
	b.engine.Inject(nil)
	b.check()
	return errs
}

func TestCallsShareACommit(t *testing.T) {
	b := newBox(t)
	commits, results := b.engine.Commits(), make([]Written, 50)
	errs := gather(t, b, len(results), faulty.NoFault, func(i int) ([]Written, error) {
		written, err := b.s.Write(
			Write{Ref: ref("shared"), Object: refine(document(t, "shared {}")), Create: true, DryRun: i%5 == 0},
			write(configMap(fmt.Sprint("a", i), "1")))
		results[i] = written[0]
		return written, err
	})
	if got := b.engine.Commits() - commits; got != 2 {
		t.Errorf("%d commits", got)
	}
	created := 0
	for i, r := range results {
		if errs[i] != nil {
			t.Errorf("call %d: %v", i, errs[i])
		}
		switch {
		case r.Err == nil && i%5 != 0:
			created++
		case r.Err != nil && !errors.Is(r.Err, ErrExists):
			t.Errorf("call %d: %v", i, r.Err)
		}
	}
	if list, _, _ := b.s.List(object.KindConfigMap, "", 0); len(list) != 51 || created != 1 {
		t.Errorf("%d ConfigMaps, %d created one Service", len(list), created)
	}
}

func TestCallsShareAFailure(t *testing.T) {
	b := newBox(t)
	for i, err := range gather(t, b, 10, faulty.Refuse, func(i int) ([]Written, error) {
		return b.s.Write(write(configMap(fmt.Sprint("a", i), "1")))
	}) {
		if !errors.Is(err, faulty.ErrInjected) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if list, _, _ := b.s.List(object.KindConfigMap, "", 0); len(list) != 1 {
		t.Errorf("%d ConfigMaps", len(list))
	}
}

// A panic ends the call that it happens in; the others hear of it, and those after it go on.
func TestPanicInACall(t *testing.T) {
	b := newBox(t, func(c *Config) {
		uid := c.NewUID
		c.NewUID = func() string {
			if uid := uid(); uid != "uid-5" {
				return uid
			}
			panic("no more uids")
		}
	})
	errs := gather(t, b, 10, faulty.NoFault, func(i int) (written []Written, err error) {
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("%v", reason)
			}
		}()
		return b.s.Write(write(refine(document(t, fmt.Sprintf("svc-%d {}", i)))))
	})
	panics := 0
	for i, err := range errs {
		if err == nil {
			t.Errorf("call %d is said to have succeeded", i)
		} else if !errors.Is(err, errAbandoned) {
			panics++
		}
	}
	if panics != 1 {
		t.Errorf("%d panics: %v", panics, errs)
	}
	b.must(write(refine(document(t, "svc-1 {}"))))
}

func TestGroupsAreBounded(t *testing.T) {
	var q writeQueue
	for _, n := range []int{400, 600, 1, 2 * maxGroup, 5} {
		q.add(&call{writes: make([]Write, n)})
	}
	for _, want := range []int{2, 1, 1, 1, 0} {
		if got := q.take(); len(got) != want {
			t.Errorf("%d calls, want %d", len(got), want)
		}
	}
}
