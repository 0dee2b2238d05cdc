package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// seen asserts that a client is answered by exactly these endpoints, and how each of them
// sees it.
func (b *box) seen(t *testing.T, from *netlab.Host, to netip.AddrPort, want map[netip.AddrPort]source) {
	t.Helper()
	tally := from.AskMany(100, "tcp", to, patiently)
	what := fmt.Sprintf("%s to %s", from.Name, to)
	if len(tally.Failures) != 0 || len(tally.At) != len(want) {
		t.Fatalf("%s: %s, want answers by %v", what, tally, want)
	}
	for _, r := range tally.Replies {
		how, expected := want[r.At]
		if saw := r.Client.Addr(); !expected || saw != b.seenAs(from, r.At.Addr(), how) {
			t.Errorf("%s: %s saw %s, want %s (%s)", what, r.At, saw, b.seenAs(from, r.At.Addr(), how), how)
		}
	}
}

// An endpoint reaches itself by every address of its Service, whatever the policies.
func Test008_hairpin_by_every_address(t *testing.T) {
	for name, spec := range map[string][]string{"policies Cluster": nil, "policy Local": {etpLocal}} {
		t.Run(name, func(t *testing.T) {
			b := policies(t, nil, l1r1, spec...)
			b.each(t, func(t *testing.T, b *box, f family) {
				l1, r1 := f.on(80, b.L1)[0], f.on(80, b.R1)[0]
				b.seen(t, b.L1, f.cluster(), map[netip.AddrPort]source{l1: masq, r1: plain})
				b.seen(t, b.R1, f.cluster(), map[netip.AddrPort]source{l1: plain, r1: masq})
				other := masq // of an external address with policy Cluster, everybody is
				if spec != nil {
					other = plain
				}
				for _, to := range f.externals() {
					b.seen(t, b.L1, to, map[netip.AddrPort]source{l1: masq, r1: other})
					b.seen(t, b.R1, to, map[netip.AddrPort]source{l1: other, r1: masq})
				}
			})
		})
	}
}

// With the policy Local an endpoint that is outside gets the endpoints of this box, and
// reaches itself all the same.
func Test008_hairpin_without_internal_sources(t *testing.T) {
	b := policies(t, flags{"cluster-cidr": nil}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range f.externals() {
			b.seen(t, b.L1, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq})
			b.seen(t, b.R1, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: plain})
		}
	})
}

func Test008_hairpin_over_udp(t *testing.T) {
	b := newBox(t, nil)
	b.write("dns.yaml", func(f family) []string {
		return []string{
			f.service("dns", "clusterIP: "+f.vip(41), "ports: [{name: dns, port: 53, protocol: UDP}]"),
			f.slice("dns", "dns: 53/UDP", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.L1, "udp", f.at(f.vip(41), 53), masq, f.on(53, b.L1)...)
	})
}

// Clients on an endpoint's own segment: replies would not come back through the box, so
// they are masqueraded for that endpoint, and for no other.
func Test014_clients_on_the_segment_by_every_address(t *testing.T) {
	b := policies(t, nil, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, to := range append(f.externals(), f.cluster()) {
			b.seen(t, b.Near, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq, f.on(80, b.R1)[0]: plain})
		}
	})
}

func Test014_clients_on_the_segment_without_internal_sources(t *testing.T) {
	b := policies(t, flags{"cluster-cidr": nil}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.seen(t, b.Near, f.cluster(), map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq, f.on(80, b.R1)[0]: plain})
		for _, to := range f.externals() {
			b.seen(t, b.Near, to, map[netip.AddrPort]source{f.on(80, b.L1)[0]: masq})
		}
	})
}

// Masquerading all clients of cluster IPs leaves the policy Local to itself.
func Test013_masquerade_all_by_every_address(t *testing.T) {
	b := policies(t, flags{"masquerade-all": {"true"}}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			b.reaches(t, from, "tcp", f.cluster(), masq, f.on(80, b.L1, b.R1)...)
		}
		b.external(t, f, b.EXT, plain, b.L1)
		b.external(t, f, b.IN, plain, b.L1, b.R1)
		b.external(t, f, b.GW1, masq, b.L1, b.R1)
	})
}
