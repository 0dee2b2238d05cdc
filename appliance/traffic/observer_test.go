package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// table is a connection tracking table, and a clock.
type table struct {
	entries []conntrack.Connection
	err     error
	reads   int
	now     time.Time
	ports   []Port
	// counted are the kernel's counters; nil: it does not count.
	counted *nft.Totals
}

func (t *table) observer() *Observer {
	var totals func() (nft.Totals, error)
	if t.counted != nil {
		totals = func() (nft.Totals, error) { return *t.counted, nil }
	}
	o := New(func(each func(*conntrack.Connection)) (int, error) {
		t.reads++
		for _, c := range t.entries {
			each(&c)
		}
		return len(t.entries), t.err
	}, func(int) (map[string][]Port, bool, int) { return byService(t.ports), true, 1 }, totals)
	t.now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o.now = func() time.Time { return t.now }
	return o
}

// byService returns ports by their Service.
func byService(ports []Port) map[string][]Port {
	of := map[string][]Port{}
	for _, p := range ports {
		of[p.Service] = append(of[p.Service], p)
	}
	return of
}

// frontends returns IPv4 frontends.
func frontends(p nft.Protocol, all ...netip.AddrPort) (list []conntrack.Frontend) {
	for _, at := range all {
		list = append(list, conntrack.Frontend{Addr: at.Addr(), Family: nft.IPv4, Protocol: p, Port: at.Port()})
	}
	return list
}

var web = Port{
	Service: "default/web", Name: "http", Family: nft.IPv4, Protocol: nft.TCP,
	Frontends: frontends(nft.TCP, at("10.96.0.10:80"), netip.AddrPortFrom(netip.Addr{}, 30080)),
	Endpoints: []netip.AddrPort{at("10.1.2.11:8080"), at("10.1.2.12:8080")},
}

func connection(id uint32, to, endpoint string, answered, open bool) conntrack.Connection {
	return conntrack.Connection{ID: id, Family: nft.IPv4, Protocol: nft.TCP, Client: at("203.0.113.2:4000"), To: at(to), Endpoint: at(endpoint), Answered: answered, Open: open}
}

func TestLook(t *testing.T) {
	ports := []Port{web, {Service: "default/dns", Family: nft.IPv4, Protocol: nft.UDP, Frontends: frontends(nft.UDP, at("10.96.0.10:80"))}}
	table := &table{ports: ports, entries: []conntrack.Connection{
		connection(1, "10.96.0.10:80", "10.1.2.11:8080", true, true),
		connection(2, "10.1.2.1:30080", "10.1.2.11:8080", false, false), // a node port, on any address of the box
		connection(3, "10.96.0.10:80", "10.1.2.99:8080", true, true),    // gone from the documents
		connection(4, "10.96.0.10:80", "10.1.2.11:8080", true, false),   // closed
		connection(5, "10.96.0.11:80", "10.1.2.11:8080", true, true),    // of another Service
	}}
	o := table.observer()
	first, err := o.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	want := PortCounts{Port: &ports[0], Counts: Counts{Open: 2, Unanswered: 1}, Endpoints: map[netip.AddrPort]*EndpointCounts{
		at("10.1.2.11:8080"): {Counts: Counts{Open: 1, Unanswered: 1}},
		at("10.1.2.99:8080"): {Counts: Counts{Open: 1}, Leaving: true},
	}}
	equal := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmpopts.IgnoreUnexported(Port{}, PortCounts{})}
	if diff := cmp.Diff(want, *first.Ports[0], equal); diff != "" || first.Entries != 5 || first.Since != 0 {
		t.Errorf("of %d entries since %s (-want +got):\n%s", first.Entries, first.Since, diff)
	}
	if len(first.Ports) > 1 {
		t.Errorf("the Service of another protocol has %+v", first.Ports[1])
	}

	table.entries = append(table.entries[1:], connection(6, "10.96.0.10:80", "10.1.2.12:8080", true, true), connection(7, "10.96.0.10:80", "10.1.2.12:8080", false, false))
	table.now = table.now.Add(4 * time.Second)
	second, err := o.Snapshot()
	if err != nil || second.Since != 4*time.Second || second.Ports[0].New != 2 || second.Ports[0].Endpoints[at("10.1.2.12:8080")].New != 2 {
		t.Errorf("since %s: %+v, %v; want two new ones", second.Since, second.Ports[0].Counts, err)
	}
	history := o.History("default/web/http")
	if len(history) != 2 || history[0].Rate != nil || *history[1].Rate != 0.5 || history[1].Open != 2 {
		t.Errorf("the history is %+v", history)
	}
	if h := o.History("default/dns"); h != nil {
		t.Errorf("a Service without connections has the history %v", h)
	}
}

// Viewers share a look. The first two come at once, as rates need two, and the next one is delayed by the cost of both.
func Test1080_the_first_two_looks_come_at_once(t *testing.T) {
	table := &table{ports: []Port{web}}
	o := table.observer()
	var cost, all time.Duration
	o.used = func() time.Duration { all += cost; return all }
	look := func(after time.Duration, reads int) {
		t.Helper()
		table.now = table.now.Add(after)
		if _, err := o.Snapshot(); err != nil || table.reads != reads {
			t.Errorf("after %s: %d reads, %v; want %d", after, table.reads, err, reads)
		}
	}
	look(0, 1)
	look(minPause/4-1, 1)
	look(1, 2)
	look(minPause-1, 2)
	look(time.Hour, 3)
	cost = 100 * time.Millisecond
	look(time.Hour, 4)
	look(minPause, 5)
	look(minPause, 5)
	look(maxShare*cost-2*minPause-1, 5)
	look(1, 6)
	look(maxShare*cost-1, 6)
	look(1, 7)

	table.now, table.err = table.now.Add(time.Hour), errors.New("no rights")
	if _, err := o.Snapshot(); err == nil {
		t.Error("a look that failed has no error")
	}
	table.err = nil
	look(0, 9)
	o.drop()
	l, err := o.Snapshot()
	if err != nil || l.Since != 0 {
		t.Errorf("after it was dropped: since %s, %v", l.Since, err)
	}
}

// The history is bounded, and ends when a Service is gone or idle for all of it.
func TestHistoryIsBounded(t *testing.T) {
	table := &table{ports: []Port{web}, entries: []conntrack.Connection{connection(1, "10.96.0.10:80", "10.1.2.11:8080", true, true)}}
	o := table.observer()
	look := func() {
		t.Helper()
		o.cost = 0
		table.now = table.now.Add(minPause)
		if _, err := o.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	for range Samples + 10 {
		look()
	}
	if h := o.History("default/web/http"); len(h) != Samples {
		t.Errorf("%d samples, want %d", len(h), Samples)
	}
	table.entries = nil
	for range Samples + 1 {
		look()
	}
	if h := o.History("default/web/http"); h != nil {
		t.Errorf("%d samples of an idle Service, want none", len(h))
	}
	table.entries = []conntrack.Connection{connection(1, "10.96.0.10:80", "10.1.2.11:8080", true, true)}
	look()
	table.ports = nil
	look()
	if h := o.History("default/web/http"); h != nil {
		t.Errorf("%d samples of a Service that is gone, want none", len(h))
	}
}

// 200,000 connections through 10,000 Services, half of them new.
func BenchmarkLook(b *testing.B) {
	table := &table{}
	for i := range 10_000 {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		p := Port{Service: fmt.Sprintf("default/s%d", i), Family: nft.IPv4, Protocol: nft.TCP, Frontends: frontends(nft.TCP, netip.AddrPortFrom(addr, 80))}
		table.ports = append(table.ports, p)
		for j := range 20 {
			c := connection(uint32(i*20+j)*2654435761, "1.1.1.1:1", "10.1.2.11:8080", true, true)
			c.To = netip.AddrPortFrom(addr, 80)
			table.entries = append(table.entries, c)
		}
	}
	o := table.observer()
	b.ReportAllocs()
	for b.Loop() {
		table.now = table.now.Add(time.Hour)
		if _, err := o.Snapshot(); err != nil {
			b.Fatal(err)
		}
	}
}

// Connections are counted by the kernel where it counts, of all frontends of a port together, and
// what went back is not new.
func TestLookCounts(t *testing.T) {
	dns := Port{Service: "default/dns", Family: nft.IPv4, Protocol: nft.UDP, Frontends: frontends(nft.UDP, at("10.96.0.10:80"))}
	frontend := func(p nft.Protocol, at netip.AddrPort, connections, refused uint64) nft.FrontendTotal {
		return nft.FrontendTotal{Family: nft.IPv4, Protocol: p, At: at, Connections: connections, Refused: refused}
	}
	nodePort := netip.AddrPortFrom(netip.Addr{}, 30080)
	table := &table{ports: []Port{dns, web}, counted: &nft.Totals{Frontends: []nft.FrontendTotal{
		frontend(nft.TCP, at("10.96.0.10:80"), 5, 1), frontend(nft.TCP, nodePort, 2, 0), frontend(nft.UDP, at("10.96.0.10:80"), 9, 0),
		frontend(nft.TCP, at("10.96.0.99:80"), 100, 100), // of a Service that is not planned any more
	}, Refusals: map[string]uint64{nft.RefusedStray: 4}}}
	o := table.observer()
	look := func() *Snapshot {
		t.Helper()
		table.now = table.now.Add(4 * time.Second)
		l, err := o.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := look()
	if p := l.Ports[1]; p.Connections != 7 || p.Refused != 1 || p.New != 0 || p.Refusing != 0 || !l.Counted || l.Refusals[nft.RefusedStray] != 4 {
		t.Errorf("the first look counts %+v", p)
	}
	if p := l.Ports[0]; p.Connections != 9 {
		t.Errorf("the other protocol counts %+v", p)
	}
	table.counted.Frontends[0].Connections, table.counted.Frontends[0].Refused = 8, 7
	table.counted.Frontends[2].Connections = 1
	l = look()
	if p := l.Ports[1]; p.New != 3 || p.Refusing != 6 {
		t.Errorf("the second look counts %+v, want 3 new ones and 6 refused", p)
	}
	if p := l.Ports[0]; p.New != 0 || p.Connections != 1 {
		t.Errorf("a Service that came again counts %+v", p)
	}
}

// Readings of the table give the bytes a second: of connections that go on, that are new, that closed in between, and that took
// over the ID of another one.
func Test930_bytes_a_second_from_readings(t *testing.T) {
	counted := func(id uint32, endpoint, state string, in, out uint64) conntrack.Connection {
		c := connection(id, "10.96.0.10:80", endpoint, true, state == "ESTABLISHED")
		c.State, c.In, c.Out, c.Counted = state, in, out, true
		return c
	}
	table := &table{ports: []Port{web}, entries: []conntrack.Connection{
		counted(1, "10.1.2.11:8080", "ESTABLISHED", 1000, 50000),
		counted(2, "10.1.2.11:8080", "ESTABLISHED", 500, 500),
		counted(3, "10.1.2.12:8080", "TIME_WAIT", 7777, 7777),
		counted(4, "10.1.2.12:8080", "FIN_WAIT", 10, 1000),
		counted(5, "10.1.2.12:8080", "ESTABLISHED", 9000, 9000),
		connection(6, "10.96.0.10:80", "10.1.2.12:8080", true, true), // began before the kernel counted bytes
	}}
	o := table.observer()
	bytes := true
	o.settings = func() conntrack.Settings { return conntrack.Settings{Bytes: bytes} }
	a := &Queries{observer: o}
	read := func() *wire.Traffic {
		t.Helper()
		seen, err := a.Traffic(wire.TrafficQuery{Sort: "bytes", Limit: 9, Endpoints: true})
		if err != nil || len(seen.Ports) != 1 {
			t.Fatalf("%+v, %v", seen, err)
		}
		return seen
	}
	if seen := read(); seen.Ports[0].InRate != nil || seen.NoBytes != "" || seen.Flows {
		t.Errorf("one reading has the rate %v, no bytes %q", seen.Ports[0].InRate, seen.NoBytes)
	}
	table.entries = []conntrack.Connection{
		counted(1, "10.1.2.11:8080", "ESTABLISHED", 1100, 52000), // 100, 2000
		counted(2, "10.1.2.11:8080", "TIME_WAIT", 700, 900),      // 200, 400: it closed
		counted(3, "10.1.2.12:8080", "TIME_WAIT", 7777, 7777),    // was over before
		counted(4, "10.1.2.12:8080", "FIN_WAIT", 10, 5000),       // 0, 4000: the client sends no more
		counted(5, "10.1.2.12:8080", "ESTABLISHED", 30, 60),      // 30, 60: another one
		counted(7, "10.1.2.12:8080", "TIME_WAIT", 4, 8),          // 4, 8: came and went
		connection(6, "10.96.0.10:80", "10.1.2.12:8080", true, true),
	}
	table.now = table.now.Add(2 * time.Second)
	seen := read()
	rates := func(c *wire.ConnectionCounts) [2]float64 {
		if c.InRate == nil || c.OutRate == nil {
			return [2]float64{-1, -1}
		}
		return [2]float64{*c.InRate * 2, *c.OutRate * 2}
	}
	port := &seen.Ports[0]
	for _, c := range []struct {
		name      string
		got, want [2]float64
	}{
		{"port", rates(&port.ConnectionCounts), [2]float64{334, 6468}}, {"10.1.2.11", rates(&port.Endpoints[0].ConnectionCounts), [2]float64{300, 2400}},
		{"10.1.2.12", rates(&port.Endpoints[1].ConnectionCounts), [2]float64{34, 4068}}, {"totals", rates(&seen.Totals.ConnectionCounts), [2]float64{334, 6468}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v bytes in 2 s, want %v", c.name, c.got, c.want)
		}
	}
	slices.Reverse(table.entries) // the kernel changed the size of the table
	table.entries[0].In += 50
	table.now = table.now.Add(2 * time.Second)
	if seen := read(); seen.Ports[0].InRate == nil || *seen.Ports[0].InRate != 0 && *seen.Ports[0].InRate != 25 {
		t.Errorf("in another order: %v", seen.Ports[0].InRate)
	}
	g := growth{before: []volume{{id: 1}, {id: 2}, {id: 3}}, left: 4}
	if _, _, found := g.since(volume{id: 3}); !found {
		t.Error("the third one of three is not found in three steps")
	}
	if _, _, found := g.since(volume{id: 2}); found {
		t.Error("a search goes on beyond its steps")
	}
	bytes, table.now = false, table.now.Add(2*time.Second)
	if seen := read(); seen.Ports[0].InRate != nil || seen.NoBytes == "" {
		t.Errorf("without accounting: %v, %q", seen.Ports[0].InRate, seen.NoBytes)
	}
}
