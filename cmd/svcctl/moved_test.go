package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// The verbs are 29 in four groups, and each has its help with an example and exit codes.
func Test890_verbs_come_in_groups(t *testing.T) {
	b := newBench()
	groups := map[string][]string{}
	for _, v := range root().Verbs {
		groups[v.Group] = append(groups[v.Group], v.Name)
	}
	total := 0
	for _, group := range []string{groupServe, groupChange, groupLook, groupAdmin} {
		total += len(groups[group])
	}
	if total != 29 || !slices.Equal(groups[""], []string{"version", "completion", "help", completeName}) {
		t.Errorf("%d verbs in groups, hidden %v", total, groups[""])
	}
	b.run("help")
	headings := regexp.MustCompile(`(?m)^(Serve|Change|Look|Admin):$`).FindAllString(b.out.String(), -1)
	if !slices.Equal(headings, []string{"Serve:", "Change:", "Look:", "Admin:"}) || strings.Contains(b.out.String(), "\n  completion") {
		t.Errorf("help has the headings %v:\n%s", headings, b.out.String())
	}
	for _, v := range everyVerb() {
		if v.Group != "" && v.Run != nil && (len(v.Examples) == 0 || v.Exits == "" || v.About == "") {
			t.Errorf("%s lacks an example, exit codes or a description in its help", v.Name)
		}
	}
}

// Each earlier spelling exits 2 with one line that has the one of now, which works.
func Test891_earlier_spellings_name_the_present_ones(t *testing.T) {
	b := newBench()
	now := regexp.MustCompile("`svcctl ([^`]+)`")
	for old, text := range moved {
		for _, args := range [][]string{{old}, {old, "x", "--yes"}, {"help", old}, {"-n", "shop", old}, {old, "--help"}} {
			code := b.run(args...)
			want := "svcctl: `svcctl " + old + "` is " + text + "\n"
			if code != cli.ExitUsage || b.err.String() != want || b.out.Len() > 0 {
				t.Errorf("svcctl %v: exit %d, stdout %q, stderr %q, want %q", args, code, b.out.String(), b.err.String(), want)
			}
		}
		if root().Below(old) != nil {
			t.Errorf("%s is a verb", old)
		}
		for _, m := range now.FindAllStringSubmatch(text, -1) {
			v, flags := root().Find(strings.Fields(m[1]))
			if v.Name == cli.RootName || len(flags) > 1 || len(flags) == 1 && !v.Has(strings.TrimPrefix(flags[0], "--")) {
				t.Errorf("%s is %s, which is no verb", old, m[1])
			}
		}
	}
	if len(moved) != 16 {
		t.Errorf("%d earlier spellings", len(moved))
	}
}

// earlier matches an earlier spelling as a command. "svcctl source" is a name of nftables too, before a dash.
var earlier = regexp.MustCompile("(?:\\bsvcctl\\s+|\\]\\()" + `(announcements|drain|undrain|source|rollout|schema|trial|release|conns|export|restore|alloc|pin|kubeconfig|token|env)\b[^-.\w]`)

// No page, example, help or message of the product names an earlier spelling.
func Test891_nothing_names_an_earlier_spelling(t *testing.T) {
	files, err := exec.Command("git", "ls-files", "../..").Output()
	if err != nil { // a source archive
		_ = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, (path + "\n")...)
			}
			return nil
		})
	}
	read := 0
	for path := range strings.Lines(string(files)) {
		path = strings.TrimSpace(path)
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(path, "/testdata/fuzz/") || filepath.Base(path) == "words.txt" || filepath.Base(path) == "moved_test.go" {
			continue
		}
		read++
		for _, m := range earlier.FindAllString(string(text), -1) {
			if strings.HasPrefix(m, "](") || strings.Contains(m, "svcctl export\"") { // a link to a page; the format of exports
				continue
			}
			t.Errorf("%s: %q", path, m)
		}
	}
	if read < 500 {
		t.Errorf("%d files were read", read)
	}
}
