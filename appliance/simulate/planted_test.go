//go:build planted

package simulate

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestPlanted plants each bug of testdata/planted in the product and runs seeds until one fails, at most as many as its file bounds.
// A file names the bug in its comment, then "file PATH", "seeds N", and "fleet" if fleets find it, and has the sections old, which stands once in the file, and
// new. Each bug compiles the product, so the tests have a build tag: make planted. A bug that nothing finds has the line "missed REASON" and must not be found by its bound of seeds.
func TestPlanted(t *testing.T) {
	paths, err := filepath.Glob("testdata/planted/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no bugs: %v", err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if only := os.Getenv("BUG"); !strings.Contains(path, only) {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil || len(archive.Files) != 2 {
				t.Fatalf("%d sections, %v", len(archive.Files), err)
			}
			var file, missed, fleet string
			seeds := 0
			for line := range strings.Lines(string(archive.Comment)) {
				switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
				case "file":
					file = filepath.Join(root, rest)
				case "seeds":
					_, err = fmt.Sscan(rest, &seeds)
				case "fleet":
					fleet = "1"
				case "missed":
					missed = rest
				}
			}
			content, readErr := os.ReadFile(file)
			old, planted := string(archive.Files[0].Data), string(archive.Files[1].Data)
			if err != nil || readErr != nil || seeds == 0 || strings.Count(string(content), old) != 1 {
				t.Fatalf("%v, %v: %d seeds; the old text stands %d times in %s: move the bug with the code", err, readErr, seeds, strings.Count(string(content), old), file)
			}
			dir := t.TempDir()
			overlaid := filepath.Join(dir, "planted.go")
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: overlaid}})
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{overlaid: strings.Replace(string(content), old, planted, 1), filepath.Join(dir, "overlay.json"): string(overlay)} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			cmd := exec.Command("go", "test", "-count=1", "-v", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-run", "^TestSmoke$", ".")
			cmd.Env = append(os.Environ(), fmt.Sprint("SEEDS=", seeds), "FLEET="+fleet)
			out, err := cmd.CombinedOutput()
			found := regexp.MustCompile(`(?m)(?:seed (\d+)|^panic): (.*)`).FindStringSubmatch(string(out))
			switch {
			case err != nil && found == nil:
				t.Fatalf("%v:\n%.3000s", err, out)
			case missed != "" && err == nil:
				t.Logf("missed in %d seeds, as expected: %s", seeds, missed)
			case missed != "":
				t.Errorf("found by seed %s, and its file calls it missed: %s", found[1], found[2])
			case err == nil:
				t.Errorf("not found by %d seeds", seeds)
			default:
				t.Logf("found by seed %s after %.0f s: %.150s", found[1], time.Since(began).Seconds(), found[2])
			}
		})
	}
}
