package netlab

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir is a directory of manifests.
type Dir struct {
	Path string

	t testing.TB
}

// Write makes or replaces a file at once: readers see the old or the new content.
func (d Dir) Write(name, content string) {
	d.t.Helper()
	temporary := filepath.Join(d.Path, "."+name+".tmp")
	err := os.WriteFile(temporary, []byte(content), 0o644)
	if err == nil {
		err = os.Rename(temporary, filepath.Join(d.Path, name))
	}
	if err != nil {
		d.t.Fatalf("write manifest: %v", err)
	}
}

// WriteInPlace overwrites a file as a careless program does: readers may see a part.
func (d Dir) WriteInPlace(name, content string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.Path, name), []byte(content), 0o644); err != nil {
		d.t.Fatalf("write manifest: %v", err)
	}
}

// Remove removes a file.
func (d Dir) Remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.Path, name)); err != nil {
		d.t.Fatalf("remove manifest: %v", err)
	}
}
