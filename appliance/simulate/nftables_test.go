package simulate

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// Test1100_fake_is_nf_tables has what boxes asked of the fake kernel asked of nf_tables too, in a network namespace: the batches of
// scripts, their foreign changes, and each batch with a mistake in it. Both take the same, refuse the same with the same error
// number, and hold the same afterwards. SCRIPTS is the number of scripts.
func Test1100_fake_is_nf_tables(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short make no networks")
	}
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("PRIVILEGED TEST cannot run: it must be root to make network namespaces")
		}
		t.Skip("PRIVILEGED TEST SKIPPED: it must be root to make network namespaces")
	}
	scripts := 2
	if n, err := strconv.Atoi(os.Getenv("SCRIPTS")); err == nil {
		scripts = n
	}
	// A commit waits for readers of the rules more than it works, and each namespace has a lock of its own.
	var batches, refused atomic.Int64
	var compared sync.WaitGroup
	room := make(chan struct{}, 16)
	for seed := range uint64(scripts) {
		var steps []step
		dir := quickDir(t)
		script := Generate(seed + 1)
		// In a night nothing is committed, and watching files through its hours is most of the work of a script.
		script.Events = slices.DeleteFunc(script.Events, func(e Event) bool { return e.Verb == doNight })
		synctest.Test(t, func(*testing.T) {
			b, err := runBox(script, dir, nil)
			if err != nil { // TestSmoke is about that; what was asked until then is compared
				t.Logf("seed %d: %v", seed+1, err)
			}
			steps = b.tables.steps
		})
		room <- struct{}{}
		compared.Go(func() {
			defer func() { <-room }()
			runtime.LockOSThread() // never unlocked: the thread ends with its namespace
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			conn, err := kernel.Open(kernel.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			n, errs, err := compareKernels(conn, steps, rand.New(rand.NewPCG(seed, 4)))
			batches.Add(int64(n))
			refused.Add(int64(errs))
			if err != nil {
				t.Errorf("seed %d: %v", seed+1, err)
			}
		})
	}
	compared.Wait()
	if batches.Load() < int64(20*scripts) || refused.Load() < int64(scripts) {
		t.Errorf("%d batches, of which %d were refused, prove little", batches.Load(), refused.Load())
	}
	t.Logf("%d scripts: %d batches, %d of them refused", scripts, batches.Load(), refused.Load())
}

// compareKernels asks both.
func compareKernels(conn *kernel.Conn, steps []step, r *rand.Rand) (batches, refused int, err error) {
	model := fake.New()
	_, ours, _ := model.Read()
	_, real, err := conn.Read()
	if err != nil {
		return 0, 0, err
	}
	for i, s := range steps {
		if s.foreign != "" {
			have, _, _ := model.Read()
			if s.batch.Ops = tamper(have, s.foreign); len(s.batch.Ops) == 0 {
				continue
			}
		}
		if withoutFlowtables(&s.batch); len(s.batch.Ops) == 0 {
			continue
		}
		for _, batch := range []*nft.Batch{mistaken(&s.batch, r), &s.batch} {
			isMistake := batch != &s.batch
			var nextOurs, nextReal uint32
			var wrong, realWrong error
			if isMistake {
				wrong, realWrong = model.Check(batch, ours), conn.Check(batch, real)
			} else {
				nextOurs, wrong = model.Commit(batch, ours)
				nextReal, realWrong = conn.Commit(batch, real)
			}
			batches++
			if wrong != nil {
				refused++
			}
			if a, b := errnoOf(wrong), errnoOf(realWrong); a != b {
				return batches, refused, fmt.Errorf("step %d: the fake answers %v, nf_tables %v: %s", i, wrong, realWrong, describe(batch, realWrong, wrong))
			}
			if wrong != nil || isMistake {
				continue
			}
			if (nextOurs != ours) != (nextReal != real) {
				return batches, refused, fmt.Errorf("step %d: the generation of the fake goes from %d to %d, that of nf_tables from %d to %d", i, ours, nextOurs, real, nextReal)
			}
			ours, real = nextOurs, nextReal
			if batches%4 != 0 && i < len(steps)-1 {
				continue // reading takes longest
			}
			have, _, err := conn.Read()
			if err != nil {
				return batches, refused, err
			}
			want, _, _ := model.Read()
			if diff := differsFrom(want, have); diff != "" {
				return batches, refused, fmt.Errorf("step %d: %s", i, diff)
			}
		}
	}
	return batches, refused, nil
}

// withoutFlowtables leaves out of a batch what only a kernel with flowtables takes, and only for devices that are there. Test1065 and
// Test1066 load flowtables.
func withoutFlowtables(b *nft.Batch) {
	b.Ops = slices.DeleteFunc(slices.Clone(b.Ops), func(op nft.Op) bool {
		switch op.(type) {
		case nft.SetFlowtable, nft.DeleteFlowtable:
			return true
		}
		return false
	})
	for i, op := range b.Ops {
		if set, is := op.(nft.SetRules); is {
			set.Rules = slices.Clone(set.Rules)
			for j, rule := range set.Rules {
				set.Rules[j] = slices.DeleteFunc(slices.Clone(rule), func(s nft.Statement) bool { _, is := s.(nft.FlowAdd); return is })
			}
			b.Ops[i] = set
		}
	}
}

// mistaken is a batch with a mistake: an operation is repeated, or is missing, or two have changed places.
func mistaken(b *nft.Batch, r *rand.Rand) *nft.Batch {
	ops := slices.Clone(b.Ops)
	if len(ops) == 0 {
		return &nft.Batch{}
	}
	at := r.IntN(len(ops))
	switch r.IntN(3) {
	case 0:
		ops = slices.Insert(ops, at, ops[at])
	case 1:
		ops = slices.Delete(ops, at, at+1)
	default:
		other := r.IntN(len(ops))
		ops[at], ops[other] = ops[other], ops[at]
	}
	return &nft.Batch{Ops: ops}
}

func errnoOf(err error) string {
	if refused, is := errors.AsType[*kernel.OpError](err); is {
		return unix.ErrnoName(refused.Errno)
	}
	return fmt.Sprint(err)
}

// describe names the operations that were refused.
func describe(b *nft.Batch, errs ...error) (text string) {
	for _, err := range errs {
		if refused, is := errors.AsType[*kernel.OpError](err); is && refused.Op < len(b.Ops) {
			text += fmt.Sprintf("\n%d of %d: %.300v", refused.Op, len(b.Ops), fmt.Sprintf("%T%+v", b.Ops[refused.Op], b.Ops[refused.Op]))
		}
	}
	return text
}

// differsFrom compares the tables of the fake with those that were read.
func differsFrom(want, have nft.Ruleset) string {
	for _, family := range nft.Families {
		a, b := want[family], have[family]
		if a == nil || b == nil {
			if a != nil || b != nil {
				return fmt.Sprintf("%v: the fake has a table: %t, nf_tables: %t", family, a != nil, b != nil)
			}
			continue
		}
		if x, y := slices.Sorted(maps.Keys(a.Sets)), slices.Sorted(maps.Keys(b.Sets)); !slices.Equal(x, y) {
			return fmt.Sprintf("%v: the fake has sets %q, nf_tables %q", family, x, y)
		}
		for name, set := range a.Sets {
			if !set.Dynamic && !maps.Equal(set.Elements, b.Sets[name].Elements) {
				return fmt.Sprintf("%v: %s has %d elements in the fake, %d in nf_tables, or others", family, name, len(set.Elements), len(b.Sets[name].Elements))
			}
		}
		if x, y := slices.Sorted(maps.Keys(a.Chains)), slices.Sorted(maps.Keys(b.Chains)); !slices.Equal(x, y) {
			return fmt.Sprintf("%v: the fake has chains %q, nf_tables %q", family, x, y)
		}
		for name, chain := range a.Chains {
			if x, y := marks(family, chain.Rules), b.Chains[name].Marks; len(x)+len(y) > 0 && !slices.Equal(x, y) {
				return fmt.Sprintf("%v: chain %s has %d rules in the fake, %d in nf_tables, or others", family, name, len(x), len(y))
			}
		}
		if !slices.Equal(a.Counters, b.Counters) || len(a.Timeouts)+len(b.Timeouts) > 0 && !reflect.DeepEqual(a.Timeouts, b.Timeouts) {
			return fmt.Sprintf("%v: counters %q and %q, timeouts %v and %v", family, a.Counters, b.Counters, a.Timeouts, b.Timeouts)
		}
	}
	return ""
}
