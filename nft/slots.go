package nft

import (
	"net/netip"
	"slices"
)

// assignSlots gives every endpoint of want a slot in 0..len(want)-1. An endpoint
// that has one keeps it while it lies in that range; the endpoints behind it move
// into the holes, last one first, then newcomers take what is free. So replacing
// an endpoint changes one slot, adding one adds one, and removing one moves at
// most one other. Newcomers are placed in the order of want.
func assignSlots(prev, want []netip.AddrPort) []netip.AddrPort {
	if len(prev) == 0 || slices.Equal(prev, want) {
		return want // which is held anyway
	}
	wanted := make(map[netip.AddrPort]bool, len(want))
	for _, ap := range want {
		wanted[ap] = true // true: has no slot yet
	}
	slots := make([]netip.AddrPort, len(want))
	var displaced []netip.AddrPort
	for i, ap := range prev {
		if !wanted[ap] {
			continue
		}
		wanted[ap] = false
		if i < len(slots) {
			slots[i] = ap
		} else {
			displaced = append(displaced, ap)
		}
	}
	newcomers := displaced
	for _, ap := range want {
		if wanted[ap] {
			newcomers = append(newcomers, ap)
		}
	}
	next := 0
	for i := range slots {
		if !slots[i].IsValid() {
			slots[i] = newcomers[next]
			next++
		}
	}
	return slots
}

// gone lists the endpoints of prev that are not in now, in the order of prev.
func gone(prev, now []netip.AddrPort) []netip.AddrPort {
	if len(prev) == 0 || slices.Equal(prev, now) {
		return nil
	}
	here := make(map[netip.AddrPort]bool, len(now))
	for _, ap := range now {
		here[ap] = true
	}
	var out []netip.AddrPort
	for _, ap := range prev {
		if !here[ap] {
			out = append(out, ap)
		}
	}
	return out
}
