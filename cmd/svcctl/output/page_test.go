package output

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnifiedDiff(t *testing.T) {
	for name, tt := range map[string]struct{ a, b, want string }{
		"equal":   {"a\nb\n", "a\nb\n", ""},
		"changed": {"a\nb\nc\n", "a\nx\nc\n", "--- A\n+++ B\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"},
		"new":     {"", "a\nb\n", "--- A\n+++ B\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		"gone":    {"a\n", "", "--- A\n+++ B\n@@ -1,1 +0,0 @@\n-a\n"},
		"two hunks": {"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n", "x\n2\n3\n4\n5\n6\n7\n8\n9\n10\ny\n",
			"--- A\n+++ B\n@@ -1,4 +1,4 @@\n-1\n+x\n 2\n 3\n 4\n@@ -8,4 +8,4 @@\n 8\n 9\n 10\n-11\n+y\n"},
		"one hunk": {"1\n2\n3\n4\n5\n6\n7\n", "x\n2\n3\n4\n5\n6\ny\n",
			"--- A\n+++ B\n@@ -1,7 +1,7 @@\n-1\n+x\n 2\n 3\n 4\n 5\n 6\n-7\n+y\n"},
	} {
		if got := Diff("A", "B", tt.a, tt.b); got != tt.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, tt.want)
		}
	}
}

// TestUnifiedDiffPatches has patch apply the differences of random texts.
func TestUnifiedDiffPatches(t *testing.T) {
	patch, err := exec.LookPath("patch")
	if err != nil {
		t.Skip("SKIPPED: there is no patch(1) to apply differences with")
	}
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range random.IntN(30) {
			fmt.Fprintf(&b, "line %d\n", random.IntN(6))
		}
		return b.String()
	}
	file := filepath.Join(t.TempDir(), "f")
	for range 100 {
		a, b := text(), text()
		d := Diff("f", "f", a, b)
		if d == "" {
			continue
		}
		if err := os.WriteFile(file, []byte(a), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(patch, "-s", "--posix", file)
		cmd.Stdin = strings.NewReader(d)
		out, err := cmd.CombinedOutput()
		got, _ := os.ReadFile(file)
		if err != nil || string(got) != b {
			t.Fatalf("%v %s\nfrom\n%sto\n%sgot\n%s%s", err, out, a, b, got, d)
		}
	}
}
