package held

import (
	"crypto/sha256"
	"reflect"
	"slices"
	"testing"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

const prefix, copies = "trial/file/", "file/"

// files are decoded files in order of their paths.
func files(contents ...string) manifest.Files {
	all := map[string]*manifest.File{}
	for i := 0; i < len(contents); i += 2 {
		f := manifest.Decode(contents[i], []byte(contents[i+1]), manifest.DefaultLimits())
		f.Hash = sha256.Sum256([]byte(contents[i+1]))
		all[f.Path] = f
	}
	return manifest.FilesOf(all)
}

func service(name string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {ports: [{port: 80}]}\n"
}

func commit(t *testing.T, to engine.Engine, tx engine.Transaction) {
	t.Helper()
	if err := to.Commit(tx); err != nil {
		t.Fatal(err)
	}
}

// Files of a trial are taken as they were before it from when it went back, until they change.
func TestFilesAreHeldUntilTheyChange(t *testing.T) {
	e := engine.NewMemory()
	commit(t, e, engine.Transaction{Puts: []engine.Pair{
		{Key: copies + "edited.yaml", Value: []byte(service("before"))}, {Key: copies + "removed.yaml", Value: []byte(service("removed"))}, {Key: copies + "same.yaml", Value: []byte(service("same"))},
	}})
	f := NewFiles(prefix)
	change := engine.Transaction{
		Puts:    []engine.Pair{{Key: copies + "edited.yaml", Value: []byte(service("after"))}, {Key: copies + "added.yaml", Value: []byte(service("added"))}, {Key: copies + "same.yaml", Value: []byte(service("other"))}},
		Deletes: []string{copies + "removed.yaml"},
	}
	kept, err := f.Keep(e, copies, 2, &change)
	if err != nil {
		t.Fatal(err)
	}
	f.Kept(kept)
	commit(t, e, change)
	all := []string{"added.yaml", "edited.yaml", "removed.yaml", "same.yaml"}
	if got := f.Paths(); !slices.Equal(got, all) || f.IsHolding() {
		t.Fatalf("the trial covers %v, holding %v", got, f.IsHolding())
	}
	// A second change of a file in the trial does not replace the content before.
	again := engine.Transaction{Puts: []engine.Pair{{Key: copies + "edited.yaml", Value: []byte(service("later"))}}}
	if kept, err := f.Keep(e, copies, 3, &again); err != nil || len(kept) > 0 {
		t.Fatalf("%v, %v", kept, err)
	}

	found := files("added.yaml", service("added"), "edited.yaml", service("after"), "same.yaml", service("same"))
	var back engine.Transaction
	holding, err := f.Hold(e, 4, found, &back)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, e, back)
	pairs, err := e.Load(prefix)
	if err != nil {
		t.Fatal(err)
	}
	restarted := NewFiles(prefix)
	restarted.Load(pairs, true)
	for name, h := range map[string]*Files{"held": holding, "held, after a restart": restarted} {
		if got := h.Paths(); !slices.Equal(got, all[:3]) || !h.IsHolding() { // the last one is as it was before
			t.Errorf("%s: %v", name, got)
		}
		taken, released := h.Effective(found)
		if want := files("edited.yaml", service("before"), "removed.yaml", service("removed"), "same.yaml", service("same")); !reflect.DeepEqual(names(taken), names(want)) || len(released) > 0 {
			t.Errorf("%s: %v are in force, %v released", name, names(taken), released)
		}
		changed := files("added.yaml", service("corrected"), "edited.yaml", service("after"), "removed.yaml", service("x"), "same.yaml", service("same"))
		taken, released = h.Effective(changed)
		slices.Sort(released)
		if !slices.Equal(released, []string{"added.yaml", "removed.yaml"}) || !slices.Contains(names(taken), "corrected") || !slices.Contains(names(taken), "before") {
			t.Errorf("%s, after a change: %v are in force, %v released", name, names(taken), released)
		}
	}
	var end engine.Transaction
	if rest := restarted.Without(all[:3], &end); rest.IsHolding() || len(rest.Paths()) > 0 || len(end.Deletes) != 3 {
		t.Errorf("%v are left, %v deleted", rest.Paths(), end.Deletes)
	}
	if !restarted.IsHolding() {
		t.Error("the files before the commit have changed")
	}
	if f.Tried().IsHolding() || holding.Tried().IsHolding() {
		t.Error("files that are tried again are held")
	}
}

// names are the Services of files, in order.
func names(files manifest.Files) (all []string) {
	for f := range files.All() {
		for _, d := range f.Documents {
			all = append(all, d.Object.GetMeta().Name)
		}
	}
	return all
}
