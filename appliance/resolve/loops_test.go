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

// portOf is a port at some VIPs with some endpoints.
func portOf(vips, endpoints string) []nft.ServicePort {
	p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.TCP}
	for _, vip := range strings.Fields(vips) {
		text, host := strings.CutSuffix(vip, "!") // an address of the host
		p.Frontends = append(p.Frontends, nft.Frontend{Addr: netip.MustParseAddr(text), Port: 80, HostOwned: host, Kind: kindOf(text)})
	}
	for _, endpoint := range strings.Fields(endpoints) {
		at := netip.AddrPortFrom(netip.MustParseAddr(endpoint), 8080)
		p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], at)
		p.Pools[nft.PoolLocal] = append(p.Pools[nft.PoolLocal], at)
	}
	return []nft.ServicePort{p}
}

func kindOf(addr string) nft.FrontendKind {
	switch {
	case strings.HasPrefix(addr, "172.30."):
		return nft.ClusterIP
	case strings.HasPrefix(addr, "198.51.100."):
		return nft.LoadBalancerIP
	}
	return nft.ExternalIP
}

func TestEndpointsThatLeadBack(t *testing.T) {
	var c Claims
	ports := map[string][]nft.ServicePort{}
	set := func(name, vips, endpoints string) []string {
		ports[name] = portOf(vips, endpoints)
		return c.Set(nil, Claim{Service: "default/" + name, Ports: ports[name]})
	}
	want := func(name, endpoints string, problems int) {
		t.Helper()
		granted, found := c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: name}, ports[name])
		for _, pool := range granted[0].Pools {
			if got := hosts(pool); got != endpoints {
				t.Errorf("%s has %q, want %q", name, got, endpoints)
			}
		}
		if len(found) != problems {
			t.Errorf("%s has problems %v, want %d", name, found, problems)
		}
	}
	const vip, host = "198.51.100.4", "192.0.2.1"
	set("lb", "172.30.0.2 "+vip+" "+host+"!", "172.30.0.2 "+l2)
	want("lb", l2, 1) // its own cluster IP leads back as well
	if got := set("web", "172.30.0.1", l1+" "+vip+" "+host); len(got) > 0 {
		t.Errorf("an endpoint that comes to a VIP affects %s", got)
	}
	want("web", l1+" "+host, 1)
	want("lb", l2, 1)
	if _, found := c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: "web"}, ports["web"]); !strings.Contains(fmt.Sprint(found), "endpoint 198.51.100.4 is left out: it is an address of Service default/lb") {
		t.Errorf("problems %v", found)
	}
	if got := set("lb", "172.30.0.2 "+vip, l2); len(got) > 0 {
		t.Errorf("a change that is not about the address affects %s", got)
	}
	if got := set("lb", "172.30.0.2", l2); !slices.Equal(got, []string{"default/web"}) {
		t.Errorf("a VIP that goes affects %s", got)
	}
	want("web", l1+" "+vip+" "+host, 0)
	// An endpoint in a service range is named by the Service that has it as its cluster IP, and the other way round.
	at := netip.MustParseAddr("172.30.0.2")
	named := func(want string) {
		t.Helper()
		problems := []Problem{{Message: "in the range"}, {Message: "other"}}
		if c.NameHolders("default/front", &Output{Problems: problems, InRange: map[int]netip.Addr{0: at}}); !strings.Contains(problems[0].Message, want) || problems[1].Message != "other" {
			t.Errorf("problems %v, want %q", problems, want)
		}
	}
	if got := c.Set(nil, Claim{Service: "default/ranged", Unready: []netip.Addr{at}}); len(got) > 0 {
		t.Errorf("an endpoint in the range affects %s", got)
	}
	named("is the cluster IP of Service default/lb")
	if got := set("lb", vip, l2); !slices.Equal(got, []string{"default/ranged"}) {
		t.Errorf("a cluster IP that goes affects %s", got)
	}
	named("in the range")
	if got := set("lb", "172.30.0.2 "+vip, l2); !slices.Equal(got, []string{"default/ranged"}) {
		t.Errorf("a cluster IP that comes to an endpoint affects %s", got)
	}
	named("is the cluster IP of Service default/lb")
	ports["ranged"] = nil
	for name := range ports {
		c.Set(nil, Claim{Service: "default/" + name})
	}
	if n := len(c.loops.known) + len(c.loops.vips) + len(c.loops.backends); n > 0 {
		t.Errorf("%d entries are left of nothing", n)
	}
}

// An endpoint stays where it is when a Service names its address later, and the other way
// round; of what comes together, the endpoint was first unless the kernel has the address.
func TestWhoHadAnAddressFirst(t *testing.T) {
	const addr = "198.51.100.4"
	inForce := func(nft.Family, nft.Protocol, netip.AddrPort) bool { return true }
	host := Claim{Service: "default/multi", Ports: portOf("172.30.0.1", addr+" "+l2)}
	taker := Claim{Service: "default/taker", Ports: portOf("172.30.0.2 "+addr, l1)}
	unready := Claim{Service: "default/multi", Ports: portOf("172.30.0.1", l2), Unready: []netip.Addr{netip.MustParseAddr(addr)}}
	none := Claim{Service: "default/multi", Ports: portOf("172.30.0.1", l2)}
	for _, test := range []struct {
		name     string
		together bool
		inForce  func(nft.Family, nft.Protocol, netip.AddrPort) bool
		claims   []Claim
		served   string // addresses of the taker
		hosts    string // endpoints of multi
		affected []string
	}{
		{"the endpoint first", false, nil, []Claim{host, taker}, "172.30.0.2", addr + " " + l2, nil},
		{"the address first", false, nil, []Claim{taker, host}, "172.30.0.2 " + addr, l2, nil},
		{"both at once", true, nil, []Claim{taker, host}, "172.30.0.2", addr + " " + l2, nil},
		{"both at once, in the kernel", true, inForce, []Claim{host, taker}, "172.30.0.2 " + addr, l2, nil},
		{"said again", false, nil, []Claim{host, taker, host, taker}, "172.30.0.2", addr + " " + l2, nil},
		{"an endpoint that is not ready", false, nil, []Claim{unready, taker, host}, "172.30.0.2", addr + " " + l2, nil},
		{"the endpoint goes", false, nil, []Claim{host, taker, none}, "172.30.0.2 " + addr, l2, []string{"default/taker"}},
		{"and comes back", false, nil, []Claim{host, taker, none, host}, "172.30.0.2 " + addr, l2, nil},
	} {
		var c Claims
		var affected []string
		if test.together {
			affected = c.Set(test.inForce, test.claims...)
		} else {
			for _, claim := range test.claims {
				affected = c.Set(test.inForce, claim)
			}
		}
		if !slices.Equal(affected, test.affected) {
			t.Errorf("%s: affects %v, want %v", test.name, affected, test.affected)
		}
		granted, problems := c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: "taker"}, taker.Ports)
		var got []string
		for _, fe := range granted[0].Frontends {
			got = append(got, fe.Addr.String())
		}
		if strings.Join(got, " ") != test.served {
			t.Errorf("%s: taker has %v, want %s", test.name, got, test.served)
		}
		const why = "198.51.100.4 port 80/tcp is not served for this Service: 198.51.100.4 was an endpoint of Service default/multi before, which stays; choose another address"
		if refused := len(problems) == 1 && problems[0].Message == why; refused == strings.Contains(test.served, addr) {
			t.Errorf("%s: problems %v", test.name, problems)
		}
		last := host
		for _, claim := range test.claims {
			if claim.Service == host.Service {
				last = claim
			}
		}
		granted, _ = c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: "multi"}, last.Ports)
		if got := hosts(granted[0].Pools[nft.PoolCluster]); got != test.hosts {
			t.Errorf("%s: multi has %q, want %q", test.name, got, test.hosts)
		}
	}
}

// age is the age of all requests of a Service.
type age uint64

func (a age) Of(string, netip.AddrPort) uint64              { return uint64(a) }
func (a age) OfRange(string, netip.AddrPort, uint16) uint64 { return uint64(a) }

// A load balancer IP of one Service is not another one's external IP, unless that was first.
func Test1133_balancer_IPs_and_external_IPs(t *testing.T) {
	const addr = "198.51.100.4"
	at := func(port uint16, kind nft.FrontendKind) []nft.ServicePort {
		return []nft.ServicePort{{Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr(addr), Port: port, Kind: kind}}}}
	}
	refused := func(c *Claims, name string, ports []nft.ServicePort) bool {
		_, problems := c.Grant(object.Ref{Kind: "Service", Namespace: "default", Name: name}, ports)
		return len(problems) > 0
	}
	for _, test := range []struct {
		balancer, external uint64
		port               uint16
		lb, ext            bool // is refused
	}{
		{1, 2, 80, false, true},
		{1, 2, 81, false, true},
		{2, 1, 80, true, false},
		{2, 1, 81, false, false},
	} {
		var c Claims
		lb, ext := at(80, nft.LoadBalancerIP), at(test.port, nft.ExternalIP)
		c.Set(nil, Claim{Service: "default/ext", Ports: ext, Since: age(test.external)})
		got := c.Set(nil, Claim{Service: "default/lb", Ports: lb, Since: age(test.balancer)})
		if !slices.Equal(got, []string{"default/ext"}) {
			t.Errorf("%+v: a load balancer IP that comes affects %v", test, got)
		}
		if refused(&c, "lb", lb) != test.lb || refused(&c, "ext", ext) != test.ext {
			t.Errorf("%+v: refused: lb %v, ext %v", test, refused(&c, "lb", lb), refused(&c, "ext", ext))
		}
		// Its ports are others, which it asks for later: so it is at a restart, too.
		other := at(82, nft.LoadBalancerIP)
		got = c.Set(nil, Claim{Service: "default/lb", Ports: other, Since: age(3)})
		if is := refused(&c, "ext", ext); is || test.ext && !slices.Equal(got, []string{"default/ext"}) {
			t.Errorf("%+v: a load balancer IP that is younger affects %v, and the external IP is refused: %v", test, got, is)
		}
		if got := c.Set(nil, Claim{Service: "default/lb"}); !slices.Equal(got, []string{"default/ext"}) || refused(&c, "ext", ext) {
			t.Errorf("%+v: a load balancer IP that goes affects %v", test, got)
		}
		if c.Set(nil, Claim{Service: "default/ext"}); len(c.balancers)+len(c.externals)+len(c.byFrontend) > 0 {
			t.Errorf("%+v: something is left of nothing", test)
		}
	}
}
