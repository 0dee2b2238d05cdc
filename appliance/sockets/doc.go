// Package sockets tells which programs of the box listen where, as the kernel has it
// (NETLINK_SOCK_DIAG, sock_diag(7)): a Service that took a port over would take it from
// them.
//
// It reads and changes nothing, knows nothing of Services, and does not name the sockets
// of this process itself. TCP and UDP only: SCTP sockets are told by a kernel module that
// may not be there.
//
//	var ports sockets.Ports
//	ports.AddRange("tcp", 30000, 32767)
//	list, err := sockets.NewView().Listening(&ports)
//	for _, s := range list {
//		fmt.Println(s, "belongs to", sockets.Owner(s))
//	}
package sockets
