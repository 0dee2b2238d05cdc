package store

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// letGo has sealed files take the places of those of the same content, as a Watcher does, and gives how many did.
func (b *sealBox) letGo(sealed []*manifest.File) (n int) {
	b.t.Helper()
	for _, f := range sealed {
		if is := b.files[f.Path]; is != nil && is.Hash == f.Hash {
			b.files[f.Path] = f
			n++
		}
	}
	b.sync()
	return n
}

// Once a file is sealed the store holds none of its documents, and writes nothing for that.
func TestDocumentsOfSealedFilesAreLetGo(t *testing.T) {
	b := newSealBox(t)
	b.change(map[string]string{"a.yaml": yamlOf("web {clusterIP: 172.30.0.9}") + sliceOfWeb, "b.yaml": "db {}", "c.yaml": "lb {type: LoadBalancer}"})
	sealed, opened := b.seal(), 0
	for i, f := range sealed {
		names, _ := f.Names()
		sealed[i] = manifest.Sealed(f.Path, f.Hash, names, copyFunc(func(string) *manifest.File { opened++; return f.Opened() }))
	}
	before, commits := objects(b.s), b.engine.Commits()
	if n := b.letGo(sealed); n != 2 || opened != 0 {
		t.Errorf("%d files took the places of others, want a.yaml and b.yaml; %d were decoded for that", n, opened)
	}
	if objects(b.s) != before || b.engine.Commits() != commits || b.s.HasUndeclared() {
		t.Errorf("objects\n%s\nwant\n%s\n%d commits", objects(b.s), before, b.engine.Commits()-commits)
	}
	for ref, declarations := range b.s.declared.byObject {
		for _, c := range declarations {
			if isLetGo := c.sealed != nil && c.object == nil; isLetGo != (ref.Name != "lb") {
				t.Errorf("%s is let go: %t", ref, isLetGo)
			}
		}
	}
	for f := range b.s.declared.files.All() {
		if isSealed(f) != (f.Path != "c.yaml") {
			t.Errorf("%s has %d documents", f.Path, len(f.Documents))
		}
	}
	if more := b.seal(); len(more) != 0 {
		t.Errorf("%d files are sealed twice", len(more))
	}
	// A sealed file that says something else is no such one.
	text := []byte(yamlOf("db {publishNotReadyAddresses: true}"))
	other := manifest.Decode("b.yaml", text, manifest.DefaultLimits())
	other.Hash = sha256.Sum256(text)
	names, _ := b.files["b.yaml"].Names()
	b.files["b.yaml"] = manifest.Sealed("b.yaml", other.Hash, names, copyFunc(func(string) *manifest.File { return other }))
	b.sync()
	if !b.service("db").Spec.PublishNotReadyAddresses {
		t.Error("another content of a sealed file is not seen")
	}
	b.change(map[string]string{"a.yaml": "web {clusterIP: 172.30.0.9}", "b.yaml": ""})
	if _, slices, _ := b.s.Service("default/web"); len(slices) != 0 || b.has("db") {
		t.Errorf("%d slices, db %t", len(slices), b.has("db"))
	}
}

// A store that lets documents go comes to what one comes to that keeps them.
func TestLettingDocumentsGoChangesNothing(t *testing.T) {
	letGo := 0
	for seed := range seeds(150) {
		lets, keeps := newSealBox(t), newSealBox(t)
		var history []map[string]string
		r := rand.New(rand.NewPCG(seed, 2))
		for step := range 12 {
			files := map[string]string{}
			for range 1 + r.IntN(3) {
				files[string(rune('a'+r.IntN(5)))+".yaml"] = sealTexts[r.IntN(len(sealTexts))]
			}
			history = append(history, files)
			touch, seal := r.IntN(4) == 0, r.IntN(2) == 0
			for _, b := range []*sealBox{lets, keeps} {
				b.change(files)
				sealed := b.seal()
				if touch {
					b.touch(rand.New(rand.NewPCG(seed, uint64(step)))) // in between, as clients do
				}
				if seal && b == lets {
					letGo += b.letGo(sealed)
				} else {
					b.sync()
				}
			}
			if got, want := objects(lets.s)+"\n"+lets.problems(), objects(keeps.s)+"\n"+keeps.problems(); got != want {
				t.Fatalf("seed %d, step %d: files %q\n%s\nwant\n%s", seed, step, history, got, want)
			}
			if got, want := fmt.Sprint(lets.s.declared.undeclared), fmt.Sprint(keeps.s.declared.undeclared); got != want {
				t.Fatalf("seed %d, step %d: files %q: undeclared %s, want %s", seed, step, history, got, want)
			}
		}
	}
	if letGo < int(seeds(100)) {
		t.Errorf("only %d files let their documents go", letGo)
	}
}
