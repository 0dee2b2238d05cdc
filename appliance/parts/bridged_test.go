package parts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/nft"
)

// Endpoints behind a bridge are told of while the setting of their family is 1, whichever of bridge, setting and Service
// comes first, and no others.
func TestBridged(t *testing.T) {
	const setting4, setting6 = "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"
	port := func(f nft.Family, endpoints ...string) nft.ServicePort {
		p := nft.ServicePort{ID: "default/web", Family: f, Protocol: nft.TCP}
		for _, e := range endpoints {
			p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.MustParseAddrPort(e))
		}
		return p
	}
	address := func(index uint32, name, prefix string) node.Address {
		return node.Address{Prefix: netip.MustParsePrefix(prefix), Interface: name, Index: index}
	}
	bridged := &node.Facts{
		Interfaces: []node.Interface{{Index: 2, Name: "eth0"}, {Index: 3, Name: "br0", Bridge: true}},
		Addresses:  []node.Address{address(2, "eth0", "192.0.2.1/24"), address(3, "br0", "10.5.0.1/24"), address(3, "br0", "10.5.0.9/32"), address(3, "br0", "fd00:5::1/64")},
	}
	plain := &node.Facts{Interfaces: bridged.Interfaces[:1], Addresses: bridged.Addresses[:1]}
	services := []reconcile.Service{
		{Key: "default/both", Ports: []nft.ServicePort{port(nft.IPv4, "192.0.2.7:80", "10.5.0.7:80", "10.5.0.7:81"), port(nft.IPv6, "[fd00:5::7]:80")}},
		{Key: "default/box", Ports: []nft.ServicePort{port(nft.IPv4, "10.5.0.1:80")}},
		{Key: "default/six", Ports: []nft.ServicePort{port(nft.IPv6, "[fd00:5::8]:80")}},
		{Key: "?0", Ports: []nft.ServicePort{port(nft.IPv4, "10.5.0.3:80")}}, // of no object
		{Key: "default/away", Ports: []nft.ServicePort{port(nft.IPv4, "192.0.2.8:80")}},
	}
	grants := reconcile.NewGrants(nil, nil)
	b := NewBridged(grants)
	plan := func(facts *node.Facts, services ...reconcile.Service) {
		var host *reconcile.Host
		if facts != nil {
			host = &reconcile.Host{Facts: facts}
		}
		grants.Planned(host, services)
		b.Planned(host, services)
	}
	expect := func(when string, settings string, both string, named ...string) {
		t.Helper()
		message := ""
		for _, p := range b.Problems() {
			message += p.Message
			if !p.Warning || p.Reason != "BridgedEndpoints" {
				t.Errorf("%s: %+v", when, p)
			}
		}
		if want := strings.Join(named, ", "); (message == "") != (want == "") || !strings.Contains(message, "this is so for "+want+":") && want != "" ||
			want != "" && !strings.Contains(message, "set "+settings+";") {
			t.Errorf("%s: the problem is %q, want %s, %s", when, message, want, settings)
		}
		var list []string
		for _, e := range b.Of("default/both") {
			list = append(list, e.Address+" "+e.Bridge+" "+strings.TrimPrefix(e.Setting, "net.bridge.bridge-nf-call-"))
		}
		if got := strings.Join(list, ", "); got != both {
			t.Errorf("%s: endpoints of default/both are %q, want %q", when, got, both)
		}
	}
	expect("nothing is known", "", "")
	plan(plain, services...)
	b.Settings([]string{setting4})
	expect("there is no bridge", "", "")
	plan(bridged)
	expect("IPv4", setting4+"=0", "10.5.0.7 br0 iptables", "default/both")
	b.Settings([]string{setting4, setting6})
	expect("both families", setting4+"=0 "+setting6+"=0", "10.5.0.7 br0 iptables, fd00:5::7 br0 ip6tables", "default/both", "default/six")
	plan(nil, reconcile.Service{Key: "default/six"}, reconcile.Service{Key: "default/away", Ports: []nft.ServicePort{port(nft.IPv4, "10.5.0.8:80")}})
	expect("one came, one went", setting4+"=0 "+setting6+"=0", "10.5.0.7 br0 iptables, fd00:5::7 br0 ip6tables", "default/away", "default/both")
	b.Settings(nil)
	expect("off", "", "")
	b.Settings([]string{setting6})
	expect("IPv6", setting6+"=0", "fd00:5::7 br0 ip6tables", "default/both")
	plan(plain)
	expect("the bridge is gone", "", "")
	if !slices.Equal(b.settings, []string{setting6}) {
		t.Error(b.settings)
	}
}
