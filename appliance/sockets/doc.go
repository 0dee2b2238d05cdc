// Package sockets lists the listening sockets of the box's programs, by the kernel's
// NETLINK_SOCK_DIAG (sock_diag(7)): a Service that took a port over would take it from
// them.
//
// It changes nothing, is independent of Services, and leaves out the sockets of this
// process itself. TCP and UDP only: SCTP sockets need a kernel module that may not be
// there.
//
//	var ports sockets.Ports
//	ports.AddRange("tcp", 30000, 32767)
//	list, err := sockets.NewView().Listening(&ports)
//	for _, s := range list {
//		fmt.Println(s, "belongs to", sockets.Owner(s))
//	}
package sockets
