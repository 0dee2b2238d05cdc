package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func sourceVerb() *cli.Verb {
	const exits = `  0  done
  1  not done: stderr has the reason
  2  wrong usage
  3  the appliance cannot be reached`
	return &cli.Verb{
		Name:    "fleet source",
		Summary: "show or set which box reads which directory",
		About: `In a fleet, serve reads --manifests NAME=DIR. Several boxes may have a directory of
one name; one of them reads it for all: the first one, and when that one goes, one
that has the same files.`,
		Verbs: cli.Words(&cli.Verb{
			Name:    "fleet source list",
			Summary: "list the sources and their readers",
			About:   "Lists the named directories of the fleet: the box that reads each, the number of its files, and since when.",
			Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormJSON)}, settings.ConnectOptions()),
			Examples: []cli.Example{
				{"The sources and their readers.", "sudo svcctl fleet source list"},
			},
			Exits: exits,
			Run:   sourceList,
		}, &cli.Verb{
			Name:    "fleet source take",
			Summary: "make a box the reader of a source",
			Args:    "NAME [FLAGS]",
			About: `Makes a box the reader of a source, whatever files it has: objects of missing files are
removed, unless they are most of all (see ` + "`svcctl confirm --removals`" + `).`,
			Options: slices.Concat([]*cli.Option{{Name: "box", Arg: "NAME", Def: "this one", Group: cli.GroupHow, Usage: "the box that is to read"}}, settings.ConnectOptions()),
			Examples: []cli.Example{
				{"Use the files of gw2.", "sudo svcctl fleet source take lb --box gw2"},
			},
			Exits: exits,
			Run:   sourceTake,
		}, &cli.Verb{
			Name:    "fleet source forget",
			Summary: "end a source that no box has any more",
			Args:    "NAME [FLAGS]",
			About: `Ends a source that no box has any more: its objects stay as they are, and are the API's
from then on (` + "`svcctl edit`, `svcctl delete`" + `).`,
			Options: settings.ConnectOptions(),
			Examples: []cli.Example{
				{"No box has that directory any more; its Services stay.", "sudo svcctl fleet source forget lb"},
			},
			Exits: exits,
			Run:   sourceForget,
		}),
	}
}

func sourceList(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	list, err := client.Call(ctx, c, wire.GetSources, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	return env.Output(v, *list, func() string { return sourceTable(*list) })
}

// sourceTable is a line for each source.
func sourceTable(list []wire.FleetSource) string {
	if len(list) == 0 {
		return "No box has read a directory of manifests yet: serve --manifests NAME=DIR does.\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tREADER\tSTATE\tFILES\tGENERATION\tSINCE")
	for _, s := range list {
		state, generation := "reading", "-"
		if !s.Reading {
			state = "nobody reads"
		}
		if s.Generation > 0 {
			generation = fmt.Sprint(s.Generation)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", s.Name, s.Reader, state, s.Files, generation, output.Stamp(s.Since))
	}
	_ = w.Flush() // into memory
	return b.String()
}

func sourceTake(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet source take takes one name, as `svcctl fleet source take lb --box gw2`")
	}
	name, box := args[0], v.Option("box").Text()
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	if !v.Option("box").IsSet() {
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		box = status.NodeName
	}
	before, err := client.Call(ctx, c, wire.TakeSource, wire.SourceQuery{Name: name, Box: box})
	if err != nil {
		return resource.OfFleet(err)
	}
	if before.Reader == box {
		return env.Print(fmt.Sprintf("%s reads source %s.\n", box, name))
	}
	return env.Print(fmt.Sprintf("%s reads source %s from now on; %s did so before.\n", box, name, before.Reader))
}

func sourceForget(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) != 1 {
		return cli.Usagef("fleet source forget takes one name, as `svcctl fleet source forget lb`")
	}
	name := args[0]
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	gone, err := client.Call(ctx, c, wire.ForgetSource, wire.SourceQuery{Name: name})
	if err != nil {
		return resource.OfFleet(err)
	}
	return env.Print(fmt.Sprintf("Source %s has ended; %s read it last. Its %s belong to the API now.\n", name, gone.Reader, output.Count(gone.Objects, "object")))
}
