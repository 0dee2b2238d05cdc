package store

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
)

func (b *box) save(path, content string) {
	b.t.Helper()
	buffer := []byte(content)
	if err := b.s.LastGood().Save(path, buffer); err != nil {
		b.t.Fatal(err)
	}
	clear(buffer) // the caller's
}

func (b *box) wantCopies(want string) {
	b.t.Helper()
	files, err := b.s.LastGood().Load()
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
		if err := b.s.LastGood().Remove(path); err != nil {
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
	b.engine.Inject(func(Transaction) Fault { return Refuse })
	for range 2 {
		if err := b.s.LastGood().Save("a.yaml", []byte("1")); !errors.Is(err, ErrInjected) {
			t.Errorf("got %v", err)
		}
	}
	b.engine.Inject(nil)
	b.wantCopies("")
	b.save("a.yaml", "1")
	b.wantCopies("a.yaml=1 ")
}

// Callers that come while a commit is under way share the next one.
func TestLastGoodGroupsCommits(t *testing.T) {
	b := newBox(t)
	const callers = 64
	before := b.engine.Commits()
	b.s.writer.Lock() // a commit is under way
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			if err := b.s.LastGood().Save(fmt.Sprint("file-", i), []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	for joined := 0; joined < callers; runtime.Gosched() {
		b.s.copies.mu.Lock()
		if pending := b.s.copies.pending; pending != nil {
			joined = len(pending.contents)
		}
		b.s.copies.mu.Unlock()
	}
	b.s.writer.Unlock()
	group.Wait()
	if commits := b.engine.Commits() - before; commits != 1 {
		t.Errorf("%d commits", commits)
	}
	files, err := b.s.LastGood().Load()
	if err != nil || len(files) != callers {
		t.Errorf("%d copies, %v", len(files), err)
	}
}

// A sync takes the copies that wait along.
func TestLastGoodCopiesGoWithASync(t *testing.T) {
	b := newBox(t)
	before := b.engine.Commits()
	batch, err := b.s.copies.join(b.engine, "a.yaml", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	b.apply("a.yaml", "a {}")
	if commits := b.engine.Commits() - before; commits != 1 || !batch.done {
		t.Errorf("%d commits, done %t", commits, batch.done)
	}
	b.wantCopies("a.yaml=1 ")
}
