// Package neighbor answers and announces addresses on one interface, for addresses that no
// interface has: ARP for IPv4 (RFC 826, RFC 5227), neighbor discovery for IPv6 (RFC 4861,
// RFC 4862).
//
// It imports nothing of ours, and changes nothing on the host but memberships in multicast
// groups. It needs CAP_NET_RAW.
//
//   - frame.go: encodes and decodes frames
//   - machine.go: decides what to send and when, without sockets and clocks
//   - port.go: an interface with its sockets, their filters, and solicited-node multicast groups
//
// Invariants:
//
//   - A process that ended leaves nothing behind.
//   - An address that another host answers for is not announced: three probes precede the first
//     announcement, and a host that defends the address keeps it.
//   - Only questions for the given addresses are answered.
package neighbor
