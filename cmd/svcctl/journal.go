package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

func (p *program) journalVerb() *verb {
	return &verb{
		name:    "journal",
		summary: "show who changed which object, and when",
		about: `Shows the newest changes of objects, the oldest of them first: by clients of the API,
with the user and the field manager, by files, and by the appliance's own
controllers. Events are left out, unless --events is given. It is for administrators.

With -o json every change is a JSON object on a line of its own, with the keys
revision, time, verb, kind, namespace, name, user, manager, agent, file and
controller; what does not apply is left out.`,
		options: append([]*option{
			{name: "limit", arg: "N", def: "100", group: "What to show", usage: "how many changes, at most 10000"},
			{name: "events", group: "What to show", usage: "include the Events of the appliance about problems"},
			outputOption("table", "json"),
		}, connectOptions()...),
		examples: []example{
			{"Who deleted something lately?", `svcctl journal --limit 1000 -o json | jq -r 'select(.verb == "delete") | [.time, .user, .name] | @tsv'`},
		},
		exits: `  0  done
  1  refused
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runJournal,
	}
}

// runJournal prints the journal.
func (p *program) runJournal(ctx context.Context, v *verb, _ []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	limit, err := strconv.Atoi(v.option("limit").text())
	if err != nil || limit < 1 {
		return usagef("--limit %q: want a number from 1 to 10000", v.option("limit").text())
	}
	appliance, err := p.client(v)
	if err != nil {
		return err
	}
	entries, err := appliance.Journal(ctx, limit, v.option("events").on())
	if err != nil {
		return err
	}
	if v.option("output").text() == "table" {
		return p.print(journalTable(entries))
	}
	var b strings.Builder
	lines := json.NewEncoder(&b)
	for _, e := range entries {
		if err := lines.Encode(e); err != nil {
			return fmt.Errorf("encode as JSON: %w", err)
		}
	}
	return p.print(b.String())
}

// journalTable is the journal for people.
func journalTable(entries []wire.JournalEntry) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "TIME\tREVISION\tWHO\tVERB\tOBJECT")
	for _, e := range entries {
		name := e.Name
		if e.Namespace != "" {
			name = e.Namespace + "/" + e.Name
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s %s\n", e.Time.Format(time.RFC3339), e.Revision, output.Printable(e.Who()), e.Verb, e.Kind, name)
	}
	table.Flush() // writes to a strings.Builder never fail
	return b.String()
}
