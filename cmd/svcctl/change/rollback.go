package change

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

func RollbackVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "rollback",
		Summary: "restore objects to an earlier revision",
		Args:    "[REVISION] [FLAGS]",
		About: `Undoes changes of clients of the API after a revision, in one transaction, as far
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
		Options: append([]*cli.Option{
			{Name: "last", Arg: "REVISION", Group: cli.GroupHow, Usage: "the last change you saw: refused if there is a later one"},
			dryRunOption("print the result for each object, and change nothing"),
			confirmOption(),
			cli.YesOption(),
			cli.OutputOption("table", "json"),
		}, settings.ConnectOptions()...),
		Examples: []cli.Example{
			{"The journal, and the effect of a rollback.", "svcctl journal --limit 20; svcctl rollback 1793456789012345 --dry-run"},
			{"The latest changes, and how to undo the last one.", "svcctl rollback"},
			{"Undo the last change, but no later one than in the journal.", "svcctl rollback --last 1793456789012345"},
		},
		Exits: `  0  done
  1  not done, or not all of it: the output lists what is missing
  2  wrong usage or configuration, or no terminal to ask on and no --yes
  3  the appliance cannot be reached`,
		Run: runRollback,
	}
}

// runRollback takes changes back.
func runRollback(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	if len(args) > 1 {
		return cli.Usagef("rollback takes one revision")
	}
	revision, err := revisionOf("rollback to", strings.Join(args, ""))
	if err != nil {
		return err
	}
	last, err := revisionOf("--last", v.Option("last").Text())
	if err != nil {
		return err
	}
	dry, err := dryRun(v)
	if err != nil {
		return err
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	bare := revision == 0 && !v.Option("last").IsSet() && !v.Option("confirm").IsSet() && !v.Option("yes").On()
	trial, err := newTrying(env, v, c)
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
		if v.Option("output").Text() == "table" {
			if err := recent(ctx, env, c); err != nil {
				return err
			}
		}
	default:
		if consequence != "" {
			if err := env.Consent(v, consequence); err != nil {
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
	if err := env.Output(v, b, page); err != nil {
		return err
	}
	if err := trial.printDeadline(ctx); err != nil {
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
func recent(ctx context.Context, env *cli.Env, c *client.Client) error {
	entries, err := c.Journal(ctx, wire.JournalQuery{Limit: 10})
	if err != nil {
		return err
	}
	return env.Print(resource.JournalTable(resource.Journal(entries, nil, len(entries))) + "\n")
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
		parts = append(parts, "removes "+output.Count(len(services), "Service")+resource.OpenConnections(ctx, c, services))
	}
	if others > 0 {
		parts = append(parts, "removes "+output.Count(others, "other object"))
	}
	if changed > 0 {
		parts = append(parts, "changes "+output.Count(changed, "object"))
	}
	if restored > 0 {
		parts = append(parts, "restores "+output.Count(restored, "object"))
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
		return 0, cli.Usagef("%s %q: want a revision, as `svcctl journal` shows them", what, text)
	}
	return n, nil
}
