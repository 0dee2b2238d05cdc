package bench

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkLimits is the CPU of a flow's first packet for Services with limits that are not reached: of clients
// that each Service sees for the first time, and of a thousand that one Service knows, with some 16 connections
// each.
func BenchmarkLimits(b *testing.B) {
	lab := netlab.New(b)
	const services = 1_000
	all := standbys(services)
	var ways []*way
	for _, kind := range []struct{ name, annotation string }{
		{"plain", ""},
		{"plain, another box", ""},
		{"rate-limit", "svcctl.io/rate-limit: 1000000/s"},
		{"client-rate-limit", "svcctl.io/client-rate-limit: 1000000/s"},
		{"client-connections", "svcctl.io/client-connections: '65535'"},
	} {
		w := balanced(b, lab, number(services)+" Services, "+kind.name, func(d netlab.Dir) { writeAnnotated(d, services, kind.annotation) }, all...)
		w.clients = 1_000
		ways = append(ways, w)
	}
	for _, load := range []struct {
		what string
		to   []netip.AddrPort
	}{{"clients that are new", all}, {"clients that are known", all[:1]}} {
		for _, w := range ways {
			w.to, w.took = load.to, nil
		}
		inTurns(b, "New connection, with limits, "+load.what+": CPU of the first packet", "the first", ways)
	}
}
