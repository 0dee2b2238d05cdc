package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// fenced matches a block of a page: the language, words behind it, and the lines.
var fenced = regexp.MustCompile("(?ms)^```([a-z]*)([^\n]*)\n(.*?)^```$")

// Test927_blocks_of_the_manual_are_marked: each block of a page states what is done with it. Commands in "sh" run in
// Test926_commands_of_the_manual_run. Those in "console" need something that a test does not have, as a second machine, or do not end:
// their verbs and flags exist. "yaml", "json" and "text" are files, output and syntax. A synopsis has no marks.
func Test927_blocks_of_the_manual_are_marked(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	generated, err := filepath.Glob("../../docs/reference/*.md")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, page := range slices.Concat(pages, generated, []string{"../../README.md"}) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			count[m[1]]++
			switch {
			case !slices.Contains([]string{"sh", "console", "yaml", "json", "text"}, m[1]):
				t.Errorf("%s: mark this block as ```sh (Test926 runs it), ```console (commands that it cannot run), ```yaml or ```text:\n%s", page, m[3])
			case m[1] == "sh" || m[1] == "console":
				for _, problem := range wrongCommands(m[3]) {
					t.Errorf("%s: %s", page, problem)
				}
			}
		}
		prose := fenced.ReplaceAllString(text, "")
		if _, rest, is := strings.Cut(prose, "## SYNOPSIS"); is {
			_, prose, _ = strings.Cut(rest, "\n## ")
		}
		for _, m := range regexp.MustCompile(`(?m)^\n( {4}\S.*)$`).FindAllStringSubmatchIndex(prose, -1) {
			if above := strings.TrimSpace(prose[:m[0]]); !listItem.MatchString(above[strings.LastIndex(above, "\n\n")+1:]) {
				t.Errorf("%s: put this block between ```sh, ```console, ```yaml or ```text and ```: %s", page, prose[m[2]:m[3]])
			}
		}
	}
	if count["sh"] < 70 || count["console"] > count["sh"] {
		t.Errorf("blocks by mark: %v: more commands should run", count)
	}
}

// listItem matches a paragraph that is, or continues, an item of a list: an indented paragraph below it belongs to the item.
var listItem = regexp.MustCompile(`(?m)\A\s*(- |\d+\. |  \S)`)

// wrongCommands returns a problem for each command of svcctl whose verb or flags do not exist.
func wrongCommands(block string) (problems []string) {
	block = strings.ReplaceAll(block, "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)(?:^|[|;&(] *|\bsudo |^\$ )svcctl( [^|;&<>)\n]*)`).FindAllStringSubmatch(block, -1) {
		words, _, _ := strings.Cut(m[1], " -- ")
		words = regexp.MustCompile(`'[^']*'|"[^"]*"`).ReplaceAllString(words, "x")
		args := strings.Fields(words)
		verb, rest := root().Find(args)
		if verb.Name == cli.RootName && len(args) > 0 && args[0] != "version" && args[0] != "completion" && args[0] != "help" {
			problems = append(problems, "svcctl"+m[1]+" is no verb")
			continue
		}
		for _, word := range rest {
			name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
			if strings.HasPrefix(word, "--") && name != "" && !verb.Has(name) {
				problems = append(problems, "svcctl"+m[1]+" has no flag --"+name)
			}
		}
	}
	return problems
}

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
