// Package netlab is test support: small networks of Linux network namespaces, made
// in milliseconds, with servers that say who they are, clients that say why they
// got no answer, and an appliance process to stand between them.
//
// It is imported by tests alone and is no part of the product.
//
// Invariants:
//
//   - A namespace has no name in the file system: it lives as long as the file
//     descriptor and the thread of its Host. When the test process dies, however it
//     dies, the kernel removes the namespaces with their links, routes and rules,
//     and kills the programs that were started in them. Nothing is left to sweep.
//   - The machine's own namespace is never touched. Every socket is made by the
//     Host's own thread, which never leaves its namespace; goroutines that use the
//     socket afterwards may run anywhere.
//   - A question ends in a Reply or in a Failure that names the refusal: a reset,
//     an ICMP error with type and code, or silence.
//
// It must not be imported by any package that is built into the product, must not
// change machine-wide settings, and must not sleep to wait for something that can
// be observed.
//
//	lab := netlab.New(t)
//	client, box, server := lab.Host("client"), lab.Router("box"), lab.Host("server")
//	lab.Segment("left").
//		Attach(client, "eth0", "10.1.0.2/24").
//		Attach(box, "left0", "10.1.0.1/24")
//	lab.Segment("right").
//		Attach(box, "right0", "10.2.0.1/24").
//		Attach(server, "eth0", "10.2.0.2/24")
//	client.Route("default", "10.1.0.1")
//	server.Route("default", "10.2.0.1")
//	server.Serve("tcp", 80)
//	reply, err := client.Ask("tcp", netip.MustParseAddrPort("10.2.0.2:80"))
//	// reply.Server == "server", reply.Client is the address the server saw
package netlab
