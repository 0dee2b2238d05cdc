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
		About: `Shows ports of Services by their connections, the busiest first, and updates the
table every two seconds. For a named Service it shows the endpoints too, or with --clients
its busiest clients.

OPEN are connections that were answered and that neither side has closed. UNANSWERED are
those to which the endpoint has sent nothing: if the number stays up, the endpoint does not
answer. NEW/S are new connections a second since the previous reading. CONNS are all
connections so far, and REFUSED the packets that were refused or
dropped because there was no endpoint: the kernel counts both, unless the appliance has
--traffic off.

On a terminal, o, r, u, f and n sort by open, rate, unanswered, refused and name, / filters
by a text until Enter, Esc ends the filter, e shows or hides endpoints, c clients of a named
Service, q quits. Without a terminal one table is printed; with -o json one document for
each reading.

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
			{Name: "by", Arg: strings.Join(sorts, "|"), Def: sorts[0], Words: sorts, Group: cli.GroupOutput, Usage: "what to sort by"},
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
	o := top.Options{By: v.Option("by").Text(), Filter: v.Option("filter").Text(), Clients: v.Option("clients").On(), Color: env.Color}
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
	once := v.Option("once").On()
	if v.Option("output").Text() == cli.FormJSON {
		return topJSON(ctx, env, t, once)
	}
	in, isIn := env.In.(*os.File)
	out, isOut := env.Out.(*os.File)
	if once || !env.StdoutTTY || !env.StdinTTY || !isIn || !isOut {
		if err := t.Second(ctx); err != nil {
			return err
		}
		return env.Print(t.Table(env.Now(), 0, 0))
	}
	return t.Live(ctx, in, out, env.Now)
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
