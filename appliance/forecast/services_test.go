package forecast

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
)

func endpointsAt(addrs ...string) (list []netip.AddrPort) {
	for _, a := range addrs {
		list = append(list, netip.MustParseAddrPort(a))
	}
	return list
}

// portWith is a port of default/web, as change makes it.
func portWith(change func(*nft.ServicePort)) nft.ServicePort {
	p := nft.ServicePort{ID: "default/web/http", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}}
	p.Pools[nft.PoolCluster] = endpointsAt("10.1.1.1:8080", "10.1.1.2:8080")
	p.Pools[nft.PoolLocal] = endpointsAt("10.1.1.1:8080")
	if change != nil {
		change(&p)
	}
	return p
}

func text(changes []wire.PlannedChange) string {
	var lines []string
	for _, c := range changes {
		line := strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %s", c.Of, c.Port, c.Family, c.Did, c.Name))
		if c.What != "" {
			line += fmt.Sprintf(" %s: %s -> %s", c.What, c.From, c.To)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestService holds every sentence about a port against the change that it tells.
func TestService(t *testing.T) {
	for want, change := range map[string]func(*nft.ServicePort){
		"": nil,
		"frontend http/IPv4 ends 10.96.0.1:80\nfrontend http/IPv4 begins 30080": func(p *nft.ServicePort) {
			p.Frontends = []nft.Frontend{{Port: 30080}}
		},
		"frontend http/IPv4 begins 10.96.0.1:8000-8010": func(p *nft.ServicePort) {
			p.Frontends = append(p.Frontends, nft.Frontend{Addr: p.Frontends[0].Addr, Port: 8000, Last: 8010})
		},
		"endpoint http/IPv4 ends 10.1.1.2:8080\nendpoint http/IPv4 begins 10.1.1.3:8080": func(p *nft.ServicePort) {
			p.Pools[nft.PoolCluster] = endpointsAt("10.1.1.1:8080", "10.1.1.3:8080")
		},
		"port http/IPv4 changes local endpoints: 10.1.1.1:8080 -> none": func(p *nft.ServicePort) { p.Pools[nft.PoolLocal] = nil },
		"port http/IPv4 changes balance: random -> maglev":              func(p *nft.ServicePort) { p.Balance = nft.Maglev },
		"port http/IPv4 changes weights: none -> 10.1.1.1:8080=3":       func(p *nft.ServicePort) { p.Weights[nft.PoolCluster] = map[netip.AddrPort]uint16{p.Pools[0][0]: 3} },
		"port http/IPv4 changes idle timeout: the host's -> 5m0s":       func(p *nft.ServicePort) { p.Idle = 5 * time.Minute },
		"port http/IPv4 changes relay: none -> 127.0.0.1:4000":          func(p *nft.ServicePort) { p.Relay[nft.PoolCluster] = netip.MustParseAddrPort("127.0.0.1:4000") },
		"port http/IPv4 changes limits: none -> 9/second, 2 open of a client": func(p *nft.ServicePort) {
			p.Limits = nft.Limits{Rate: nft.Rate{Count: 9, Per: time.Second}, ClientConnections: 2}
		},
		"port http/IPv4 changes session affinity: none -> 1h0m0s of a client (of a /24), for all ports of the Service": func(p *nft.ServicePort) {
			p.Affinity, p.AffinityOptions = time.Hour, nft.AffinityOptions{PrefixLen: 24, WholeService: true}
		},
		"port http/IPv4 changes slots: by weights -> by open connections": func(p *nft.ServicePort) { p.Tables[nft.PoolCluster] = p.Pools[nft.PoolCluster] },
		"frontend http/IPv4 changes 10.96.0.1:80 clients outside: all endpoints, else refused -> local endpoints, else dropped": func(p *nft.ServicePort) {
			p.Frontends[0].External = nft.Route{Pool: nft.PoolLocal, Fallback: nft.Blackhole}
		},
		"frontend http/IPv4 changes 10.96.0.1:80 source addresses: kept -> masqueraded": func(p *nft.ServicePort) { p.Frontends[0].SNAT = nft.SNATAlways },
		"frontend http/IPv4 changes 10.96.0.1:80 permitted clients: everybody -> 192.0.2.0/24": func(p *nft.ServicePort) {
			p.Frontends[0].Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		},
		"frontend http/IPv4 changes 10.96.0.1:80 permitted clients: everybody -> everybody, not of bad": func(p *nft.ServicePort) {
			p.Frontends[0].Sets = &nft.SourceSets{Deny: []*nft.SourceSet{{Name: "bad"}}}
		},
		"frontend http/IPv4 changes 10.96.0.1:80 reached by: everybody -> clients inside":    func(p *nft.ServicePort) { p.Frontends[0].InsideOnly = true },
		"frontend http/IPv4 changes 10.96.0.1:80 rest of the address: refused -> the host's": func(p *nft.ServicePort) { p.Frontends[0].HostOwned = true },
		"frontend http/IPv4 changes 10.96.0.1:80 takeover of connections: no -> yes":         func(p *nft.ServicePort) { p.Frontends[0].Adopt = true },
	} {
		if got := text(Service([]nft.ServicePort{portWith(nil)}, []nft.ServicePort{portWith(change)})); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	one := []nft.ServicePort{portWith(nil)}
	const begins = "frontend http/IPv4 begins 10.96.0.1:80\nendpoint http/IPv4 begins 10.1.1.1:8080\nendpoint http/IPv4 begins 10.1.1.2:8080"
	if got := text(Service(nil, one)); got != begins {
		t.Errorf("a new Service: got\n%s\nwant\n%s", got, begins)
	}
	if got, want := text(Service(one, nil)), strings.ReplaceAll(begins, "begins", "ends"); got != want {
		t.Errorf("a Service that goes: got\n%s\nwant\n%s", got, want)
	}
}

// TestTables: the elements of sets that come and go as a whole are listed, which no operation
// names.
func TestTables(t *testing.T) {
	box := nft.Box{}
	c := nft.NewCompiler()
	c.Load(nft.State{Box: box, Services: map[string][]nft.ServicePort{"default/web": {portWith(nil)}}})
	tr, _ := c.Foresee(nil, map[string][]nft.ServicePort{"default/web": nil})
	tables := Tables(&tr, nft.Printer{})
	if len(tables) != 1 || tables[0].Family != "ip" || tables[0].Did != wire.Deleted {
		t.Fatalf("without the only Service: %+v", tables)
	}
	removed := map[string][]string{}
	for _, s := range tables[0].Sets {
		removed[s.Name] = s.Removed
	}
	if got, want := strings.Join(removed["backends"], ", "), "10.96.0.1 . tcp . 80 . 0 : 10.1.1.1 . 8080, 10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080"; got != want {
		t.Errorf("removed backends %q, want %q", got, want)
	}
	tr, _ = c.Foresee(nil, map[string][]nft.ServicePort{"default/web": {portWith(func(p *nft.ServicePort) { p.Pools[nft.PoolCluster][1] = netip.MustParseAddrPort("10.1.1.9:8080") })}})
	for _, s := range Tables(&tr, nft.Printer{})[0].Sets {
		if s.Name == "backends" && (len(s.Changed) != 1 || s.Changed[0].From != "10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080" || s.Changed[0].To != "10.96.0.1 . tcp . 80 . 1 : 10.1.1.9 . 8080") {
			t.Errorf("another endpoint: %+v", s)
		}
	}
}

// The hosts that leave with an address are a change of a port like others.
func TestEgressIsForeseen(t *testing.T) {
	before := portWith(nil)
	after := portWith(func(p *nft.ServicePort) {
		p.Egress = nft.Egress{Addr: netip.MustParseAddr("192.0.2.200"), Sources: []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2")}}
	})
	const want = "port http/IPv4 changes egress: none -> 192.0.2.200 for 10.1.1.1, 10.1.1.2"
	if got := text(Service([]nft.ServicePort{before}, []nft.ServicePort{after})); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
