// Package relay serves node ports on the loopback addresses of the box, for the box
// itself.
//
// The tables in the kernel cannot: a packet to 127.0.0.0/8 that is translated to an
// endpoint elsewhere leaves with a loopback source and is dropped as a martian, unless
// net.ipv4.conf.*.route_localnet is set, which opens the box's loopback services to its
// neighbors (CVE-2020-8558). So route_localnet stays 0, and a listener in user space
// stands there instead, with a connection of its own to an endpoint.
//
// Invariants:
//
//   - It listens on loopback addresses only; anything else is a Problem.
//   - A port without endpoints has no listener: the kernel refuses its clients, as the
//     tables do on other addresses.
//   - A change of endpoints closes nothing. A TCP connection, once made, lasts until one
//     of its ends or the appliance ends it, also when its port or its endpoint is gone.
//     A UDP client is forgotten with its endpoint or port, as the tables do.
//   - A TCP connection ends as it was ended: a FIN is passed on as a FIN in its
//     direction, a reset or a failed connection to the endpoint as a reset.
//   - What is open at once is bounded, for a port and for all ports together.
//
// It chooses endpoints at random and knows nothing of their health: which endpoints
// there are is decided elsewhere. There is no SCTP: a program has no SCTP sockets
// without a kernel module that the box does not need otherwise.
//
// It must not listen beyond loopback, set sysctls, or touch nf_tables.
//
//	r := relay.New(log)
//	go r.Run(ctx)
//	r.Set([]relay.Port{{
//		ID: "default/web/http", Protocol: relay.TCP,
//		Listen:    netip.MustParseAddrPort("127.0.0.1:30080"),
//		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.7:8080")},
//	}})
package relay
