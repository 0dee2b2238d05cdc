package verdict

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/conditions.md")

// reported are the Reasons that the code reports problems with, and where: constants named after a reason, literals of
// a field Reason or reason, and the words that resolvers pass to warn, refuse and report.
func reported(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	name := regexp.MustCompile(`^[rR]eason[A-Z]`)
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	take := func(files *token.FileSet, e ast.Expr) {
		lit, is := e.(*ast.BasicLit)
		if !is || lit.Kind != token.STRING {
			return
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && word.MatchString(text) {
			found[text] = files.Position(lit.Pos()).String()
		}
	}
	for _, root := range []string{"..", "../../store", "../../watch"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && slices.Contains([]string{"test", "e2e", "bench", "soak", "netlab", "verdict", "interop", "testdata", "fleet"}, d.Name()) {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ValueSpec:
					for i, id := range n.Names {
						if name.MatchString(id.Name) && i < len(n.Values) {
							take(files, n.Values[i])
						}
					}
				case *ast.CompositeLit:
					typ := fmt.Sprint(n.Type)
					if s, is := n.Type.(*ast.SelectorExpr); is {
						typ = s.Sel.Name
					}
					if n.Type != nil && typ != "Problem" && typ != "note" && typ != "FieldProblem" {
						break
					}
					for _, e := range n.Elts {
						if kv, is := e.(*ast.KeyValueExpr); is && strings.EqualFold(fmt.Sprint(kv.Key), "reason") {
							take(files, kv.Value)
						}
					}
				case *ast.CallExpr:
					called := fmt.Sprint(n.Fun)
					if s, is := n.Fun.(*ast.SelectorExpr); is {
						called = s.Sel.Name
					}
					if slices.Contains([]string{"warn", "refuse", "report", "failing"}, called) {
						for _, a := range n.Args[:min(3, len(n.Args))] {
							take(files, a)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// notProblems are reasons of Events, of conditions of other kinds, and of answers.
var notProblems = []string{"Unhealthy", "Healthy", "IPAllocated", "Configured", "Pending", "Served", "Programmed"}

// Every Reason has a row, and every row a Reason.
func TestEachReasonHasARow(t *testing.T) {
	found := reported(t)
	if len(found) < 60 {
		t.Fatalf("only %d reasons found", len(found))
	}
	for reason, at := range found {
		if rows()[reason] == nil && !slices.Contains(notProblems, reason) {
			t.Errorf("%s: the Reason %s has no row in appliance/verdict/table.txt", at, reason)
		}
	}
	seen := map[string]bool{}
	for _, r := range Table() {
		if seen[r.Reason] {
			t.Errorf("%s has two rows", r.Reason)
		}
		seen[r.Reason] = true
		field := strings.HasPrefix(r.Reason, "FieldValue") // store/object.ErrorType
		if found[r.Reason] == "" && !field {
			t.Errorf("nothing reports %s", r.Reason)
		}
		if r.Text == "" || r.Next == "" {
			t.Errorf("%s has no text, or no next step", r.Reason)
		}
	}
}

func TestManual(t *testing.T) {
	const page = "../../docs/reference/conditions.md"
	if *update {
		if err := os.WriteFile(page, []byte(manual()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != manual() {
		t.Error("docs/reference/conditions.md is not what the table says: run go test ./appliance/verdict -run TestManual -update")
	}
}

// manual is the page of the conditions.
func manual() string {
	var b strings.Builder
	b.WriteString(`# svcctl-conditions(7)

## NAME

conditions - what svcctl status can report, how severe it is, and the next step

## SYNOPSIS

    svcctl status
    svcctl wait svc/NAME --for=ready
    kubectl wait --for=condition=Ready svc/NAME

## DESCRIPTION

What ` + "`svcctl status`" + ` can report, how severe it is, and the next step. ` + "`status`, `wait`, `apply --wait`, `explain`" + `, the
dashboard, metrics, alert rules and ` + "`.status.conditions`" + ` of Services take it from one table (appliance/verdict), from which
this page is generated.

- **error**: clients fail now, or what is written is not in force. ` + "`svcctl status`" + ` exits with 1.
- **warning**: redundancy is lost, or it fails at a known time.
- "as reported": an error or a warning, depending on the case.

Ready is a condition of each Service: every port is served, each address that was asked for is given, and announced where it
must be, and an endpoint is up. Programmed: its newest version is in the kernel of this box. Both are computed by the box that
is asked, and not stored: each box of a fleet answers for itself.

| reason | severity | Service | meaning | next step |
|---|---|---|---|---|
`)
	effects := map[Effect]string{Nothing: "", Fails: "an error: not Ready", FailsAlways: "not Ready", Stays: "an error: not Programmed"}
	for _, r := range append(slices.Clone(Table()), fleetRow) {
		severity := r.Severity
		if severity == "" {
			severity = "as reported"
		}
		step := strings.NewReplacer("|", "\\|", " (PLACE)", " (FILE:LINE)", "PLACE", "FILE:LINE").Replace(r.Next)
		if r.Plain != "" {
			step += "; without systemd: " + r.Plain
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Reason, severity, effects[r.Effect], strings.ReplaceAll(r.Text, "|", "\\|"), step)
	}
	b.WriteString(`
## EXAMPLES

Every problem with its reason:

` + "```" + `sh
svcctl status -o json | jq -r '.problems[] | .reason + " " + .message'
` + "```" + `

## BUGS

The time of the last transition of a condition is not known from before a restart of svcctl.

## SEE ALSO

[status](../status.md), [wait](../get.md#wait), [apply](../apply.md), [explain](../explain.md), [metrics](../metrics.md)
`)
	return b.String()
}
