package resource

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// JournalTable is the journal for people.
func JournalTable(entries []wire.JournalEntry) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "TIME\tREVISION\tWHO\tVERB\tOBJECT")
	for _, e := range entries {
		name := e.Name
		if e.Namespace != "" {
			name = e.Namespace + "/" + e.Name
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s %s\n", e.Time.Format(time.RFC3339), e.Revision, output.Printable(e.Author()), e.Verb, e.Kind, name)
	}
	table.Flush() // writes to a strings.Builder never fail
	return b.String()
}
