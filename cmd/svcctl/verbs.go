package main

import (
	"context"
	"fmt"
	"runtime"

	"svcctl.io/svcctl/cmd/svcctl/admin"
	"svcctl.io/svcctl/cmd/svcctl/box"
	"svcctl.io/svcctl/cmd/svcctl/change"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/fleet"
	"svcctl.io/svcctl/cmd/svcctl/look"
)

// The groups of verbs in help.
const (
	groupServe  = "Serve"
	groupChange = "Change"
	groupLook   = "Look"
	groupAdmin  = "Admin"
)

// root returns svcctl itself with all verbs below it, in the order of help. Each call makes new ones: their
// options keep what they are given.
func root() *cli.Verb {
	root := &cli.Verb{
		Name:    cli.RootName,
		Summary: "Kubernetes Services on a plain Linux machine, compiled to nftables",
		Args:    "VERB [FLAGS]",
		About: `It reads Services, with their EndpointSlices, Endpoints or Pods, from directories of YAML
and from clients of its Kubernetes API: ` + "`svcctl apply`" + `, kubectl. It allocates
addresses and ports, and programs the kernel to balance their traffic. No cluster is needed.

When something does not work: ` + "`svcctl status`" + ` finds it, ` + "`svcctl explain`" + ` gives the
reason, and ` + "`svcctl trace`" + ` proves it, packet by packet. The other verbs of Look show details.

` + "`svcctl VERB --help` or `svcctl help VERB`" + ` describes a verb.`,
		Options: []*cli.Option{{Name: "version", Usage: "print the version", Group: "Flags"}},
		Examples: []cli.Example{
			{"A Service of two servers, and its address.", "sudo svcctl expose web --port 80:8080 --to 10.1.2.11 --to 10.1.2.12 --apply && svcctl get svc web"},
			{"Do all Services answer? Why does this one not?", "svcctl status; svcctl explain svc/web"},
			{"Their traffic.", "svcctl top -A"},
			{"The ruleset of a directory of manifests. Needs no privilege and changes nothing.", "svcctl plan -f examples/quickstart"},
			{"Program it, and follow changes of the files.", "sudo svcctl serve --manifests examples/quickstart"},
		},
		Exits: `  0  done
  1  the answer is no, or something was refused: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
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
	add("", versionVerb(), completionVerb(), helpVerb(), completeVerb())
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
		Summary: "print the version of this program",
		About: "`svcctl status` has the version of the running appliance, which may differ.\n\n" +
			"With -o json or yaml the fields are version, goVersion and platform.",
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
		Name:    "help",
		Summary: "explain svcctl, or one of its verbs",
		Args:    "[VERB]",
		About:   "Without a verb it lists all verbs.",
		Examples: []cli.Example{
			{"All flags of the appliance.", "svcctl help serve"},
			{"A verb of two words.", "svcctl help announce drain"},
		},
		Run: runHelp,
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
