package reconcile

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
)

// Services whose endpoints two frontends would adopt have a problem, until one of them asks no more.
func TestAdoptingTwice(t *testing.T) {
	port := func(vip string, balance nft.Balance, endpoints ...string) []nft.ServicePort {
		p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.TCP, Balance: balance, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr(vip), Port: 80, Adopt: true}}}
		for _, text := range endpoints {
			p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.MustParseAddrPort(text))
		}
		return []nft.ServicePort{p}
	}
	var a adopting
	is := func(when string, want ...string) {
		t.Helper()
		got := a.problems()
		if len(got) != len(want) {
			t.Fatalf("%s: problems are %+v, want %d", when, got, len(want))
		}
		for i, text := range want {
			if line := got[i].Object.Name + " " + got[i].Message; !strings.Contains(line, text) {
				t.Errorf("%s: %q is not in %q", when, text, line)
			}
		}
	}
	a.set("default/a", port("198.51.100.1", nft.Maglev, "10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"))
	a.set("default/c", port("198.51.100.3", nft.Maglev, "10.1.0.1:81"))
	is("nothing is shared")
	a.set("default/b", port("198.51.100.2", nft.Maglev, "10.1.0.2:80", "10.1.0.3:80"))
	both := "the endpoint 10.1.0.2:80 is behind 198.51.100.1:80 and 198.51.100.2:80, and"
	is("two are shared", "a "+both, "b "+both)
	is("two are shared", "and 1 more endpoint is shared", "")
	a.set("default/b", nil)
	is("one has gone")
	two := port("198.51.100.1", nft.Maglev, "10.1.0.1:80")
	two[0].Frontends = append(two[0].Frontends, nft.Frontend{Addr: netip.MustParseAddr("198.51.100.9"), Port: 80, Adopt: true})
	a.set("default/a", two)
	is("two addresses of a Service", "198.51.100.1:80 and 198.51.100.9:80")
	two[0].Frontends[1].Adopt = false
	a.set("default/a", two)
	is("one of them")
	// Each address of destination-hash has one endpoint of all.
	p := port("198.51.100.1", nft.DestinationHash, "10.1.0.1:80", "10.1.0.2:80")
	mine, _ := p[0].Choice(&p[0].Frontends[0], nft.PoolCluster)(netip.AddrPort{})
	other := "10.1.0.1:80"
	if mine.String() == other {
		other = "10.1.0.2:80"
	}
	a.set("default/a", p)
	a.set("default/b", port("198.51.100.2", nft.Maglev, other))
	is("nobody gets there by both")
}
