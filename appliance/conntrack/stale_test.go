package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// withinSync is how long a change may take to be in force for connections too: 1 s, and
// what a busy machine adds.
const withinSync = time.Minute

// everywhere is a Service on every kind of frontend in a family, and where a client
// finds it: a cluster IP, a load balancer IP, an external IP and a node port.
func everywhere(protocol nft.Protocol, family nft.Family, port, nodePort uint16) (*service, []netip.AddrPort) {
	vips := addrs("172.30.0.41", "198.51.100.4", "198.51.100.99")
	node := netip.MustParseAddr(netlab.BoxAddr4)
	if family == nft.IPv6 {
		vips, node = addrs("fd00:172:30::41", "2001:db8:198::4", "2001:db8:198::99"), netip.MustParseAddr(netlab.BoxAddr6)
	}
	svc := &service{protocol: protocol, family: family}
	var at []netip.AddrPort
	for _, vip := range vips {
		svc.frontends = append(svc.frontends, nft.Frontend{Addr: vip, Port: port, SNAT: nft.SNATOutside})
		at = append(at, netip.AddrPortFrom(vip, port))
	}
	svc.frontends = append(svc.frontends, nft.Frontend{Port: nodePort, SNAT: nft.SNATAlways})
	return svc, append(at, netip.AddrPortFrom(node, nodePort))
}

// endpoint is a port of a host in a family.
func endpoint(h *netlab.Host, family nft.Family, port uint16) netip.AddrPort {
	if family == nft.IPv6 {
		return netip.AddrPortFrom(h.Addr6(), port)
	}
	return netip.AddrPortFrom(h.Addr4(), port)
}

// network is a protocol as package netlab calls it.
func network(p nft.Protocol) string { return p.String() }

// answers asks from a fixed port, as a sender that goes on does, until a server answers.
func (b *box) answers(protocol nft.Protocol, at netip.AddrPort, clientPort uint16, server string) {
	b.t.Helper()
	eventually(b.t, withinSync, func() error {
		reply, err := b.EXT.Ask(network(protocol), at, netlab.FromPort(clientPort), netlab.Within(time.Second))
		if err == nil && reply.Server != server {
			err = fmt.Errorf("%s %s: %s answers, want %s", protocol, at, reply.Server, server)
		}
		return err
	})
}

// refused asks from a fixed port until the answer is "port unreachable".
func (b *box) refused(protocol nft.Protocol, at netip.AddrPort, clientPort uint16) {
	b.t.Helper()
	eventually(b.t, withinSync, func() error {
		reply, err := b.EXT.Ask(network(protocol), at, netlab.FromPort(clientPort), netlab.Within(time.Second))
		var failure *netlab.Failure
		if errors.As(err, &failure) && failure.PortUnreachable() {
			return nil
		}
		return fmt.Errorf("%s %s: got %v, %v; want port unreachable", protocol, at, reply, err)
	})
}

// TestStale goes through the life of a Service with senders that never pause, and with
// bystanders whose entries must stay.
func TestStale(t *testing.T) {
	for _, protocol := range []nft.Protocol{nft.UDP, nft.SCTP} {
		for _, family := range nft.Families {
			t.Run(fmt.Sprintf("%s %s", protocol, family), func(t *testing.T) {
				b := newBox(t)
				svc, at := everywhere(protocol, family, 53, 30053)
				l1, r1 := endpoint(b.L1, family, 53), endpoint(b.R1, family, 53)
				each := func(do func(at netip.AddrPort, clientPort uint16)) {
					for i, at := range at {
						do(at, uint16(41000+i))
					}
				}
				expect := func(server string) {
					t.Helper()
					each(func(at netip.AddrPort, clientPort uint16) { b.answers(protocol, at, clientPort, server) })
				}
				// Sent before anybody serves it: the box answers for its own address and
				// sends on what is for others.
				early := at[1:]
				eventually(t, time.Minute, func() error {
					for i, at := range early {
						_, _ = b.EXT.Ask(network(protocol), at, netlab.FromPort(uint16(41001+i)), netlab.Within(50*time.Millisecond))
					}
					if protocol == nft.UDP && len(b.tracked()) != len(early) {
						return fmt.Errorf("the early packets left entries %v, want %d", b.tracked(), len(early))
					}
					return nil
				})
				b.apply("svc", svc, l1)
				expect("L1")

				untouched := b.bystanders(family)
				b.apply("svc", svc, l1, r1)
				expect("L1")
				b.apply("svc", svc, r1)
				expect("R1")
				b.apply("svc", svc, endpoint(b.R1, family, 5353))
				each(func(at netip.AddrPort, clientPort uint16) {
					eventually(t, withinSync, func() error {
						reply, err := b.EXT.Ask(network(protocol), at, netlab.FromPort(clientPort), netlab.Within(time.Second))
						if err == nil && reply.At.Port() != 5353 {
							err = fmt.Errorf("%s is answered on port %d, want 5353", at, reply.At.Port())
						}
						return err
					})
				})
				b.apply("svc", svc)
				each(func(at netip.AddrPort, clientPort uint16) { b.refused(protocol, at, clientPort) })
				each(func(at netip.AddrPort, clientPort uint16) {
					if e, there := b.hasEntry(protocol, at, clientPort); there {
						t.Errorf("nobody serves, and there is %s", e)
					}
				})
				b.apply("svc", svc, l1)
				expect("L1")
				b.apply("svc", nil)
				each(func(at netip.AddrPort, clientPort uint16) {
					if e, there := b.hasEntry(protocol, at, clientPort); there {
						t.Errorf("the Service is deleted, and there is %s", e)
					}
					// real time: nobody answers
					if reply, err := b.EXT.Ask(network(protocol), at, netlab.FromPort(clientPort), netlab.Within(50*time.Millisecond)); err == nil {
						t.Errorf("the Service is deleted, and %s answers at %s", reply.Server, at)
					}
				})
				b.unchanged(untouched)
			})
		}
	}
}

// bystanders makes entries that are none of a UDP or SCTP Service's on port 53 and node
// port 30053.
func (b *box) bystanders(family nft.Family) map[string]string {
	b.t.Helper()
	before := b.tracked()
	l2, l1 := endpoint(b.L2, family, 30053), endpoint(b.L1, family, 53)
	b.L2.ServeAt("udp", l2)
	web := &service{protocol: nft.TCP, family: family, frontends: []nft.Frontend{{Addr: endpoint(b.GW1, family, 0).Addr(), Port: 54}, {Port: 30054}}}
	web.frontends[0].Addr = map[nft.Family]netip.Addr{nft.IPv4: netip.MustParseAddr("198.51.100.4"), nft.IPv6: netip.MustParseAddr("2001:db8:198::4")}[family]
	b.apply("web", web, l1)
	for name, ask := range map[string]func() error{
		"a host with the number of the node port": func() error { _, err := b.IN.Ask("udp", l2, netlab.FromPort(42001)); return err },
		"an endpoint without the VIP":             func() error { _, err := b.IN.Ask("udp", l1, netlab.FromPort(42002)); return err },
		"TCP to the same VIP": func() error {
			c, err := b.EXT.Dial(netip.AddrPortFrom(web.frontends[0].Addr, 54), netlab.FromPort(42003))
			if err == nil {
				b.t.Cleanup(c.Close)
			}
			return err
		},
	} {
		if err := ask(); err != nil {
			b.t.Fatalf("%s: %v", name, err)
		}
	}
	b.apply("web", web, endpoint(b.R1, family, 53)) // the connection to L1 lives on
	added := b.tracked()
	maps.DeleteFunc(added, func(e, _ string) bool { return before[e] != "" })
	if len(added) != 3 {
		b.t.Fatalf("bystanders %v, want 3", added)
	}
	return added
}

// unchanged asserts that entries are there and are the same ones.
func (b *box) unchanged(entries map[string]string) {
	b.t.Helper()
	now := b.tracked()
	for e, id := range entries {
		switch now[e] {
		case id:
		case "":
			b.t.Errorf("deleted: %s", e)
		default:
			b.t.Errorf("deleted and made anew: %s", e)
		}
	}
}

// TestRestart: a Cleaner that knows nothing of former times deletes what points to
// endpoints that went while the process was down, and nothing else.
func TestRestart(t *testing.T) {
	b := newBox(t)
	for i, family := range nft.Families {
		svc, at := everywhere(nft.UDP, family, 53, 30053)
		b.apply(fmt.Sprintf("udp-%s", family), svc, endpoint(b.L1, family, 53))
		for j, at := range at {
			b.answers(nft.UDP, at, uint16(41000+100*i+j), "L1")
		}
	}
	b.bystanders(nft.IPv4)
	all := b.tracked()
	if len(all) != 2*4+3 {
		t.Fatalf("entries %v, want those of 8 senders and 3 others", all)
	}

	b.restart(func() {})
	b.unchanged(all)

	// An endpoint that serves while it terminates keeps its flows, over a restart too.
	svc, at := everywhere(nft.UDP, nft.IPv4, 53, 30053)
	svc.serving = []netip.AddrPort{endpoint(b.L1, nft.IPv4, 53)}
	b.apply("udp-ip", svc, endpoint(b.R1, nft.IPv4, 53))
	b.unchanged(all)
	b.answers(nft.UDP, at[0], 41000, "L1")
	b.answers(nft.UDP, at[0], 41999, "R1")
	b.restart(func() {})
	b.unchanged(all)

	// Removed while the process was down: an endpoint, and a Service.
	svc.serving = nil
	b.restart(func() {
		b.load("udp-ip", svc, endpoint(b.R1, nft.IPv4, 53))
		b.load("udp-ip6", nil)
	})
	gone := 0
	for e := range all {
		if b.tracked()[e] == "" {
			gone++
		}
	}
	if gone != 8 {
		t.Errorf("%d entries were deleted, want those of 4 senders to the endpoint and 4 to the Service", gone)
	}
	b.answers(nft.UDP, at[0], 41000, "R1")
}
