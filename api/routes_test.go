package api_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

var update = flag.Bool("update", false, "write docs/reference/routes.md")

// docs/reference/routes.md has a row for each operation, in their order.
func TestOperationsAreDocumented(t *testing.T) {
	const page = "../docs/reference/routes.md"
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
	want := fmt.Sprintf(routes, rows.String())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != want {
		t.Errorf("docs/reference/routes.md is not what wire.Operations has (%v): run go test ./api -run TestOperationsAreDocumented -update", err)
	}
}

// routes is the page, without its rows.
const routes = `# svcctl-routes(7)

## NAME

routes - the operations of the API beside those of Kubernetes

## SYNOPSIS

    curl --unix-socket /run/svcctl/svcctl.sock http://localhost/svcctl/v1/status

## DESCRIPTION

The verbs of svcctl use these operations. Parameters are in the query; answers are JSON. With the parameter ` + "`trial` or `rollout`" + ` a write is
part of that [trial](../safe-changes.md) or [rollout](../rollout.md). [api](../api.md) has the other paths, and the rights of
readers and admins. This page is generated from the table of routes (api/wire).

| operation | for | does |
|---|---|---|
%s
## EXAMPLES

The errors of the status:

` + "```" + `sh
curl -s --unix-socket /run/svcctl/svcctl.sock http://localhost/svcctl/v1/status | jq '.problems[] | select(.severity == "error")'
` + "```" + `

## BUGS

The parameters of each operation are not listed: the help of the verb that uses it names them.

## SEE ALSO

[api](../api.md), [svcctl](../svcctl.md), [conditions](conditions.md)
`
