// Package vrrp elects one of several boxes by VRRPv3 (RFC 9568): its packets, and its states as
// a machine without a clock. It has no sockets, and imports nothing of ours.
//
// Differences to the RFC:
//
//   - Preemption is off unless asked for. A box that advertises priority 1, the least, is taken over
//     from all the same: it sends that while it cannot get the addresses in force.
//   - A box that leaves stays active until it receives an advert of its successor (Leave).
//   - There is no virtual Ethernet address: a box that becomes active announces its own.
package vrrp
