package change

import (
	"bufio"
	"context"
	"fmt"
	"slices"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func PlanVerb() *cli.Verb {
	files := &cli.Option{Name: "filename", Letter: "f", Arg: "FILE|DIR", Group: "What to plan", Repeats: true,
		Usage: "manifest, directory of manifests, or - for stdin; repeatable. Without it: the directories of --manifests"}
	return &cli.Verb{
		Name:    "plan",
		Summary: "print the ruleset for manifests, or what they would change",
		About: `Reads manifests as ` + "`svcctl serve`" + ` would, starting from nothing, and prints the
ruleset in the syntax of nft. It needs no privilege and no appliance, and changes
nothing. Addresses and ports that a Service does not ask for are chosen as on a
fresh appliance.

With --against running it prints what the files would change in the kernel of this box: in
words, then as elements of nft's maps. The running appliance makes the change on a copy of
its objects, with the addresses and ports that it would allocate, and changes nothing. Flags
of settings are not accepted then.

Objects that would be refused are reported on stderr, one problem a line, and left out of
the ruleset.

` + settings.SettingsAbout,
		Options: slices.Concat([]*cli.Option{files}, runningOptions(), settings.SettingOptions(true)),
		Examples: []cli.Example{
			{"See what a directory becomes.", "svcctl plan -f examples/quickstart"},
			{"Check a change before it is committed: silent when all is well.", "svcctl plan -f manifests/ > /dev/null"},
			{"What would this file change in the kernel, now?", "svcctl plan --against running -f new.yaml"},
			{"What would this branch change?", "svcctl plan --against running -f checkout/manifests --in-place-of /etc/svcctl/manifests"},
			{"With the settings of the real appliance.", "svcctl plan --config /etc/svcctl/svcctl.yaml -f new.yaml"},
		},
		Exits: `  0  every object was accepted
  1  an object was refused, or a file cannot be read: stderr names it
  2  wrong usage or configuration

  With --against running:
  0  nothing would change
  1  something would
  2  unknown: an object would be refused, wrong usage or configuration
  3  the appliance cannot be reached`,
		Run: runPlan,
	}
}

// runPlan prints the plan, and the problems on stderr.
func runPlan(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if running, err := planAgainst(v); err != nil || running {
		if err != nil {
			return err
		}
		return runPlanRunning(ctx, env, v)
	}
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	paths := v.Option("filename").Texts
	if len(paths) == 0 {
		paths = cfg.ManifestDirs()
	}
	if len(paths) == 0 {
		return cli.Usagef("plan of what? Give a file or a directory with -f")
	}
	out := bufio.NewWriter(env.Out)
	planned, err := env.Plan(cfg, paths, env.In, out)
	refused := 0
	for _, problem := range planned.Problems {
		fmt.Fprintln(env.Err, problem) // file:line:column first, as compilers do
		if !problem.Warning {
			refused++
		}
	}
	if err != nil {
		return resource.Unreadable(err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	if refused > 0 {
		return fmt.Errorf("%s: the ruleset is without what was refused", output.Count(refused, "problem"))
	}
	return nil
}
