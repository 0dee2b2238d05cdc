package soak

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	row     = regexp.MustCompile(`(?m)^\| ([FSKPA]\d+) \|.*\| ([^|]*) \|$`)
	rowTest = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	byHand  = "`make kernels`" // takes too long to be a test
)

// TestRows: the list of faults in docs/reliability.md names tests for every row, and all of
// them exist.
func TestRows(t *testing.T) {
	const root, least = "../..", 45
	text, err := os.ReadFile(root + "/docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	functions, err := exec.Command("grep", "-rhoE", `^func (Test|Fuzz)\w+\(`, "--include=*_test.go", root).Output()
	if err != nil {
		t.Fatalf("list the tests: %v", err)
	}
	rows := row.FindAllStringSubmatch(string(text), -1)
	for _, r := range rows {
		tests := rowTest.FindAllStringSubmatch(r[2], -1)
		if len(tests) == 0 && !strings.Contains(r[2], byHand) {
			t.Errorf("%s: no test is named", r[1])
		}
		for _, name := range tests {
			if !strings.Contains(string(functions), "func "+name[1]+"(") {
				t.Errorf("%s: there is no test %s", r[1], name[1])
			}
		}
	}
	if len(rows) < least {
		t.Errorf("%d rows, want at least %d", len(rows), least)
	}
}
