package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// A neighbor of the box is an endpoint wherever the service range lies; what else is in the
// range, or no host's address, is none.
func TestEndpointsOnNetworksOfTheHost(t *testing.T) {
	f := facts()
	f.Connected = []netip.Prefix{netip.MustParsePrefix("172.30.5.0/24")}
	f.Broadcast = map[netip.Addr]bool{netip.MustParseAddr("10.180.255.255"): true}
	out := Service(Input{Service: service(), Slices: []*object.EndpointSlice{slice(9376, "172.30.5.9", "172.30.6.9", "10.180.255.255", "240.0.0.1", "255.255.255.255")}}, f)
	if got := fmt.Sprint(out.Ports[0].Pools[nft.PoolCluster]); got != "[172.30.5.9:9376]" {
		t.Errorf("pool %s, want the neighbor alone", got)
	}
	warnings := 0
	for _, p := range out.Problems {
		if p.Warning {
			warnings++
		} else if !strings.Contains(p.Message, "172.30.6.9") {
			t.Errorf("%+v", p)
		}
	}
	if len(out.Problems) != 4 || warnings != 3 {
		t.Errorf("problems %v", out.Problems)
	}
}

// What may be an external IP, and which ports of it Services have.
func TestExternalIPs(t *testing.T) {
	const addr = "198.51.100.99"
	for _, test := range []struct {
		name   string
		addr   string
		facts  func(*Facts)
		reason string
		named  bool
	}{
		{"nobody's", addr, func(*Facts) {}, "", true},
		{"in a pool", addr, func(f *Facts) {
			f.Pools = []nft.Range{{First: netip.MustParseAddr("198.51.100.90"), Last: netip.MustParseAddr("198.51.100.99")}}
		}, "", false},
		{"beside a pool", addr, func(f *Facts) {
			f.Pools = []nft.Range{{First: netip.MustParseAddr("198.51.100.90"), Last: netip.MustParseAddr("198.51.100.98")}}
		}, "", true},
		{"in a range", addr, func(f *Facts) { f.ExternalIPRanges = []netip.Prefix{netip.MustParsePrefix(addr + "/32")} }, "", false},
		{"outside of the ranges", addr, func(f *Facts) { f.ExternalIPRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }, "OutsideExternalIPRange", false},
		{"none", addr, func(f *Facts) { f.NoExternalIPs = true }, "OutsideExternalIPRange", false},
		{"in the service range", "172.30.0.99", func(*Facts) {}, "ServiceRange", false},
		{"class E", "240.0.0.1", func(*Facts) {}, "NotUnicast", false},
		{"multicast", "224.0.1.1", func(*Facts) {}, "NotUnicast", false},
	} {
		f := facts()
		test.facts(f)
		out := Service(Input{Service: service(func(s *object.Service) { s.Spec.ExternalIPs = []string{test.addr} })}, f)
		i := slices.IndexFunc(out.Ports[0].Frontends, func(fe nft.Frontend) bool { return fe.Addr == netip.MustParseAddr(test.addr) })
		if (i >= 0) != (test.reason == "") || i >= 0 && out.Ports[0].Frontends[i].NamedPortsOnly != test.named {
			t.Errorf("%s: frontends %+v", test.name, out.Ports[0].Frontends)
		}
		if test.reason == "" && len(out.Problems) > 0 || test.reason != "" && (len(out.Problems) != 1 || out.Problems[0].Reason != test.reason || out.Problems[0].Warning) {
			t.Errorf("%s: problems %v", test.name, out.Problems)
		}
	}
	// A cluster IP that is the host's is not served; the other addresses of the Service are.
	f := facts()
	f.Host[netip.MustParseAddr("172.30.0.41")] = "an address of this host"
	out := Service(Input{Service: service()}, f)
	if n := len(out.Ports[0].Frontends); n != 3 || out.Problems[0].Field != "spec.clusterIPs[0]" {
		t.Errorf("%d frontends, problems %v", n, out.Problems)
	}
}
