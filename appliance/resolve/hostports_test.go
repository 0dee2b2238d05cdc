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

var boxAddr = netip.MustParseAddr("192.0.2.1")

// hostClaims is a Claims on a box with boxAddr, and what was given to it.
type hostClaims struct {
	Claims
	ports map[string][]nft.ServicePort
}

// set claims frontends, as "30090" (a node port) or "192.0.2.1:30090", for a port with some endpoints.
func (c *hostClaims) set(name string, since uint64, relayed bool, frontends, endpoints string) []string {
	p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.UDP}
	for _, text := range strings.Fields(frontends) {
		fe := nft.Frontend{Kind: nft.NodePort}
		if at, err := netip.ParseAddrPort(text); err == nil {
			fe = nft.Frontend{Kind: nft.ExternalIP, Addr: at.Addr(), Port: at.Port(), HostOwned: at.Addr() == boxAddr}
		} else {
			_, _ = fmt.Sscan(text, &fe.Port)
		}
		p.Frontends = append(p.Frontends, fe)
	}
	for _, text := range strings.Fields(endpoints) {
		p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.MustParseAddrPort(text))
	}
	p.Serving = p.Pools[nft.PoolCluster]
	if relayed {
		p.Relay[nft.PoolCluster] = netip.MustParseAddrPort("192.0.2.1:10270")
	}
	if c.ports == nil {
		c.ports = map[string][]nft.ServicePort{}
		c.PlaceAt([]netip.Addr{boxAddr})
	}
	c.ports[name] = []nft.ServicePort{p}
	if frontends == "" {
		delete(c.ports, name)
	}
	return c.Set(nil, Claim{Service: "default/" + name, Ports: c.ports[name], Since: age(since)})
}

// want compares the frontends and endpoints that a Service is granted, and the problems that it has.
func (c *hostClaims) want(t *testing.T, name, frontends, endpoints string, problems ...string) {
	t.Helper()
	before := fmt.Sprint(c.ports[name])
	granted, found := c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: name}, c.ports[name])
	if after := fmt.Sprint(c.ports[name]); after != before {
		t.Errorf("%s: what was asked for changed from %s to %s", name, before, after)
	}
	var got []string
	for _, fe := range granted[0].Frontends {
		if fe.Addr.IsValid() {
			got = append(got, netip.AddrPortFrom(fe.Addr, fe.Port).String())
		} else {
			got = append(got, fmt.Sprint(fe.Port))
		}
	}
	if strings.Join(got, " ") != frontends {
		t.Errorf("%s has %v, want %s", name, got, frontends)
	}
	for _, list := range [][]netip.AddrPort{granted[0].Pools[nft.PoolCluster], granted[0].Serving} {
		if text := strings.Trim(fmt.Sprint(list), "[]"); text != endpoints {
			t.Errorf("%s has endpoints %s, want %s", name, text, endpoints)
		}
	}
	if len(found) != len(problems) {
		t.Errorf("%s has problems %v, want %q", name, found, problems)
		return
	}
	for i, p := range found {
		if p.Warning || !strings.Contains(p.Message, problems[i]) {
			t.Errorf("%s has problem %+v, want an error with %q", name, p, problems[i])
		}
	}
}

// Of a node port and the same port at an address of the host the older one is served.
func TestNodePortAndHostAddress(t *testing.T) {
	var c hostClaims
	c.set("echo", 1, false, "30090", "")
	if got := c.set("thief", 2, false, "192.0.2.1:30090 198.51.100.9:30090", ""); !slices.Equal(got, []string{"default/echo"}) {
		t.Errorf("affected: %v", got)
	}
	c.want(t, "echo", "30090", "")
	c.want(t, "thief", "198.51.100.9:30090", "", "192.0.2.1 port 30090/udp is not served for this Service: it is node port 30090/udp of Service default/echo, which asked for it first")
	if got := c.set("echo", 1, false, "", ""); !slices.Equal(got, []string{"default/thief"}) {
		t.Errorf("a node port that goes affects %v", got)
	}
	c.want(t, "thief", "192.0.2.1:30090 198.51.100.9:30090", "")
	c.set("late", 3, false, "30090 192.0.2.1:7", "")
	c.want(t, "late", "192.0.2.1:7", "", "node port 30090/udp is not served for this Service: it is 192.0.2.1 port 30090/udp of Service default/thief")
	c.want(t, "thief", "192.0.2.1:30090 198.51.100.9:30090", "")
	tried := hostClaims{Claims: c.Try(), ports: c.ports}
	if got := tried.PlaceAt(nil); !slices.Equal(got, []string{"default/late", "default/thief"}) {
		t.Errorf("an address that node ports answer on no more affects %v", got)
	}
	tried.want(t, "late", "30090 192.0.2.1:7", "")
	tried.Undo()
	c.want(t, "late", "192.0.2.1:7", "", "node port 30090/udp is not served")
	// A Service has both itself, and the port of its health check.
	c.PlaceAt([]netip.Addr{boxAddr})
	c.set("both", 4, false, "30091 192.0.2.1:30091", "")
	c.want(t, "both", "30091 192.0.2.1:30091", "")
	udp := c.ports["both"]
	c.Set(nil, Claim{Service: "default/checked", HealthPort: 30092})
	tcp := []nft.ServicePort{{Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: boxAddr, Port: 30092, HostOwned: true}}}}
	c.Set(nil, Claim{Service: "default/other", Ports: tcp, Since: age(1)})
	if _, problems := c.Grant(object.ServiceRef("default/other"), tcp); len(problems) != 1 || !strings.Contains(problems[0].Message, "it is node port 30092/tcp of Service default/checked") {
		t.Errorf("the port of a health check: %v", problems)
	}
	if problems := c.HealthPort(object.ServiceRef("default/checked"), 30092); len(problems) != 0 {
		t.Errorf("the port of an older health check: %v", problems)
	}
	c.Set(nil, Claim{Service: "default/younger", HealthPort: 30091, Since: age(9)})
	tcp[0].Frontends[0].Port = 30091
	c.Set(nil, Claim{Service: "default/other", Ports: tcp})
	if problems := c.HealthPort(object.ServiceRef("default/younger"), 30091); len(problems) != 1 || !strings.Contains(problems[0].Message, "192.0.2.1 port 30091/tcp is that of Service default/other") {
		t.Errorf("the port of a younger health check: %v", problems)
	}
	c.ports["both"] = udp
}

// An endpoint that is a relayed frontend of the box is left out, whichever came first.
func TestRelayedEndpointsThatLeadBack(t *testing.T) {
	var c hostClaims
	const server = "10.180.0.1:90"
	c.set("loop", 1, true, "30096", "192.0.2.1:30096 "+server)
	c.want(t, "loop", "30096", server, "endpoint 192.0.2.1:30096/udp is left out: it is the node port of Service default/loop, which this box relays")
	// The ports of others: one of the kernel's is served; so is one at another box, and another port.
	c.set("kernel", 1, false, "30097", server)
	c.set("web", 2, true, "30098", "192.0.2.1:30097 192.0.2.9:30096 192.0.2.1:31000")
	c.want(t, "web", "30098", "192.0.2.1:30097 192.0.2.9:30096 192.0.2.1:31000")
	// Two that lead to each other, of which one comes to be relayed later.
	c.set("a", 1, true, "30100", "192.0.2.1:30101")
	c.want(t, "a", "30100", "192.0.2.1:30101")
	if got := c.set("b", 2, true, "192.0.2.1:30101", "192.0.2.1:30100"); !slices.Contains(got, "default/a") || slices.Contains(got, "default/kernel") {
		t.Errorf("a relayed port that comes affects %v", got)
	}
	c.want(t, "a", "30100", "", "it is a port of Service default/b")
	c.want(t, "b", "192.0.2.1:30101", "", "it is the node port of Service default/a")
	if got := c.set("b", 2, false, "192.0.2.1:30101", "192.0.2.1:30100"); !slices.Contains(got, "default/a") {
		t.Errorf("a port that is relayed no more affects %v", got)
	}
	c.want(t, "a", "30100", "192.0.2.1:30101")
	c.want(t, "b", "192.0.2.1:30101", "192.0.2.1:30100") // the kernel translates a connection once
	if got := c.PlaceAt(nil); !slices.Contains(got, "default/loop") {
		t.Errorf("an address that node ports answer on no more affects %v", got)
	}
	c.want(t, "loop", "30096", "192.0.2.1:30096 "+server)
}
