package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/top"
)

func (p *program) topVerb() *verb {
	sorts := wire.TrafficSorts()
	return &verb{
		name:    "top",
		summary: "show traffic by Service and endpoint, or connections",
		args:    "[svc/NAME] [FLAGS]",
		about: `Shows ports of Services by their connections, the busiest first, and updates the
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
		options: append([]*option{
			namespaceOption(),
			{name: "all-namespaces", letter: "A", group: groupWhich, usage: "Services of all namespaces"},
			{name: "filter", arg: "TEXT", group: groupWhich, usage: "ports with this in NAMESPACE/NAME:PORT; with * a pattern for the whole name, as 'shop/*'"},
			{name: "limit", letter: "l", arg: "N", def: "100, or 1000 connections", group: groupWhich, usage: "how many ports, and how many clients, at most 10000; with --connections at most 100000"},
			{name: "by", arg: strings.Join(sorts, "|"), def: sorts[0], words: sorts, group: groupOutput, usage: "what to sort by"},
			{name: "endpoints", group: groupOutput, usage: "show the endpoints of each port"},
			{name: "clients", group: groupOutput, usage: "show the clients of the named Service, the busiest first"},
			{name: "once", group: groupOutput, usage: "print one table"},
			outputOption(formTable, formWide, formJSON),
		}, slices.Concat(connectionOptions(), connectOptions())...),
		examples: []example{
			{"Ports with traffic.", "svcctl top -A"},
			{"The busiest ports of a team's Services.", "svcctl top -A --filter 'shop-*' --by rate"},
			{"The busiest clients of a Service.", "svcctl top svc/web --clients"},
			{"Endpoints that do not answer.", "svcctl top -A --once --endpoints --by unanswered"},
			{"The connections of an endpoint before its reboot.", "svcctl top --connections svc/web --endpoint 10.1.2.11"},
			{"End one of them.", "sudo svcctl top --kill 2093418240"},
			{"The clients with the most connections.", `svcctl top --connections svc/web -o json | jq -r '.connections[].client | sub(":[0-9]+$"; "")' | sort | uniq -c | sort -rn | head`},
		},
		exits: `  0  done
  1  refused, or there is no such Service or connection
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runTop,
	}
}

// runTop shows traffic once, or until it is interrupted.
func (p *program) runTop(ctx context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	if o := v.option("kill"); o.isSet() {
		return p.killConn(ctx, v, o.text(), args)
	}
	if v.option("connections").on() {
		return p.runConnections(ctx, v, args)
	}
	for _, name := range []string{"closing", "endpoint", "client"} {
		if v.option(name).isSet() {
			return usagef("--%s is about connections: give --connections, too", name)
		}
	}
	if v.option("output").text() == formWide {
		return usagef("-o wide is for --connections: ports have the forms table and json")
	}
	o := top.Options{By: v.option("by").text(), Filter: v.option("filter").text(), Clients: v.option("clients").on(), Color: p.color}
	if sorts := wire.TrafficSorts(); !slices.Contains(sorts, o.By) {
		return usagef("--by %q: want %s", o.By, strings.Join(sorts, ", "))
	}
	if len(o.Filter) > wire.MaxTrafficFilter {
		return usagef("--filter: it is %d bytes long, %d is the most", len(o.Filter), wire.MaxTrafficFilter)
	}
	named := len(args) > 0
	if o.Clients && !named {
		return usagef("--clients are those of one Service: name it, as in `svcctl top svc/web --clients`")
	}
	o.Endpoints = v.option("endpoints").on() || named && !o.Clients
	var err error
	o.Limit = 100
	if limit := v.option("limit"); limit.isSet() {
		if o.Limit, err = wire.ParseBounded(limit.text(), 0, 10_000); err != nil {
			return usagef("--limit %w", err)
		}
	}
	c, of, err := p.trafficOf(ctx, v, args)
	if err != nil {
		return err
	}
	t := top.New(c, of, o)
	once := v.option("once").on()
	if v.option("output").text() == formJSON {
		return p.topJSON(ctx, t, once)
	}
	in, isIn := p.stdin.(*os.File)
	out, isOut := p.stdout.(*os.File)
	if once || !p.stdoutTTY || !p.stdinTTY || !isIn || !isOut {
		if err := t.Second(ctx); err != nil {
			return err
		}
		return p.print(t.Table(p.now(), 0, 0))
	}
	return t.Live(ctx, in, out, p.now)
}

// topJSON prints one document a look.
func (p *program) topJSON(ctx context.Context, t *top.Top, once bool) error {
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
			if err := p.printLine(t.Seen()); err != nil {
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
