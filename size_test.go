package svcctl_test

import (
	"go/ast"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The limits of this file only fall: lower one in the change that falls below it. A change that would exceed one removes as much as it
// adds, elsewhere if need be.
const (
	maxProductLines  = 120_600
	maxPureFunctions = 2
)

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
	lines, files := 0, 0
	for _, s := range all {
		if support.MatchString(s.path) {
			continue
		}
		files++
		content, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if !ofNoCode.MatchString(strings.TrimRight(line, "\n")) {
				lines++
			}
		}
	}
	t.Logf("%d lines in %d files", lines, files)
	isAtMost(t, "lines of product code", lines, maxProductLines)
}

// TestPureRoomsGetValues counts the fields of structs that are functions, in packages that are declared pure: what is called through one
// may do anything.
func TestPureRoomsGetValues(t *testing.T) {
	_, all := allSources(t)
	fields := map[string]int{}
	for _, s := range all {
		if s.test || !slices.Contains(pure, s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if declared, is := n.(*ast.StructType); is {
				for _, f := range declared.Fields.List {
					if _, is := f.Type.(*ast.FuncType); is {
						fields[s.path] += max(1, len(f.Names))
					}
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
