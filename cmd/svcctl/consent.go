package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// errDeclined means that the answer to a question was not yes.
var errDeclined = fmt.Errorf("nothing was changed")

// yesOption is --yes, of each verb that asks.
func yesOption() *option {
	return &option{name: "yes", letter: "y", group: groupHow, usage: "do not ask; required without a terminal if there is a question"}
}

// consent asks before a change that cannot be undone without loss; the consequence is a clause, as "this removes
// 1 Service". It returns nil with --yes, errDeclined after another answer than yes, and a usageError without a terminal.
func (p *program) consent(v *verb, consequence string) error {
	switch {
	case v.option("yes").on():
		return nil
	case !p.stdinTTY:
		return usagef("%s: %s; repeat it with --yes", v.name, consequence)
	case !p.confirm(strings.ToUpper(consequence[:1]) + consequence[1:] + ". Go on?"):
		return errDeclined
	}
	return nil
}

// confirm asks a question on stderr; the answer is no unless it is yes.
func (p *program) confirm(question string) bool {
	fmt.Fprintf(p.stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(p.stdin).ReadString('\n') // what came before the end counts
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

// openConnections returns " with N open connections" of the Services, each "namespace/name"; "" when there are none,
// or the appliance does not list them.
func openConnections(ctx context.Context, c *client.Client, services map[string]bool) string {
	open := 0
	list, err := client.Call(ctx, c, wire.GetConnections, wire.ConnectionsQuery{Limit: mostConnections})
	if err != nil {
		return "" // the question is asked without the number
	}
	for i := range list.Connections {
		if conn := &list.Connections[i]; services[conn.Namespace+"/"+conn.Service] && !isClosed(conn.State) {
			open++
		}
	}
	if open == 0 {
		return ""
	}
	return " with " + count(open, "open connection")
}
