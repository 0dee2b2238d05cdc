package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Test616_a_plan_on_a_box_of_a_fleet tells what a change, whoever makes it, would change in the kernel of that box, of
// objects and of the files of a source, and changes nothing.
func Test616_a_plan_on_a_box_of_a_fleet(t *testing.T) {
	f, dirs := sourceFleet(t, 2)
	put(t, dirs[0], "web.yaml", f.web("web")...)
	f.readBy(0, "box1")
	f.serves("web")
	planned := func(n int, args ...string) (lines []string) {
		t.Helper()
		out, errOut, code := f.boxes[n].Svcctl("plan", append(args, "--against", "running", "-o", "json")...)
		var p kernelPlan
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&p); err != nil || code != 1 {
			t.Fatalf("plan on box %d: exit %d: %s%s", n+1, code, out, errOut)
		}
		return p.lines()
	}
	ruleset := func(n int) map[string][]string { return listedIn(f.hosts[n].Nft("list", "ruleset")) }
	becomes := func(n int, before map[string][]string, lines []string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if got := changed(before, ruleset(n)); !slices.Equal(got, lines) {
				return fmt.Errorf("box %d has\n%s\nwhere the plan says\n%s", n+1, strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
			return nil
		})
	}
	file := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(f.web("more"), "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	before, foreseen := ruleset(1), planned(1, "-f", file)
	if len(foreseen) == 0 || !slices.Equal(changed(before, ruleset(1)), nil) {
		t.Errorf("the plan is of %d lines, and changed %v", len(foreseen), changed(before, ruleset(1)))
	}
	if out, code := f.apply(0, f.web("more")...); code != 0 {
		t.Fatal(out)
	}
	becomes(1, before, foreseen)
	// And of what goes, on a box that another one makes the change on.
	set := []string{"--prune", "--applyset", "shop"}
	if out, code := f.applyWith(0, f.web("goes"), "--applyset", "shop", "--wait"); code != 0 {
		t.Fatal(out)
	}
	before, foreseen = ruleset(1), planned(1, append([]string{"-f", file}, set...)...)
	if len(foreseen) == 0 {
		t.Error("nothing would go")
	}
	if out, code := f.applyWith(0, f.web("more"), set...); code != 0 || strings.Count(out, " pruned") != 4 {
		t.Fatalf("exit %d: %s", code, out)
	}
	becomes(1, before, foreseen)
	// Files, as the box that reads them plans them.
	next := t.TempDir()
	put(t, next, "web.yaml", f.web("other")...)
	if out, errOut, code := f.boxes[1].Svcctl("plan", "-f", next, "--in-place-of", dirs[1], "--against", "running"); code != 2 || !strings.Contains(errOut, "box box1 reads source lb") {
		t.Errorf("a plan of files on a box that does not read them: exit %d: %s%s", code, out, errOut)
	}
	before, foreseen = ruleset(0), planned(0, "-f", next, "--in-place-of", dirs[0])
	put(t, dirs[0], "web.yaml", f.web("other")...)
	becomes(0, before, foreseen)
	f.serves("other")
}
