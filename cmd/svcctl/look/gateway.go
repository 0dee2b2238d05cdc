package look

import (
	"context"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
)

// paths returns the text of diagnose.Paths for the Gateways in a namespace. of is the object, such as "Service/shop/web". paths returns "" if of has
// no name, as in "Service/", or if the EndpointSlices cannot be listed.
func paths(ctx context.Context, c *client.Client, namespace, of, port string) string {
	if strings.HasSuffix(of, "/") {
		return ""
	}
	list, _ := slicesOfGateways(ctx, c, namespace)
	return diagnose.Paths(list, of, port)
}

// addPaths adds a line to packet for each Gateway listener and route that its Service port is generated for, with the backends.
func addPaths(ctx context.Context, c *client.Client, packet *wire.TracedPacket) {
	namespace, _, _ := strings.Cut(packet.Service, "/")
	for path := range strings.Lines(paths(ctx, c, namespace, "Service/"+packet.Service, packet.Port)) {
		packet.Lines = slices.Insert(packet.Lines, 1, wire.TraceLine{State: wire.TraceGood, Text: "is for " + strings.TrimSpace(path)})
	}
}
