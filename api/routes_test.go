package api_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

var update = flag.Bool("update", false, "write the table of docs/api.md")

// docs/api.md has a row for each operation, in their order.
func TestOperationsAreDocumented(t *testing.T) {
	const page = "../docs/api.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for _, o := range wire.Operations() {
		by := "readers"
		switch {
		case o == wire.ReportAnnouncements.Operation:
			by = "the announcer"
		case o.Admin:
			by = "admins"
		}
		fmt.Fprintf(&rows, "| `%s %s` | %s | %s |\n", o.Method, o.Path, by, o.Does)
	}
	before, rest, found := strings.Cut(string(text), "| operation | for | does |\n|---|---|---|\n")
	_, after, ends := strings.Cut(rest, "\n\n")
	if !found || !ends {
		t.Fatal("docs/api.md has no table of operations")
	}
	want := before + "| operation | for | does |\n|---|---|---|\n" + rows.String() + "\n" + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("docs/api.md is not what wire.Operations has: run go test ./api -run TestOperationsAreDocumented -update")
	}
}
