package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

func (p *program) connsVerb() *verb {
	return &verb{
		name:    "conns",
		summary: "list the connections through a Service, or end one",
		args:    "[svc/NAME] [FLAGS]",
		about: `Lists the tracked connections through a Service, or through all Services of a
namespace: the client, the address that it connected to, the endpoint, and, if masqueraded,
the client address that the endpoint sees (AS). TCP connections stay listed for two minutes
after their end, as TIME_WAIT.

--kill ends one by its ID. Both ends of a TCP connection get a reset as soon as they send
something. The entry of any other is deleted, and its next packet is balanced again. It is
for administrators.

For a relayed Service the endpoints are those of the appliance's connections for a client.
Connections to node ports on loopback addresses are relayed, too, and are not listed.`,
		options: append([]*option{
			namespaceOption(),
			{name: "all-namespaces", letter: "A", group: groupWhich, usage: "Services of all namespaces"},
			{name: "endpoint", arg: "ADDRESS[:PORT]", group: groupWhich, usage: "connections that this endpoint answers"},
			{name: "client", arg: "PREFIX", group: groupWhich, usage: "connections of these clients, as 203.0.113.7 or 203.0.113.0/24"},
			{name: "limit", letter: "l", arg: "N", def: "1000", group: groupWhich, usage: "how many connections, at most 100000"},
			{name: "kill", arg: "ID", group: groupHow, usage: "end the connection of this ID instead"},
			outputOption("table", "wide", "json"),
		}, connectOptions()...),
		examples: []example{
			{"The connections of an endpoint before its reboot.", "svcctl conns svc/web --endpoint 10.1.2.11"},
			{"End one of them.", "sudo svcctl conns --kill 2093418240"},
			{"The clients with the most connections.", `svcctl conns svc/web -o json | jq -r '.connections[].client | sub(":[0-9]+$"; "")' | sort | uniq -c | sort -rn | head`},
		},
		exits: `  0  done
  1  refused, or there is no such Service or connection
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runConns,
	}
}

// runConns lists connections, or ends one.
func (p *program) runConns(ctx context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	if o := v.option("kill"); o.isSet() {
		return p.killConn(ctx, v, o.text(), args)
	}
	limit, err := wire.ParseBounded(v.option("limit").text(), 0, mostConnections)
	if err != nil {
		return usagef("--limit %w", err)
	}
	appliance, of, err := p.trafficOf(ctx, v, args)
	if err != nil {
		return err
	}
	q := wire.ConnectionsQuery{Namespace: of.Namespace, Service: of.Name, Endpoint: v.option("endpoint").text(), Client: v.option("client").text(), Limit: limit}
	list, err := client.Call(ctx, appliance, wire.GetConnections, q)
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
	if len(list.Connections) == 0 {
		fmt.Fprintln(p.stderr, "No connections found.")
		return nil
	}
	if list.More > 0 {
		fmt.Fprintf(p.stderr, "%s more: raise --limit, or narrow it by --endpoint or --client\n", count(list.More, "connection"))
	}
	return p.print(connsTable(list, v.option("output").text() == "wide"))
}

// killConn ends a connection.
func (p *program) killConn(ctx context.Context, v *verb, text string, args []string) error {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return usagef("--kill %q: want the ID that `svcctl conns` shows", text)
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
