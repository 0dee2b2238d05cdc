package conntrack

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/nft"
)

// Names of the world that the tests of this package use.
var (
	vip, vip2    = netip.MustParseAddr("172.30.0.41"), netip.MustParseAddr("172.30.0.42")
	vip6         = netip.MustParseAddr("fd00:172:30::41")
	host, host2  = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.3.1")
	host6        = netip.MustParseAddr("2001:db8::1")
	l1, l2, r1   = netip.MustParseAddrPort("10.180.0.1:53"), netip.MustParseAddrPort("10.180.0.2:53"), netip.MustParseAddrPort("10.181.1.1:53")
	oneMinute    = Drain{true, time.Minute}
	compareAddrs = cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	compareAddrPs = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
)

// udp, tcp and sctp are a frontend at an address; without an address, a node port of IPv4.
func udp(addr netip.Addr, port uint16) Frontend  { return frontend(nft.UDP, addr, port) }
func tcp(addr netip.Addr, port uint16) Frontend  { return frontend(nft.TCP, addr, port) }
func sctp(addr netip.Addr, port uint16) Frontend { return frontend(nft.SCTP, addr, port) }

var nodePort netip.Addr

func frontend(protocol nft.Protocol, addr netip.Addr, port uint16) Frontend {
	family := nft.IPv4
	if addr.Is6() {
		family = nft.IPv6
	}
	return Frontend{Addr: addr, Family: family, Protocol: protocol, Port: port}
}

func port(drain Drain, keep []netip.AddrPort, frontends ...Frontend) []Port {
	return []Port{{Family: frontends[0].Family, Protocol: frontends[0].Protocol, Frontends: frontends, Keep: keep, Drain: drain}}
}

func to(endpoints ...netip.AddrPort) []netip.AddrPort { return endpoints }

type services = map[string][]Port

func TestChangeTracker(t *testing.T) {
	none := Drain{}
	tests := []struct {
		name          string
		before, after services
		want          []Flows
	}{
		{
			name: "nothing changed", before: services{"a": port(none, to(l1), udp(vip, 53))}, after: services{"a": port(none, to(l1), udp(vip, 53))},
		},
		{
			name: "created", after: services{"a": port(none, to(l1), udp(vip, 53), udp(nodePort, 30053))},
			want: []Flows{
				{Frontend: udp(nodePort, 30053), Keep: to(l1), Look: true},
				{Frontend: udp(vip, 53), Keep: to(l1), Look: true},
			},
		},
		{
			name: "created without endpoints", after: services{"a": port(none, nil, sctp(vip, 53))},
			want: []Flows{{Frontend: sctp(vip, 53), Look: true}},
		},
		{
			name: "endpoint removed", before: services{"a": port(none, to(l1, r1), udp(vip, 53))}, after: services{"a": port(none, to(r1), udp(vip, 53))},
			want: []Flows{{Frontend: udp(vip, 53), Keep: to(r1), Look: true}},
		},
		{
			name: "endpoint added", before: services{"a": port(none, to(l1), udp(vip, 53))}, after: services{"a": port(none, to(l1, r1), udp(vip, 53))},
			want: []Flows{{Frontend: udp(vip, 53), Keep: to(l1, r1)}},
		},
		{
			name: "scaled to zero", before: services{"a": port(none, to(l1), udp(vip, 53))}, after: services{"a": port(none, nil, udp(vip, 53))},
			want: []Flows{{Frontend: udp(vip, 53), Look: true}},
		},
		{
			name: "deleted", before: services{"a": port(none, to(l1), udp(vip, 53), udp(nodePort, 30053))}, after: services{"a": nil},
			want: []Flows{
				{Frontend: udp(nodePort, 30053), Gone: true, Look: true},
				{Frontend: udp(vip, 53), Gone: true, Look: true},
			},
		},
		{
			name: "port changed", before: services{"a": port(none, to(l1), udp(vip, 53))}, after: services{"a": port(none, to(l1), udp(vip, 54))},
			want: []Flows{{Frontend: udp(vip, 53), Gone: true, Look: true}, {Frontend: udp(vip, 54), Keep: to(l1), Look: true}},
		},
		{
			name:   "two Services swap their addresses",
			before: services{"a": port(none, to(l1), udp(vip, 53)), "b": port(none, to(r1), udp(vip2, 53))},
			after:  services{"a": port(none, to(l1), udp(vip2, 53)), "b": port(none, to(r1), udp(vip, 53))},
			want:   []Flows{{Frontend: udp(vip, 53), Keep: to(r1), Look: true}, {Frontend: udp(vip2, 53), Keep: to(l1), Look: true}},
		},
		{
			name: "TCP", before: services{"a": port(none, to(l1, r1), tcp(vip, 80)), "b": port(none, to(l1), tcp(vip2, 80))},
			after: services{"a": port(none, to(r1), tcp(vip, 80)), "b": nil},
			want:  []Flows{{Frontend: tcp(vip, 80), Keep: to(r1)}},
		},
		{
			name: "TCP that is drained", before: services{"a": port(oneMinute, to(l1, r1), tcp(vip, 80)), "b": port(oneMinute, to(l1), tcp(vip2, 80))},
			after: services{"a": port(oneMinute, to(r1), tcp(vip, 80)), "b": nil},
			want: []Flows{
				{Frontend: tcp(vip, 80), Keep: to(r1), Drain: oneMinute, Look: true},
				{Frontend: tcp(vip2, 80), Drain: oneMinute, Gone: true, Look: true},
			},
		},
		{
			name: "TCP is not drained any more", before: services{"a": port(oneMinute, to(r1), tcp(vip, 80))}, after: services{"a": port(none, to(r1), tcp(vip, 80))},
			want: []Flows{{Frontend: tcp(vip, 80), Keep: to(r1)}},
		},
	}
	narrow := func(drain Drain, who sources, fe Frontend) []Port {
		p := port(drain, to(l1), fe)
		p[0].Sources = []sources{who}
		return p
	}
	tests = append(tests, []struct {
		name          string
		before, after services
		want          []Flows
	}{
		{
			name: "clients are shut out", before: services{"a": port(none, to(l1), udp(vip, 53))}, after: services{"a": narrow(none, theirs, udp(vip, 53))},
			want: []Flows{{Frontend: udp(vip, 53), Keep: to(l1), Sources: theirs, Look: true}},
		},
		{
			name: "all clients are shut out", before: services{"a": narrow(none, admitted, sctp(vip, 53))}, after: services{"a": narrow(none, sources{}, sctp(vip, 53))},
			want: []Flows{{Frontend: sctp(vip, 53), Keep: to(l1), Sources: sources{}, Look: true}},
		},
		{
			name: "the same clients", before: services{"a": narrow(none, admitted, udp(vip, 53))}, after: services{"a": narrow(none, slices.Clone(admitted), udp(vip, 53))},
		},
		{
			name: "everybody may connect again", before: services{"a": narrow(none, admitted, udp(vip, 53))}, after: services{"a": port(none, to(l1), udp(vip, 53))},
			want: []Flows{{Frontend: udp(vip, 53), Keep: to(l1)}},
		},
		{
			name: "clients of TCP are shut out", before: services{"a": narrow(none, admitted, tcp(vip, 80)), "b": narrow(oneMinute, admitted, tcp(vip2, 80))},
			after: services{"a": narrow(none, theirs, tcp(vip, 80)), "b": narrow(oneMinute, theirs, tcp(vip2, 80))},
			want: []Flows{
				{Frontend: tcp(vip, 80), Keep: to(l1), Sources: theirs},
				{Frontend: tcp(vip2, 80), Keep: to(l1), Drain: oneMinute, Sources: theirs, Look: true},
			},
		},
	}...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := NewChangeTracker()
			l.Update(&nft.Box{}, tt.before)
			l.Take()
			l.Update(nil, tt.after)
			work := l.Take()
			if diff := cmp.Diff(tt.want, work.Flows, compareAddrs, compareAddrPs, cmp.Comparer(sources.equal)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if work = l.Take(); len(work.Flows) > 0 {
				t.Errorf("taken twice: %+v", work.Flows)
			}
		})
	}
}

// TestChangeTrackerKeepsWhatWasNotTaken: several changes until one of them could be committed.
func TestChangeTrackerKeepsWhatWasNotTaken(t *testing.T) {
	l := NewChangeTracker()
	l.Update(&nft.Box{}, services{"a": port(Drain{}, to(l1, l2), udp(vip, 53)), "b": port(Drain{}, to(l1), udp(vip2, 53))})
	l.Take()
	l.Update(nil, services{"a": port(Drain{}, to(l2), udp(vip, 53)), "b": nil})
	l.Update(nil, services{"a": port(Drain{}, to(l2, r1), udp(vip, 53)), "b": port(Drain{}, to(l1), udp(vip2, 53))})
	want := []Flows{
		{Frontend: udp(vip, 53), Keep: to(l2, r1), Look: true},
		{Frontend: udp(vip2, 53), Keep: to(l1), Look: true},
	}
	if diff := cmp.Diff(want, l.Take().Flows, compareAddrs, compareAddrPs, cmp.Comparer(sources.equal)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestChangeTrackerMadeAnew: a Service that is deleted while it drains and made anew without
// draining loses no connection to what the former one had waited for.
func TestChangeTrackerMadeAnew(t *testing.T) {
	for _, taken := range []bool{true, false} {
		l, a, now := NewChangeTracker(), newSchedule(), time.Now()
		take := func(after time.Duration) {
			a.add(l.Take(), now.Add(after))
			a.look(now.Add(after), sent(tcp(vip, 80), l1))
		}
		l.Update(&nft.Box{}, services{"a": port(oneMinute, to(l1), tcp(vip, 80))})
		take(0)
		l.Update(nil, services{"a": nil})
		if taken {
			take(time.Second)
		}
		l.Update(nil, services{"a": port(Drain{}, to(r1), tcp(vip, 80))})
		take(2 * time.Second)
		if got := a.look(now.Add(time.Hour), sent(tcp(vip, 80), l1), sent(tcp(vip, 80), r1)); got[0] != leave || got[1] != leave {
			t.Errorf("taken between: %t: got %v", taken, got)
		}
	}
}

func TestChangeTrackerFollowsNodePortAddresses(t *testing.T) {
	ports := services{
		"a": port(Drain{}, to(l1), udp(vip, 53), udp(nodePort, 30053)),
		"b": port(Drain{}, to(l1), tcp(nodePort, 30080)),
		"c": port(Drain{}, to(r1), udp(host2, 30053)), // a VIP with the number of the node port
	}
	l := NewChangeTracker()
	l.Update(&nft.Box{NodePortAddresses: []netip.Addr{host, host2}}, ports)
	l.Take()

	l.Update(&nft.Box{NodePortAddresses: []netip.Addr{host2, host}}, nil)
	l.Take()
	l.Update(&nft.Box{NodePortAddresses: []netip.Addr{host2, host}}, ports)
	if work := l.Take(); len(work.Flows) > 0 {
		t.Errorf("nothing changed: %+v", work.Flows)
	}
	l.Update(&nft.Box{NodePortAddresses: []netip.Addr{host6}}, nil)
	want := []Flows{
		{Frontend: udp(nodePort, 30053), Keep: to(l1), Look: true},
		{Frontend: udp(host, 30053), Gone: true, Look: true},
		{Frontend: udp(host2, 30053), Keep: to(r1), Look: true},
	}
	work := l.Take()
	if diff := cmp.Diff(want, work.Flows, compareAddrs, compareAddrPs, cmp.Comparer(sources.equal)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]netip.Addr{host6}, work.NodePorts, compareAddrs); diff != "" {
		t.Errorf("node-port addresses (-want +got)\n%s", diff)
	}
}

// TestChangeTrackerAdopts: what is known at the start is the ruleset, as package nft makes it.
func TestChangeTrackerAdopts(t *testing.T) {
	resolved := func(proto nft.Protocol, family nft.Family, endpoint string, frontends ...nft.Frontend) nft.ServicePort {
		p := nft.ServicePort{ID: "default/x/" + endpoint + proto.String(), Family: family, Protocol: proto, Frontends: frontends}
		p.Pools[nft.PoolCluster] = []netip.AddrPort{netip.MustParseAddrPort(endpoint)}
		return p
	}
	box := nft.Box{NodePortAddresses: []netip.Addr{host, host2, host6}}
	have := nft.Compile(nft.State{Box: box, Services: map[string][]nft.ServicePort{
		"default/stays":   {resolved(nft.UDP, nft.IPv4, "10.180.0.1:53", nft.Frontend{Addr: vip, Port: 53}, nft.Frontend{Port: 30053})},
		"default/gone":    {resolved(nft.UDP, nft.IPv4, "10.180.0.1:54", nft.Frontend{Addr: vip, Port: 54}, nft.Frontend{Port: 30054})},
		"default/six":     {resolved(nft.SCTP, nft.IPv6, "[fd00:10:180::1]:55", nft.Frontend{Addr: vip6, Port: 55}, nft.Frontend{Port: 30055})},
		"default/gonetcp": {resolved(nft.TCP, nft.IPv4, "10.180.0.1:56", nft.Frontend{Addr: vip, Port: 56})},
	}})
	l := NewChangeTracker()
	l.Adopt(have)
	l.Update(&nft.Box{NodePortAddresses: []netip.Addr{host, host6}}, services{
		"default/stays": port(Drain{}, to(l1), udp(vip, 53), udp(nodePort, 30053)),
		"default/tcp":   port(Drain{}, to(l1), tcp(vip, 80)),
		"default/drain": port(oneMinute, to(l1), tcp(vip, 81)),
	})
	sixPort := Frontend{Family: nft.IPv6, Protocol: nft.SCTP, Port: 30055}
	want := []Flows{
		{Frontend: tcp(vip, 81), Keep: to(l1), Drain: oneMinute, Look: true},
		{Frontend: udp(nodePort, 30053), Keep: to(l1), Look: true},
		{Frontend: udp(nodePort, 30054), Gone: true, Look: true},
		{Frontend: udp(vip, 53), Keep: to(l1), Look: true},
		{Frontend: udp(vip, 54), Gone: true, Look: true},
		{Frontend: udp(host2, 30053), Gone: true, Look: true},
		{Frontend: udp(host2, 30054), Gone: true, Look: true},
		{Frontend: sixPort, Gone: true, Look: true},
		{Frontend: sctp(vip6, 55), Gone: true, Look: true},
	}
	if diff := cmp.Diff(want, l.Take().Flows, compareAddrs, compareAddrPs, cmp.Comparer(sources.equal)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	l.Update(nil, services{"default/new": port(Drain{}, to(l1, r1), udp(vip2, 53))})
	l.Take()
	l.Update(nil, services{"default/new": port(Drain{}, to(l1), udp(vip2, 53))})
	if got := l.Take().Flows; len(got) != 1 {
		t.Errorf("what was adopted is noted again: %+v", got)
	}
}

func TestPortOf(t *testing.T) {
	p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.UDP, Frontends: []nft.Frontend{{Addr: vip, Port: 53}, {Port: 30053}}}
	p.Pools[nft.PoolCluster], p.Pools[nft.PoolLocal] = to(l1, l2), to(l2)
	got := PortOf(&p, to(r1, l2), oneMinute)
	want := port(oneMinute, to(l1, l2, r1), udp(vip, 53), udp(nodePort, 30053))[0]
	if diff := cmp.Diff(want, got, compareAddrs, compareAddrPs, cmp.Comparer(sources.equal)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(to(l1, l2), p.Pools[nft.PoolCluster], compareAddrPs); diff != "" {
		t.Errorf("the pool was changed (-want +got)\n%s", diff)
	}
	p.Pools[nft.PoolCluster], p.Pools[nft.PoolLocal] = to(r1, l1), nil
	if diff := cmp.Diff(to(l1, r1), PortOf(&p, nil, Drain{}).Keep, compareAddrPs); diff != "" {
		t.Errorf("of a pool in no order (-want +got)\n%s", diff)
	}
	// Clients of a relay stay with its listener for as long as the pool behind it has endpoints.
	p.Relay = [nft.NumPools]netip.AddrPort{to(l2)[0], netip.MustParseAddrPort("192.0.2.1:10271")}
	if diff := cmp.Diff(to(l1, l2, r1), PortOf(&p, nil, Drain{}).Keep, compareAddrPs); diff != "" {
		t.Errorf("of a relayed port (-want +got)\n%s", diff)
	}
}
