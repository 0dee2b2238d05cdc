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
		Name: "rollback",
		Options: append([]*cli.Option{
			{Name: "last", Arg: "REVISION", Group: cli.GroupHow, Usage: "the last change you saw: refused if there is a later one"},
			dryRunOption("print the result for each object, and change nothing"),
			confirmOption(),
			cli.YesOption(),
			cli.OutputOption("table", "json"),
		}, settings.ConnectOptions()...),
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
		switch service, is := strings.CutPrefix(r.Object, object.KindService+" "); r.Did {
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
