package svcctl_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// maxLines is how long a Go file may be without a reason. A longer one gives the
// reason in a comment that begins with longReason.
const (
	maxLines   = 600
	longReason = "This file is long because"
)

// maxFields is how many fields a struct may have without a reason. A larger one gives the
// reason in its doc comment, after fatReason.
const (
	maxFields = 15
	fatReason = "more than 15 fields:"
)

func TestEveryPackageHasDoc(t *testing.T) {
	_, all := allSources(t)
	documented, packages := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		if s.test {
			continue
		}
		packages[s.pkg] = true
		if path.Base(s.path) == "doc.go" && s.file.Doc != nil {
			documented[s.pkg] = true
		}
	}
	for pkg := range packages {
		if !documented[pkg] {
			t.Errorf("%s has no doc.go with a package comment", pkg)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	fset, all := allSources(t)
	for _, s := range all {
		lines := fset.Position(s.file.FileEnd).Line
		explained := slices.ContainsFunc(s.file.Comments, func(c *ast.CommentGroup) bool {
			return strings.Contains(strings.Join(strings.Fields(c.Text()), " "), longReason)
		})
		if lines > maxLines && !explained {
			t.Errorf("%s has %d lines: split it, or say why in a comment: %q", s.path, lines, longReason+" ...")
		}
	}
}

// TestStructsAreSmall counts a name of a field, and an embedded type, as one field. A struct without a type of
// its own has no place for a reason, so it has to be small.
func TestStructsAreSmall(t *testing.T) {
	fset, all := allSources(t)
	for _, s := range all {
		if s.test {
			continue
		}
		reasons := map[*ast.StructType]string{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				for _, spec := range n.Specs {
					if declared, is := spec.(*ast.TypeSpec); is && declared.Doc == nil && !n.Lparen.IsValid() {
						declared.Doc = n.Doc
					}
				}
			case *ast.TypeSpec:
				if fields, is := n.Type.(*ast.StructType); is {
					reasons[fields] = strings.Join(strings.Fields(n.Doc.Text()), " ")
				}
			case *ast.StructType:
				count := 0
				for _, f := range n.Fields.List {
					count += max(1, len(f.Names))
				}
				if count > maxFields && !strings.Contains(reasons[n], fatReason) {
					t.Errorf("%s: a struct of %d fields: split it, or say why in its comment: %q", fset.Position(n.Pos()), count, "It has "+fatReason+" ...")
				}
			}
			return true
		})
	}
}

func TestGofmt(t *testing.T) {
	fset, all := allSources(t)
	for _, s := range all {
		var formatted strings.Builder
		if err := format.Node(&formatted, fset, s.file); err != nil {
			t.Errorf("%s: %v", s.path, err)
		} else if formatted.String() != readText(t, s.path) {
			t.Errorf("%s is not as gofmt writes it", s.path)
		}
	}
}

// TestText reads every text file for what has no place in the repository.
func TestText(t *testing.T) {
	// The parts are joined here so that this file does not contain what it looks for.
	type mark struct {
		*regexp.Regexp
		parts []string // a line that matches has one of them
	}
	refused := map[string]mark{
		"a path of somebody's machine": {regexp.MustCompile(`(^|[^\w.])/(wo` + `rk|ho` + `me|Use` + `rs|ro` + `ot)/`), []string{"/wo" + "rk/", "/ho" + "me/", "/Use" + "rs/", "/ro" + "ot/"}},
		"unfinished work":              {regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}},
		"a package registry":           {regexp.MustCompile(`\b(proxy|sum)\.golang\.` + `org\b`), []string{".golang." + "org"}},
		"a conflict marker":            {regexp.MustCompile(`^(<{7}|>{7}) `), []string{"<<<<" + "<<<", ">>>>" + ">>>"}},
		"a blank at the end of a line": {regexp.MustCompile(`[ \t]+$`), []string{" \n", "\t\n"}},
	}
	for _, name := range files(t) {
		// The samples are kept as they were published.
		if strings.HasPrefix(name, "examples/seeds/") || strings.Contains(name, "/testdata/") {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsRune(content, 0) {
			t.Errorf("%s is not text", name)
			continue
		}
		text := string(content) + "\n"
		for what, m := range refused {
			if !slices.ContainsFunc(m.parts, func(part string) bool { return strings.Contains(text, part) }) {
				continue
			}
			for number, line := range strings.Split(text, "\n") {
				if m.MatchString(line) {
					t.Errorf("%s:%d: %s: %s", name, number+1, what, line)
				}
			}
		}
	}
}

// TestBoundsAreGenerous: what must come is awaited for a minute at least, because a busy machine takes its time; waiting ends
// when it comes.
func TestBoundsAreGenerous(t *testing.T) {
	short := regexp.MustCompile(`\beventually\(\w+(\.\w+)?, ([0-9]+\*time\.Millisecond|[1-5]?[0-9]\*time\.Second|time\.Second)|"--(timeout|wait)(=|", ?")([0-9]+ms|[1-5]?[0-9]s)"`)
	for _, name := range files(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		lines := strings.Split(readText(t, name), "\n")
		for number, line := range lines {
			if short.MatchString(line) && !strings.Contains(lines[max(0, number-1)], realTime) {
				t.Errorf("%s:%d: wait for a minute: %s", name, number+1, strings.TrimSpace(line))
			}
		}
	}
}

// link is a link of a Markdown file to another file, or to a heading: [text](target#part).
var link = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)

func TestLinksLead(t *testing.T) {
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for _, match := range link.FindAllStringSubmatch(readText(t, name), -1) {
			target, part := name, match[2]
			if match[1] != "" {
				target = filepath.Join(filepath.Dir(name), match[1])
			}
			switch {
			case !exists(target):
				t.Errorf("%s: link to %s, which does not exist", name, match[1])
			case part != "" && !slices.Contains(headings(readText(t, target)), part):
				t.Errorf("%s: link to #%s, which %s does not have", name, part, target)
			}
		}
	}
}

// headings are the headings of a Markdown file as parts of links.
func headings(text string) (parts []string) {
	for i, prose := range strings.Split(text, "\n```") {
		if i%2 == 1 {
			continue // a fenced block
		}
		for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose, -1) {
			part := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
			parts = append(parts, strings.ReplaceAll(part, " ", "-"))
		}
	}
	return parts
}

// TestDocsAreManPages holds docs/ to one shape, so that readers know where to look.
func TestDocsAreManPages(t *testing.T) {
	var pages []string
	for _, name := range files(t) {
		if strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md" {
			pages = append(pages, name)
		}
	}
	index, err := os.ReadFile("docs/svcctl.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, section := range []string{"## NAME", "## SYNOPSIS", "## DESCRIPTION", "## EXAMPLES", "## BUGS", "## SEE ALSO"} {
			found := strings.Index(string(content[at:]), section+"\n")
			if found < 0 {
				t.Errorf("%s has no section %q in its place", page, section)
				continue
			}
			at += found
		}
		if name := strings.TrimPrefix(page, "docs/"); name != "svcctl.md" && !strings.Contains(string(index), "("+name+")") {
			t.Errorf("docs/svcctl.md does not lead to %s", name)
		}
	}
}

// Test920_the_README_is_short: it has at most 500 words, of which commands and tables are a part, and the two commands.
func Test920_the_README_is_short(t *testing.T) {
	text := readText(t, "README.md")
	words := slices.DeleteFunc(strings.Fields(text), func(word string) bool {
		return !strings.ContainsFunc(word, unicode.IsLetter) && !strings.ContainsFunc(word, unicode.IsDigit)
	})
	if len(words) > 500 {
		t.Errorf("README.md has %d words, more than 500: docs/first-service.md has room", len(words))
	}
	for _, command := range []string{"make demo", "make test", "dpkg -i", "svcctl expose", "svcctl status"} {
		if !strings.Contains(text, "\n"+command) && !strings.Contains(text, "\nsudo "+command) {
			t.Errorf("README.md does not have the command %q", command)
		}
	}
}

// TestDocsNameEveryFlag compares the table of docs/serve.md with what the program says.
func TestDocsNameEveryFlag(t *testing.T) {
	help, err := os.ReadFile("cmd/svcctl/testdata/help/svcctl-serve.txt") // as TestHelp finds it
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	inHelp := flagNames(regexp.MustCompile(`(?m)^  --([a-z-]+)`), help)
	inTable := flagNames(regexp.MustCompile("(?m)^\\| `--([a-z-]+)"), page)
	for _, name := range inHelp {
		if !slices.Contains(inTable, name) {
			t.Errorf("docs/serve.md does not describe --%s", name)
		}
	}
	for _, name := range inTable {
		if !slices.Contains(inHelp, name) {
			t.Errorf("docs/serve.md describes --%s, which does not exist", name)
		}
	}
}

// TestLanesLoseNothing: what the lane of make test leaves out runs in another one, which has the packages of these tests, and make test-all,
// which is continuous integration, runs all lanes. Each line of .ci/long names a test that exists, and gives its reason.
func TestLanesLoseNothing(t *testing.T) {
	makefile := readText(t, "Makefile")
	defined := func(name string) string {
		found := regexp.MustCompile(`(?m)^` + name + ` = (.*)$`).FindStringSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile does not define %s", name)
		}
		return strings.ReplaceAll(found[1], "$$", "$")
	}
	_, everything, _ := strings.Cut(makefile, "\ntest-all: ")
	everything, _, _ = strings.Cut(everything, "\n\n")
	for _, part := range []string{" lint ", "$(LANE)", "$(LONG_LANE)", "$(SEEDED_LANE)", "$(ALONE_LANE)", "$(CONFORMANCE)", "$(MAKE) browser", "./.ci/report ./.ci/release"} {
		if !strings.Contains(everything, part) {
			t.Errorf("make test-all leaves out %s", part)
		}
	}
	if !strings.Contains(readText(t, ".ci/run"), "\nmake test-all\n") {
		t.Error(".ci/run does not run make test-all")
	}
	_, all := allSources(t)
	left, there := leftToTestAll(t), testNames(t)
	for _, name := range left {
		if !there[name] {
			t.Errorf(".ci/long names %s, which does not exist", name)
		}
	}
	if defined("LONG") != `^($(shell grep -oE '^Test[A-Za-z0-9_]+' .ci/long | paste -sd '|'))$` {
		t.Error("LONG does not have the tests of .ci/long")
	}
	expressions := map[string]string{"LONG": "^(" + strings.Join(left, "|") + ")$", "ALONE": defined("ALONE"), "SEEDED": defined("SEEDED")}
	for lane, expression := range expressions {
		if !strings.HasSuffix(defined(lane+"_LANE"), "-run '$("+lane+")' $(EXEC) -- $("+lane+"_IN)") {
			t.Errorf("%s_LANE does not run %s in %s_IN", lane, lane, lane)
		}
		if lane != "SEEDED" && !strings.Contains(defined("LANE"), "$("+lane+")") { // with fewer seeds, make test has those
			t.Errorf("make test runs %s too", lane)
		}
		names, in := regexp.MustCompile(expression), map[string]int{}
		for _, pkg := range strings.Fields(defined(lane + "_IN")) {
			in[strings.TrimPrefix(pkg, "./")] = 0
		}
		for _, s := range all {
			for _, decl := range s.file.Decls {
				f, is := decl.(*ast.FuncDecl)
				if !is || !s.test || !names.MatchString(f.Name.Name) {
					if is && lane == "SEEDED" && strings.HasPrefix(f.Name.Name, "Test") && calls(f, "seeds") {
						t.Errorf("%s: no lane has all seeds of %s", s.path, f.Name.Name)
					}
					continue
				}
				if _, runs := in[s.pkg]; !runs && (lane != "SEEDED" || calls(f, "seeds")) {
					t.Errorf("%s: no lane runs %s: %s leaves it out", s.path, f.Name.Name, lane)
				}
				in[s.pkg]++
			}
		}
		for pkg, tests := range in {
			if tests == 0 {
				t.Errorf("%s names no test of %s", lane, pkg)
			}
		}
	}
}

// leftToTestAll are the tests that .ci/long names: a line is a comment, or a name and a reason.
func leftToTestAll(t *testing.T) (names []string) {
	t.Helper()
	for line := range strings.Lines(readText(t, ".ci/long")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(name, "Test") || strings.TrimSpace(reason) == "" {
			t.Errorf(".ci/long: %q is not a test and the reason why make test leaves it out", line)
		}
		names = append(names, name)
	}
	return names
}

// calls reports whether a function calls another one of its package.
func calls(f *ast.FuncDecl, name string) (does bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if is {
			called, named := call.Fun.(*ast.Ident)
			does = does || named && called.Name == name
		}
		return !does
	})
	return does
}

func flagNames(expression *regexp.Regexp, text []byte) []string {
	var names []string
	for _, match := range expression.FindAllSubmatch(text, -1) {
		names = append(names, string(bytes.Join(match[1:], nil)))
	}
	return names
}

// TestReliabilityNamesTests: every test that docs/reliability.md names exists.
func TestReliabilityNamesTests(t *testing.T) {
	page, there := readText(t, "docs/reliability.md"), testNames(t)
	for _, match := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(page, -1) {
		if name := match[1]; !there[name] {
			t.Errorf("docs/reliability.md names %s, which does not exist", name)
		}
	}
}

func TestExamplesAreComplete(t *testing.T) {
	index, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := os.ReadFile("examples/seeds/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range directories(t, "examples") {
		if !strings.Contains(string(index), fmt.Sprintf("(%s/)", dir)) {
			t.Errorf("examples/README.md does not lead to %s/", dir)
		}
		wanted := []string{"README.md", "plan.nft"}
		switch dir {
		case "demo": // the program that shows quickstart
			continue
		case "systemd", "monitoring": // how to run it, and how to watch it
			wanted = []string{"README.md"}
		case "seeds": // a directory of examples
			wanted = []string{"README.md"}
		}
		for _, name := range wanted {
			if !exists(filepath.Join("examples", dir, name)) {
				t.Errorf("examples/%s has no %s", dir, name)
			}
		}
	}
	for _, dir := range directories(t, "examples/seeds") {
		if !strings.Contains(string(samples), fmt.Sprintf("(%s/)", dir)) {
			t.Errorf("examples/seeds/README.md does not say where %s is from", dir)
		}
		if !exists(filepath.Join("examples/seeds", dir, "plan.nft")) {
			t.Errorf("examples/seeds/%s has no plan.nft", dir)
		}
	}
}

func directories(t *testing.T, parent string) []string {
	t.Helper()
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// TestComments holds doc comments to Go's conventions: a predicate "reports whether", and
// the comment of a function begins with its own name, if it begins with a name.
func TestComments(t *testing.T) {
	fset, all := allSources(t)
	tells := regexp.MustCompile(`\btells?\s+whether\b`)
	for _, s := range all {
		for _, c := range s.file.Comments {
			if tells.MatchString(c.Text()) {
				t.Errorf("%s: write \"reports whether\", or \"sets whether\": %s", fset.Position(c.Pos()), tells.FindString(c.Text()))
			}
		}
		for _, decl := range s.file.Decls {
			f, is := decl.(*ast.FuncDecl)
			if !is || f.Doc == nil {
				continue
			}
			first, _, _ := strings.Cut(strings.TrimSpace(f.Doc.Text()), " ")
			first = strings.Trim(first, ".,:;()\n")
			if first != f.Name.Name && isName.MatchString(first) {
				t.Errorf("%s: the comment of %s begins with %s", fset.Position(f.Doc.Pos()), f.Name.Name, first)
			}
		}
	}
}

// isName matches a first word that can only be a name: a sentence begins with a capital
// and goes on in small letters.
var isName = regexp.MustCompile(`^([a-z]\w*|[A-Z]+[a-z0-9]+[A-Z]\w*)$`)

// testNames are the names of all tests and fuzz targets.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	_, all := allSources(t)
	for _, s := range all {
		for _, decl := range s.file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && s.test {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

func readText(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
