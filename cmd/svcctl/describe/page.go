package describe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/object"
)

// Page is the text about an object.
type Page struct{ strings.Builder }

// descriptionWidth is the column of values.
const descriptionWidth = 26

// line writes a name and its value.
func (p *Page) line(name, format string, args ...any) {
	if name != "" {
		name += ":"
	}
	text := strings.TrimRight(output.Pad(name, descriptionWidth)+fmt.Sprintf(format, args...), " ")
	p.WriteString(text + "\n")
}

// heading begins a part that is indented.
func (p *Page) heading(name string) { p.WriteString(name + ":\n") }

// table writes rows below a heading.
func (p *Page) table(rows [][]string) {
	var g output.Grid
	p.WriteString(output.Indent(g.Text(rows...), "  "))
}

// lastApplied is an annotation that repeats the whole object: kubectl shows it no more than this does.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// pairs writes labels or annotations, one a line.
func (p *Page) pairs(name string, pairs map[string]string) {
	pairs = maps.Clone(pairs)
	delete(pairs, lastApplied)
	if len(pairs) == 0 {
		p.line(name, "<none>")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		p.line(name, "%s", output.Printable(key+"="+pairs[key]))
		name = ""
	}
}

// Problems writes the problems of an object.
func (p *Page) Problems(ref object.Ref, status *wire.Status) {
	var lines []string
	for _, problem := range status.Problems {
		if problem.Object == ref.String() {
			problem.Object = ""
			lines = append(lines, fmt.Sprintf("%s: %s", problem.Severity, withoutSeverity(problem)))
		}
	}
	if len(lines) == 0 {
		p.line("Problems", "<none>")
		return
	}
	p.line("Problems", "%s", lines[0])
	for _, line := range lines[1:] {
		p.line("", "%s", line)
	}
}

// withoutSeverity is a problem in one line that does not say twice what it is.
func withoutSeverity(p wire.Problem) string {
	p.Severity = ""
	return p.String()
}

// Events writes what happened to an object, from a Table of its Events.
func (p *Page) Events(table *client.Table) {
	if len(table.Rows) == 0 {
		p.line("Events", "<none>")
		return
	}
	p.heading("Events")
	rows := [][]string{{"LAST SEEN", "TYPE", "REASON", "FROM", "MESSAGE"}}
	cell := func(row client.Row, name string) string {
		for i, c := range table.Columns {
			if c.Name == name && i < len(row.Cells) {
				return output.CellText(row.Cells[i])
			}
		}
		return ""
	}
	for _, row := range table.Rows {
		rows = append(rows, []string{cell(row, "Last Seen"), cell(row, "Type"), cell(row, "Reason"), cell(row, "Source"), cell(row, "Message")})
	}
	p.table(rows)
}
