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
	return &cli.Verb{
		Name: "fleet source",
		Verbs: cli.Words(&cli.Verb{
			Name:    "fleet source list",
			Options: slices.Concat([]*cli.Option{cli.OutputOption(cli.FormTable, cli.FormJSON)}, settings.ConnectOptions()),
			Run:     sourceList,
		}, &cli.Verb{
			Name:    "fleet source take",
			Options: slices.Concat([]*cli.Option{{Name: "box", Arg: "NAME", Def: "this one", Group: cli.GroupHow, Usage: "the box that is to read"}}, settings.ConnectOptions()),
			Run:     sourceTake,
		}, &cli.Verb{
			Name:    "fleet source forget",
			Options: settings.ConnectOptions(),
			Run:     sourceForget,
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
