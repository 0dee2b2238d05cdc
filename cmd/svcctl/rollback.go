package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

func (p *program) rollbackVerb() *verb {
	return &verb{
		name:    "rollback",
		summary: "restore objects to an earlier revision",
		args:    "[REVISION] [FLAGS]",
		about: `Undoes changes of clients of the API after a revision, in one transaction, as far
as the journal reaches back: deleted objects are restored with their uids, addresses and
ports, new ones are deleted. ` + "`svcctl journal`" + ` has the revisions: give that of the
last change that is to stay.

Without a revision it lists the latest changes and the effect of undoing the last one, and
changes nothing; with --last, --confirm or --yes it undoes the last change, and a second
call restores it. With --last, nothing is rolled back if a client has changed something
after that revision.

Before it changes something it names the consequence and asks. Without a terminal it needs
--yes. What changes between the question and the answer is not rolled back.

It prints a line for each object: created, changed or deleted; left, for an object of a
file, which has to be changed there; conflict, for a restored Service of which another one
has a value now: it is not served until the value is free. It needs root.`,
		options: append([]*option{
			{name: "last", arg: "REVISION", group: groupHow, usage: "the last change that you know of: nothing is done if there is a later one"},
			dryRunOption("print the result for each object, and change nothing"),
			confirmOption(),
			yesOption(),
			outputOption("table", "json"),
		}, connectOptions()...),
		examples: []example{
			{"The journal, and the effect of a rollback.", "svcctl journal --limit 20; svcctl rollback 1793456789012345 --dry-run"},
			{"The latest changes, and how to undo the last one.", "svcctl rollback"},
			{"Undo the last change, but no later one than in the journal.", "svcctl rollback --last 1793456789012345"},
		},
		exits: `  0  done
  1  not done, or not all of it: the output lists what is missing
  2  wrong usage or configuration, or no terminal to ask on and no --yes
  3  the appliance cannot be reached`,
		run: p.runRollback,
	}
}

// runRollback takes changes back.
func (p *program) runRollback(ctx context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	if len(args) > 1 {
		return usagef("rollback takes one revision")
	}
	revision, err := revisionOf("rollback to", strings.Join(args, ""))
	if err != nil {
		return err
	}
	last, err := revisionOf("--last", v.option("last").text())
	if err != nil {
		return err
	}
	dry, err := v.dryRun()
	if err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	bare := revision == 0 && !v.option("last").isSet() && !v.option("confirm").isSet() && !v.option("yes").on()
	trial, err := p.trying(v, c)
	if err != nil {
		return err
	}
	b, err := client.Call(ctx, c, wire.Rollback, wire.RollbackQuery{Revision: revision, Last: last, DryRun: "All"})
	if err != nil {
		return err
	}
	suffix := " (dry run)"
	switch consequence := rollbackConsequence(ctx, c, b); {
	case dry:
	case bare:
		if v.option("output").text() == "table" {
			if err := p.recent(ctx, c); err != nil {
				return err
			}
		}
	default:
		if consequence != "" {
			if err := p.consent(v, consequence); err != nil {
				return err
			}
		}
		if last == 0 {
			last = b.Last // what was asked about, and nothing newer
		}
		suffix = ""
		if err := trial.begin(ctx); err != nil {
			return err
		}
		if b, err = client.Call(ctx, c, wire.Rollback, wire.RollbackQuery{Revision: revision, Last: last}); err != nil {
			return err
		}
	}
	page := func() string {
		if len(b.Objects) == 0 {
			return "Nothing has changed since.\n"
		}
		lines := revivedLines(b, suffix)
		if dry && b.Last > 0 {
			lines += fmt.Sprintf("The last change is %d: with --last %d nothing newer is taken back.\n", b.Last, b.Last)
		}
		if bare && !dry {
			lines += "Nothing is changed. To undo this: `svcctl rollback" + lastFlag(b.Last) + "`. To go back further: `svcctl rollback REVISION`, " +
				"with the revision of the last change that is to stay.\n"
		}
		return lines
	}
	if err := p.output(v, b, page); err != nil {
		return err
	}
	if err := trial.tell(ctx); err != nil {
		return err
	}
	for _, r := range b.Objects {
		if r.Did == "conflict" && !bare {
			return errConflicts
		}
	}
	return nil
}

// lastFlag is --last with a revision; without one known, --yes.
func lastFlag(last uint64) string {
	if last == 0 {
		return " --yes"
	}
	return fmt.Sprintf(" --last %d", last)
}

// recent prints the latest changes.
func (p *program) recent(ctx context.Context, c *client.Client) error {
	entries, err := c.Journal(ctx, 10, false)
	if err != nil {
		return err
	}
	return p.print(journalTable(entries) + "\n")
}

// rollbackConsequence returns what a rollback removes, changes and restores, as "this removes 1 Service with 2 open
// connections"; "" when it changes nothing.
func rollbackConsequence(ctx context.Context, c *client.Client, b *wire.RolledBack) string {
	services, others, changed, restored := map[string]bool{}, 0, 0, 0
	for _, r := range b.Objects {
		service, is := strings.CutPrefix(r.Object, object.KindService+" ")
		switch r.Did {
		case "deleted":
			if is {
				services[service] = true
			} else {
				others++
			}
		case "changed":
			changed++
		case "created", "conflict":
			restored++
		}
	}
	var parts []string
	if len(services) > 0 {
		parts = append(parts, "removes "+count(len(services), "Service")+openConnections(ctx, c, services))
	}
	if others > 0 {
		parts = append(parts, "removes "+count(others, "other object"))
	}
	if changed > 0 {
		parts = append(parts, "changes "+count(changed, "object"))
	}
	if restored > 0 {
		parts = append(parts, "restores "+count(restored, "object"))
	}
	if len(parts) == 0 {
		return ""
	}
	return "this " + strings.Join(parts, ", ")
}

// revisionOf reads a revision; "" is 0. The error is a usageError.
func revisionOf(what, text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, usagef("%s %q: want a revision, as `svcctl journal` shows them", what, text)
	}
	return n, nil
}
