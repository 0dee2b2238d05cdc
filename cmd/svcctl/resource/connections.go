package resource

import (
	"context"
	"slices"
	"strings"

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

// IsAddress reports whether a word begins as an address does, and not as a kind.
func IsAddress(word string) bool { return word != "" && strings.ContainsAny(word[:1], "0123456789[") }

// mostAddresses bounds the Service ports of Addresses.
const mostAddresses = 1000

// Addresses returns the addresses of Services with their ports, or those of their endpoints, each with the port of the Service
// behind a tab, for completion.
func Addresses(ctx context.Context, c *client.Client, endpoints bool) (all []string, err error) {
	seen, err := client.Call(ctx, c, wire.GetTraffic, wire.TrafficQuery{Sort: "name", Limit: mostAddresses, Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	for i := range seen.Ports {
		p := &seen.Ports[i]
		of := p.Frontends
		if endpoints {
			of = nil
			for k := range p.Endpoints {
				of = append(of, p.Endpoints[k].Endpoint)
			}
		}
		for _, at := range of {
			if IsAddress(at) { // no node port
				all = append(all, at+"\t"+output.ServicePort(p.Namespace, p.Service, p.Port))
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
