package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// TestManual holds the manual against the program: each verb has a page, and the flags of serve are in a table.
func TestManual(t *testing.T) {
	const dir = "../../docs"
	pages, err := filepath.Glob(dir + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text[filepath.Base(page)] = string(content)
	}
	start := text["svcctl.md"]
	for _, v := range everyVerb() {
		if v.Group == "" || v.Name == "admin" {
			continue
		}
		page := func(name string) string {
			row := regexp.MustCompile(`(?m)^\| \[` + name + `\]\(([\w-]+\.md)(?:#[\w-]+)?\) \|`).FindStringSubmatch(start)
			if row == nil {
				return ""
			}
			return row[1]
		}
		above, _, _ := strings.Cut(v.Name, " ")
		if !strings.Contains(text[cmp.Or(page(v.Name), page(strings.TrimSuffix(v.Name, " "+v.Word())), page(above))], "svcctl "+v.Name) {
			t.Errorf("svcctl.md has no row for %s, or its page does not describe it", v.Name)
		}
	}
	for _, s := range settings.Settings() {
		if !strings.Contains(text["serve.md"], "\n| `--"+s.Name) {
			t.Errorf("the table of serve.md has no row for --%s", s.Name)
		}
	}
}
