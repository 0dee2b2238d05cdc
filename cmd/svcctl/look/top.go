package look

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
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
			{Name: "by", Arg: strings.Join(sorts, "|"), Def: "state on a terminal, else open", Words: sorts, Strict: true, Group: cli.GroupOutput, Usage: "what to sort by"},
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
	o.By = cmp.Or(v.Option("by").Given(), o.By)
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

// topJSON prints traffic data as JSON documents, one for each scan; only one if once is set.
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
		if once || client.Pause(ctx, top.Every) != nil {
			return nil
		}
	}
}

// connectionOptions returns the options of top that apply to connections.
func connectionOptions() []*cli.Option {
	const group = "Connections"
	return []*cli.Option{
		{Name: "connections", Group: group, Usage: "list the connections through the Services instead, once; the open ones"},
		{Name: "closing", Group: group, Usage: "with --connections: those that are closing, or closed a short time ago, too"},
		{Name: "endpoint", Arg: "ADDRESS[:PORT]", Group: group, Usage: "with --connections: those that this endpoint answers"},
		{Name: "client", Arg: "PREFIX", Group: group, Usage: "with --connections: those of these clients, as 203.0.113.7 or 203.0.113.0/24"},
		{Name: "kill", Arg: "ID", Group: group, Usage: "end the connection of this ID (admins)"},
	}
}

// defaultConnections is the default of --limit for connections.
const defaultConnections = 1000

// runConnections lists connections.
func runConnections(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	for _, name := range []string{"filter", "by", "endpoints", "clients", "once"} {
		if v.Option(name).IsSet() {
			return cli.Usagef("--%s is about ports of Services, and --connections lists connections: leave one of them out", name)
		}
	}
	limit := defaultConnections
	if o := v.Option("limit"); o.IsSet() {
		var err error
		if limit, err = wire.ParseBounded(o.Text(), 0, resource.MostConnections); err != nil {
			return cli.Usagef("--limit %w", err)
		}
	}
	appliance, of, err := trafficOf(ctx, env, v, args)
	if err != nil {
		return err
	}
	q := wire.ConnectionsQuery{Namespace: of.Namespace, Service: of.Name, Endpoint: v.Option("endpoint").Text(), Client: v.Option("client").Text(), Limit: limit}
	list, hidden, err := connections(ctx, appliance, q, v.Option("closing").On())
	if err != nil {
		return err
	}
	if v.Option("output").Text() == cli.FormJSON {
		return env.Output(v, list, nil)
	}
	if hidden > 0 {
		fmt.Fprintf(env.Err, "%s closing, not listed: --closing lists them\n", output.IsOrAre(hidden, "connection"))
	}
	if len(list.Connections) == 0 {
		fmt.Fprintln(env.Err, "No connections found.")
		return nil
	}
	if list.More > 0 {
		fmt.Fprintf(env.Err, "%s more: raise --limit, or narrow it by --endpoint or --client\n", output.Count(list.More, "connection"))
	}
	return env.Print(connsTable(list, v.Option("output").Text() == cli.FormWide))
}

// connections returns the connections that q selects. Unless closing is set, it leaves out closing connections; hidden is their number. The limit of
// q applies to the result.
func connections(ctx context.Context, c *client.Client, q wire.ConnectionsQuery, closing bool) (list *wire.Connections, hidden int, err error) {
	limit := q.Limit
	for {
		if list, err = client.Call(ctx, c, wire.GetConnections, q); err != nil || closing {
			return list, 0, err
		}
		all := len(list.Connections)
		list.Connections = slices.DeleteFunc(list.Connections, func(one wire.Connection) bool {
			return resource.IsClosed(one.State) || one.State == "FIN_WAIT" || one.State == "CLOSE_WAIT" || one.State == "LAST_ACK"
		})
		hidden = all - len(list.Connections)
		if enough := len(list.Connections) >= limit || list.More == 0 || q.Limit == resource.MostConnections; enough {
			break
		}
		q.Limit = resource.MostConnections // the closing ones have taken the places of others
	}
	if over := len(list.Connections) - limit; over > 0 {
		list.Connections, list.More = list.Connections[:limit], list.More+over
	}
	return list, hidden, nil
}

// killConn removes the connection with the ID in text from the conntrack table.
func killConn(ctx context.Context, env *cli.Env, v *cli.Verb, text string, args []string) error {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return cli.Usagef("--kill %q: want the ID that `svcctl top --connections` shows", text)
	}
	if len(args) > 0 || v.Option("endpoint").IsSet() || v.Option("client").IsSet() {
		return cli.Usagef("--kill takes an ID and ends that one: leave out %s", strings.Join(append(args, "--endpoint and --client"), ", "))
	}
	killed, err := client.Call(ctx, env.Client(v), wire.Kill, wire.KillQuery{ID: uint32(id)})
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("connection %d ended: %s to %s, answered by %s, of Service %s/%s\n",
		killed.ID, killed.Client, killed.To, killed.Endpoint, killed.Namespace, killed.Service))
}

// trafficOf returns a client of the appliance, and the Services that a verb applies to: one, those of a namespace, or all. It returns an error if the
// named Service does not exist.
func trafficOf(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) (c *client.Client, of wire.ObjectQuery, err error) {
	c = env.Client(v)
	all := v.Option("all-namespaces").On()
	if len(args) == 0 {
		if !all {
			of.Namespace = settings.Namespace(env, v)
		}
		return c, of, c.Failed
	}
	if len(args) == 1 && !strings.Contains(args[0], "/") {
		args = []string{"svc/" + args[0]}
	}
	what, err := resource.Targets(args, settings.Namespace(env, v))
	switch {
	case err != nil:
		return nil, of, err
	case len(what) > 1 || what[0].Kind.Plural != "services" || what[0].Name == "":
		return nil, of, cli.Usagef("%s takes one Service, as svc/web, or none", v.Name)
	case all:
		return nil, of, cli.Usagef("%s: a name is in one namespace: give -n NAMESPACE, not -A", what[0])
	}
	_, err = c.Get(ctx, what[0].Path())
	return c, wire.ObjectQuery{Namespace: what[0].Namespace, Name: what[0].Name}, err
}

// connsTable formats connections as a table.
func connsTable(list *wire.Connections, wide bool) string {
	header := []string{"ID", "SERVICE", "PROTO", "CLIENT", "TO", "ENDPOINT", "STATE"}
	if wide {
		header = append(header, "AS", "EXPIRES")
	}
	rows := [][]string{header}
	for i := range list.Connections {
		c := &list.Connections[i]
		state := c.State
		switch {
		case !c.Answered:
			state = strings.TrimSpace(state + " unanswered")
		case state == "":
			state = "answered"
		}
		endpoint := c.Answering()
		if len(c.RelayedTo) > 0 {
			endpoint = strings.Join(c.RelayedTo, ",") + " (relayed)"
		}
		row := []string{strconv.FormatUint(uint64(c.ID), 10), output.ServicePort(c.Namespace, c.Service, c.Port), c.Protocol, c.Client, c.To, endpoint, state}
		if wide {
			row = append(row, cmp.Or(c.As, "-"), (time.Duration(c.Expires) * time.Second).String())
		}
		rows = append(rows, row)
	}
	fastColumn(rows, wide, list.Connections)
	return new(output.Grid).Text(rows...)
}
