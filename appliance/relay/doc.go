// Package relay accepts connections in user space and makes its own connections to endpoints:
// for Services that ask for it, whose clients the kernel redirects to a listener of the relay, and for
// node ports on the loopback addresses of the host, for the host itself.
//
// A listener for redirected clients serves all ports of its protocol. The port of a client is
// found by the destination before the redirect: of TCP by SO_ORIGINAL_DST, of UDP by Origin, once for each flow. A client
// that was not redirected from a frontend of a port gets nothing, so the listener opens no way around
// what the kernel has decided: source ranges, traffic policies, readiness.
//
// Node ports on loopback: nf_tables cannot serve them: a packet to 127.0.0.0/8 that is translated to a remote
// endpoint leaves with a loopback source and is dropped as a martian, unless
// net.ipv4.conf.*.route_localnet is set, which opens the host's loopback services to its
// neighbors (CVE-2020-8558). So route_localnet stays 0, and the relay accepts connections
// and makes its own connections to endpoints.
//
// Invariants:
//
//   - Node ports are listened for on loopback addresses only; anything else is a Problem.
//   - A node port without endpoints has no listener: the kernel refuses its clients, as the
//     rules do on other addresses.
//   - A change of endpoints closes no TCP connection: it lasts until the client, the
//     endpoint or the appliance ends it, even if its port or endpoint is removed, unless the
//     Port drains. A UDP client loses its flow with its endpoint or port, as conntrack entries are deleted.
//   - A FIN is passed on as a FIN in its direction; a reset, or a failed connection to the
//     endpoint, as a reset.
//   - The number of connections is bounded, for a port and for all ports together. Clients
//     above it are reset.
//   - TCP bytes are spliced in the kernel, and never copied here.
//   - A packet to an endpoint has one hop (TTL, hop limit) less than the client's.
//
// Files, from the top: relay.go composes the listeners on loopback addresses and those of redirected clients
// (both in redirect.go), which get their ports from handover.go, with what the program before had of them. Below are the listeners
// and ports of a protocol (tcp.go, udp.go), the steps of a connection (front.go, connect.go), and the shared
// state of all ports (limits.go).
//
// It picks endpoints at random or in turn; its caller decides which are healthy. SCTP is not relayed:
// SCTP sockets need a kernel module that the host does not need otherwise.
//
// It must not set sysctls, or touch nf_tables.
//
//	r := relay.New(log, nil)
//	go r.Run(ctx)
//	r.Set([]relay.Port{{
//		ID: "default/web/http", Protocol: relay.TCP,
//		Listen:    netip.MustParseAddrPort("127.0.0.1:30080"),
//		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.7:8080")},
//	}})
package relay
