package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// built builds the site of the repository.
func built(t *testing.T) (*site, string) {
	t.Helper()
	s, out := &site{root: "../../..", pages: map[string]*page{}}, t.TempDir()
	if err := s.read("README.md"); err != nil {
		t.Fatal(err)
	}
	if err := s.write(out); err != nil {
		t.Fatal(err)
	}
	return s, out
}

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	anchor    = regexp.MustCompile(` id="([^"]+)"`)
)

// Test921_links_of_the_site_resolve follows every link of every page, to pages, headings and the parts of the site.
func Test921_links_of_the_site_resolve(t *testing.T) {
	_, out := built(t)
	ids := map[string]map[string]bool{}
	texts := map[string]string{}
	err := filepath.WalkDir(out, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		ids[name] = map[string]bool{}
		if filepath.Ext(name) == ".html" {
			texts[name] = string(content)
			for _, m := range anchor.FindAllStringSubmatch(string(content), -1) {
				ids[name][m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for name, text := range texts {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if external.MatchString(m[1]) {
				continue
			}
			links++
			to, part, _ := strings.Cut(m[1], "#")
			target := name
			if to != "" {
				target = filepath.Join(filepath.Dir(name), to)
			}
			if known := ids[target]; known == nil || part != "" && !known[part] {
				t.Errorf("%s: nothing is at %s", strings.TrimPrefix(name, out), m[1])
			}
		}
	}
	if len(texts) < 60 || links < 5000 {
		t.Errorf("%d pages with %d links: is the start page linked?", len(texts), links)
	}
}

// Every page of the manual is in the site, and the menu has all kinds.
func TestSiteIsWhole(t *testing.T) {
	s, _ := built(t)
	for _, pattern := range []string{"docs/*.md", "docs/reference/*.md", "examples/*/README.md"} {
		names, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, name := range names {
			if name = strings.TrimPrefix(name, "../../../"); s.pages[name] == nil {
				t.Errorf("no page leads to %s", name)
			}
		}
	}
	var kinds []string
	for _, g := range s.menu {
		kinds = append(kinds, g.Title)
		if len(g.Items) < 3 {
			t.Errorf("%s has %d pages", g.Title, len(g.Items))
		}
	}
	if got := fmt.Sprint(kinds); got != "[Tutorials How-to Reference Explanation Project]" {
		t.Errorf("the menu has %s", got)
	}
}

// Links and headings of a page are those that GitHub shows; a link that leads nowhere is an error with the page.
func TestRender(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("README.md", "# A\n\n[b](docs/b.md#x-y) [dir](dir/) [conf](dir/a.conf) [out](https://example.com/)\n")
	write("docs/b.md", "# svcctl-b(7)\n\n## NAME\n\nb, c - about [it](b.md)\n\n## SEE ALSO\n\n## `X` Y!\n\n## `X` Y!\n\n| | |\n|---|---|\n| <script> | b |\n\n[up](../README.md)\n")
	write("dir/a.conf", "<b>\n")
	s := &site{root: root, pages: map[string]*page{}}
	if err := s.read("README.md"); err != nil {
		t.Fatal(err)
	}
	for page, wants := range map[string][]string{
		"README.md":  {`href="docs/b.html#x-y"`, `href="dir/index.html"`, `href="dir/a.conf.html"`, `href="https://example.com/"`},
		"docs/b.md":  {`id="x-y"`, `id="x-y-1"`, `<div class="wide" tabindex="0"><table>`, `">b</h1>`, `<p class="lead" id="name">about <a`, `<h2 id="see-also">See also</h2>`, `href="../index.html"`},
		"dir/":       {`href="a.conf.html"`},
		"dir/a.conf": {"&lt;b&gt;"},
	} {
		for _, want := range wants {
			if p := s.pages[page]; p == nil || !strings.Contains(p.body, want) {
				t.Errorf("%s lacks %s: %v", page, want, p)
			}
		}
	}
	if body := s.pages["docs/b.md"].body; strings.Contains(body, "<script>") || strings.Contains(body, "<th></th>") || s.pages["docs/b.md"].title != "b" {
		t.Errorf("%s:\n%s", s.pages["docs/b.md"].title, body)
	}
	write("docs/b.md", "[no](c.md)\n")
	if err := (&site{root: root, pages: map[string]*page{}}).read("README.md"); err == nil || !strings.Contains(err.Error(), "docs/b.md: a link to c.md") {
		t.Error(err)
	}
}
