package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// sheet prints the Tables of one kind: which columns there are does not change while
// rows come in.
type sheet struct {
	g       *getting
	target  target
	grid    output.Grid
	columns []client.Column
	begun   bool // the line above is printed
}

// tables prints a table for each kind.
func (g *getting) tables(ctx context.Context, what []target) error {
	var missing []error
	printed, empty := 0, 0
	for _, same := range byKind(what) {
		s := &sheet{g: g, target: same[0]}
		var rows []client.Row
		for _, t := range same {
			table, err := g.c.Table(ctx, t.path(), g.tableQuery(t))
			if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonNotFound && t.name != "" {
				if !g.v.option("ignore-not-found").on() {
					missing = append(missing, f)
				}
				continue
			}
			if err != nil {
				return err
			}
			s.columns, rows = table.Columns, append(rows, table.Rows...)
		}
		if len(rows) == 0 {
			empty++
			continue
		}
		if printed++; printed > 1 {
			if err := g.p.print("\n"); err != nil {
				return err
			}
		}
		if g.sortBy != nil {
			slices.SortStableFunc(rows, func(a, b client.Row) int { return g.compare(a.Object, b.Object) })
		}
		if err := s.print(rows); err != nil {
			return err
		}
	}
	if printed == 0 && what[0].name == "" && !g.v.option("ignore-not-found").on() {
		fmt.Fprintln(g.p.stderr, nothingFound(what[0].namespace))
	}
	return errors.Join(missing...)
}

// nothingFound returns the text for an empty list, as kubectl has it.
func nothingFound(namespace string) string {
	if namespace == "" {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", namespace)
}

// byKind puts the targets of each kind together.
func byKind(what []target) [][]target {
	var all [][]target
	for _, t := range what {
		i := slices.IndexFunc(all, func(same []target) bool {
			return same[0].kind.Plural == t.kind.Plural && same[0].kind.Group == t.kind.Group
		})
		if i < 0 {
			all = append(all, nil)
			i = len(all) - 1
		}
		all[i] = append(all[i], t)
	}
	return all
}

// tableQuery asks for as much of the objects as will be needed.
func (g *getting) tableQuery(t target) url.Values {
	q := url.Values{}
	if t.name == "" {
		q = maps.Clone(g.query)
	}
	switch {
	case g.sortBy != nil:
		q.Set("includeObject", client.IncludeObject)
	case !g.all && len(g.labels) == 0 && !g.v.option("show-labels").on():
		q.Set("includeObject", client.IncludeNone)
	}
	return q
}

// print prints rows, and the line above before the first ones.
func (s *sheet) print(rows []client.Row) error {
	var lines [][]string
	if !s.begun && !s.g.v.option("no-headers").on() {
		lines = append(lines, s.head())
	}
	s.begun = true
	for _, row := range rows {
		lines = append(lines, s.row(row))
	}
	return s.g.p.print(s.grid.Text(lines...))
}

// shown reports whether a column is printed.
func (s *sheet) shown(c client.Column) bool { return c.Priority == 0 || s.g.form.name == formWide }

func (s *sheet) withNamespace() bool { return s.g.all && s.target.kind.Namespaced }

func (s *sheet) head() []string {
	var line []string
	if s.withNamespace() {
		line = append(line, "NAMESPACE")
	}
	for _, c := range s.columns {
		if s.shown(c) {
			line = append(line, strings.ToUpper(c.Name))
		}
	}
	for _, label := range s.g.labels {
		line = append(line, strings.ToUpper(label[strings.LastIndex(label, "/")+1:]))
	}
	if s.g.v.option("show-labels").on() {
		line = append(line, "LABELS")
	}
	return line
}

func (s *sheet) row(row client.Row) []string {
	var line []string
	if s.withNamespace() {
		line = append(line, output.CellText(namespaceOf(row.Object)))
	}
	for i, cell := range row.Cells {
		if i >= len(s.columns) || !s.shown(s.columns[i]) {
			continue
		}
		text := output.CellText(cell)
		if s.g.prefix && s.columns[i].Name == "Name" {
			text = fullName(s.target.kind, text)
		}
		line = append(line, text)
	}
	labels, _ := field(row.Object, "metadata", "labels").(map[string]any)
	for _, label := range s.g.labels {
		value := ""
		if v, there := labels[label]; there {
			value = output.CellText(v)
		}
		line = append(line, value)
	}
	if s.g.v.option("show-labels").on() {
		line = append(line, labelsText(labels))
	}
	return line
}

// labelsText is labels in one line.
func labelsText(labels map[string]any) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, fmt.Sprintf("%s=%v", key, labels[key]))
	}
	if all == nil {
		return "<none>"
	}
	return output.Printable(strings.Join(all, ","))
}
