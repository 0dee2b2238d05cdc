package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// connectionOptions are the flags of top for connections.
func connectionOptions() []*option {
	const group = "Connections"
	return []*option{
		{name: "connections", group: group, usage: "list the connections through the Services instead, once; the open ones"},
		{name: "closing", group: group, usage: "with --connections: those that are closing, or closed a short time ago, too"},
		{name: "endpoint", arg: "ADDRESS[:PORT]", group: group, usage: "with --connections: those that this endpoint answers"},
		{name: "client", arg: "PREFIX", group: group, usage: "with --connections: those of these clients, as 203.0.113.7 or 203.0.113.0/24"},
		{name: "kill", arg: "ID", group: group, usage: "end the connection of this ID (admins)"},
	}
}

// defaultConnections is the default of --limit for connections.
const defaultConnections = 1000

// runConnections lists connections.
func (p *program) runConnections(ctx context.Context, v *verb, args []string) error {
	for _, name := range []string{"filter", "by", "endpoints", "clients", "once"} {
		if v.option(name).isSet() {
			return usagef("--%s is about ports of Services, and --connections lists connections: leave one of them out", name)
		}
	}
	limit := defaultConnections
	if o := v.option("limit"); o.isSet() {
		var err error
		if limit, err = wire.ParseBounded(o.text(), 0, mostConnections); err != nil {
			return usagef("--limit %w", err)
		}
	}
	appliance, of, err := p.trafficOf(ctx, v, args)
	if err != nil {
		return err
	}
	q := wire.ConnectionsQuery{Namespace: of.Namespace, Service: of.Name, Endpoint: v.option("endpoint").text(), Client: v.option("client").text(), Limit: limit}
	list, hidden, err := connections(ctx, appliance, q, v.option("closing").on())
	if err != nil {
		return err
	}
	if v.option("output").text() == formJSON {
		text, err := output.JSON(list)
		if err != nil {
			return err
		}
		return p.print(text)
	}
	if hidden > 0 {
		fmt.Fprintf(p.stderr, "%s closing, not listed: --closing lists them\n", isOrAre(hidden, "connection"))
	}
	if len(list.Connections) == 0 {
		fmt.Fprintln(p.stderr, "No connections found.")
		return nil
	}
	if list.More > 0 {
		fmt.Fprintf(p.stderr, "%s more: raise --limit, or narrow it by --endpoint or --client\n", count(list.More, "connection"))
	}
	return p.print(connsTable(list, v.option("output").text() == formWide))
}

// connections returns the connections of a query, without those that are closing unless they are asked for, and how many of these
// were left out. The limit counts those that are returned.
func connections(ctx context.Context, c *client.Client, q wire.ConnectionsQuery, closing bool) (list *wire.Connections, hidden int, err error) {
	limit := q.Limit
	for {
		if list, err = client.Call(ctx, c, wire.GetConnections, q); err != nil || closing {
			return list, 0, err
		}
		all := len(list.Connections)
		list.Connections = slices.DeleteFunc(list.Connections, func(one wire.Connection) bool { return isClosing(one.State) })
		hidden = all - len(list.Connections)
		if enough := len(list.Connections) >= limit || list.More == 0 || q.Limit == mostConnections; enough {
			break
		}
		q.Limit = mostConnections // the closing ones have taken the places of others
	}
	if over := len(list.Connections) - limit; over > 0 {
		list.Connections, list.More = list.Connections[:limit], list.More+over
	}
	return list, hidden, nil
}

// isClosing reports whether a TCP connection of a state, as conntrack names it, has had a FIN or a reset.
func isClosing(state string) bool {
	return isClosed(state) || state == "FIN_WAIT" || state == "CLOSE_WAIT" || state == "LAST_ACK"
}

// isOrAre is "1 connection is" or "2 connections are".
func isOrAre(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}

// killConn ends a connection.
func (p *program) killConn(ctx context.Context, v *verb, text string, args []string) error {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return usagef("--kill %q: want the ID that `svcctl top --connections` shows", text)
	}
	if len(args) > 0 || v.option("endpoint").isSet() || v.option("client").isSet() {
		return usagef("--kill takes an ID and ends that one: leave out %s", strings.Join(append(args, "--endpoint and --client"), ", "))
	}
	appliance, err := p.client(v)
	if err != nil {
		return err
	}
	killed, err := client.Call(ctx, appliance, wire.Kill, wire.KillQuery{ID: uint32(id)})
	if err != nil {
		return err
	}
	return p.print(fmt.Sprintf("connection %d ended: %s to %s, answered by %s, of Service %s/%s\n",
		killed.ID, killed.Client, killed.To, killed.Endpoint, killed.Namespace, killed.Service))
}

// trafficOf returns the appliance and the Services that a verb is about: those of a namespace, of all, or one, which exists.
func (p *program) trafficOf(ctx context.Context, v *verb, args []string) (c *client.Client, of wire.ObjectQuery, err error) {
	all := v.option("all-namespaces").on()
	if len(args) == 0 {
		if !all {
			of.Namespace = p.namespace(v)
		}
		c, err = p.client(v)
		return c, of, err
	}
	if len(args) == 1 && !strings.Contains(args[0], "/") {
		args = []string{"svc/" + args[0]}
	}
	what, err := targets(args, p.namespace(v))
	if err != nil {
		return nil, of, err
	}
	if len(what) > 1 || what[0].kind.Plural != "services" || what[0].name == "" {
		return nil, of, usagef("%s takes one Service, as svc/web, or none", v.name)
	}
	if all {
		return nil, of, usagef("%s: a name is in one namespace: give -n NAMESPACE, not -A", what[0])
	}
	if c, err = p.client(v); err == nil {
		_, err = c.Get(ctx, what[0].path(), nil)
	}
	return c, wire.ObjectQuery{Namespace: what[0].namespace, Name: what[0].name}, err
}

// connsTable is the connections for people.
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
		endpoint := c.Endpoint
		if len(c.RelayedTo) > 0 {
			endpoint = strings.Join(c.RelayedTo, ",") + " (relayed)"
		}
		row := []string{strconv.FormatUint(uint64(c.ID), 10), output.ServicePort(c.Namespace, c.Service, c.Port), c.Protocol, c.Client, c.To, endpoint, state}
		if wide {
			row = append(row, cmp.Or(c.As, "-"), (time.Duration(c.Expires) * time.Second).String())
		}
		rows = append(rows, row)
	}
	return new(output.Grid).Text(rows...)
}
