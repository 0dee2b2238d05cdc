package resource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// The boxes of a fleet among what `svcctl get` lists. They are no objects of the API, and have no metadata, labels or versions;
// options that need those are refused.

// boxesWord is the word for boxes, as a kind.
const boxesWord = "boxes"

func IsBoxes(word string) bool {
	word = strings.ToLower(word)
	return word == boxesWord || word == "box"
}

// NotOK is an error that names the boxes that are not OK; nil: all are.
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

// BoxLook has the options of a table of boxes.
type BoxLook struct {
	Wide   bool // what they accepted, and why they are not OK
	Prefix bool // the kind before names
	Bare   bool // no line above
}

// BoxTable is a line for each box.
func BoxTable(boxes []wire.FleetBox, look BoxLook) string {
	if len(boxes) == 0 {
		return "No box has joined yet.\n"
	}
	leaves := slices.ContainsFunc(boxes, func(b wire.FleetBox) bool { return b.Core != "" })
	rollout := slices.ContainsFunc(boxes, func(b wire.FleetBox) bool { return b.Rollout != "" })
	row := func(b *wire.FleetBox) []string {
		name, since := output.CellText(b.Name), "-"
		if look.Prefix {
			name = "box/" + name
		}
		if !b.Since.IsZero() {
			since = output.Stamp(b.Since)
		}
		return []string{name, output.CellText(cmp.Or(b.Zone, "-")), output.CellText(b.Version), output.CellText(b.State), fmt.Sprint(b.Programmed), fmt.Sprint(b.Problems), since}
	}
	head := []string{"NAME", "ZONE", "VERSION", "STATE", "REVISION", "PROBLEMS", "SINCE"}
	more := func(line []string, b *wire.FleetBox) []string {
		add := func(is bool, title, text string) {
			switch {
			case is && b == nil:
				line = append(line, title)
			case is:
				line = append(line, cmp.Or(output.CellText(text), "-"))
			}
		}
		of := cmp.Or(b, &wire.FleetBox{})
		add(leaves, "FOLLOWS", cmp.Or(of.Core, "etcd"))
		add(rollout, "ROLLOUT", of.Rollout)
		add(look.Wide, "ACCEPTED", fmt.Sprint(of.Accepted))
		add(look.Wide, "WHY", of.Why)
		return line
	}
	var rows [][]string
	if !look.Bare {
		rows = append(rows, more(head, nil))
	}
	for i := range boxes {
		rows = append(rows, more(row(&boxes[i]), &boxes[i]))
	}
	var g output.Grid
	return g.Text(rows...)
}

// OfFleet replaces a refusal by the error that the box is in no fleet, if that is its reason.
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
