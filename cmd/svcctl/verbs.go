package main

import (
	"context"
	_ "embed" // help.txt
	"fmt"
	"runtime"

	"svcctl.io/svcctl/cmd/svcctl/admin"
	"svcctl.io/svcctl/cmd/svcctl/box"
	"svcctl.io/svcctl/cmd/svcctl/change"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/fleet"
	"svcctl.io/svcctl/cmd/svcctl/look"
)

// The groups of verbs, as headings in help.
const (
	groupServe  = "Serve"
	groupChange = "Change"
	groupLook   = "Look"
	groupAdmin  = "Admin"
)

// texts is the content of help.txt, the help of all verbs. The comment at its start describes the format.
//
//go:embed help.txt
var texts string

// root returns svcctl itself with all verbs below it, in the order of help. Each call returns new verbs,
// since their options store the values of flags.
func root() *cli.Verb {
	root := &cli.Verb{
		Name:    cli.RootName,
		Options: []*cli.Option{{Name: "version", Usage: "print the version", Group: "Flags"}},
	}
	add := func(group string, verbs ...*cli.Verb) {
		for _, v := range verbs {
			v.Group = group
			root.Verbs = append(root.Verbs, v)
		}
	}
	add(groupServe, box.ServeVerb(), box.DoctorVerb(), box.DownVerb(), box.DashboardVerb(), box.AnnounceVerb(), box.DiscoverVerb(), fleet.FleetVerb())
	add(groupChange, change.ApplyVerb(), change.DeleteVerb(), change.EditVerb(), change.ExposeVerb(), change.ImportVerb(), change.ValidateVerb(), change.DiffVerb(), change.PlanVerb(),
		change.ConfirmVerb(), change.RollbackVerb(), change.OutVerb(), change.InVerb())
	add(groupLook, look.StatusVerb(), look.ExplainVerb(), look.GetVerb(), look.DescribeVerb(), look.WaitVerb(), look.HealthVerb(), look.TopVerb(), look.TraceVerb(), look.JournalVerb())
	add(groupAdmin, admin.AdminVerb())
	add("", versionVerb(), completionVerb(), helpVerb(), &cli.Verb{Name: completeName, Args: "WORD...", Command: true, Run: runComplete})
	root.Describe(texts)
	return root
}

// versionInfo is the output of `svcctl version -o json`.
type versionInfo struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"` // linux/amd64
}

func versionVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "version",
		Options: []*cli.Option{cli.OutputOption("text", "json", "yaml")},
		Run:     runVersion,
	}
}

// runVersion prints the version.
func runVersion(_ context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	info := versionInfo{Version: env.Version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	return env.Output(v, info, func() string {
		return fmt.Sprintf("svcctl %s (%s, %s)\n", info.Version, info.GoVersion, info.Platform)
	})
}

func helpVerb() *cli.Verb {
	return &cli.Verb{
		Name: "help",
		Run:  runHelp,
	}
}

// runHelp prints the help of a verb, or of svcctl.
func runHelp(_ context.Context, env *cli.Env, _ *cli.Verb, args []string) error {
	root := root()
	v, rest := root.Find(args)
	switch {
	case len(rest) == 0:
		return env.Print(v.Help())
	case v == root:
		return bare(env, root, rest)
	case len(v.Verbs) > 0:
		return unknown(v, rest)
	}
	return cli.Usagef("%s has no words of its own, and %q is one: run `%s --help`", v.Name, rest[0], v.Line())
}
