package traffic

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// tells are Queries about Services, and about the connections of a table.
func tells(served map[string][]nft.ServicePort, table *table) *Queries {
	a := NewQueries(func(service string) []nft.ServicePort { return served[service] },
		func(int) (map[string][]nft.ServicePort, bool, int) { return served, true, 1 }, func() (map[string][]nft.ServicePort, nft.Box) { return served, nft.Box{} }, nil)
	o := table.observer()
	o.ports = a.observer.ports
	a.observer = o
	return a
}

// endpointsIn are the rows of the endpoints of the only port, each as text.
func endpointsIn(t *testing.T, a *Queries) (rows []wire.EndpointTraffic) {
	t.Helper()
	seen, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9, Endpoints: true})
	if err != nil || len(seen.Ports) != 1 {
		t.Fatalf("%+v, %v; want one port", seen, err)
	}
	return seen.Ports[0].Endpoints
}

// Between two looks a port has its own endpoints, also when the Service has lost the ports before it.
func TestEndpointsAfterAPortIsRemoved(t *testing.T) {
	port := func(name, frontend, endpoint string) nft.ServicePort {
		fe := at(frontend)
		return nft.ServicePort{ID: "shop/web/" + name, Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: fe.Addr(), Port: fe.Port()}}, Pools: [2][]netip.AddrPort{nft.PoolCluster: {at(endpoint)}}}
	}
	http, https := port("http", "10.96.0.10:80", "10.1.2.11:8080"), port("https", "10.96.0.10:443", "10.1.2.11:8443")
	served := map[string][]nft.ServicePort{"shop/web": {http, https}}
	a := tells(served, &table{})
	if _, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9}); err != nil {
		t.Fatal(err)
	}
	served["shop/web"] = []nft.ServicePort{https}
	seen, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9, Endpoints: true})
	if err != nil || len(seen.Ports) != 2 {
		t.Fatalf("%+v, %v; want two ports", seen, err)
	}
	for _, p := range seen.Ports {
		var got []string
		for _, e := range p.Endpoints {
			got = append(got, e.Endpoint)
		}
		if want := map[string][]string{"https": {"10.1.2.11:8443"}}[p.Port]; !slices.Equal(got, want) {
			t.Errorf("port %s has the endpoints %q, want %q", p.Port, got, want)
		}
	}
}

// Endpoints of a range are addresses, in their order.
func TestEndpointsOfARange(t *testing.T) {
	address := func(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), 0) }
	a := tells(map[string][]nft.ServicePort{"default/ftp": {{
		ID: "default/ftp/tcp-7000-7009", Family: nft.IPv4, Protocol: nft.TCP,
		Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 7000, Last: 7009}},
		Pools:     [2][]netip.AddrPort{nft.PoolCluster: {address("10.1.2.9"), address("10.1.2.11")}},
	}}}, &table{entries: []conntrack.Connection{connection(1, "10.96.0.10:7003", "10.1.2.11:7003", true, true)}})
	var got []string
	for _, e := range endpointsIn(t, a) {
		got = append(got, e.Endpoint)
	}
	if diff := cmp.Diff([]string{"10.1.2.9", "10.1.2.11"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Endpoints of a relayed port follow its listener, those that it has left included, and the page for Prometheus has the
// connections once.
func TestEndpointsOfARelayedPort(t *testing.T) {
	endpoints := []netip.AddrPort{at("10.1.2.11:8080"), at("10.1.2.12:8080")}
	a := tells(map[string][]nft.ServicePort{"shop/web": {{
		ID: "shop/web/http", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
		Pools: [2][]netip.AddrPort{nft.PoolCluster: endpoints, nft.PoolLocal: endpoints[:1]},
		Relay: [2]netip.AddrPort{nft.PoolCluster: at("10.1.2.1:40001"), nft.PoolLocal: at("10.1.2.1:40002")},
	}}}, &table{entries: []conntrack.Connection{
		connection(1, "10.96.0.10:80", "10.1.2.1:40001", true, true), connection(2, "10.96.0.10:80", "10.1.2.1:40001", true, true),
	}})
	a.CountRelayed(func(service string, p *nft.ServicePort) *wire.RelayLoad {
		if service != "shop/web" || p.ID != "shop/web/http" {
			t.Errorf("asked for %s, port %s", service, p.ID)
		}
		return &wire.RelayLoad{Open: map[string]int{"10.1.2.12:8080": 1, "10.1.2.9:8080": 1}}
	}, nil)
	open := func(n int) wire.ConnectionCounts { return wire.ConnectionCounts{Open: n} }
	want := []wire.EndpointTraffic{
		{Endpoint: "10.1.2.1:40001", Relay: true, ConnectionCounts: open(2)},
		{Endpoint: "10.1.2.1:40002", Relay: true},
		{Endpoint: "10.1.2.9:8080", Relayed: true, ConnectionCounts: open(1)},
		{Endpoint: "10.1.2.11:8080", Relayed: true},
		{Endpoint: "10.1.2.12:8080", Relayed: true, ConnectionCounts: open(1)},
	}
	if diff := cmp.Diff(want, endpointsIn(t, a)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	page := scrape(t, a, "/metrics/endpoints?namespace=shop", http.StatusOK)
	if !strings.Contains(page, `endpoint="10.1.2.1:40001"} 2`) || strings.Contains(page, "10.1.2.12:8080") {
		t.Errorf("connections of a relayed port are there twice, or not at all:\n%s", page)
	}
}

// A relayed connection is listed with the endpoints that the appliance has connections to for it, and found by them.
func TestRelayedConnections(t *testing.T) {
	entries := []conntrack.Connection{
		connection(1, "10.96.0.10:80", "10.1.2.1:40001", true, true), connection(2, "10.96.0.10:80", "10.1.2.1:40001", true, true),
		connection(3, "10.96.0.11:80", "10.1.2.12:8080", true, true),
	}
	for i := range entries {
		entries[i].As = netip.AddrPortFrom(entries[i].Client.Addr(), 4000+uint16(entries[i].ID))
	}
	table := &table{entries: entries}
	frontend := func(a string) []nft.Frontend { return []nft.Frontend{{Addr: netip.MustParseAddr(a), Port: 80}} }
	a := tells(map[string][]nft.ServicePort{
		"shop/web": {{ID: "shop/web", Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontend("10.96.0.10"), Relay: [2]netip.AddrPort{at("10.1.2.1:40001")}}},
		"shop/api": {{ID: "shop/api", Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontend("10.96.0.11")}},
	}, table)
	a.CountRelayed(nil, func() map[RelayedClient][]netip.AddrPort {
		return map[RelayedClient][]netip.AddrPort{
			{nft.TCP, at("203.0.113.2:4001"), at("10.1.2.1:40001")}: {at("10.1.2.12:8080"), at("10.1.2.11:8080"), at("10.1.2.12:8080")},
			{nft.UDP, at("203.0.113.2:4002"), at("10.1.2.1:40001")}: {at("10.1.2.13:8080")}, // another client
		}
	})
	for _, c := range []struct {
		q    wire.ConnectionQuery
		want map[uint32][]string
	}{
		{wire.ConnectionQuery{}, map[uint32][]string{1: {"10.1.2.11:8080", "10.1.2.12:8080"}, 2: nil, 3: nil}},
		{wire.ConnectionQuery{Endpoint: at("10.1.2.12:8080")}, map[uint32][]string{1: {"10.1.2.11:8080", "10.1.2.12:8080"}, 3: nil}},
		{wire.ConnectionQuery{EndpointAddr: netip.MustParseAddr("10.1.2.1")}, map[uint32][]string{1: {"10.1.2.11:8080", "10.1.2.12:8080"}, 2: nil}},
		{wire.ConnectionQuery{Endpoint: at("10.1.2.13:8080")}, map[uint32][]string{}},
	} {
		c.q.Limit = 9
		list, err := a.Connections(c.q)
		if err != nil {
			t.Fatal(err)
		}
		got := map[uint32][]string{}
		for _, conn := range list.Connections {
			got[conn.ID] = conn.RelayedTo
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.q, diff)
		}
	}
}

// Ports with traffic come first, and those without follow by name; a filter, a namespace and a limit choose among both, and what was
// left out is counted.
func TestTrafficOrder(t *testing.T) {
	served := map[string][]nft.ServicePort{}
	for i, key := range []string{"shop/a", "shop/b", "shop/c", "other/d", "other/e"} {
		served[key] = []nft.ServicePort{
			{ID: key + "/http", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}}},
			{ID: key + "/http", Family: nft.IPv6, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("fd00::1"), Port: uint16(80 + i)}}},
		}
	}
	v6 := connection(3, "10.96.0.1:80", "10.1.2.11:8080", false, false)
	v6.Family, v6.To, v6.Endpoint = nft.IPv6, at("[fd00::1]:83"), at("[fd00:1::1]:8080")
	a := tells(served, &table{entries: []conntrack.Connection{
		connection(1, "10.96.0.2:80", "10.1.2.11:8080", true, true), connection(2, "10.96.0.3:80", "10.1.2.11:8080", true, true), v6,
		connection(4, "10.96.0.2:80", "10.1.2.11:8080", true, true),
	}})
	for _, c := range []struct {
		q    wire.TrafficQuery
		want string
		more int
	}{
		{wire.TrafficQuery{Sort: "open", Limit: 9}, "c d e a b", 0},
		{wire.TrafficQuery{Sort: "unanswered", Limit: 3}, "d e a", 2},
		{wire.TrafficQuery{Sort: "name", Limit: 9}, "d e a b c", 0},
		{wire.TrafficQuery{Sort: "refused", Limit: 9}, "d e a b c", 0},
		{wire.TrafficQuery{Sort: "open", Limit: 2, Namespace: "shop"}, "c a", 1},
		{wire.TrafficQuery{Sort: "open", Limit: 9, Filter: "shop/*"}, "c a b", 0},
		{wire.TrafficQuery{Sort: "open", Limit: 9, Filter: "/b:"}, "b", 0},
		{wire.TrafficQuery{Sort: "open", Limit: 1, Namespace: "other"}, "d", 1},
	} {
		seen, err := a.Traffic(c.q)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range seen.Ports {
			names = append(names, p.Service)
			if want := map[string][2]int{"c": {2, 0}, "d": {1, 1}}[p.Service]; p.Open != want[0] || p.Unanswered != want[1] {
				t.Errorf("%s has %+v, want %v", p.Service, p.ConnectionCounts, want)
			}
		}
		if got := strings.Join(names, " "); got != c.want || seen.More != c.more {
			t.Errorf("%+v: %s and %d more, want %s and %d", c.q, got, seen.More, c.want, c.more)
		}
	}
	busy, quiet, err := a.Services()
	if err != nil || len(busy) != 2 || busy["shop/c"].Open != 2 || busy["other/d"].Unanswered != 1 || quiet.Open != 0 {
		t.Errorf("Services %v, the others %+v, %v", busy, quiet, err)
	}
}

// Connections that an endpoint's segment took up are those of a port that asks for it, and others whose source is translated are
// left out, whatever port they were given.
func TestAdoptedConnections(t *testing.T) {
	port := func(name string, adopt bool, frontends ...nft.Frontend) []nft.ServicePort {
		for i := range frontends {
			frontends[i].Adopt = adopt
		}
		return []nft.ServicePort{{ID: "default/" + name + "/", Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontends, Pools: [2][]netip.AddrPort{nft.PoolCluster: {at("10.1.2.11:80")}}}}
	}
	vip := func(text string) nft.Frontend { return nft.Frontend{Addr: at(text).Addr(), Port: at(text).Port()} }
	a := tells(map[string][]nft.ServicePort{
		"default/kept": port("kept", true, vip("192.0.2.51:80"), nft.Frontend{Port: 30080}), "default/other": port("other", false, vip("192.0.2.52:80")),
	}, &table{entries: []conntrack.Connection{
		{ID: 1, Family: nft.IPv4, Protocol: nft.TCP, To: at("192.0.2.51:80"), Endpoint: at("10.1.2.11:80"), Answered: true, Open: true, Adopted: true},
		{ID: 2, Family: nft.IPv4, Protocol: nft.TCP, To: at("192.0.2.52:80"), Endpoint: at("10.1.2.11:80"), Answered: true, Open: true, Adopted: true},
		{ID: 3, Family: nft.IPv4, Protocol: nft.TCP, To: at("192.0.2.1:30080"), Endpoint: at("10.1.2.11:999"), Answered: true, Open: true, Adopted: true},
	}})
	listed, err := a.Connections(wire.ConnectionQuery{Limit: 9})
	if err != nil || len(listed.Connections) != 1 || listed.Connections[0].ID != 1 {
		t.Errorf("%+v, %v; want connection 1", listed, err)
	}
	seen, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9})
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]int{}
	for _, p := range seen.Ports {
		open[p.Service] = p.Open
	}
	if diff := cmp.Diff(map[string]int{"kept": 1, "other": 0}, open); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Services that do not answer come first, with or without connections, then those with a warning, then the busiest; failures have
// rates, and the totals are of all ports, of those that the limit leaves out too.
func Test931_services_that_do_not_answer_come_first(t *testing.T) {
	served := map[string][]nft.ServicePort{}
	entries := []conntrack.Connection{}
	for i, name := range []string{"busy", "calm", "dead", "doubtful", "refuses"} {
		addr := netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
		served["shop/"+name] = []nft.ServicePort{{
			ID: "shop/" + name + "/http", Family: nft.IPv4, Protocol: nft.TCP, Pools: [2][]netip.AddrPort{nft.PoolCluster: {at("10.1.2.11:80")}},
			Frontends: []nft.Frontend{{Port: 30080, Kind: nft.NodePort}, {Addr: addr, Port: 80}, {Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Port: 80, Kind: nft.LoadBalancerIP}},
		}}
		for id := range 5 - i {
			if name != "calm" && name != "dead" {
				entries = append(entries, connection(uint32(10*i+id), netip.AddrPortFrom(addr, 80).String(), "10.1.2.11:80", true, true))
			}
		}
	}
	table := &table{entries: entries}
	a := tells(served, table)
	failed := map[string]map[netip.AddrPort]uint64{"shop/dead/http": {at("10.1.2.11:80"): 7}}
	a.Judge(func() map[string]map[netip.AddrPort]uint64 { return maps.Clone(failed) }, nil, func() (map[string]wire.Judged, map[string]int, string) {
		return map[string]wire.Judged{"shop/dead": {State: wire.ServiceFails, Why: "it has no endpoint"}, "shop/refuses": {State: wire.ServiceFails}, "shop/doubtful": {State: wire.ServiceWarning}},
			map[string]int{wire.ServiceFails: 2}, "2 of 5 Services do not answer"
	})
	order := func(q wire.TrafficQuery) (names []string, seen *wire.Traffic) {
		seen, err := a.Traffic(q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range seen.Ports {
			names = append(names, seen.Ports[i].Service)
		}
		return names, seen
	}
	names, seen := order(wire.TrafficQuery{Sort: "state", Limit: 9})
	if diff := cmp.Diff([]string{"refuses", "dead", "doubtful", "busy", "calm"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if dead := seen.Ports[1]; dead.State != wire.ServiceFails || dead.Why != "it has no endpoint" || dead.Failed != 7 || strings.Join(dead.Frontends, " ") != "192.0.2.2:80 10.96.0.2:80 :30080" {
		t.Errorf("the dead one: %+v", dead)
	}
	if names, seen := order(wire.TrafficQuery{Sort: "state", Limit: 2}); strings.Join(names, " ") != "refuses dead" || seen.More != 3 || seen.Totals.Open != 8 || seen.Verdict != "2 of 5 Services do not answer" || seen.States[wire.ServiceFails] != 2 {
		t.Errorf("the first two: %v, and %d more, %d open, %q", names, seen.More, seen.Totals.Open, seen.Verdict)
	}
	if names, _ := order(wire.TrafficQuery{Sort: "state", Limit: 9, Filter: "d*:http"}); len(names) != 0 {
		t.Errorf("a filter of the whole name finds %v", names)
	}
	if names, seen := order(wire.TrafficQuery{Sort: "state", Limit: 9, Filter: "/d"}); strings.Join(names, " ") != "dead doubtful" || seen.Totals.Open != 2 {
		t.Errorf("with a filter: %v, %d open", names, seen.Totals.Open)
	}
	failed = map[string]map[netip.AddrPort]uint64{"shop/dead/http": {at("10.1.2.11:80"): 17}}
	table.now = table.now.Add(5 * time.Second)
	_, seen = order(wire.TrafficQuery{Sort: "state", Limit: 9, Endpoints: true})
	dead := seen.Ports[1]
	if dead.Service != "dead" || *dead.FailedRate != 2 || dead.Failed != 17 || *dead.Endpoints[0].FailedRate != 2 || *seen.Ports[0].FailedRate != 0 {
		t.Errorf("ten failures in 5 s: %+v", dead)
	}

	// An endpoint that fails after the look is shown with its failures.
	failed = map[string]map[netip.AddrPort]uint64{"shop/calm/http": {at("10.1.2.11:80"): 3}}
	a.health = func(string, string) []wire.EndpointHealth {
		return []wire.EndpointHealth{{Service: "shop/calm", Port: "http", Protocol: "TCP", Endpoint: "10.1.2.11:80", State: wire.HealthDown, Check: wire.CheckOfFailures}}
	}
	_, after := order(wire.TrafficQuery{Namespace: "shop", Service: "calm", Sort: "open", Limit: 9, Endpoints: true})
	if calm := after.Ports[0]; !after.At.Equal(seen.At) || calm.Failed != 3 || calm.Endpoints[0].State != wire.HealthDown || calm.Endpoints[0].Failed != 3 || *calm.Endpoints[0].FailedRate != 0 {
		t.Errorf("three failures after the look: %+v", calm)
	}
}
