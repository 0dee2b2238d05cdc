package main

import (
	"context"
	"strconv"
)

func (p *program) rollbackVerb() *verb {
	return &verb{
		name:    "rollback",
		summary: "make objects what they were at an earlier revision",
		args:    "[REVISION] [FLAGS]",
		about: `Takes back what clients of the API changed after a revision, in one transaction, as far as
the journal reaches back: deleted objects are there again with their uids, addresses and
ports, new ones go. ` + "`svcctl journal`" + ` has the revisions: the one to give is that of
the last change that is to stay. Without a revision, the last change is taken back; doing that
twice takes back the taking back.

It prints a line for each object: created, changed or deleted; left, for what a
file declares, which is changed there; conflict, for a Service of which another one has
a value by now: it is there, and is not served until the value is free. It needs root.`,
		options: append([]*option{
			dryRunOption("say what would become of which object, and change nothing"),
			confirmOption(),
			outputOption("table", "json"),
		}, connectOptions()...),
		examples: []example{
			{"Who changed what, and what would going back do?", "svcctl journal --limit 20; svcctl rollback 1793456789012345 --dry-run"},
			{"Take back the last change.", "svcctl rollback"},
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
	var revision uint64
	switch len(args) {
	case 0:
	case 1:
		n, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil || n == 0 {
			return usagef("rollback to %q: want a revision, as `svcctl journal` shows them", args[0])
		}
		revision = n
	default:
		return usagef("rollback takes one revision")
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
	b, err := c.Rollback(ctx, revision, dry)
	if err != nil {
		return err
	}
	page := func() string {
		if len(b.Objects) == 0 {
			return "Nothing has changed since.\n"
		}
		return revivedLines(b, suffix)
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
