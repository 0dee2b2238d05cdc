package resource

import (
	"context"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// OpenConnections returns " with N open connections" of the Services, each "namespace/name"; "" when there are none,
// or the appliance does not list them.
func OpenConnections(ctx context.Context, c *client.Client, services map[string]bool) string {
	open := 0
	list, err := client.Call(ctx, c, wire.GetConnections, wire.ConnectionsQuery{Limit: MostConnections})
	if err != nil {
		return "" // the question is asked without the number
	}
	for i := range list.Connections {
		if conn := &list.Connections[i]; services[conn.Namespace+"/"+conn.Service] && !IsClosed(conn.State) {
			open++
		}
	}
	if open == 0 {
		return ""
	}
	return " with " + output.Count(open, "open connection")
}

// MostConnections is the limit of connections in one request.
const MostConnections = 100_000

// IsClosed reports whether a TCP connection of a state, as conntrack names it, is over.
func IsClosed(state string) bool {
	return state == "TIME_WAIT" || state == "CLOSE"
}
