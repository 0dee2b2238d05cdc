package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/store/annotation"
)

// TestExplainAnnotations: every annotation is in the list with its effect, has a page that tells what it does, and one
// that is not known has the nearest one named.
func TestExplainAnnotations(t *testing.T) {
	b := newBench()
	if code := b.run("explain", "annotations"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	listed := map[string]string{}
	for line := range strings.Lines(b.out.String()) {
		if key, effect, is := strings.Cut(strings.TrimSpace(line), " "); is {
			listed[key] = strings.TrimSpace(effect)
		}
	}
	for _, row := range annotation.Table() {
		if !strings.HasPrefix(listed[row.Key], string(row.Effect)+" ") {
			t.Errorf("%s is listed as %q, its effect is %q", row.Key, listed[row.Key], row.Effect)
		}
		if code := b.run("explain", "annotations", row.Key); code != cli.ExitDone {
			t.Errorf("explain annotations %s: exit %d: %s", row.Key, code, b.err.String())
			continue
		}
		said := strings.Join(strings.Fields(b.out.String()), " ")
		for _, want := range []string{"KEY: " + row.Key, "EFFECT: " + string(row.Effect), row.Values, row.Text} {
			if !strings.Contains(said, strings.Join(strings.Fields(want), " ")) {
				t.Errorf("explain annotations %s does not say %q: %s", row.Key, want, said)
			}
		}
		if row.Text == "" && row.Page == "" {
			t.Errorf("nothing tells what %s does", row.Key)
		}
	}
	if code := b.run("explain", "annotations", "slow-stat"); code != cli.ExitNo || !strings.Contains(b.err.String(), "did you mean slow-start?") {
		t.Errorf("a mistake: exit %d: %s", code, b.err.String())
	}
}
