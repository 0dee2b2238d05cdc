package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
)

func (p *program) planVerb() *verb {
	files := &option{name: "filename", letter: "f", arg: "FILE|DIR", group: "What to plan", repeats: true,
		usage: "manifest, directory of manifests, or - for stdin; repeatable. Without it: the directories of --manifests"}
	return &verb{
		name:    "plan",
		summary: "print the ruleset for manifests, or what they would change",
		about: `Reads manifests as ` + "`svcctl serve`" + ` would, starting from nothing, and prints the
ruleset in the syntax of nft. It needs no privilege and no appliance, and changes
nothing. Addresses and ports that a Service does not ask for are chosen as on a
fresh appliance.

With --against running it prints what the files would change in the kernel of this box: in
words, then as elements of nft's maps. The running appliance makes the change on a copy of
its objects, with the addresses and ports that it would allocate, and changes nothing. Flags
of settings are not accepted then.

Objects that would be refused are reported on stderr, one problem a line, and left out of
the ruleset.

` + settingsAbout,
		options: slices.Concat([]*option{files}, runningOptions(), settingOptions(true)),
		examples: []example{
			{"See what a directory becomes.", "svcctl plan -f examples/quickstart"},
			{"Check a change before it is committed: silent when all is well.", "svcctl plan -f manifests/ > /dev/null"},
			{"What would this file change in the kernel, now?", "svcctl plan --against running -f new.yaml"},
			{"What would this branch change?", "svcctl plan --against running -f checkout/manifests --in-place-of /etc/svcctl/manifests"},
			{"With the settings of the real appliance.", "svcctl plan --config /etc/svcctl/svcctl.yaml -f new.yaml"},
		},
		exits: `  0  every object was accepted
  1  an object was refused, or a file cannot be read: stderr names it
  2  wrong usage or configuration

  With --against running:
  0  nothing would change
  1  something would
  2  unknown: an object would be refused, wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runPlan,
	}
}

// runPlan prints the plan, and the problems on stderr.
func (p *program) runPlan(ctx context.Context, v *verb, _ []string) error {
	if running, err := v.planAgainst(); err != nil || running {
		if err != nil {
			return err
		}
		return p.runPlanRunning(ctx, v)
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
	paths := v.option("filename").texts
	if len(paths) == 0 {
		paths = cfg.ManifestDirs()
	}
	if len(paths) == 0 {
		return usagef("plan of what? Give a file or a directory with -f")
	}
	out := bufio.NewWriter(p.stdout)
	planned, err := p.plan(cfg, paths, p.stdin, out)
	refused := 0
	for _, problem := range planned.Problems {
		fmt.Fprintln(p.stderr, problem) // file:line:column first, as compilers do
		if !problem.Warning {
			refused++
		}
	}
	if err != nil {
		return unreadable(err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	if refused > 0 {
		return fmt.Errorf("%s: the ruleset is without what was refused", count(refused, "problem"))
	}
	return nil
}
