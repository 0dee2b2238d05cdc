// Package vrrp elects one of several boxes by VRRPv3 (RFC 9568): its packets, and its states as
// a machine that is told the time. It has no sockets, and imports nothing of ours.
//
// Where it parts from the RFC:
//
//   - Preemption is off unless asked for. A box that advertises priority 1, the least, is taken over
//     from all the same: it says so when it does not know what is in force.
//   - A box that leaves goes on as active until it hears its successor (Leave).
//   - There is no virtual Ethernet address: who becomes active announces its own.
package vrrp
