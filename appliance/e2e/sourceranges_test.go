package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about loadBalancerSourceRanges: EXT is inside of the range
// that they give, BLK is outside.

// ranges is a line of a spec with CIDRs; those of IPv6 begin behind a bar: "10.0.0.0/8 |
// fd00::/8".
func (f family) ranges(text string) string {
	v4, v6, _ := strings.Cut(text, "|")
	list := strings.Fields(f.pick(v4, v6))
	for i, cidr := range list {
		list[i] = "'" + cidr + "'"
	}
	return "loadBalancerSourceRanges: [" + strings.Join(list, ", ") + "]"
}

const (
	extOnly  = "203.0.113.0/25 | 2001:db8:203::/65"
	everyone = "0.0.0.0/0 | ::/0"
)

// restricted writes and serves the Service of the policy tests with source ranges.
func restricted(t *testing.T, other flags, ranges string, spec ...string) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", b.restrictedDocuments(ranges, spec...))
	b.svcctl.Start()
	return b
}

func (b *box) restrictedDocuments(ranges string, spec ...string) func(f family) []string {
	return func(f family) []string {
		return policyDocuments(l1(b), append([]string{f.ranges(ranges)}, spec...)...)(f)
	}
}

// balancer, external and nodePort are the addresses of the Service of the policy tests.
func (f family) balancer() netip.AddrPort   { return f.at(f.lb(4), 80) }
func (f family) externalIP() netip.AddrPort { return f.at(f.external(99), 80) }
func (f family) nodePort() netip.AddrPort   { return f.at(f.boxAddr(), f.number(30080)) }

func Test032_source_ranges(t *testing.T) {
	// One Service with the field, whose first CIDR has a blank in front, one with the
	// annotation that came before it.
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		field := strings.Replace(f.policyService(f.ranges("192.0.2.0/24 203.0.113.0/25 | 2001:db8::/64 2001:db8:203::/65")), "['", "[' ", 1)
		older := f.service("older", "type: LoadBalancer", "loadBalancerIP: "+f.lb(5), "ports: [{name: p80, port: 80}]")
		return []string{
			field, f.slice("web", "p80: 80", b.L1),
			annotated(older, "service.beta.kubernetes.io/load-balancer-source-ranges", f.pick("192.0.2.0/24, 203.0.113.0/25", "2001:db8::/64, 2001:db8:203::/65")),
			f.slice("older", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, n := range []int{4, 5} {
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(n), 80), masq, f.on(80, b.L1)...)
			b.reaches(t, b.GW1, "tcp", f.at(f.lb(n), 80), masq, f.on(80, b.L1)...) // 192.0.2.1 is in the other range
			b.silent(t, b.BLK, f.at(f.lb(n), 80))
		}
	})
}

// A client that is out of range is told nothing, not even that the port is nobody's or
// that no Service has it; and the ranges are about ports of the Service alone.
func Test032_source_ranges_without_endpoints(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{f.policyService(f.ranges(extOnly))}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.refuses(t, b.EXT, "tcp", f.balancer())
		b.silent(t, b.BLK, f.balancer())
		b.refuses(t, b.BLK, "tcp", f.at(f.lb(4), 81))
	})
}

func Test033_source_ranges_with_policy_local(t *testing.T) {
	b := restricted(t, nil, extOnly, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.balancer(), plain, f.on(80, b.L1)...)
		b.silent(t, b.BLK, f.balancer())
		b.silent(t, b.IN, f.balancer())
	})
}

func Test036_source_range_for_everybody(t *testing.T) {
	b := restricted(t, nil, "203.0.113.0/25 0.0.0.0/0 10.99.0.0/16 | 2001:db8:203::/65 ::/0 fd00:99::/32")
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.EXT, b.BLK, b.IN} {
			b.reaches(t, from, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		}
		for name, elements := range b.table(t, f) {
			if strings.Contains(name, "restricted") || strings.Contains(name, "allowed") {
				t.Errorf("set %s: %v, want no filter at all", name, elements)
			}
		}
	})
}

func Test037_source_ranges_of_one_family(t *testing.T) {
	for _, listed := range families {
		t.Run("only "+listed.String(), func(t *testing.T) {
			b := newBox(t, nil)
			b.svcctl.Manifests.Write("web.yaml", service("web",
				"type: LoadBalancer", "ipFamilyPolicy: RequireDualStack", listed.ranges(everyone),
				"ports: [{name: p80, port: 80}]")+dualSlices(b, "web"))
			b.svcctl.Start()
			b.each(t, func(t *testing.T, b *box, f family) {
				to := f.at(b.balancerOf(t, f, 80), 80)
				if f == listed {
					b.reaches(t, b.EXT, "tcp", to, masq, f.on(80, b.L1, b.R1)...)
					return
				}
				b.hasProblem(t, "Service default/web", "warning", "loadBalancerSourceRanges", "no "+f.String()+" range")
				b.silent(t, b.EXT, to)
				b.silent(t, b.IN, to)
			})
		})
	}
}

// balancerOf is the load balancer IP that serves a port.
func (b *box) balancerOf(t *testing.T, f family, port uint16) string {
	t.Helper()
	pool := netip.MustParsePrefix(f.pick("198.51.100.0/28", "2001:db8:198::/124"))
	for _, e := range b.table(t, f)["services"] {
		if pool.Contains(netip.MustParseAddr(e.Key[0])) && e.Key[2] == fmt.Sprint(port) {
			return e.Key[0]
		}
	}
	t.Fatalf("%s: no load balancer IP serves port %d", f, port)
	return ""
}

func Test038_source_ranges_in_disorder(t *testing.T) {
	b := restricted(t, nil, "203.0.113.64/26 10.1.0.0/16 203.0.113.0/26 10.0.0.0/8 10.1.0.0/16 10.255.0.0/16 |"+
		" 2001:db8:203::/66 fd00:10::/32 2001:db8:203:0:4000::/66 fd00:10:1::/48 fd00:10::/32")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "web"))
		b.reaches(t, b.EXT, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		b.reaches(t, b.IN, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		b.silent(t, b.BLK, f.balancer())
		if n := len(b.table(t, f)["allowed-sources"]); n != 2 {
			t.Errorf("%d ranges in the kernel, want 2 after merging", n)
		}
	})
}

func Test039_tighter_source_ranges(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string { return policyDocuments(l1(b))(f) })
	b.svcctl.Start()
	open := map[family]*netlab.Conn{}
	for _, f := range families {
		c, err := b.BLK.Dial(f.balancer(), patiently)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[f] = c
	}
	b.rewrite("web.yaml", b.restrictedDocuments(extOnly))
	for _, f := range families {
		if err := open[f].Echo("still here", patiently); err != nil {
			t.Errorf("the connection from before: %v", err)
		}
		if reply, err := b.BLK.Ask("tcp", f.balancer()); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("a new connection of BLK: %v, %v, want silence", reply, err)
		}
		b.reaches(t, b.EXT, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		b.reaches(t, b.BLK, "tcp", f.cluster(), masq, f.on(80, b.L1)...) // never filtered
	}
	b.rewrite("web.yaml", b.restrictedDocuments(everyone))
	for _, f := range families {
		b.reaches(t, b.BLK, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		if err := open[f].Echo("and still", patiently); err != nil {
			t.Errorf("the connection from before: %v", err)
		}
	}
}

// tight is the Service everywhere with L1 behind it and source ranges, "" for none.
func tight(b *box, ranges string, annotations ...string) func(f family) []string {
	return func(f family) []string {
		documents := everywhere(53, b.L1)(f)
		if ranges != "" {
			documents[0] += "  " + f.ranges(ranges) + "\n"
		}
		for i := 0; i < len(annotations); i += 2 {
			documents[0] = annotated(documents[0], annotations[i], annotations[i+1])
		}
		return documents
	}
}

// Flows that are open end when their client is shut out, and no others do: those of clients
// that may connect, and those of the same client to addresses that are not restricted.
func Test039_tighter_source_ranges_end_flows(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("while the process is down: %v", down), func(t *testing.T) {
			b := newBox(t, metered)
			b.write("any.yaml", tight(b, ""))
			b.svcctl.Start()
			b.remember()
			b.looked(t)
			var out, stay []flow
			for _, network := range []string{"udp", "sctp"} {
				for i, fl := range b.flows(network, 11000) {
					stay = append(stay, fl)
					fl.from, fl.port = b.BLK, uint16(12000+i)
					if fl.to.Addr() == fl.at(fl.lb(4), 53).Addr() {
						out = append(out, fl)
					} else {
						stay = append(stay, fl)
					}
				}
			}
			lead(t, slices.Concat(out, stay), b.L1, 53)
			kept := b.entriesOf(t, stay...)
			if down {
				b.svcctl.Stop()
				b.write("any.yaml", tight(b, extOnly))
				b.svcctl.Start()
			} else {
				b.rewrite("any.yaml", tight(b, extOnly))
			}
			for _, fl := range out {
				eventually(t, syncTimeout, func() error {
					if reply, err := fl.ask(shortly); netlab.RefusalOf(err) != netlab.Timeout {
						return fmt.Errorf("%s: got %v, %v; want silence", fl, reply, err)
					}
					return nil
				})
			}
			b.untouched(t, kept)
			b.rewrite("any.yaml", tight(b, everyone))
			lead(t, out, b.L1, 53)
			b.untouched(t, kept)
		})
	}
}

// Open connections of TCP end, too, when their Service drains.
func Test039_tighter_source_ranges_drain(t *testing.T) {
	const drain = "svcctl.io/drain-timeout"
	b := newBox(t, nil)
	b.write("any.yaml", tight(b, "", drain, "0s"))
	b.svcctl.Start()
	open := map[*netlab.Conn]bool{} // whether it ends
	for _, f := range families {
		for _, from := range []*netlab.Host{b.EXT, b.BLK} {
			for _, to := range []netip.AddrPort{f.at(f.lb(4), 80), f.at(f.vip(41), 80)} {
				c, err := from.Dial(to, patiently)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				open[c] = from == b.BLK && to.Addr() == netip.MustParseAddr(f.lb(4))
			}
		}
	}
	b.rewrite("any.yaml", tight(b, extOnly, drain, "0s"))
	for c, ends := range open {
		if !ends {
			if err := c.Echo("still here", patiently); err != nil {
				t.Errorf("%s to %s: %v", c.Local, c.Reply.At, err)
			}
			continue
		}
		eventually(t, syncTimeout, func() error {
			// Its next packet is answered by a reset. One may have come to the endpoint just before, whose answer is lost.
			if err := c.Echo("still here"); netlab.RefusalOf(err) != netlab.Reset {
				return fmt.Errorf("%s to %s: %v, want a reset", c.Local, c.Reply.At, err)
			}
			return nil
		})
	}
}
