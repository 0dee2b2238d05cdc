package watch

import (
	"crypto/sha256"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// sealedMemory gives the files that it has back sealed.
type sealedMemory struct {
	*Memory
	mu     *sync.Mutex // files are opened side by side
	opened map[string]int
}

func (m sealedMemory) Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error) {
	contents, _, _ = m.Memory.Load()
	sealed = map[string]*manifest.File{}
	for path, content := range contents {
		f := manifest.Decode(path, content, manifest.DefaultLimits())
		f.Hash = sha256.Sum256(content)
		var names []object.Ref
		for _, d := range f.Documents {
			names = append(names, object.RefOf(d.Object))
		}
		sealed[path] = manifest.Sealed(path, f.Hash, names, copyFunc(func(path string) *manifest.File {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.opened[path]++
			return f
		}))
	}
	return nil, sealed, nil
}

// Sealed files are not decoded when they are as they were; changed, broken and removed ones are
// dealt with as any.
func TestSealedFiles(t *testing.T) {
	files := map[string]string{"a.yaml": services("a"), "b.yaml": services("b"), "broken.yaml": services("c"), "gone.yaml": services("d"), "more.yaml": services("e")}
	memory := NewMemory()
	dir := put(t, t.TempDir(), files)
	bubbleIn := func(test func(h *harness)) {
		bubble(t, files, test, lastGood(memory), func(c *Config) { c.Dirs[0] = dir })
	}
	bubbleIn(func(h *harness) { h.next() })
	must(t, os.WriteFile(dir+"/broken.yaml", []byte("{"), 0o644))
	must(t, os.WriteFile(dir+"/more.yaml", []byte(services("e", "f")), 0o644))
	must(t, os.Remove(dir+"/gone.yaml"))
	sealed := sealedMemory{memory, new(sync.Mutex), map[string]int{}}
	bubble(t, nil, func(h *harness) {
		h.dir = dir
		s := h.next()
		for _, path := range []string{"a.yaml", "b.yaml", "broken.yaml"} {
			f := s.Files.Get(h.path(path))
			if names, ok := f.Names(); !ok || len(names) != 1 || f.Hash != sha256.Sum256([]byte(files[path])) {
				t.Errorf("%s: sealed %t, names %v", path, ok, names)
			}
		}
		if f := s.Files.Get(h.path("more.yaml")); f.Hash != sha256.Sum256([]byte(services("e", "f"))) || len(f.Documents) != 2 {
			t.Errorf("more.yaml has %d documents", len(f.Documents))
		}
		if s.Files.Get(h.path("gone.yaml")) != nil || len(slices.Collect(s.Files.All())) != 4 || s.Sources[0].Files != 4 {
			t.Errorf("files %v, %d in the source", slices.Collect(s.Files.All()), s.Sources[0].Files)
		}
		if len(s.Problems) != 1 || s.Problems[0].File != h.path("broken.yaml") {
			t.Errorf("problems %v", s.Problems)
		}
		if want := map[string]int{h.path("more.yaml"): 1, h.path("broken.yaml"): 1}; !maps.Equal(sealed.opened, want) {
			t.Errorf("opened %v, want %v", sealed.opened, want)
		}
		// What is back as it was is what is in force, without being decoded once more.
		h.write("broken.yaml", files["broken.yaml"])
		if s := h.next(); len(s.Problems) != 0 || !isSealed(s.Files.Get(h.path("broken.yaml"))) {
			t.Errorf("problems %v", s.Problems)
		}
		h.write("a.yaml", services("a", "x"))
		if s := h.next(); len(s.Files.Get(h.path("a.yaml")).Documents) != 2 {
			t.Error("a change of a sealed file is not seen")
		}
	}, lastGood(sealed), func(c *Config) { c.Dirs[0] = dir })
}

// Sealed files take the places of those that say the same, and of no others; what comes then is dealt with as ever.
func TestTakeSealed(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), "b.yaml": services("b"), "c.yaml": services("c")}, func(h *harness) {
		before := h.next()
		var sealed []*manifest.File
		for _, name := range []string{"a.yaml", "b.yaml"} {
			f := before.Files.Get(h.path(name))
			sealed = append(sealed, manifest.Sealed(f.Path, f.Hash, []object.Ref{object.RefOf(f.Documents[0].Object)}, copyFunc(func(string) *manifest.File { return f })))
		}
		gone := manifest.Sealed(h.path("gone.yaml"), manifest.Hash{1}, nil, copyFunc(func(string) *manifest.File { return nil }))
		h.write("b.yaml", services("x"))
		changed := h.next()
		must(h.T, h.w.TakeSealed(h.Context(), append(sealed, gone)))
		after := h.next()
		if len(slices.Collect(after.Files.All())) != 3 || !isSealed(after.Files.Get(h.path("a.yaml"))) || len(after.Problems) != 0 || !after.Noticed.IsZero() {
			t.Errorf("files %v, problems %v, noticed %v", slices.Collect(after.Files.All()), after.Problems, after.Noticed)
		}
		for _, name := range []string{"b.yaml", "c.yaml"} {
			if after.Files.Get(h.path(name)) != changed.Files.Get(h.path(name)) {
				t.Errorf("%s is another file than before", name)
			}
		}
		h.write("a.yaml", services("a", "y"))
		if f := h.next().Files.Get(h.path("a.yaml")); isSealed(f) || len(f.Documents) != 2 {
			t.Errorf("a change of a sealed file is not seen: %v", f)
		}
	})
}

func isSealed(f *manifest.File) bool { _, sealed := f.Names(); return sealed }

// copyFunc decodes copies of files.
type copyFunc func(path string) *manifest.File

func (c copyFunc) Copy(path string) *manifest.File { return c(path) }
