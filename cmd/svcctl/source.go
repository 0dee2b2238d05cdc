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
	return &verb{
		name:    "source",
		summary: "show or set which box reads which directory of a fleet",
		args:    "list|take|forget [NAME] [FLAGS]",
		about: `In a fleet, serve reads --manifests NAME=DIR. Several boxes may have a directory of
one name; one of them reads it for all: the first one, and when that one goes, one
that has the same files.

  list         the sources and their readers
  take NAME    make a box the reader of a source, whatever files it has: objects
               of missing files are removed, unless they are most of all (see
               svcctl release)
  forget NAME  end a source that no box has any more: its objects stay as they
               are, and are the API's from then on (svcctl edit, svcctl delete)`,
		options: slices.Concat([]*option{
			{name: "box", arg: "NAME", group: groupHow, usage: "of take: the box that is to read; without it this one"},
			outputOption(formTable, formJSON),
		}, connectOptions()),
		words: []string{"list", "take", "forget"},
		examples: []example{
			{"The sources and their readers.", "sudo svcctl source list"},
			{"Use the files of gw2.", "sudo svcctl source take lb --box gw2"},
			{"No box has that directory any more; its Services stay.", "sudo svcctl source forget lb"},
		},
		exits: `  0  done
  1  not done: stderr has the reason
  2  wrong usage
  3  the appliance cannot be reached`,
		run: p.runSource,
	}
}

func (p *program) runSource(ctx context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	switch {
	case len(args) == 1 && args[0] == "list" && !v.option("box").isSet():
		return p.sourceList(ctx, v)
	case len(args) == 2 && args[0] == "take" && !v.option("output").isSet():
		return p.sourceTake(ctx, v, args[1], v.option("box").text())
	case len(args) == 2 && args[0] == "forget" && !v.option("box").isSet() && !v.option("output").isSet():
		return p.sourceForget(ctx, v, args[1])
	}
	return usagef("source does what? Say `svcctl source list`, `svcctl source take NAME [--box BOX]` or `svcctl source forget NAME`")
}

// ofFleet replaces a refusal by the error that the box is in no fleet, if that is its reason.
func ofFleet(err error) error {
	if refused, is := errors.AsType[*wire.Failure](err); is && refused.Reason == wire.ReasonNotFound {
		return errors.New("this box belongs to no fleet: it was started without --fleet")
	}
	return err
}

func (p *program) sourceList(ctx context.Context, v *verb) error {
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

func (p *program) sourceTake(ctx context.Context, v *verb, name, box string) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	if box == "" {
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

func (p *program) sourceForget(ctx context.Context, v *verb, name string) error {
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
