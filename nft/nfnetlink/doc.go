// Package nfnetlink has the common protocol of netfilter's subsystems: messages and their
// attributes, and a socket that carries them. It is independent of any subsystem
// (nf_tables, conntrack).
//
// Invariants:
//
//   - Numbers in attributes are in network byte order, as netfilter wants them; headers are
//     in the machine's.
//   - Received bytes are never trusted: a message or attribute that is cut off ends the walk.
//   - A Socket never waits: the kernel has answered when Send returns. One goroutine at a
//     time may use it.
//
// The package must not log, and must not interpret the content of a message.
//
//	s, err := nfnetlink.Dial(nfnetlink.Options{})
//	...
//	var w nfnetlink.Writer
//	w.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, s.Sequence(1), unix.NFPROTO_UNSPEC, 0)
//	w.End()
//	err = s.Send(w.Buf)
//	datagram, err := s.Receive()
//	for m := range nfnetlink.Messages(datagram) {
//		for kind, value := range m.Attributes() {
//		}
//	}
package nfnetlink
