package manifest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

func TestFiles(t *testing.T) {
	files := map[string]*File{}
	for _, path := range []string{"b", "a", "d"} {
		files[path] = &File{Path: path}
	}
	before := FilesOf(files)
	if got := before.Get("d"); got != files["d"] {
		t.Errorf("at d is %v", got)
	}
	if got := before.Get("c"); got != nil {
		t.Errorf("at c is %v", got)
	}
	changed := &File{Path: "b"}
	c, e := &File{Path: "c"}, &File{Path: "e"}
	for _, test := range []struct {
		now  Files
		want string
	}{
		{before, ""},
		{Files{}, "-a-b-d"},
		{before.Updated(map[string]*File{"b": changed}), "*b"},
		{FilesOf(map[string]*File{"b": changed}), "-a*b-d"},
		{before.Updated(map[string]*File{"c": c, "e": e, "f": nil}), "+c+e"},
		{FilesOf(map[string]*File{"c": c}), "-a-b+c-d"},
	} {
		got := ""
		test.now.Changes(before, func(was, is *File) {
			switch {
			case was == nil:
				got += "+" + is.Path
			case is == nil:
				got += "-" + was.Path
			default:
				got += "*" + is.Path
			}
		})
		if got != test.want {
			t.Errorf("changes to %v are %q, want %q", test.now, got, test.want)
		}
	}
	if len(slices.Collect(before.All())) != 3 {
		t.Errorf("files of the map are %v", slices.Collect(before.All()))
	}
}

// Updated files are those of a map, whatever changes came in between, and a change shares all chunks but one.
func TestFilesUpdated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	want, have := map[string]*File{}, Files{}
	for range 3000 {
		before, with := have, map[string]*File{}
		for range 1 + r.IntN(3)*r.IntN(200) {
			path := fmt.Sprintf("%04d", r.IntN(3000))
			with[path] = nil
			delete(want, path)
			if r.IntN(3) > 0 {
				f := &File{Path: path}
				with[path], want[path] = f, f
			}
		}
		if have = have.Updated(with); len(slices.Collect(have.All())) != len(want) {
			t.Fatalf("%d files, want %d", len(slices.Collect(have.All())), len(want))
		}
		differing := 0
		have.Changes(before, func(was, is *File) { differing++ })
		if differing > len(with) {
			t.Fatalf("%d differences after %d changes", differing, len(with))
		}
	}
	last := ""
	for f := range have.All() {
		if want[f.Path] != f || have.Get(f.Path) != f || f.Path <= last {
			t.Fatalf("%s is not in its place", f.Path)
		}
		last = f.Path
	}
	for i, c := range have.chunks {
		if len(c) == 0 || len(c) > chunkMost {
			t.Errorf("chunk %d has %d files", i, len(c))
		}
	}
	one := have.Updated(map[string]*File{"1500": {Path: "1500"}})
	shared := 0
	for i := range min(len(one.chunks), len(have.chunks)) {
		if &one.chunks[i][0] == &have.chunks[i][0] {
			shared++
		}
	}
	if len(one.chunks) < 10 || shared < len(one.chunks)-2 {
		t.Errorf("%d of %d chunks are shared", shared, len(one.chunks))
	}
}

// A change of one file takes little memory, however many there are.
func TestUpdatingOneFileIsCheap(t *testing.T) {
	all := map[string]*File{}
	for i := range 50_000 {
		path := fmt.Sprintf("%05d", i)
		all[path] = &File{Path: path}
	}
	files := FilesOf(all)
	var before, after runtime.MemStats
	const changes = 100
	runtime.ReadMemStats(&before)
	for range changes {
		next := files.Updated(map[string]*File{"25000": {Path: "25000"}})
		next.Changes(files, func(_, _ *File) {})
		files = next
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > 16<<10 {
		t.Errorf("a change of one of 50,000 files takes %d bytes", each)
	}
}
