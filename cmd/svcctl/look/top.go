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
		Name:    "top",
		Summary: "show traffic by Service and endpoint, or connections",
		Args:    "[svc/NAME] [FLAGS]",
		About: `Shows ports of Services with their traffic, and updates the table every two seconds. On a
terminal the first lines are the answer of ` + "`svcctl status`" + ` and the traffic of the box, and
Services that do not answer come first. Keys:

  arrows, Page Up, Page Down, Home, End    move
  Enter            open a Service: each endpoint, its state and last check
  c                its clients
  Esc              back; ends a filter
  /                filter by a text in NAMESPACE/NAME:PORT, as it is typed
  s o r u f b n    sort by state, open, rate, unanswered, refused, bytes, name
  e  ?  q          endpoints in the list, help, quit

UP are the endpoints that are not down, of all that are ready. NEW/S, REFUSED/S and FAILED/S
are new connections, packets refused as there is no endpoint, and connections that an
endpoint refused or never answered, each a second since the previous reading. OPEN are
connections that were answered and that neither side has closed. UNANSWERED are those to
which the endpoint has sent nothing: if the number stays up, the endpoint does not answer.
CONNS are all connections so far, and kB/s the bytes in thousands, where the kernel counts
them (net.netfilter.nf_conntrack_acct). More columns appear on a wider terminal.

Without a terminal, and with --once, one table is printed, with FAILED and REFUSED so far;
with -o json one document for each reading.

The numbers come from the kernel's connection tracking, which is read only on
request, and more rarely where it is large: at most 2 % of a core is used. Connections to
node ports on loopback addresses are relayed, and are not among them.

--connections lists the connections: the client, the address that it connected to, the
endpoint, and with -o wide the client address that the endpoint sees (AS), and the time after
which the kernel forgets the connection. Of a relayed Service the endpoints are those of the
appliance's connections for a client. Connections that are closing, and those of TCP in the two
minutes after their end (TIME_WAIT), are left out without --closing.

--kill ends a connection by its ID. Both ends of a TCP connection get a reset as soon as they
send something. The entry of any other is deleted, and its next packet is balanced again.`,
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
		Examples: []cli.Example{
			{"Ports with traffic.", "svcctl top -A"},
			{"The busiest ports of a team's Services.", "svcctl top -A --filter 'shop-*' --by rate"},
			{"The busiest clients of a Service.", "svcctl top svc/web --clients"},
			{"Endpoints that do not answer.", "svcctl top -A --once --endpoints --by unanswered"},
			{"The connections of an endpoint before its reboot.", "svcctl top --connections svc/web --endpoint 10.1.2.11"},
			{"End one of them.", "sudo svcctl top --kill 2093418240"},
			{"The clients with the most connections.", `svcctl top --connections svc/web -o json | jq -r '.connections[].client | sub(":[0-9]+$"; "")' | sort | uniq -c | sort -rn | head`},
		},
		Exits: `  0  done
  1  refused, or there is no such Service or connection
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
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
