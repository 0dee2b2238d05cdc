package nft

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAssignSlots(t *testing.T) {
	a := make([]netip.AddrPort, 5)
	for i := range a {
		a[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 1)
	}
	for _, c := range []struct {
		name             string
		prev, want, then []netip.AddrPort
	}{
		{"from nothing in order", nil, a[:3], a[:3]},
		{"newcomer last", a[:2], []netip.AddrPort{a[2], a[0], a[1]}, a[:3]},
		{"the last one fills the hole", a[:4], []netip.AddrPort{a[0], a[2], a[3]}, []netip.AddrPort{a[0], a[3], a[2]}},
		{"a newcomer takes the place of who left", a[:3], []netip.AddrPort{a[0], a[2], a[4]}, []netip.AddrPort{a[0], a[4], a[2]}},
		{"to nothing", a[:3], nil, []netip.AddrPort{}},
	} {
		if got := assignSlots(c.prev, c.want); !slices.Equal(got, c.then) {
			t.Errorf("%s: assignSlots(%v, %v) = %v, want %v", c.name, c.prev, c.want, got, c.then)
		}
	}
}
