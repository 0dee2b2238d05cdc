package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

// planted is a bug of testdata/planted. A file has what is wrong, then "file PATH", "seeds N", "fleet" if fleets are to find it, and
// "nights" if nights are, which others do without, and the sections old, which stands once in the file, and new. All bugs are compiled
// into one program, and PLANTED names the one that it has: the word planted in new is true for it, and false for others; a section
// without that word takes the place of old for it. A bug that takes what seeds hardly ever have has a section script, which finds it,
// instead of a number of seeds. A bug that nothing finds has the line "missed REASON" and must not be found by its bound of seeds.
type planted struct {
	name, file, missed, fleet string
	nights                    bool
	seeds                     int
	before, after, script     string
	found                     uint64 // the seed
	again, events             int    // in how many replays it failed; of the shrunk script
}

func readPlanted(path string) (p planted, err error) {
	archive, err := txtar.ParseFile(path)
	if err != nil || len(archive.Files) < 2 || len(archive.Files) > 3 {
		return p, fmt.Errorf("%s: %d sections, %v", path, len(archive.Files), err)
	}
	p = planted{name: strings.TrimSuffix(filepath.Base(path), ".txt"), before: string(archive.Files[0].Data), after: string(archive.Files[1].Data)}
	if len(archive.Files) == 3 {
		p.script = string(archive.Files[2].Data)
	}
	for line := range strings.Lines(string(archive.Comment)) {
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "file":
			p.file = rest
		case "seeds":
			_, err = fmt.Sscan(rest, &p.seeds)
		case "fleet":
			p.fleet = "1"
		case "nights":
			p.nights = true
		case "missed":
			p.missed = rest
		}
	}
	if p.file == "" || (p.seeds == 0) == (p.script == "") {
		return p, fmt.Errorf("%s: no file, or neither or both of a bound and a script, %v", path, err)
	}
	return p, err
}

// in returns the text of a file with the bug beside the text that was.
func (p *planted) in(text string) (string, error) {
	if n := strings.Count(text, p.before); n != 1 {
		return "", fmt.Errorf("%s: the old text stands %d times in %s: move the bug with the code", p.name, n, p.file)
	}
	is := fmt.Sprintf("plantedBug == %q", p.name)
	after := regexp.MustCompile(`\bplanted\b`).ReplaceAllString(p.after, "("+is+")")
	if after == p.after {
		after = fmt.Sprintf("if %s {\n%s} else {\n%s}\n", is, p.after, p.before)
	}
	return strings.Replace(text, p.before, after, 1), nil
}

// readAllPlanted returns the bugs, and the texts with which the product is built that has them.
func readAllPlanted(t *testing.T) (bugs []planted, texts map[string]string) {
	t.Helper()
	paths, err := filepath.Glob("testdata/planted/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no bugs: %v", err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	texts = map[string]string{}
	for _, path := range paths {
		p, err := readPlanted(path)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(root, p.file)
		if texts[file] == "" {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = string(content)
			which := filepath.Join(filepath.Dir(file), "planted_bug.go")
			texts[which] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar plantedBug = os.Getenv(\"PLANTED\")\n", filepath.Base(filepath.Dir(file)))
		}
		text, err := p.in(texts[file])
		if err != nil {
			t.Error(err)
			continue
		}
		texts[file] = text
		bugs = append(bugs, p)
	}
	return bugs, texts
}

// TestPlanted plants all bugs without building or running them, so that one whose old text a change of the product took away fails at
// once. With FIND it runs seeds with each until one fails, at most as many as its file bounds: make planted. With REPLAY it has the
// scripts of so many bugs, those that the earliest seeds find, run again and shrunk.
func TestPlanted(t *testing.T) {
	bugs, texts := readAllPlanted(t)
	for file, text := range texts {
		if _, err := parser.ParseFile(token.NewFileSet(), file, text, 0); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() || os.Getenv("FIND") == "" {
		return
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for name, text := range texts {
		replace[name] = filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		if err := os.WriteFile(replace[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "simulate.test")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%.3000s", err, out)
	}
	room := make(chan struct{}, max(1, runtime.NumCPU()))
	each := func(name string, bugs []planted, do func(*testing.T, *planted)) {
		t.Run(name, func(t *testing.T) {
			for i := range bugs {
				t.Run(bugs[i].name, func(t *testing.T) {
					t.Parallel()
					room <- struct{}{}
					defer func() { <-room }()
					do(t, &bugs[i])
				})
			}
		})
	}
	bugs = slices.DeleteFunc(bugs, func(p planted) bool { return !strings.Contains(p.name, os.Getenv("BUG")) })
	each("find", bugs, func(t *testing.T, p *planted) { p.find(t, program) })
	most, err := strconv.Atoi(os.Getenv("REPLAY"))
	if err != nil {
		return
	}
	bugs = slices.DeleteFunc(bugs, func(p planted) bool { return p.found == 0 })
	slices.SortStableFunc(bugs, func(a, b planted) int { return cmp.Compare(a.found, b.found) })
	bugs = bugs[:min(most, len(bugs))]
	each("replay", bugs, func(t *testing.T, p *planted) { p.replay(t, program) })
	always, events := 0, []int{}
	for _, p := range bugs {
		if p.events > 0 {
			events = append(events, p.events)
		}
		if p.again == 3 {
			always++
		}
	}
	if slices.Sort(events); len(events) == 0 {
		t.Fatal("no script failed again")
	}
	if t.Logf("%d of %d failing scripts fail in 3 of 3 replays; shrunk to %d events in the median, %d at most", always, len(bugs), events[len(events)/2], events[len(events)-1]); always*30 < 29*len(bugs) || events[len(events)/2] >= 20 {
		t.Error("want 29 of 30, and fewer than 20 events")
	}
}

// replay runs the script with which the bug was found three times more, and shrinks it.
func (p *planted) replay(t *testing.T, program string) {
	out, _ := p.run(program, p.name, fmt.Sprint("SEED=", p.found), "SHRINK=15s")
	m := regexp.MustCompile(`failed in (\d) of 3 replays; shrunk from \d+ to (\d+) events`).FindStringSubmatch(out)
	if m == nil && strings.Contains(out, "--- PASS: TestSmoke") {
		t.Log("passed when it was run again")
		return
	}
	if m == nil {
		t.Fatalf("%.3000s", out)
	}
	p.again, _ = strconv.Atoi(m[1])
	p.events, _ = strconv.Atoi(m[2])
	t.Logf("%s", m[0])
}

// find runs seeds with the bug, or its script. One that fails without it counts for nothing.
func (p *planted) find(t *testing.T, program string) {
	if p.script != "" {
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(p.script), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := p.run(program, "", "SCRIPT="+file); err != nil {
			t.Errorf("its script fails without it: %v:\n%.3000s", err, out)
		}
		found, err := p.run(program, p.name, "SCRIPT="+file)
		if at := strings.Index(found, "event "); err == nil || at < 0 {
			t.Errorf("not found by its script: %v:\n%.3000s", err, found)
		} else {
			t.Logf("found by its script: %.150s", found[at:])
		}
		return
	}
	began, skip := time.Now(), ""
	for {
		out, err := p.run(program, p.name, fmt.Sprint("SEEDS=", p.seeds), "SKIP="+skip)
		found := regexp.MustCompile(`(?m)(?:seed (\d+)|^panic): (.*)`).FindStringSubmatch(out)
		if found != nil && found[1] != "" {
			if _, err := p.run(program, "", "SEEDS=1", "SEED="+found[1]); err != nil {
				skip += "," + found[1]
				continue
			}
		}
		switch {
		case err != nil && found == nil:
			t.Fatalf("%v:\n%.3000s", err, out)
		case p.missed != "" && err == nil:
			t.Logf("missed in %d seeds, as expected: %s", p.seeds, p.missed)
		case p.missed != "":
			t.Errorf("found by seed %s, and its file calls it missed: %s", found[1], found[2])
		case err == nil:
			t.Errorf("not found by %d seeds", p.seeds)
		default:
			p.found, _ = strconv.ParseUint(found[1], 10, 64) // a panic has no seed
			t.Logf("found by seed %s after %.0f s: %.150s", found[1], time.Since(began).Seconds(), found[2])
		}
		if skip != "" {
			t.Logf("left out, as they fail without a bug: seeds %s", skip[1:])
		}
		return
	}
}

// run runs TestSmoke with a bug, or with none.
func (p *planted) run(program, bug string, env ...string) (string, error) {
	cmd := exec.Command(program, "-test.v", "-test.timeout=0", "-test.run=^TestSmoke$")
	cmd.Env = append(append(os.Environ(), "FLEET="+p.fleet, "PLANTED="+bug, "GOMAXPROCS=1"), env...)
	if !p.nights {
		cmd.Env = append(cmd.Env, "NIGHTS=0")
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
