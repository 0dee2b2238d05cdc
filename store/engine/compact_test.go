package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// incompressible is text that is as long when it is packed.
func incompressible(n int) []byte {
	r, text := rand.New(rand.NewPCG(1, 2)), make([]byte, n)
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	return text
}

// bloat writes large pairs and removes them again.
func bloat(t *testing.T, f *File, pairs int) {
	t.Helper()
	revision := entryHead(t, f)
	for i := range pairs {
		put := Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}, {Key: fmt.Sprint("large/", i), Value: incompressible(900_000)}}}
		if err := f.Commit(put); err != nil {
			t.Fatal(err)
		}
		revision++
	}
	drop := Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}}}
	for i := range pairs {
		drop.Deletes = append(drop.Deletes, fmt.Sprint("large/", i))
	}
	if err := f.Commit(drop); err != nil {
		t.Fatal(err)
	}
}

func entryHead(t *testing.T, f *File) uint64 {
	t.Helper()
	head, err := f.Load("head")
	if err != nil || len(head) == 0 {
		t.Fatalf("no head: %v", err)
	}
	return head[0].Revision
}

// A file that is mostly free is smaller after the next start, with the same in it.
func TestFileIsCompactedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	size := func() int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	f := mustOpenFile(t, dir)
	fill(t, f, 1, 3)
	bloat(t, f, 20)
	want := dump(t, f)
	f.Close()
	large := size()
	if large < 18_000_000 {
		t.Fatalf("the file has %d bytes", large)
	}
	// What a crash left behind is no obstacle.
	if err := os.WriteFile(filepath.Join(dir, fileName+compactSuffix), []byte("half of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	f = mustOpenFile(t, dir)
	if got := dump(t, f); got != want {
		t.Errorf("it has\n%s\nwant\n%s", got, want)
	}
	if got := size(); got > large/10 {
		t.Errorf("the file has %d bytes, and had %d", got, large)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+compactSuffix)); len(left) > 0 {
		t.Errorf("%s is left", left)
	}
	revision := entryHead(t, f)
	if err := f.Commit(Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}}}); err != nil {
		t.Error(err)
	}
	f.Close()
	f = mustOpenFile(t, dir)
	if got := entryHead(t, f); got != revision+1 {
		t.Errorf("revision %d, want %d", got, revision+1)
	}
	f.Close()
}

// A copy that fails leaves the file as it is.
func TestCompactionThatFails(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	fill(t, f, 1, 3)
	bloat(t, f, 20)
	want := dump(t, f)
	f.Close()
	if err := os.MkdirAll(filepath.Join(dir, fileName+compactSuffix, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	f = mustOpenFile(t, dir)
	defer f.Close()
	if got := dump(t, f); got != want {
		t.Errorf("it has\n%s\nwant\n%s", got, want)
	}
}
