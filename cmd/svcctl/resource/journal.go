package resource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// JournalLine is a line of the journal: a change of an object, or an entry of the history of the box.
type JournalLine struct {
	*wire.JournalEntry
	*wire.HistoryEntry
}

// at is the time of the line.
func (l *JournalLine) at() time.Time {
	if l.JournalEntry != nil {
		return l.JournalEntry.Time
	}
	return l.HistoryEntry.Time
}

// Journal returns the newest lines of both lists by time, at most limit of them.
func Journal(changes []wire.JournalEntry, history []wire.HistoryEntry, limit int) []JournalLine {
	lines := make([]JournalLine, 0, len(changes)+len(history))
	for i := range changes {
		lines = append(lines, JournalLine{JournalEntry: &changes[i]})
	}
	for i := range history {
		lines = append(lines, JournalLine{HistoryEntry: &history[i]})
	}
	slices.SortStableFunc(lines, func(a, b JournalLine) int { return a.at().Compare(b.at()) })
	return lines[max(0, len(lines)-limit):]
}

// JournalTable is the journal for people.
func JournalTable(lines []JournalLine) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "TIME\tREVISION\tWHO\tWHAT")
	for _, l := range lines {
		revision, author, text := "-", "", ""
		if e := l.JournalEntry; e != nil {
			name := e.Name
			if e.Namespace != "" {
				name = e.Namespace + "/" + e.Name
			}
			revision, author, text = fmt.Sprint(e.Revision), e.Author(), e.Verb+" "+e.Kind+" "+name
		} else {
			e := l.HistoryEntry
			sign := map[string]string{wire.SeverityError: "✗", wire.SeverityWarning: "▲"}[e.Severity]
			author, text = e.Kind, cmp.Or(sign, "✓")+" "+e.Text
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", l.at().Format(time.RFC3339), revision, output.OneLine(author), output.OneLine(text))
	}
	table.Flush() // writes to a strings.Builder never fail
	return b.String()
}
