package traffic

import (
	"bufio"
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// Connections that endpoints began themselves are counted by address, with the place towards which most ports are used, and are in
// lists with a mark. Those of others that are masqueraded are not, and neither is a client's port that such a connection has.
func TestEgress(t *testing.T) {
	addr, source, other := netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("10.1.2.12")
	mail := []nft.ServicePort{{
		ID: "default/mail", Family: nft.IPv4, Protocol: nft.UDP, Frontends: []nft.Frontend{{Addr: addr, Port: 53}},
		Egress: nft.Egress{Addr: addr, Sources: []netip.Addr{source, other}},
	}}
	left := func(id uint32, protocol nft.Protocol, from netip.Addr, as netip.AddrPort, to string) conntrack.Connection {
		return conntrack.Connection{ID: id, Family: nft.IPv4, Protocol: protocol, Left: true, Adopted: protocol == nft.TCP,
			Client: at(to), To: as, Endpoint: netip.AddrPortFrom(from, as.Port()), As: at(to), Answered: true, Open: true}
	}
	port := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(addr, n) }
	table := &table{entries: []conntrack.Connection{
		left(1, nft.TCP, source, port(4000), "203.0.113.5:443"),
		left(2, nft.TCP, source, port(4001), "203.0.113.5:443"),
		left(3, nft.TCP, other, port(4002), "203.0.113.5:443"),
		left(4, nft.UDP, other, port(53), "203.0.113.5:53"),                                         // from a port that clients connect to
		left(5, nft.TCP, netip.MustParseAddr("10.1.2.13"), at("192.0.2.1:4000"), "203.0.113.5:443"), // masqueraded
		left(6, nft.TCP, source, at("192.0.2.201:4000"), "203.0.113.5:443"),                         // with an earlier address
	}, counted: &nft.Totals{Egress: map[netip.Addr]uint64{source: 7, other: 3}}}
	a := tells(map[string][]nft.ServicePort{"default/mail": mail}, table)
	var taken []wire.EgressTraffic
	a.Leave(func(rows []wire.EgressTraffic) { taken = rows })
	seen, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9})
	if err != nil || len(seen.Egress) != 1 || len(taken) != 1 {
		t.Fatalf("%v: %+v, %+v; want a row", err, seen, taken)
	}
	const want = "192.0.2.200 for 10.1.2.11, 10.1.2.12; 4 open, 10 connections in all; 3 of 64512 ports used towards 203.0.113.5:443/TCP"
	if e := &seen.Egress[0]; e.Text() != want || e.By != source.String() || e.Sources[0].Open != 2 || e.Rate != nil {
		t.Errorf("%+v: %s, want %s", e, e.Text(), want)
	}
	if e := &seen.Egress[0]; e.Sources[0].Towards != "203.0.113.5:443/TCP" || e.Sources[1].Towards != "203.0.113.5:53/UDP" || e.Sources[0].Uplink != "" {
		t.Errorf("the sources are %+v", e.Sources)
	}
	if alone, err := a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9, Source: other}); err != nil || len(alone.Egress) != 1 || len(alone.Egress[0].Sources) != 1 || alone.Egress[0].Sources[0].Address != other.String() {
		t.Errorf("%v: of one source %+v", err, alone.Egress)
	}
	if seen.Totals.Open != 0 {
		t.Errorf("%d connections of clients, want none", seen.Totals.Open)
	}
	if seen, err := a.Traffic(wire.TrafficQuery{Namespace: "default", Service: "web", Sort: "name", Limit: 9}); err != nil || len(seen.Egress) != 0 {
		t.Errorf("%v: of another Service %+v", err, seen.Egress)
	}
	listed, err := a.Connections(wire.ConnectionQuery{Limit: 9})
	if err != nil || len(listed.Connections) != 4 || !listed.Connections[0].Out || listed.Connections[0].Service != "mail" {
		t.Errorf("%v: %+v; want 4 that left", err, listed)
	}
	table.now, table.counted.Egress[source] = table.now.Add(10*time.Second), 27
	if seen, err = a.Traffic(wire.TrafficQuery{Sort: "name", Limit: 9}); err != nil || seen.Egress[0].Rate == nil || *seen.Egress[0].Rate != 2 {
		t.Errorf("%v: the rate of %+v, want 2", err, seen.Egress)
	}
	if text := seen.Egress[0].Text(); !strings.Contains(text, "; 4 open, 2.0 new/s, 30 connections in all; ") {
		t.Errorf("with a rate it is %q", text)
	}
	var page bytes.Buffer
	out := bufio.NewWriter(&page)
	egressSeries(out, seen.Egress)
	out.Flush()
	for _, line := range []string{`svcctl_egress_connections_total{namespace="default",service="mail"} 30`, `svcctl_egress_port_use_ratio{address="192.0.2.200"} 0.0000`} {
		if !strings.Contains(page.String(), line+"\n") {
			t.Errorf("%q is not in\n%s", line, page.String())
		}
	}
}
