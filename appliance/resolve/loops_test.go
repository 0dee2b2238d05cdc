package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// portOf is a port at some VIPs with some endpoints.
func portOf(vips, endpoints string) []nft.ServicePort {
	p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.TCP}
	for _, vip := range strings.Fields(vips) {
		text, host := strings.CutSuffix(vip, "!") // an address of the host
		p.Frontends = append(p.Frontends, nft.Frontend{Addr: netip.MustParseAddr(text), Port: 80, HostOwned: host})
	}
	for _, endpoint := range strings.Fields(endpoints) {
		at := netip.AddrPortFrom(netip.MustParseAddr(endpoint), 8080)
		p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], at)
		p.Pools[nft.PoolLocal] = append(p.Pools[nft.PoolLocal], at)
	}
	return []nft.ServicePort{p}
}

func TestEndpointsThatLeadBack(t *testing.T) {
	var c Claims
	ports := map[string][]nft.ServicePort{}
	set := func(name, vips, endpoints string) []string {
		ports[name] = portOf(vips, endpoints)
		return c.Set("default/"+name, time.Unix(1, 0), ports[name])
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
	set("web", "172.30.0.1", l1+" "+vip+" "+host)
	want("web", l1+" "+vip+" "+host, 0)
	if got := set("lb", "172.30.0.2 "+vip+" "+host+"!", "172.30.0.2 "+l2); !slices.Equal(got, []string{"default/web"}) {
		t.Errorf("a VIP that comes affects %s", got)
	}
	want("web", l1+" "+host, 1)
	want("lb", l2, 1) // its own address leads back as well
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
	for name := range ports {
		c.Set("default/"+name, time.Unix(1, 0), nil)
	}
	if n := len(c.loops.known) + len(c.loops.vips) + len(c.loops.backends); n > 0 {
		t.Errorf("%d entries are left of nothing", n)
	}
}
