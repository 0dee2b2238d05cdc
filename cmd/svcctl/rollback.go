package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

func (p *program) rollbackVerb() *verb {
	return &verb{
		name:    "rollback",
		summary: "restore objects to an earlier revision",
		args:    "[REVISION] [FLAGS]",
		about: `Undoes changes of clients of the API after a revision, in one transaction, as far
as the journal reaches back: deleted objects are restored with their uids, addresses and
ports, new ones are deleted. ` + "`svcctl journal`" + ` has the revisions: give that of the
last change that is to stay. Without a revision, the last change is undone; a second call
restores it. With --last, nothing is rolled back if a client has changed something after
that revision.

It prints a line for each object: created, changed or deleted; left, for an object of a
file, which has to be changed there; conflict, for a restored Service of which another one
has a value now: it is not served until the value is free. It needs root.`,
		options: append([]*option{
			{name: "last", arg: "REVISION", group: groupHow, usage: "the last change that you know of: nothing is done if there is a later one"},
			dryRunOption("print the result for each object, and change nothing"),
			confirmOption(),
			outputOption("table", "json"),
		}, connectOptions()...),
		examples: []example{
			{"The journal, and the effect of a rollback.", "svcctl journal --limit 20; svcctl rollback 1793456789012345 --dry-run"},
			{"Undo the last change, but no later one than in the journal.", "svcctl rollback --last 1793456789012345"},
		},
		exits: `  0  done
  1  not done, or not all of it: the output says what is missing
  2  wrong usage or configuration
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
	var trial *trying
	suffix := " (dry run)"
	if !dry {
		suffix = ""
		if trial, err = p.trying(v, c); err != nil {
			return err
		}
		if err := trial.begin(ctx); err != nil {
			return err
		}
	}
	b, err := c.Rollback(ctx, revision, last, dry)
	if err != nil {
		return err
	}
	page := func() string {
		if len(b.Objects) == 0 {
			return "Nothing has changed since.\n"
		}
		lines := revivedLines(b, suffix)
		if dry && b.Last > 0 {
			lines += fmt.Sprintf("The last change is %d: with --last %d nothing newer is taken back.\n", b.Last, b.Last)
		}
		return lines
	}
	if err := p.output(v, b, page); err != nil {
		return err
	}
	if err := trial.tell(); err != nil {
		return err
	}
	for _, r := range b.Objects {
		if r.Did == "conflict" {
			return errConflicts
		}
	}
	return nil
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
