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

// removed lists the endpoints of prev that are not in now, in the order of prev.
func removed(prev, now []netip.AddrPort) []netip.AddrPort {
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

// distinct are the endpoints of a table, each once, in the order of their addresses.
func distinct(slots []netip.AddrPort) []netip.AddrPort {
	all := slices.SortedFunc(slices.Values(slots), netip.AddrPort.Compare)
	return slices.DeleteFunc(slices.Compact(all), func(ap netip.AddrPort) bool { return !ap.IsValid() })
}

// endpoint reads a slot.
func (e Elements) endpoint(f Family, key Key) (netip.AddrPort, bool) {
	data, is := e[string(key)]
	n := f.AddrLen()
	if !is || len(data) < n+2 {
		return netip.AddrPort{}, false
	}
	addr, _ := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(addr, uint16(data[n])<<8|uint16(data[n+1])), true
}

func union(a, b []netip.AddrPort) []netip.AddrPort {
	all := slices.Clone(a)
	for _, ap := range b {
		if !slices.Contains(a, ap) {
			all = append(all, ap)
		}
	}
	return all
}
