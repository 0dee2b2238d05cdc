package netlab

import "testing"

// Standard is the network that behaviors are described in:
//
//	IN ──────────── int2 ┐     ┌ int0 ── L1, L2, Near   (10.180.0.0/16)
//	                     gw1 ──┤
//	EXT, BLK ── RTR ─ ext0 ┘   └ int1 ── R1, R2         (10.181.0.0/16)
//	              └── alt0
//
// GW1 is the box, with its default route to RTR. RTR routes the VIPs and the Service
// ranges to GW1, as a data centre's router would. Near is a client on the segment of
// L1 and L2. EXT is inside 203.0.113.0/25 and reached under all its addresses; BLK is
// outside, and reached under 203.0.113.192/27 too. Their IPv6 twins are
// 2001:db8:203::/65 and 2001:db8:203:0:8000::/80.
type Standard struct {
	*Lab
	GW1, RTR           *Host
	IN, EXT, BLK, Near *Host
	L1, L2, R1, R2     *Host
}

// The addresses of the box in Standard that are not on towards endpoints.
const (
	BoxAddr4    = "192.0.2.1"
	BoxAddr6    = "2001:db8::1"
	BoxAltAddr4 = "192.0.3.1"
	BoxAltAddr6 = "2001:db8:1::2"
)

// The ports that endpoints of Standard serve.
var (
	tcpPorts  = []uint16{53, 80, 443, 5353, 8080, 8443, 9376}
	udpPorts  = []uint16{53, 80, 5353, 8080, 9376}
	sctpPorts = []uint16{53, 5353, 9376}
)

// NewStandard makes the standard network.
func NewStandard(t testing.TB) *Standard {
	t.Helper()
	l := New(t)
	s := &Standard{
		Lab: l,
		GW1: l.Router("gw1"), RTR: l.Router("rtr"),
		IN: l.Host("IN"), EXT: l.Host("EXT"), BLK: l.Host("BLK"), Near: l.Host("near"),
		L1: l.Host("L1"), L2: l.Host("L2"), R1: l.Host("R1"), R2: l.Host("R2"),
	}
	s.link()
	s.route()
	for _, endpoint := range s.Endpoints() {
		endpoint.Serve("tcp", tcpPorts...)
		endpoint.Serve("udp", udpPorts...)
		endpoint.Serve("sctp", sctpPorts...)
	}
	return s
}

// For returns the same network for a subtest: what fails on its hosts fails the subtest.
func (s *Standard) For(t testing.TB) *Standard {
	view := *s
	for _, host := range []**Host{
		&view.GW1, &view.RTR, &view.IN, &view.EXT, &view.BLK, &view.Near, &view.L1, &view.L2, &view.R1, &view.R2,
	} {
		*host = (*host).For(t)
	}
	return &view
}

// Endpoints returns the hosts that serve.
func (s *Standard) Endpoints() []*Host { return []*Host{s.L1, s.L2, s.R1, s.R2} }

func (s *Standard) link() {
	s.Segment("ext").
		Attach(s.GW1, "ext0", BoxAddr4+"/24", BoxAddr6+"/64").
		Attach(s.RTR, "box", "192.0.2.254/24", "2001:db8::fe/64")
	s.Segment("alt").
		Attach(s.GW1, "alt0", BoxAltAddr4+"/24", BoxAltAddr6+"/64").
		Attach(s.RTR, "boxalt", "192.0.3.254/24", "2001:db8:1::fe/64")
	s.Segment("clients").
		Attach(s.RTR, "clients", "203.0.113.254/24", "2001:db8:203:0:ffff::1/64").
		Attach(s.EXT, "eth0", "203.0.113.2/24", "2001:db8:203::2/64").
		Attach(s.BLK, "eth0", "203.0.113.130/24", "2001:db8:203:0:8000::2/64")
	s.Segment("in").
		Attach(s.GW1, "int2", "10.0.0.1/24", "fd00:10::1/64").
		Attach(s.IN, "eth0", "10.0.0.2/24", "fd00:10::2/64")
	s.Segment("int0").
		Attach(s.GW1, "int0", "10.180.255.254/16", "fd00:10:180::ffff/64").
		Attach(s.L1, "eth0", "10.180.0.1/16", "fd00:10:180::1/64").
		Attach(s.L2, "eth0", "10.180.0.2/16", "fd00:10:180::2/64").
		Attach(s.Near, "eth0", "10.180.0.77/16", "fd00:10:180::77/64")
	s.Segment("int1").
		Attach(s.GW1, "int1", "10.181.255.254/16", "fd00:10:181::ffff/64").
		Attach(s.R1, "eth0", "10.181.1.1/16", "fd00:10:181::1/64").
		Attach(s.R2, "eth0", "10.181.1.2/16", "fd00:10:181::2/64")
}

func (s *Standard) route() {
	gateways := map[*Host][]string{
		s.GW1: {"192.0.2.254", "2001:db8::fe"},
		s.EXT: {"203.0.113.254", "2001:db8:203:0:ffff::1"}, s.BLK: {"203.0.113.254", "2001:db8:203:0:ffff::1"},
		s.IN: {"10.0.0.1", "fd00:10::1"},
		s.L1: {"10.180.255.254", "fd00:10:180::ffff"}, s.L2: {"10.180.255.254", "fd00:10:180::ffff"},
		s.Near: {"10.180.255.254", "fd00:10:180::ffff"},
		s.R1:   {"10.181.255.254", "fd00:10:181::ffff"}, s.R2: {"10.181.255.254", "fd00:10:181::ffff"},
	}
	for host, vias := range gateways {
		for _, via := range vias {
			host.Route("default", via)
		}
	}
	for _, vips := range []string{"172.30.0.0/16", "198.51.100.0/24"} {
		s.RTR.Route(vips, BoxAddr4)
	}
	for _, vips := range []string{"fd00:172:30::/112", "2001:db8:198::/64"} {
		s.RTR.Route(vips, BoxAddr6)
	}
	for client, prefixes := range map[*Host][]string{
		s.EXT: {"203.0.113.0/25", "2001:db8:203::/65"},
		s.BLK: {"203.0.113.192/27", "2001:db8:203:0:8000::/80"},
	} {
		for _, prefix := range prefixes {
			client.Own(prefix)
		}
	}
	// Neighbor discovery answers for addresses on interfaces alone, ARP for all.
	s.RTR.Route("2001:db8:203::/65", "2001:db8:203::2")
	s.RTR.Route("2001:db8:203:0:8000::/80", "2001:db8:203:0:8000::2")
}
