// Package neighbor answers and announces addresses on one interface, for addresses that no
// interface has: ARP for IPv4 (RFC 826, RFC 5227), neighbor discovery for IPv6 (RFC 4861,
// RFC 4862).
//
// It imports nothing of ours, decides nothing about which addresses are meant, and changes
// nothing on the host but memberships in multicast groups. It needs CAP_NET_RAW.
//
//   - frame.go: frames, written and read
//   - machine.go: what is sent when, without sockets and clocks
//   - filter.go: what the kernel passes on to us at all
//   - groups.go: solicited-node multicast groups
//   - port.go: an interface with its sockets
//
// Invariants:
//
//   - A process that is gone is silent, and leaves nothing behind.
//   - An address that another host answers for is not announced: before the first announcement it
//     is asked for three times, and a host that defends it keeps it.
//   - Nothing is answered on behalf of anything but the addresses given.
package neighbor
