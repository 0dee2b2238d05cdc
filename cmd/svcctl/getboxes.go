package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// The boxes of a fleet among what `svcctl get` lists. They are no objects of the API, and have no metadata, labels or versions;
// what is asked of them that only objects have is refused.

// boxesWord is the word for boxes, as a kind.
const boxesWord = "boxes"

func isBoxes(word string) bool {
	word = strings.ToLower(word)
	return word == boxesWord || word == "box"
}

// boxesAsked are the boxes that a command line asks for.
type boxesAsked struct {
	names []string // none: all
	first bool     // before the objects
}

// takeBoxes takes the boxes out of the arguments KIND[,KIND] [NAME...] or KIND/NAME..., and leaves the rest; nil: there are none.
func takeBoxes(args []string) (asked *boxesAsked, rest []string, err error) {
	if len(args) == 0 {
		return nil, args, nil
	}
	if strings.Contains(args[0], "/") {
		for i, arg := range args {
			word, name, _ := strings.Cut(arg, "/")
			switch {
			case !isBoxes(word):
				rest = append(rest, arg)
				continue
			case name == "" || strings.Contains(name, "/"):
				return nil, nil, usagef("%q is not of the form KIND/NAME, as the other arguments are", arg)
			case asked == nil:
				asked = &boxesAsked{first: i == 0}
			}
			asked.names = append(asked.names, name)
		}
		return asked, rest, nil
	}
	var kinds []string
	for i, word := range strings.Split(args[0], ",") {
		if !isBoxes(word) {
			kinds = append(kinds, word)
		} else if asked == nil {
			asked = &boxesAsked{names: args[1:], first: i == 0}
		}
	}
	if asked == nil {
		return nil, args, nil
	}
	for _, name := range asked.names {
		if name == "" || strings.Contains(name, "/") {
			return nil, nil, usagef("%q is no name: give either KIND NAME... or KIND/NAME...", name)
		}
	}
	if len(kinds) > 0 {
		rest = append([]string{strings.Join(kinds, ",")}, args[1:]...)
	}
	return asked, rest, nil
}

// checkBoxes refuses options that boxes cannot follow. alone says that nothing else is asked for.
func checkBoxes(v *verb, f form, alone bool) error {
	for name, instead := range map[string]string{
		"watch":          "they cannot be watched: run `watch svcctl get boxes`",
		"selector":       "they have no labels: name those that you want, as `svcctl get boxes gw1 gw2`",
		"field-selector": "they have no fields to select by: name those that you want, as `svcctl get boxes gw1 gw2`",
		"sort-by":        "they come by name: leave out --sort-by",
		"show-labels":    "they have no labels: `svcctl get nodes --show-labels` shows those of their Nodes",
		"label-columns":  "they have no labels: `svcctl get nodes -L LABEL` shows those of their Nodes",
		"filename":       "give either files with -f, or kinds and names, not both",
	} {
		if o := v.option(name); o.isSet() && o.text() != "false" {
			return usagef("boxes are no objects: %s", instead)
		}
	}
	if !alone && !f.isTable() && f.name != formName {
		return usagef("boxes are no objects, and -o %s cannot print them with some: ask for them alone, as `svcctl get boxes -o %s`", f.name, v.option("output").text())
	}
	return nil
}

// getBoxes prints the boxes of a fleet, with kinds of objects or without. The exit code says no when one of them is not OK.
func (p *program) getBoxes(ctx context.Context, v *verb, asked *boxesAsked, rest []string) error {
	f, err := v.form()
	if err == nil {
		err = checkBoxes(v, f, len(rest) == 0)
	}
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return p.printBoxes(ctx, v, f, asked, false)
	}
	g, what, err := p.getting(v, rest)
	if err != nil {
		return err
	}
	g.prefix = true
	gap := func() error {
		if !g.form.isTable() {
			return nil
		}
		return p.print("\n")
	}
	objects := func() error {
		if g.form.isTable() {
			return g.tables(ctx, what)
		}
		return g.objects(ctx, what)
	}
	boxes := func() error { return p.printBoxes(ctx, v, f, asked, true) }
	steps := []func() error{objects, gap, boxes}
	if asked.first {
		steps = []func() error{boxes, gap, objects}
	}
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}

// printBoxes prints boxes in a form, with the kind before their names.
func (p *program) printBoxes(ctx context.Context, v *verb, f form, asked *boxesAsked, prefix bool) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	of, err := client.Call(ctx, c, wire.GetFleet, wire.None{})
	if err != nil {
		return ofFleet(err)
	}
	all, missing := asked.of(of.Boxes)
	if v.option("ignore-not-found").on() {
		missing = nil
	}
	of.Boxes = all
	if len(all) > 0 || len(asked.names) == 0 {
		err = p.layBoxes(v, f, asked, of, prefix || v.option("show-kind").on())
	}
	return errors.Join(append([]error{err, notOK(all)}, missing...)...)
}

// of are the boxes that are asked for, and an error for each that there is not.
func (a *boxesAsked) of(boxes []wire.FleetBox) (all []wire.FleetBox, missing []error) {
	if len(a.names) == 0 {
		return boxes, nil
	}
	for _, name := range a.names {
		i := slices.IndexFunc(boxes, func(b wire.FleetBox) bool { return b.Name == name })
		if i < 0 {
			missing = append(missing, fmt.Errorf("no box %q has reported to this fleet: `svcctl get boxes` lists those that have", name))
			continue
		}
		all = append(all, boxes[i])
	}
	return all, missing
}

// layBoxes prints boxes. One that is named is a document of its own; else the document is that of the fleet.
func (p *program) layBoxes(v *verb, f form, asked *boxesAsked, of *wire.Fleet, prefix bool) error {
	headers := !v.option("no-headers").on()
	switch f.name {
	case formTable, formWide:
		return p.print(boxTable(of.Boxes, boxLook{wide: f.name == formWide, prefix: prefix, bare: !headers}))
	case formName:
		for _, b := range of.Boxes {
			if err := p.print("box/" + b.Name + "\n"); err != nil {
				return err
			}
		}
		return nil
	case formColumns:
		return p.columnBoxes(f, of.Boxes, headers)
	}
	var document any = of
	if len(asked.names) == 1 {
		document = of.Boxes[0]
	}
	switch f.name {
	case formYAML:
		return p.printYAML(document)
	case formJSONPath:
		plain, err := plainly(document)
		if err != nil {
			return err
		}
		w := &printer{p: p, form: f}
		return w.template(plain)
	}
	body, err := output.JSON(document)
	if err != nil {
		return err
	}
	return p.print(body)
}

// columnBoxes prints a line for each box in columns of the user.
func (p *program) columnBoxes(f form, boxes []wire.FleetBox, headers bool) error {
	var rows [][]string
	if headers {
		rows = append(rows, f.headers())
	}
	for i := range boxes {
		plain, err := plainly(boxes[i])
		if err != nil {
			return err
		}
		rows = append(rows, f.row(plain))
	}
	var g output.Grid
	return p.print(g.Text(rows...))
}

// plainly is a document as JSON has it.
func plainly(v any) (plain any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		plain, err = decodeObject(text)
	}
	return plain, err
}

// notOK says which boxes are not OK; nil: all are.
func notOK(boxes []wire.FleetBox) error {
	var names []string
	for _, b := range boxes {
		if b.State != wire.BoxOK {
			names = append(names, fmt.Sprintf("%s (%s)", b.Name, b.State))
		}
	}
	if names == nil {
		return nil
	}
	return &exitError{code: exitNo, err: fmt.Errorf("not OK: %s; `svcctl status` on such a box has the reason", strings.Join(names, ", "))}
}

// boxLook says how a table of boxes looks.
type boxLook struct {
	wide   bool // what they accepted, and why they are not OK
	prefix bool // the kind before names
	bare   bool // no line above
}

// boxTable is a line for each box.
func boxTable(boxes []wire.FleetBox, look boxLook) string {
	if len(boxes) == 0 {
		return "No box has joined yet.\n"
	}
	leaves := slices.ContainsFunc(boxes, func(b wire.FleetBox) bool { return b.Core != "" })
	rollout := slices.ContainsFunc(boxes, func(b wire.FleetBox) bool { return b.Rollout != "" })
	row := func(b *wire.FleetBox) []string {
		name, since := output.CellText(b.Name), "-"
		if look.prefix {
			name = "box/" + name
		}
		if !b.Since.IsZero() {
			since = stamp(b.Since)
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
		add(look.wide, "ACCEPTED", fmt.Sprint(of.Accepted))
		add(look.wide, "WHY", of.Why)
		return line
	}
	var rows [][]string
	if !look.bare {
		rows = append(rows, more(head, nil))
	}
	for i := range boxes {
		rows = append(rows, more(row(&boxes[i]), &boxes[i]))
	}
	var g output.Grid
	return g.Text(rows...)
}
