package conntrack

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/nft"
)

// An exact port goes before a range of the same address, and that before a node port; a range that was dropped takes
// nothing any more.
func TestAt(t *testing.T) {
	vip, vip6, other := netip.MustParseAddr("172.30.0.41"), netip.MustParseAddr("fd00::41"), netip.MustParseAddr("192.0.2.1")
	tcp := func(addr netip.Addr, port, last uint16) Frontend {
		f := nft.IPv4
		if addr == vip6 {
			f = nft.IPv6
		}
		return Frontend{Addr: addr, Family: f, Protocol: nft.TCP, Port: port, Last: last}
	}
	x := NewIndex[string](0)
	for fe, name := range map[Frontend]string{
		tcp(vip, 80, 0): "exact", tcp(vip, 70, 90): "range", tcp(vip, 91, 100): "next", tcp(vip6, 70, 90): "range6",
		tcp(other, 70, 90): "of the box", tcp(netip.Addr{}, 95, 0): "node port",
	} {
		x.Set(fe, "before")
		x.Set(fe, name)
	}
	nodePorts := map[netip.Addr]bool{other: true}
	at := func(to Frontend, want string) {
		t.Helper()
		if got, ok := x.At(to, nodePorts); got != want || ok != (want != "") {
			t.Errorf("at %v port %d is %q, %t; want %q", to.Addr, to.Port, got, ok, want)
		}
	}
	udp := tcp(vip, 75, 0)
	udp.Protocol = nft.UDP
	at(udp, "")
	at(tcp(vip, 80, 0), "exact")
	at(tcp(vip, 69, 0), "")
	at(tcp(vip, 70, 0), "range")
	at(tcp(vip, 90, 0), "range")
	at(tcp(vip, 91, 0), "next")
	at(tcp(vip, 101, 0), "")
	at(tcp(vip, 95, 0), "next")
	at(tcp(vip6, 75, 0), "range6")
	at(tcp(other, 75, 0), "of the box")
	at(tcp(other, 95, 0), "node port")
	x.Delete(tcp(vip, 80, 0))
	x.Delete(tcp(vip, 70, 90))
	at(tcp(vip, 75, 0), "")
	at(tcp(vip, 91, 0), "next")
	at(tcp(vip6, 75, 0), "range6")
	x.Delete(tcp(vip, 91, 100))
	x.Delete(tcp(vip, 91, 100))
	at(tcp(vip, 91, 0), "")
}
