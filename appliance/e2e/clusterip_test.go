package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// web writes and serves the Service most tests use: cluster IP 41, port 80, with
// endpoints on the hosts.
func web(t *testing.T, other flags, hosts func(b *box) []*netlab.Host) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", b.webDocuments(hosts(b)...))
	b.svcctl.Start()
	return b
}

func (b *box) webDocuments(hosts ...*netlab.Host) func(f family) []string {
	return func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", hosts...),
		}
	}
}

func l1(b *box) []*netlab.Host   { return []*netlab.Host{b.L1} }
func r1(b *box) []*netlab.Host   { return []*netlab.Host{b.R1} }
func l1r1(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.R1} }
func nobody(*box) []*netlab.Host { return nil }

func Test001_one_endpoint(t *testing.T) {
	b := web(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	})
}

func Test002_all_endpoints_answer(t *testing.T) {
	b := web(t, nil, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
	})
}

func Test003_target_port(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: https, port: 443, targetPort: 8443}]"),
			f.slice("web", "https: 8443", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 443), plain, f.on(8443, b.L1, b.R1)...)
	})
}

func Test004_three_protocols(t *testing.T) {
	b := newBox(t, nil)
	b.write("dns.yaml", func(f family) []string {
		return []string{
			f.service("dns", "clusterIP: "+f.vip(41), `ports:
- {name: dns, port: 53, protocol: UDP}
- {name: dns-tcp, port: 53, protocol: TCP, targetPort: 5353}
- {name: dns-sctp, port: 53, protocol: SCTP}`),
			f.slice("dns", "dns: 53/UDP, dns-tcp: 5353/TCP, dns-sctp: 53/SCTP", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.vip(41), 53)
		b.reaches(t, b.IN, "udp", to, plain, f.on(53, b.L1, b.R1)...)
		b.reaches(t, b.IN, "tcp", to, plain, f.on(5353, b.L1, b.R1)...)
		b.reaches(t, b.IN, "sctp", to, plain, f.on(53, b.L1, b.R1)...)
	})
}

func Test005_undefined_port_refused(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f),
			f.service("other", "clusterIP: "+f.vip(42), "ports: [{name: https, port: 443}]"),
			f.slice("other", "https: 8443", b.L1),
		)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		answers(t, b.IN, "tcp", f.at(f.vip(42), 443))
		for network, port := range map[string]uint16{"udp": 80, "sctp": 80, "tcp": 443} {
			for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
				b.refuses(t, from, network, f.at(f.vip(41), port))
			}
		}
	})
}

func Test006_unallocated_address_dropped(t *testing.T) {
	b := web(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.atOnce(t, map[string]func(t *testing.T, b *box){
			"tcp":         func(t *testing.T, b *box) { b.drops(t, b.IN, "tcp", f.at(f.vip(50), 80)) },
			"udp":         func(t *testing.T, b *box) { b.drops(t, b.IN, "udp", f.at(f.vip(50), 80)) },
			"own traffic": func(t *testing.T, b *box) { b.drops(t, b.GW1, "tcp", f.at(f.vip(51), 80)) },
		})
	})
}

func Test008_hairpin(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f),
			f.service("two", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"),
			f.slice("two", "p80: 80", b.L1, b.R1),
		)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.L1, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1)...)
		b.hairpins(t, f, b.L1, f.at(f.vip(42), 80), b.R1)
	})
}

// hairpins asserts that a client that is an endpoint itself reaches itself, masqueraded,
// and another endpoint, plain.
func (b *box) hairpins(t *testing.T, f family, self *netlab.Host, to netip.AddrPort, other *netlab.Host) {
	t.Helper()
	tally := self.AskMany(100, "tcp", to)
	if len(tally.Failures) != 0 || len(tally.Servers) != 2 {
		t.Fatalf("%s to %s: %s, want answers by itself and by %s", self.Name, to, tally, other.Name)
	}
	for _, r := range tally.Replies {
		want := plain
		if r.At.Addr() == f.of(self) {
			want = masq
		}
		if expected := b.seenAs(self, r.At.Addr(), want); r.Client.Addr() != expected {
			t.Errorf("%s to %s: %s saw %s, want %s (%s)", self.Name, to, r.Server, r.Client, expected, want)
		}
	}
}

func Test009_hairpin_of_any_endpoint(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.R1, b.L1),
			f.service("nodeless", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"),
			f.rawSlice("nodeless", "nodeless", "p80: 80", f.nodeless(b.R1), f.nodeless(b.L1)),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hairpins(t, f, b.R1, f.at(f.vip(41), 80), b.L1)
		b.hairpins(t, f, b.R1, f.at(f.vip(42), 80), b.L1)
		b.hairpins(t, f, b.L1, f.at(f.vip(42), 80), b.R1)
	})
}

func Test010_own_traffic(t *testing.T) {
	b := web(t, nil, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.GW1, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
	})
}

func Test011_outside_client(t *testing.T) {
	b := web(t, nil, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
	})
}

func Test012_no_internal_sources(t *testing.T) {
	b := web(t, flags{"cluster-cidr": nil}, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.GW1, b.EXT, b.IN} {
			b.reaches(t, from, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
		}
	})
}

func Test013_masquerade_all(t *testing.T) {
	b := newBox(t, flags{"masquerade-all": {"true"}})
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1, b.R1)(f),
			f.service("local", "clusterIP: "+f.vip(42), "type: LoadBalancer", "loadBalancerIP: "+f.pick("198.51.100.4", "2001:db8:198::4"),
				"externalTrafficPolicy: Local", "ports: [{name: p80, port: 80}]"),
			f.slice("local", "p80: 80", b.L1, b.R1),
		)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1)...)
	})
}

func Test014_client_on_the_endpoints_segment(t *testing.T) {
	b := web(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.Near, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1)...)
	})
}

func Test014_client_on_the_endpoints_segment_with_snat_never(t *testing.T) {
	b := web(t, flags{"snat": {"never"}}, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		seen := b.L1.Capture("eth0")
		to := f.at(f.vip(41), 80)
		// The endpoint answers the client directly, which knows no such connection.
		// real time: nobody answers
		if reply, err := b.Near.Ask("tcp", to, netlab.Within(500*time.Millisecond)); err == nil {
			t.Errorf("answered by %s, want no connection", reply)
		}
		came := seen.Packets(func(p netlab.Packet) bool {
			return !p.Outgoing && p.To == f.on(80, b.L1)[0] && p.From.Addr() == f.of(b.Near)
		})
		if len(came) == 0 {
			t.Errorf("no packet with the client's address came to the endpoint: %v",
				seen.Packets(func(p netlab.Packet) bool { return p.To == f.on(80, b.L1)[0] }))
		}
		// Nothing changes for a client that the box is the only way back to.
		b.reaches(t, b.IN, "tcp", to, plain, f.on(80, b.L1)...)
	})
}

// The other tests of this file assert for both families by Services of one family. Here
// one Service has both.
func Test015_one_service_two_families(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Manifests.Write("web.yaml", service("web",
		"ipFamilyPolicy: RequireDualStack", "clusterIP: "+ipv4.vip(41), "clusterIPs: ["+ipv4.vip(41)+", "+ipv6.vip(41)+"]",
		"ports: [{name: p80, port: 80}]")+dualSlices(b, "web"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
		b.refuses(t, b.IN, "tcp", f.at(f.vip(41), 81))
	})
}

// dualSlices are a slice of each family with L1 and R1 for a Service of both.
func dualSlices(b *box, service string) string {
	docs := ""
	for _, f := range families {
		docs += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n"+
			"  labels: {kubernetes.io/service-name: %s}\naddressType: %s\nports: [{name: p80, port: 80}]\nendpoints:\n- %s\n- %s\n",
			f.name(service), service, f, f.endpoint(b.L1), f.endpoint(b.R1))
	}
	return docs
}

func Test016_no_endpoints_then_one(t *testing.T) {
	b := web(t, nil, nobody)
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			b.refuses(t, b.IN, network, f.at(f.vip(41), 80))
		}
	}
	b.write("web.yaml", b.webDocuments(b.L1))
	for _, f := range families {
		// The same source port all the time: no state of a refused try may be in the way.
		eventually(t, syncTimeout, func() error {
			_, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), netlab.FromPort(40000))
			return err
		})
	}
}

func Test017_ping(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f),
			f.service("idle", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"))
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT} {
			if err := from.Ping(f.at(f.vip(41), 0).Addr()); err != nil {
				t.Errorf("%s: a VIP with an endpoint: %v", from.Name, err)
			}
			err := from.Ping(f.at(f.vip(42), 0).Addr())
			var failure *netlab.Failure
			if !errors.As(err, &failure) || failure.Refusal != netlab.Unreachable || failure.PortUnreachable() {
				t.Errorf("%s: a VIP without endpoints: got %v, want host unreachable", from.Name, err)
			}
		}
	})
}

func Test017_ping_never(t *testing.T) {
	b := web(t, flags{"vip-ping": {"never"}}, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		if err := b.IN.Ping(f.at(f.vip(41), 0).Addr()); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("got %v, want silence", err)
		}
	})
}

func Test019_kill_keeps_traffic(t *testing.T) {
	b := web(t, nil, l1r1)
	open := map[family]*netlab.Conn{}
	for _, f := range families {
		c, err := b.EXT.Dial(f.at(f.vip(41), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[f] = c
	}
	works := func(when string) {
		t.Helper()
		for _, f := range families {
			if err := open[f].Echo(when); err != nil {
				t.Errorf("%s: connection opened before: %v", when, err)
			}
			b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
		}
	}
	b.svcctl.Kill()
	works("killed")
	b.svcctl.Start()
	works("started again")
	b.svcctl.Stop()
	works("stopped")
	b.svcctl.Start()
	works("started once more")
}
