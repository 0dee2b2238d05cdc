package svcctl_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The limits of this file only fall: lower one in the change that falls below it. A change that would exceed one removes as much as it
// adds, elsewhere if need be.
const (
	maxCoreLines     = 112_193
	maxPureFunctions = 0
)

// rooms are capabilities that came with packages and files of their own: each has a limit apart, which only falls, too.
var rooms = []struct {
	name    string
	most    int
	pattern *regexp.Regexp
}{
	{"the Gateway API", 3_151, regexp.MustCompile(`^(appliance/gateway/|appliance/control/gateway\.go|store/object/(gateway|route|rules)\.go|(api/diagnose|cmd/svcctl/look)/gateway\.go)`)},
	{"endpoints from providers", 4_204, regexp.MustCompile(`^(appliance/(discover|brake)/|appliance/parts/discovered\.go|store/annotation/from\.go|cmd/svcctl/box/discover\.go)`)},
	{"the fast path", 651, regexp.MustCompile(`/(fastpath|flowtable)\.go$`)},
	{"dashboard, top and their history", 4_927, regexp.MustCompile(`^(api/dashboard/|cmd/svcctl/top/|appliance/(history|traffic)/)`)},
	{"egress", 1_160, regexp.MustCompile(`/egress\.go$`)},
}

// dialect has how often words of the project's own language may stand in comments of product code; see CONTRIBUTING.md.
var dialect = map[string]int{
	`says`: 0, `tells?|told`: 0, `hears?|heard`: 0, `knows?`: 0, `who|whom`: 0, `anew`: 0, `what is`: 0,
}

// support matches the places of tests and tools, which are no part of the product.
var support = regexp.MustCompile(`_test\.go$|^(appliance/(netlab|test|e2e|soak|bench|simulate)|nft/nfttest|api/conformance|examples|\.ci|store/manifest/styles)/`)

var ofNoCode = regexp.MustCompile(`^\s*(//|$)`)

// TestProductIsSmall counts the lines of the product that are neither blank nor a comment.
func TestProductIsSmall(t *testing.T) {
	_, all := allSources(t)
	files, core, of := 0, 0, make([]int, len(rooms))
	for _, s := range all {
		if support.MatchString(s.path) {
			continue
		}
		files++
		content, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		lines := &core
		for i := range rooms {
			if rooms[i].pattern.MatchString(s.path) {
				lines = &of[i]
			}
		}
		for line := range strings.Lines(string(content)) {
			if !ofNoCode.MatchString(strings.TrimRight(line, "\n")) {
				*lines++
			}
		}
	}
	sum := core
	for i := range rooms {
		isAtMost(t, "lines of "+rooms[i].name, of[i], rooms[i].most)
		sum += of[i]
	}
	t.Logf("%d lines in %d files", sum, files)
	isAtMost(t, "lines of product code outside of rooms", core, maxCoreLines)
}

// TestPureRoomsGetValues counts the fields of structs that are functions, in packages that are declared pure: what is called through one
// may do anything. Functions of a named type count, and those in slices and maps.
func TestPureRoomsGetValues(t *testing.T) {
	_, all := allSources(t)
	rooms := slices.DeleteFunc(slices.Clone(all), func(s source) bool { return s.test || !slices.Contains(pure, s.pkg) })
	named := map[string]bool{}
	for _, s := range rooms {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if declared, is := n.(*ast.TypeSpec); is {
				if _, is := declared.Type.(*ast.FuncType); is {
					named[s.pkg+" "+declared.Name.Name] = true
				}
			}
			return true
		})
	}
	fields := map[string]int{}
	for _, s := range rooms {
		ast.Inspect(s.file, func(n ast.Node) bool {
			declared, is := n.(*ast.StructType)
			if !is {
				return true
			}
			for _, f := range declared.Fields.List {
				called := false
				ast.Inspect(f.Type, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.FuncType:
						called = true
					case *ast.Ident:
						called = called || named[s.pkg+" "+n.Name]
					}
					_, inside := n.(*ast.StructType)
					return !inside // its fields are counted by themselves
				})
				if called {
					fields[s.path] += max(1, len(f.Names))
				}
			}
			return true
		})
	}
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		t.Logf("%s: %d", name, fields[name])
		sum += fields[name]
	}
	isAtMost(t, "functions as fields in pure packages", sum, maxPureFunctions)
}

// TestCommentsSpeakPlainly counts words that CONTRIBUTING.md rules out, in comments of product code.
func TestCommentsSpeakPlainly(t *testing.T) {
	_, all := allSources(t)
	for word, most := range dialect {
		pattern, found := regexp.MustCompile(`(?i)\b(`+word+`)\b`), 0
		for _, s := range all {
			if support.MatchString(s.path) {
				continue
			}
			for _, c := range s.file.Comments {
				found += len(pattern.FindAllString(strings.Join(strings.Fields(c.Text()), " "), -1))
			}
		}
		isAtMost(t, "\""+word+"\" in comments", found, most)
	}
}

// TestDrawComments draws 100 doc comments of product code, to be read by eyes that have not seen them: go test -run TestDrawComments -v .
// At most two should be riddles. SVCCTL_SEED draws others.
func TestDrawComments(t *testing.T) {
	const drawn = 100
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SVCCTL_SEED"), "20261131"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	fset, all := allSources(t)
	var comments []string
	for _, s := range all {
		if support.MatchString(s.path) {
			continue
		}
		of := func(name *ast.Ident, doc *ast.CommentGroup) {
			if doc.Text() != "" {
				comments = append(comments, fmt.Sprintf("%s: %s: %s", fset.Position(name.Pos()), name.Name, strings.Join(strings.Fields(doc.Text()), " ")))
			}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				of(d.Name, d.Doc)
			case *ast.GenDecl:
				for i, spec := range d.Specs {
					group := d.Doc
					if i > 0 {
						group = nil
					}
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						of(spec.Name, cmp.Or(spec.Doc, group))
					case *ast.ValueSpec:
						of(spec.Names[0], cmp.Or(spec.Doc, group))
					}
				}
			}
		}
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(comments), func(i, j int) { comments[i], comments[j] = comments[j], comments[i] })
	for _, text := range comments[:drawn] {
		t.Log(text)
	}
	t.Logf("of %d", len(comments))
}

// isAtMost fails above a limit, and more than one in twenty below it, so that it is lowered.
func isAtMost(t *testing.T, what string, n, most int) {
	t.Helper()
	switch {
	case n > most:
		t.Errorf("%d %s, %d are the most", n, what, most)
	case n < most-most/20:
		t.Errorf("%d %s: lower the limit of %d", n, what, most)
	}
}
