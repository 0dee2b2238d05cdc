package resource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
)

// Boxes is the kind of the boxes of a fleet, which `svcctl get` lists like other kinds. They are not API objects and have no metadata, labels or
// versions: options that need those are rejected.
var Boxes = kind.Kind{Name: "Box", Plural: "boxes", Verbs: []string{"get", "list"}}

// NotOK returns an error that names the boxes that are not OK, or nil if all are.
func NotOK(boxes []wire.FleetBox) error {
	var names []string
	for _, b := range boxes {
		if b.State != wire.BoxOK {
			names = append(names, fmt.Sprintf("%s (%s)", b.Name, b.State))
		}
	}
	if names == nil {
		return nil
	}
	return &cli.ExitError{Code: cli.ExitNo, Err: fmt.Errorf("not OK: %s; `svcctl status` on such a box has the reason", strings.Join(names, ", "))}
}

// BoxTable returns a Table with a row for each of boxes. fleet has all boxes of the fleet. The columns Follows and Rollout are left out if no box of
// the fleet has a value for them.
func BoxTable(boxes, fleet []wire.FleetBox) *client.Table {
	t := &client.Table{}
	for _, name := range []string{"Name", "Zone", "Version", "State", "Revision", "Problems", "Since"} {
		t.Columns = append(t.Columns, client.Column{Name: name})
	}
	for _, b := range boxes {
		since := "-"
		if !b.Since.IsZero() {
			since = output.Stamp(b.Since)
		}
		t.Rows = append(t.Rows, client.Row{Cells: []any{b.Name, cmp.Or(b.Zone, "-"), b.Version, b.State, b.Programmed, b.Problems, since}})
	}
	add := func(name string, priority int, of func(b *wire.FleetBox) any) {
		t.Columns = append(t.Columns, client.Column{Name: name, Priority: priority})
		for i := range boxes {
			t.Rows[i].Cells = append(t.Rows[i].Cells, of(&boxes[i]))
		}
	}
	if slices.ContainsFunc(fleet, func(b wire.FleetBox) bool { return b.Core != "" }) {
		add("Follows", 0, func(b *wire.FleetBox) any { return cmp.Or(b.Core, "etcd") })
	}
	if slices.ContainsFunc(fleet, func(b wire.FleetBox) bool { return b.Rollout != "" }) {
		add("Rollout", 0, func(b *wire.FleetBox) any { return cmp.Or(b.Rollout, "-") })
	}
	add("Accepted", 1, func(b *wire.FleetBox) any { return b.Accepted })
	add("Why", 1, func(b *wire.FleetBox) any { return cmp.Or(b.Why, "-") })
	return t
}

// BoxText formats boxes as a table, without the columns of -o wide.
func BoxText(boxes []wire.FleetBox) string {
	if len(boxes) == 0 {
		return "No box has joined yet.\n"
	}
	t := BoxTable(boxes, boxes)
	rows := make([][]string, 1+len(t.Rows))
	for i, c := range t.Columns {
		if c.Priority > 0 {
			continue
		}
		rows[0] = append(rows[0], strings.ToUpper(c.Name))
		for k, row := range t.Rows {
			rows[1+k] = append(rows[1+k], output.CellText(row.Cells[i]))
		}
	}
	return new(output.Grid).Text(rows...)
}

// OfFleet replaces the API's error for a box that is in no fleet by one that explains this. It returns other errors unchanged.
func OfFleet(err error) error {
	if refused, is := errors.AsType[*wire.Failure](err); is && refused.Reason == wire.ReasonNotFound {
		return errors.New("this box belongs to no fleet: it was started without --fleet")
	}
	return err
}

// JournalLine is a line of the journal: a change of an object, or an entry of the history of the box.
type JournalLine struct {
	*wire.JournalEntry
	*wire.HistoryEntry
}

// at returns the time of the change or entry.
func (l *JournalLine) at() time.Time {
	if l.JournalEntry != nil {
		return l.JournalEntry.Time
	}
	return l.HistoryEntry.Time
}

// Journal merges changes and history by time. It returns the newest limit lines, oldest first.
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

// JournalTable formats the journal as a table.
func JournalTable(lines []JournalLine) string {
	rows := [][]string{{"TIME", "REVISION", "WHO", "WHAT"}}
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
		rows = append(rows, []string{l.at().Format(time.RFC3339), revision, output.OneLine(author), output.OneLine(text)})
	}
	return new(output.Grid).Text(rows...)
}
