package store

import (
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// A commit of files of a source shows who reads it, how many files are in force, and what they contain.
func TestSourceIsShown(t *testing.T) {
	b := newBox(t)
	read := func(box string, files ...*manifest.File) SourceVerdict {
		t.Helper()
		of := map[string]*manifest.File{}
		for _, f := range files {
			of[f.Path] = f
		}
		turn := SourceTurn{Name: "lb", Box: box, Instance: "one"}
		verdict := b.s.JudgeSource(turn, manifest.FilesOf(of))
		if err := b.s.SyncSources(manifest.FilesOf(of), []SourceTurn{turn}, nil); err != nil {
			t.Fatal(err)
		}
		return verdict
	}
	file := func(name string) *manifest.File {
		text := "{apiVersion: v1, kind: Service, metadata: {name: " + name + "}, spec: {ports: [{port: 80}]}}"
		f := manifest.Decode(SourcePath("lb", name+".yaml"), []byte(text), manifest.DefaultLimits())
		copy(f.Hash[:], text[38:])
		return f
	}
	shown := func(reader string, count int) {
		t.Helper()
		all := b.s.Sources()
		if len(all) != 1 || all[0].Name != "lb" || all[0].Reader != reader || all[0].Files != count {
			t.Errorf("the sources are %+v, want lb, read by %s, with %d files", all, reader, count)
		}
	}

	if v := read("a", file("mail"), file("web")); !v.OK() {
		t.Fatalf("nobody reads the source, and the first reader is refused: %+v", v)
	}
	shown("a", 2)
	if v := b.s.JudgeSource(SourceTurn{Name: "lb", Box: "b", Instance: "two"}, manifest.FilesOf(map[string]*manifest.File{"lb:mail.yaml": file("mail")})); v.Differs != "lb:web.yaml" || v.Reader != "a" {
		t.Errorf("another machine without web.yaml: %+v", v)
	}
	if v := read("a", file("mail")); !v.OK() || b.has("web") {
		t.Errorf("the reader without web.yaml: %+v; web is there: %v", v, b.has("web"))
	}
	shown("a", 1)
	if v := read("b", file("mail")); !v.OK() {
		t.Errorf("another machine with the same files: %+v", v)
	}
	shown("b", 1)
}
