package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
)

func (b *box) save(path, content string) {
	b.t.Helper()
	b.s.LastGood().Put(path, []byte(content))
	if err := b.s.LastGood().Flush(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) wantCopies(want string) {
	b.t.Helper()
	files, _, err := b.s.LastGood().Load()
	if err != nil {
		b.t.Fatal(err)
	}
	text := ""
	for _, path := range []string{"a.yaml", "b.yaml", "dir/c.yaml"} {
		if content, has := files[path]; has {
			text += fmt.Sprintf("%s=%s ", path, content)
		}
	}
	if text != want {
		b.t.Errorf("got %q, want %q", text, want)
	}
}

func TestLastGoodCopies(t *testing.T) {
	b := newBox(t)
	revision := b.s.Revision()
	b.save("a.yaml", "1")
	b.save("dir/c.yaml", "")
	b.restart()
	b.wantCopies("a.yaml=1 dir/c.yaml= ")
	b.save("a.yaml", "1")
	if b.engine.Commits() != 0 {
		t.Error("a copy that is the same was written")
	}
	b.save("b.yaml", "2")
	for _, path := range []string{"dir/c.yaml", "never/there"} {
		b.s.LastGood().Put(path, nil)
		if err := b.s.LastGood().Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if b.engine.Commits() != 2 {
		t.Errorf("%d commits, want one for b and one for c", b.engine.Commits())
	}
	b.restart()
	b.wantCopies("a.yaml=1 b.yaml=2 ")
	if b.s.Revision() != revision {
		t.Error("copies count as a revision")
	}
	b.apply("a.yaml", "a {}")
}

func TestLastGoodOfAFailingEngine(t *testing.T) {
	b := newBox(t)
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	b.s.LastGood().Put("a.yaml", []byte("1"))
	for range 2 {
		if err := b.s.LastGood().Flush(); !errors.Is(err, faulty.ErrInjected) {
			t.Errorf("got %v", err)
		}
	}
	b.engine.Inject(nil)
	b.wantCopies("")
	b.save("b.yaml", "2") // what could not be written goes with what comes next
	b.wantCopies("a.yaml=1 b.yaml=2 ")
}

// What is put while a commit is under way shares the next one, and the newest wins, also when
// that commit fails.
func TestLastGoodWhileACommitIsUnderWay(t *testing.T) {
	for _, fault := range []faulty.Fault{faulty.NoFault, faulty.Refuse} {
		b := newBox(t)
		before := b.engine.Commits()
		b.s.LastGood().Put("a.yaml", []byte("1"))
		b.s.LastGood().Put("dir/c.yaml", []byte("3"))
		b.engine.Inject(func(engine.Transaction) faulty.Fault {
			b.s.LastGood().Put("a.yaml", []byte("2"))
			b.s.LastGood().Put("b.yaml", []byte("2"))
			return fault
		})
		_ = b.s.LastGood().Flush()
		b.engine.Inject(nil)
		if err := b.s.LastGood().Flush(); err != nil {
			t.Fatal(err)
		}
		if commits := b.engine.Commits() - before; fault == faulty.NoFault && commits != 2 {
			t.Errorf("%d commits", commits)
		}
		b.wantCopies("a.yaml=2 b.yaml=2 dir/c.yaml=3 ")
	}
}

// A sync takes the copies that wait along, and nothing is left to flush.
func TestLastGoodCopiesGoWithASync(t *testing.T) {
	b := newBox(t)
	before := b.engine.Commits()
	b.s.LastGood().Put("a.yaml", []byte("1"))
	b.apply("a.yaml", "a {}")
	if err := b.s.LastGood().Flush(); err != nil {
		t.Error(err)
	}
	if commits := b.engine.Commits() - before; commits != 1 {
		t.Errorf("%d commits", commits)
	}
	b.wantCopies("a.yaml=1 ")
}

// Objects do not wait for a large copy, and are in its commit no second time.
func TestLastGoodLargeCopiesWaitForFlush(t *testing.T) {
	b := newBox(t)
	for round, want := range []int{1, 1 + rideAlong} {
		b.s.LastGood().Put("a.yaml", bytes.Repeat([]byte("#"), 1+rideAlong*round))
		with := 0
		b.engine.Inject(func(t engine.Transaction) faulty.Fault {
			for _, pair := range t.Puts {
				if pair.Key == filePrefix+"a.yaml" {
					with = len(pair.Value)
				}
			}
			return faulty.NoFault
		})
		b.apply("a.yaml", fmt.Sprintf("a%d {}", round))
		if got := with; (got != 0) != (round == 0) {
			t.Errorf("a copy of %d bytes: %d of them went with the objects", want, got)
		}
		before := b.engine.Commits()
		if err := b.s.LastGood().Flush(); err != nil {
			t.Fatal(err)
		}
		if with != want || b.engine.Commits()-before != round {
			t.Errorf("%d bytes are written, in %d commits of its own; want %d in %d", with, b.engine.Commits()-before, want, round)
		}
	}
}

// In a stream of changes the objects of most go alone, and the last content is kept all the
// same.
func TestLastGoodInAStream(t *testing.T) {
	b := newBox(t)
	with := 0
	b.engine.Inject(func(t engine.Transaction) faulty.Fault {
		for _, pair := range t.Puts {
			if pair.Key == filePrefix+"a.yaml" {
				with++
			}
		}
		return faulty.NoFault
	})
	const n = 20
	for i := range n {
		b.s.LastGood().Put("a.yaml", fmt.Append(nil, i))
		b.apply("a.yaml", fmt.Sprintf("a%d {}", i))
	}
	if with == 0 || with > n/2 {
		t.Errorf("copies went with %d of %d changes", with, n)
	}
	if err := b.s.LastGood().Flush(); err != nil {
		t.Fatal(err)
	}
	b.wantCopies(fmt.Sprintf("a.yaml=%d ", n-1))
}

// Many copies are written in several commits, none of which has much more than flushAtOnce: what
// one commit takes in memory, and how long those of objects wait for it, is bounded.
func TestManyCopiesAreWrittenInSeveralCommits(t *testing.T) {
	b := newBox(t)
	const files, size = 9, flushAtOnce / 3
	before := b.engine.Commits()
	for i := range files {
		b.s.LastGood().Put(fmt.Sprintf("%d.yaml", i), bytes.Repeat([]byte{byte('a' + i)}, size))
	}
	b.engine.Inject(func(t engine.Transaction) faulty.Fault {
		written := 0
		for _, pair := range t.Puts {
			written += len(pair.Value)
		}
		if written > flushAtOnce {
			b.t.Errorf("a commit has %d bytes", written)
		}
		return faulty.NoFault
	})
	if err := b.s.LastGood().Flush(); err != nil {
		t.Fatal(err)
	}
	if n := b.engine.Commits() - before; n != files/3 {
		t.Errorf("%d commits, want %d", n, files/3)
	}
	copies, _, err := b.s.LastGood().Load()
	if err != nil || len(copies) != files {
		t.Errorf("%d copies, %v", len(copies), err)
	}
}
