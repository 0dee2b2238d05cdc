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
		About:   settings.SettingsAbout,
		Options: slices.Concat([]*cli.Option{files}, runningOptions(), settings.SettingOptions(true)),
		Run:     runPlan,
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
