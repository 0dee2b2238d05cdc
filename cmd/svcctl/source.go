package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

func (p *program) sourceVerb() *verb {
	const exits = `  0  done
  1  not done: stderr has the reason
  2  wrong usage
  3  the appliance cannot be reached`
	return &verb{
		name:    "fleet source",
		summary: "show or set which box reads which directory",
		about: `In a fleet, serve reads --manifests NAME=DIR. Several boxes may have a directory of
one name; one of them reads it for all: the first one, and when that one goes, one
that has the same files.`,
		verbs: words(&verb{
			name:    "fleet source list",
			summary: "list the sources and their readers",
			about:   "Lists the named directories of the fleet: the box that reads each, the number of its files, and since when.",
			options: slices.Concat([]*option{outputOption(formTable, formJSON)}, connectOptions()),
			examples: []example{
				{"The sources and their readers.", "sudo svcctl fleet source list"},
			},
			exits: exits,
			run:   p.sourceList,
		}, &verb{
			name:    "fleet source take",
			summary: "make a box the reader of a source",
			args:    "NAME [FLAGS]",
			about: `Makes a box the reader of a source, whatever files it has: objects of missing files are
removed, unless they are most of all (see ` + "`svcctl confirm --removals`" + `).`,
			options: slices.Concat([]*option{{name: "box", arg: "NAME", def: "this one", group: groupHow, usage: "the box that is to read"}}, connectOptions()),
			examples: []example{
				{"Use the files of gw2.", "sudo svcctl fleet source take lb --box gw2"},
			},
			exits: exits,
			run:   p.sourceTake,
		}, &verb{
			name:    "fleet source forget",
			summary: "end a source that no box has any more",
			args:    "NAME [FLAGS]",
			about: `Ends a source that no box has any more: its objects stay as they are, and are the API's
from then on (` + "`svcctl edit`, `svcctl delete`" + `).`,
			options: connectOptions(),
			examples: []example{
				{"No box has that directory any more; its Services stay.", "sudo svcctl fleet source forget lb"},
			},
			exits: exits,
			run:   p.sourceForget,
		}),
	}
}

// ofFleet replaces a refusal by the error that the box is in no fleet, if that is its reason.
func ofFleet(err error) error {
	if refused, is := errors.AsType[*wire.Failure](err); is && refused.Reason == wire.ReasonNotFound {
		return errors.New("this box belongs to no fleet: it was started without --fleet")
	}
	return err
}

func (p *program) sourceList(ctx context.Context, v *verb, _ []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	list, err := client.Call(ctx, c, wire.GetSources, wire.None{})
	if err != nil {
		return ofFleet(err)
	}
	return p.output(v, *list, func() string { return sourceTable(*list) })
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", s.Name, s.Reader, state, s.Files, generation, stamp(s.Since))
	}
	_ = w.Flush() // into memory
	return b.String()
}

func (p *program) sourceTake(ctx context.Context, v *verb, args []string) error {
	if len(args) != 1 {
		return usagef("fleet source take takes one name, as `svcctl fleet source take lb --box gw2`")
	}
	name, box := args[0], v.option("box").text()
	c, err := p.client(v)
	if err != nil {
		return err
	}
	if !v.option("box").isSet() {
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		box = status.NodeName
	}
	before, err := client.Call(ctx, c, wire.TakeSource, wire.SourceQuery{Name: name, Box: box})
	if err != nil {
		return ofFleet(err)
	}
	if before.Reader == box {
		return p.print(fmt.Sprintf("%s reads source %s.\n", box, name))
	}
	return p.print(fmt.Sprintf("%s reads source %s from now on; %s did so before.\n", box, name, before.Reader))
}

func (p *program) sourceForget(ctx context.Context, v *verb, args []string) error {
	if len(args) != 1 {
		return usagef("fleet source forget takes one name, as `svcctl fleet source forget lb`")
	}
	name := args[0]
	c, err := p.client(v)
	if err != nil {
		return err
	}
	gone, err := client.Call(ctx, c, wire.ForgetSource, wire.SourceQuery{Name: name})
	if err != nil {
		return ofFleet(err)
	}
	return p.print(fmt.Sprintf("Source %s has ended; %s read it last. Its %s belong to the API now.\n", name, gone.Reader, count(gone.Objects, "object")))
}
