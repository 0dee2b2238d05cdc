package look

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/cmd/svcctl/top"
)

func TopVerb() *cli.Verb {
	sorts := wire.TrafficSorts()
	return &cli.Verb{
		Name: "top",
		Options: append([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "Services of all namespaces"},
			{Name: "filter", Arg: "TEXT", Group: cli.GroupWhich, Usage: "ports with this in NAMESPACE/NAME:PORT; with * a pattern for the whole name, as 'shop/*'"},
			{Name: "limit", Letter: "l", Arg: "N", Def: "100, or 1000 connections", Group: cli.GroupWhich, Usage: "how many ports, and how many clients, at most 10000; with --connections at most 100000"},
			{Name: "by", Arg: strings.Join(sorts, "|"), Def: "state on a terminal, else open", Words: sorts, Group: cli.GroupOutput, Usage: "what to sort by"},
			{Name: "endpoints", Group: cli.GroupOutput, Usage: "show the endpoints of each port"},
			{Name: "clients", Group: cli.GroupOutput, Usage: "show the clients of the named Service, the busiest first"},
			{Name: "once", Group: cli.GroupOutput, Usage: "print one table"},
			cli.OutputOption(cli.FormTable, cli.FormWide, cli.FormJSON),
		}, slices.Concat(connectionOptions(), settings.ConnectOptions())...),
		Run: runTop,
	}
}

// runTop shows traffic once, or until it is interrupted.
func runTop(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	if o := v.Option("kill"); o.IsSet() {
		return killConn(ctx, env, v, o.Text(), args)
	}
	if v.Option("connections").On() {
		return runConnections(ctx, env, v, args)
	}
	for _, name := range []string{"closing", "endpoint", "client"} {
		if v.Option(name).IsSet() {
			return cli.Usagef("--%s is about connections: give --connections, too", name)
		}
	}
	if v.Option("output").Text() == cli.FormWide {
		return cli.Usagef("-o wide is for --connections: ports have the forms table and json")
	}
	once := v.Option("once").On()
	in, isIn := env.In.(*os.File)
	out, isOut := env.Out.(*os.File)
	live := !once && env.StdoutTTY && env.StdinTTY && isIn && isOut && v.Option("output").Text() != cli.FormJSON
	o := top.Options{By: "open", Filter: v.Option("filter").Text(), Clients: v.Option("clients").On(), Color: env.Color}
	if live {
		o.By = "state"
	}
	if by := v.Option("by"); by.IsSet() {
		o.By = by.Text()
	}
	if sorts := wire.TrafficSorts(); !slices.Contains(sorts, o.By) {
		return cli.Usagef("--by %q: want %s", o.By, strings.Join(sorts, ", "))
	}
	if len(o.Filter) > wire.MaxTrafficFilter {
		return cli.Usagef("--filter: it is %d bytes long, %d is the most", len(o.Filter), wire.MaxTrafficFilter)
	}
	named := len(args) > 0
	if o.Clients && !named {
		return cli.Usagef("--clients are those of one Service: name it, as in `svcctl top svc/web --clients`")
	}
	o.Endpoints = v.Option("endpoints").On() || named && !o.Clients
	var err error
	o.Limit = 100
	if limit := v.Option("limit"); limit.IsSet() {
		if o.Limit, err = wire.ParseBounded(limit.Text(), 0, 10_000); err != nil {
			return cli.Usagef("--limit %w", err)
		}
	}
	c, of, err := trafficOf(ctx, env, v, args)
	if err != nil {
		return err
	}
	t := top.New(c, of, o)
	switch {
	case live:
		return t.Live(ctx, in, out, env.Now)
	case v.Option("output").Text() == cli.FormJSON:
		return topJSON(ctx, env, t, once)
	}
	if err := t.Second(ctx); err != nil {
		return err
	}
	return env.Print(t.Table(env.Now()))
}

// topJSON prints one document a look.
func topJSON(ctx context.Context, env *cli.Env, t *top.Top, once bool) error {
	var last time.Time
	for {
		look := t.Look
		if once {
			look = t.Second
		}
		err := look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if t.Seen().At.After(last) { // looks are shared, and may be rare
			last = t.Seen().At
			if err := env.PrintLine(t.Seen()); err != nil {
				return err
			}
		}
		if once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(top.Every):
		}
	}
}
