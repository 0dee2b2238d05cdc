package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// nodePort writes and serves the Service that node port tests use: cluster IP 41, port
// 80, node port 30080.
func nodePort(t *testing.T, other flags, hosts func(b *box) []*netlab.Host) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, 30080)),
			f.slice("web", "p80: 80", hosts(b)...),
		}
	})
	b.svcctl.Start()
	return b
}

// nodePorts is port 80 with a node port: of IPv4 the one given, of IPv6 the next one,
// because a node port belongs to one Service, whatever its family.
func nodePorts(f family, port int) string {
	return "ports: [{name: p80, port: 80, nodePort: " + f.port(port) + "}]"
}

func r1l2(b *box) []*netlab.Host { return []*netlab.Host{b.R1, b.L2} }

func Test020_node_port_on_every_address(t *testing.T) {
	b := nodePort(t, nil, r1l2)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, addr := range []string{f.boxAddr(), f.altAddr()} {
			b.reaches(t, b.EXT, "tcp", f.at(addr, f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
		}
		b.reaches(t, b.IN, "tcp", f.at(f.pick("10.0.0.1", "fd00:10::1"), f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
	})
}

func Test021_node_port_on_primary_address(t *testing.T) {
	b := nodePort(t, flags{"nodeport-addresses": {"primary"}}, r1l2)
	b.each(t, func(t *testing.T, b *box, f family) {
		port := f.number(30080)
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), port), masq, f.on(80, b.R1, b.L2)...)
		b.isHosts(t, f.at(f.altAddr(), port))
		// The Service of the other family has this port: here no Service has it.
		other := families[1]
		if f == other {
			other = families[0]
		}
		b.isHosts(t, f.at(f.boxAddr(), other.number(30080)))
	})
}

// isHosts asserts that an address and port of the box behave as if there was no
// appliance: a reset if nothing listens, an answer by the box if something does.
func (b *box) isHosts(t *testing.T, to netip.AddrPort) {
	t.Helper()
	if reply, err := b.EXT.Ask("tcp", to); netlab.RefusalOf(err) != netlab.Refused {
		t.Errorf("EXT to %s with no listener: got %v, %v, want a reset", to, reply, err)
	}
	listener := b.GW1.ServeAt("tcp", to)
	defer listener.Close()
	if reply, err := b.EXT.Ask("tcp", to); err != nil || reply.At != to || reply.Client.Addr() != (family{to.Addr().Is6()}).of(b.EXT) {
		t.Errorf("EXT to %s with a listener: got %v, %v, want the box's own answer", to, reply, err)
	}
}

func Test022_node_port_address_list(t *testing.T) {
	b := nodePort(t, flags{"nodeport-addresses": {"192.0.2.0/24,192.0.3.0/24,2001:db8::/64,2001:db8:1::/64"}}, r1l2)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, addr := range []string{f.boxAddr(), f.altAddr()} {
			b.reaches(t, b.EXT, "tcp", f.at(addr, f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
		}
		// An address of the box that is not in the list.
		if reply, err := b.IN.Ask("tcp", f.at(f.pick("10.0.0.1", "fd00:10::1"), f.number(30080))); netlab.RefusalOf(err) != netlab.Refused {
			t.Errorf("IN to an address that is not listed: got %v, %v, want a reset", reply, err)
		}
	})
}

// An uplink whose addresses change, as of DHCP or PPPoE: node ports answer at those that it has, and at those of no other interface.
func Test909_node_ports_of_an_interface(t *testing.T) {
	b := nodePort(t, flags{"nodeport-addresses": {"ext0,ppp9"}}, r1l2)
	for n := range 20 {
		for _, f := range families {
			to := f.at(fmt.Sprintf(f.pick("192.0.2.%d", "2001:db8::%d"), 70+n), f.number(30080))
			prefix := fmt.Sprintf(f.pick("192.0.2.%d/24", "2001:db8::%d/64"), 70+n)
			b.GW1.AddAddr("ext0", prefix)
			eventually(t, syncTimeout, func() error {
				_, err := b.EXT.Ask("tcp", to)
				return err
			})
			b.GW1.RemoveAddr("ext0", prefix)
		}
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
		b.isHosts(t, f.at(f.altAddr(), f.number(30080)))
	})
	eventually(t, syncTimeout, func() error {
		out, _, _ := b.svcctl.Svcctl("status")
		if !strings.Contains(out, "under the name ppp9 (--nodeport-addresses)") || strings.Contains(out, "ext0 (") {
			return errors.New(out)
		}
		return nil
	})
}

func Test022_node_port_list_of_the_other_family(t *testing.T) {
	for _, listed := range families {
		t.Run("only "+listed.String(), func(t *testing.T) {
			b := nodePort(t, flags{"nodeport-addresses": {listed.pick("192.0.2.0/24", "2001:db8::/64")}}, r1l2)
			for _, f := range families {
				b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
				if f == listed {
					b.isHosts(t, f.at(f.altAddr(), f.number(30080)))
				} else {
					b.reaches(t, b.EXT, "tcp", f.at(f.altAddr(), f.number(30080)), masq, f.on(80, b.R1, b.L2)...)
				}
			}
		})
	}
}

func Test023_node_port_follows_addresses(t *testing.T) {
	for name, other := range map[string]flags{
		"no list":       nil,
		"everything":    {"nodeport-addresses": {"0.0.0.0/0,::/0"}},
		"listed prefix": {"nodeport-addresses": {"192.0.2.0/24,2001:db8::/64"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := nodePort(t, other, r1l2)
			for _, f := range families {
				to := f.at(f.pick("192.0.2.77", "2001:db8::77"), f.number(30080))
				prefix := f.pick("192.0.2.77/24", "2001:db8::77/64")
				b.GW1.AddAddr("ext0", prefix)
				eventually(t, syncTimeout, func() error {
					_, err := b.EXT.Ask("tcp", to)
					return err
				})
				b.reaches(t, b.EXT, "tcp", to, masq, f.on(80, b.R1, b.L2)...)
				b.GW1.RemoveAddr("ext0", prefix)
				eventually(t, syncTimeout, func() error { return b.notListed(t, f, to.Addr()) })
			}
		})
	}
}

func Test634_node_port_at_a_link(t *testing.T) {
	for name, other := range map[string]flags{"named": {"nodeport-addresses": {"169.254.0.0/16"}}, "not named": nil} {
		t.Run(name, func(t *testing.T) {
			b := nodePort(t, other, r1l2)
			b.GW1.AddAddr("ext0", "169.254.7.1/24")
			f := families[0]
			to, elsewhere := f.at("169.254.7.1", f.number(30080)), f.at(f.boxAddr(), f.number(30080))
			if other == nil {
				to, elsewhere = elsewhere, to
			}
			eventually(t, syncTimeout, func() error {
				_, err := b.L1.Ask("tcp", to)
				return err
			})
			b.reaches(t, b.L1, "tcp", to, masq, f.on(80, b.R1, b.L2)...)
			if reply, err := b.L1.Ask("tcp", elsewhere); netlab.RefusalOf(err) != netlab.Refused {
				t.Errorf("L1 to %s: got %v, %v, want a reset", elsewhere, reply, err)
			}
		})
	}
}

// notListed returns an error if an address is an element of any set or map of the appliance.
func (b *box) notListed(t *testing.T, f family, addr netip.Addr) error {
	t.Helper()
	for name, elements := range b.table(t, f) {
		for _, e := range elements {
			if slices.Contains(e.Key, addr.String()) {
				return fmt.Errorf("%s is in %s: %v", addr, name, e)
			}
		}
	}
	return nil
}

// A process of the box that listens on a Service's node port gets none of its traffic.
func Test026_node_port_without_endpoints_hides_listeners(t *testing.T) {
	b := nodePort(t, nil, nobody)
	b.GW1.Serve("tcp", 30080, 30081)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.EXT, b.IN, b.GW1} {
			b.refuses(t, from, "tcp", f.at(f.boxAddr(), f.number(30080)))
		}
	})
}

func Test028_node_port_not_on_vips(t *testing.T) {
	b := newBox(t, setAside(flags{"nodeport-addresses": {"0.0.0.0/0,::/0"}}))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
				"externalIPs: ["+f.external(99)+"]", nodePorts(f, 30080)),
			f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	for _, f := range families { // addresses of VIPs on interfaces, as announcing them does
		b.GW1.AddAddr("lo", f.vip(41)+f.pick("/32", "/128"))
		b.GW1.AddAddr("lo", f.lb(4)+f.pick("/32", "/128"))
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, vip := range []string{f.vip(41), f.lb(4), f.external(99)} {
			b.reaches(t, b.EXT, "tcp", f.at(vip, 80), masq, f.on(80, b.L1)...)
			b.refuses(t, b.EXT, "tcp", f.at(vip, f.number(30080)))
			b.refuses(t, b.IN, "tcp", f.at(vip, f.number(30080)))
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)), masq, f.on(80, b.L1)...)
	})
}
