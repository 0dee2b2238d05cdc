package bench

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkPortRange is the CPU of a flow's first packet on a box with 10,000 plain Services: of theirs
// without and with a range of 10,000 ports beside them, and of one to the range.
func BenchmarkPortRange(b *testing.B) {
	lab := netlab.New(b)
	services := standbys(10_000)
	plain := func(d netlab.Dir) { writeServices(d, len(services)) }
	ranged := func(d netlab.Dir) {
		plain(d)
		d.Write("range.yaml", strings.Replace(probe(vip, endpointsEach, ""), "metadata:\n", "metadata:\n  annotations: {svcctl.io/port-ranges: \"p80=10000-19999\"}\n", 1))
	}
	ports := make([]netip.AddrPort, 10_000)
	for i := range ports {
		ports[i] = netip.AddrPortFrom(vip.Addr(), uint16(10_000+i))
	}
	beside := balanced(b, lab, "10,000 plain Services beside a range of 10,000 ports", ranged, services...)
	inRange := *beside
	inRange.name, inRange.to = "a port of that range", ports
	inTurns(b, "New connection, with a range of ports: CPU of the first packet", "the first", []*way{
		balanced(b, lab, "10,000 plain Services", plain, services...),
		balanced(b, lab, "10,000 plain Services, another box", plain, services...),
		beside, &inRange,
	})
}
