package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

var client = netip.MustParseAddrPort("203.0.113.2:40000")

// sent is an entry of a client that sent to a frontend and is answered by an endpoint.
func sent(fe Frontend, endpoint netip.AddrPort) entry {
	e := entry{
		family: fe.Family, protocol: fe.Protocol,
		from: client, to: netip.AddrPortFrom(fe.Addr, fe.Port), replyFrom: endpoint, replyTo: client,
	}
	if fe.Protocol == nft.TCP {
		e.state = tcpEstablished
	}
	return e
}

func plain(fe Frontend) entry { return sent(fe, netip.AddrPortFrom(fe.Addr, fe.Port)) }

func inState(e entry, s tcpState) entry {
	e.state = s
	return e
}

// Who may connect: the client of these tests is one of ours.
var (
	admitted = sourcesOf(from("192.0.2.0/24", "203.0.113.0/25"), nft.IPv4)
	theirs   = sourcesOf(from("192.0.2.0/24", "203.0.113.128/25"), nft.IPv4)
)

// Connections to an endpoint that is down end at once where a Service asks for that; those to one that
// goes in another way live on.
func TestEnded(t *testing.T) {
	now := time.Now()
	fe := tcp(vip, 80)
	l := NewChangeTracker()
	port := func(keep []netip.AddrPort, ended ...netip.AddrPort) map[string][]Port {
		return map[string][]Port{"default/web": {{Family: nft.IPv4, Protocol: nft.TCP, Frontends: []Frontend{fe}, Keep: keep, Ended: ended}}}
	}
	l.Update(&nft.Box{}, port([]netip.AddrPort{l2})) // l1 left before, and its connections live on
	l.Take()
	l.Update(nil, port([]netip.AddrPort{l2}, l1))
	a := newSchedule()
	a.add(l.Take(), now)
	if due, _ := a.due(now); len(due) != 1 {
		t.Fatalf("%d frontends are looked at, want 1", len(due))
	}
	other := netip.MustParseAddrPort("10.1.9.9:80")
	for endpoint, want := range map[netip.AddrPort]verdict{l1: reset, l2: leave, other: leave} {
		e := sent(fe, endpoint)
		if got := a.judge(&e, now); got != want {
			t.Errorf("%s: %d, want %d", endpoint, got, want)
		}
	}
	opening := inState(sent(fe, l1), 1) // SYN_SENT: the client's next SYN goes elsewhere
	if got := a.judge(&opening, now); got != forget {
		t.Errorf("a connection that was never answered: %d, want %d", got, forget)
	}
}

// A client that is shut out has the time of draining from then on, whatever else changes.
func TestShutOut(t *testing.T) {
	start := time.Now()
	fe := tcp(vip, 80)
	a := newSchedule()
	change := func(after time.Duration, who sources, keep ...netip.AddrPort) {
		w := Work{Flows: []Flows{{Frontend: fe, Keep: keep, Sources: who, Drain: oneMinute, Look: true}}}
		a.expect(w)
		a.add(w, start.Add(after))
	}
	is := func(after time.Duration, endpoint netip.AddrPort, want verdict) {
		t.Helper()
		now := start.Add(after)
		due, _ := a.due(now)
		e := sent(fe, endpoint)
		if got := a.judge(&e, now); got != want {
			t.Errorf("after %s: %d, want %d", after, got, want)
		}
		a.done(due, now)
	}
	change(0, theirs, l1, l2)
	is(0, l1, leave)
	change(30*time.Second, theirs, l1) // another endpoint goes
	is(30*time.Second, l1, leave)
	change(40*time.Second, admitted, l1)
	is(40*time.Second, l1, leave)
	change(50*time.Second, theirs, l1) // shut out once more
	is(70*time.Second, l1, leave)
	change(80*time.Second, theirs, l1, l2)
	is(109*time.Second, l1, leave)
	is(110*time.Second, l1, reset)
}

// Between a commit and what is told after it, a client keeps its connections that may connect
// before it or after it.
func TestSourcesOfAChangeUnderWay(t *testing.T) {
	a := newSchedule()
	fe := udp(vip, 53)
	a.add(Work{Flows: []Flows{{Frontend: fe, Keep: to(l1), Sources: theirs, Look: true}}}, time.Now())
	a.expect(Work{Flows: []Flows{{Frontend: fe, Keep: to(l1), Sources: admitted}}})
	e := sent(fe, l1)
	if got := a.judge(&e, time.Now()); got != leave {
		t.Errorf("got %d", got)
	}
}

// from is a frontend with source ranges.
func from(cidrs ...string) *nft.Frontend {
	fe := &nft.Frontend{Sources: []netip.Prefix{}}
	for _, cidr := range cidrs {
		fe.Sources = append(fe.Sources, netip.MustParsePrefix(cidr))
	}
	return fe
}

// TestSourceSetsAdmit proves that sets let in and shut out as the rules do.
func TestSourceSetsAdmit(t *testing.T) {
	set := func(cidr string) *nft.SourceSet {
		return nft.NewSourceSet("a", 1, []netip.Prefix{netip.MustParsePrefix(cidr)})
	}
	office, scanners := set("192.0.2.0/24"), set("192.0.2.128/25")
	ranges := from("198.51.100.0/24").Sources
	for _, tt := range []struct {
		fe             nft.Frontend
		admits, refuse string
	}{
		{nft.Frontend{Sets: &nft.SourceSets{Allow: []*nft.SourceSet{office}}}, "192.0.2.200", "198.51.100.1"},
		{nft.Frontend{Sets: &nft.SourceSets{Allow: []*nft.SourceSet{office}, Deny: []*nft.SourceSet{scanners}}}, "192.0.2.1", "192.0.2.200"},
		{nft.Frontend{Sets: &nft.SourceSets{Deny: []*nft.SourceSet{scanners}}}, "198.51.100.1", "192.0.2.200"},
		{nft.Frontend{Sources: ranges, Sets: &nft.SourceSets{Allow: []*nft.SourceSet{office}}}, "198.51.100.1", "203.0.113.1"},
		{nft.Frontend{Sources: ranges, Sets: &nft.SourceSets{Allow: []*nft.SourceSet{office}}}, "192.0.2.1", "203.0.113.1"},
		{nft.Frontend{Sources: ranges, Sets: &nft.SourceSets{Deny: []*nft.SourceSet{scanners}}}, "198.51.100.1", "192.0.2.1"},
	} {
		s := sourcesOf(&tt.fe, nft.IPv4)
		if !s.admit(netip.MustParseAddr(tt.admits)) || s.admit(netip.MustParseAddr(tt.refuse)) {
			t.Errorf("%+v: %s is not admitted, or %s is", tt.fe, tt.admits, tt.refuse)
		}
		if other := sourcesOf(&nft.Frontend{Sets: &nft.SourceSets{Allow: []*nft.SourceSet{set("192.0.2.0/24")}}}, nft.IPv4); s.equal(other) || !s.equal(s) {
			t.Error("sets are not the same although one has another content")
		}
	}
}

func TestSourcesOf(t *testing.T) {
	list := from("203.0.113.64/26", "10.1.0.0/16", "10.9.8.7/8", "2001:db8::/32", "10.1.0.0/16", "10.255.0.0/16", "203.0.113.0/32")
	for client, want := range map[string]bool{
		"10.0.0.0": true, "10.255.255.255": true, "11.0.0.0": false, "9.255.255.255": false, "203.0.113.0": true,
		"203.0.113.1": false, "203.0.113.64": true, "203.0.113.127": true, "203.0.113.128": false, "255.0.0.0": false,
	} {
		if got := sourcesOf(list, nft.IPv4).admit(netip.MustParseAddr(client)); got != want {
			t.Errorf("%s: %v", client, got)
		}
	}
	v6 := sourcesOf(list, nft.IPv6)
	if !v6.admit(netip.MustParseAddr("2001:db8:ffff::1")) || v6.admit(netip.MustParseAddr("2001:db9::")) {
		t.Errorf("of IPv6: %v", v6)
	}
	if sourcesOf(&nft.Frontend{}, nft.IPv4) != nil || sourcesOf(from(), nft.IPv4).admit(client.Addr()) {
		t.Error("nil is everybody, an empty list is nobody")
	}
}

func TestJudge(t *testing.T) {
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(host, port) }
	work := Work{NodePorts: []netip.Addr{host}, Flows: []Flows{
		{Frontend: udp(vip, 53), Keep: to(l1, r1), Look: true},
		{Frontend: udp(nodePort, 30053), Keep: to(l1), Look: true},
		{Frontend: sctp(vip, 53), Look: true},
		{Frontend: udp(vip, 54), Gone: true, Look: true},
		{Frontend: tcp(vip, 80), Keep: to(l1), Drain: Drain{true, 0}, Look: true},
		{Frontend: udp(vip, 80), Keep: to(l1), Drain: oneMinute, Look: true},
		{Frontend: udp(vip, 1), Keep: to(l1), Sources: theirs, Look: true},
		{Frontend: udp(vip, 2), Keep: to(l1), Sources: admitted, Look: true},
		{Frontend: udp(vip, 3), Keep: to(l1), Sources: sources{}, Drain: oneMinute, Look: true},
		{Frontend: tcp(vip, 1), Keep: to(l1), Sources: theirs, Look: true},
		{Frontend: tcp(vip, 2), Keep: to(l1), Sources: theirs, Drain: Drain{true, 0}, Look: true},
		{Frontend: tcp(vip, 3), Keep: to(l1), Sources: theirs, Drain: oneMinute, Look: true},
		{Frontend: tcp(vip, 4), Keep: to(l1), Sources: admitted, Drain: Drain{true, 0}, Look: true},
	}}
	web := tcp(vip, 80)
	tests := []struct {
		name string
		entry
		want verdict
	}{
		{"endpoint that serves", sent(udp(vip, 53), r1), leave},
		{"endpoint that is gone", sent(udp(vip, 53), l2), forget},
		{"endpoint with another port", sent(udp(vip, 53), netip.MustParseAddrPort("10.180.0.1:54")), forget},
		{"sent before the VIP was served", plain(udp(vip, 53)), forget},
		{"no port of a Service", sent(udp(vip, 5353), l2), leave},
		{"another address", sent(udp(vip2, 53), l2), leave},
		{"node port, endpoint that serves", sent(udp(host, 30053), l1), leave},
		{"node port, endpoint that is gone", sent(udp(host, 30053), l2), forget},
		{"node port, sent before it was served", plain(udp(host, 30053)), forget},
		{"somebody else's port of the same number", plain(udp(l1.Addr(), 30053)), leave},
		{"somebody else's translation of it", sent(udp(l1.Addr(), 30053), l2), leave},
		{"node port at a VIP", sent(udp(vip, 30053), l2), leave},
		{"SCTP to nobody", sent(sctp(vip, 53), l1), forget},
		{"frontend that is gone", sent(udp(vip, 54), l1), forget},
		{"sent after the frontend was gone", plain(udp(vip, 54)), leave},
		{"TCP of a port that is not drained", sent(tcp(vip, 53), l2), leave},
		{"TCP to an endpoint that serves", sent(web, l1), leave},
		{"TCP, drained", sent(web, r1), reset},
		{"TCP, drained, to the box itself", sent(web, at(8080)), reset},
		{"TCP, drained, half closed", inState(sent(web, r1), tcpCloseWait), reset},
		{"TCP, drained, no answer yet", inState(sent(web, r1), 1), forget},
		{"TCP, drained, over", inState(sent(web, r1), tcpTimeWait), leave},
		{"TCP, drained, all but over", inState(sent(web, r1), tcpLastAck), leave},
		{"TCP, a dead end", sent(web, at(0)), leave},
		{"TCP, not translated", plain(web), leave},
		{"UDP of a client that is shut out", sent(udp(vip, 1), l1), forget},
		{"UDP of a client that may connect", sent(udp(vip, 2), l1), leave},
		{"UDP of a client that may connect, to an endpoint that is gone", sent(udp(vip, 2), l2), forget},
		{"UDP that is drained, of a client that is shut out", sent(udp(vip, 3), l1), forget},
		{"TCP of a client that is shut out", sent(tcp(vip, 1), l1), leave},
		{"TCP of a client that is shut out, drained", sent(tcp(vip, 2), l1), reset},
		{"TCP of a client that is shut out, no answer yet, drained", inState(sent(tcp(vip, 2), l1), 1), forget},
		{"TCP of a client that is shut out, drained later", sent(tcp(vip, 3), l1), leave},
		{"TCP of a client that may connect, drained", sent(tcp(vip, 4), l1), leave},
		{"UDP that is drained later", sent(udp(vip, 80), r1), leave},
		{"UDP that is drained later, never translated", plain(udp(vip, 80)), forget},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Now()
			a := newSchedule()
			a.add(work, now)
			if got := a.judge(&tt.entry, now); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// look looks at entries at a time, as a Cleaner does, and gives the verdicts.
func (a *schedule) look(now time.Time, entries ...entry) (verdicts []verdict) {
	due, _ := a.due(now)
	for i := range entries {
		verdicts = append(verdicts, a.judge(&entries[i], now))
	}
	a.done(due, now)
	return verdicts
}

func TestAgendaLooksTwice(t *testing.T) {
	now := time.Now()
	a := newSchedule()
	a.add(Work{Flows: []Flows{{Frontend: udp(vip, 53), Keep: to(l1), Look: true}, {Frontend: udp(vip2, 53), Keep: to(l1)}}}, now)
	for _, want := range []struct{ from, latest time.Duration }{{0, 0}, {rescanDelay, rescanDelay + scanSlack}} {
		due, _ := a.due(now.Add(want.from))
		early, before := a.due(now.Add(want.from - 1))
		if len(due) != 1 || due[0].flows.Frontend != udp(vip, 53) || len(early) != 0 || !before.Equal(now.Add(want.latest)) {
			t.Fatalf("after %s: due %v and before %v, announced for %s", want.from, due, early, before.Sub(now))
		}
		a.look(now.Add(want.from))
	}
	if len(a.items.Of) != 0 {
		t.Errorf("%d frontends are left", len(a.items.Of))
	}
}

func TestDraining(t *testing.T) {
	web, short := tcp(vip, 80), Drain{true, 20 * time.Second}
	to1, to2 := sent(web, l1), sent(web, l2)
	now := time.Now()
	after := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	keep := func(a *schedule, seconds int, drain Drain, endpoints ...netip.AddrPort) {
		a.add(Work{Flows: []Flows{{Frontend: web, Keep: endpoints, Drain: drain, Look: true}}}, after(seconds))
	}
	expect := func(t *testing.T, a *schedule, seconds int, want1, want2 verdict) {
		t.Helper()
		if got := a.look(after(seconds), to1, to2); got[0] != want1 || got[1] != want2 {
			t.Errorf("after %d s: got %v, want %v", seconds, got, []verdict{want1, want2})
		}
	}
	announced := func(t *testing.T, a *schedule, from, want int) {
		t.Helper()
		due, next := a.due(after(from))
		if len(due) > 0 || !next.Equal(after(want)) {
			t.Errorf("after %d s: %d due, next after %s, want %d s", from, len(due), next.Sub(now), want)
		}
	}

	t.Run("each endpoint has its time", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute, l2)
		expect(t, a, 0, leave, leave)
		keep(a, 30, oneMinute)
		expect(t, a, 30, leave, leave)
		expect(t, a, 31, leave, leave)
		announced(t, a, 32, 60)
		expect(t, a, 60, reset, leave)
		announced(t, a, 61, 90)
		expect(t, a, 90, reset, reset)
		if len(a.items.Of) > 0 {
			t.Error("a frontend is left")
		}
	})
	t.Run("an endpoint that is back", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute)
		expect(t, a, 0, leave, leave)
		expect(t, a, 1, leave, leave)
		if got := a.draining(); got != 2 {
			t.Errorf("%d endpoints are draining, want 2", got)
		}
		a.add(Work{Flows: []Flows{{Frontend: web, Keep: to(l1), Drain: oneMinute}}}, after(10))
		expect(t, a, 60, leave, reset)
		keep(a, 70, oneMinute)
		expect(t, a, 70, leave, leave)
		expect(t, a, 130, reset, reset)
	})
	t.Run("an endpoint that is back and goes again", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute, l2)
		expect(t, a, 1, leave, leave)
		a.add(Work{Flows: []Flows{{Frontend: web, Keep: to(l1, l2), Drain: oneMinute}}}, after(10))
		keep(a, 20, oneMinute, l2)
		expect(t, a, 21, leave, leave)
		expect(t, a, 60, leave, leave)
		expect(t, a, 80, reset, leave)
	})
	t.Run("a shorter time", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute)
		expect(t, a, 1, leave, leave)
		keep(a, 10, short)
		expect(t, a, 11, leave, leave)
		announced(t, a, 12, 20)
		expect(t, a, 20, reset, reset)
	})
	t.Run("not drained any more", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute)
		expect(t, a, 1, leave, leave)
		a.add(Work{Flows: []Flows{{Frontend: web}}}, after(10))
		if len(a.items.Of) > 0 {
			t.Error("a frontend is left")
		}
	})
	t.Run("no connection was open", func(t *testing.T) {
		a := newSchedule()
		keep(a, 0, oneMinute)
		a.look(after(0))
		a.look(after(1))
		if len(a.items.Of) > 0 {
			t.Error("a frontend is left")
		}
	})
	t.Run("the Service is gone", func(t *testing.T) {
		a := newSchedule()
		a.add(Work{Flows: []Flows{{Frontend: web, Drain: short, Gone: true, Look: true}}}, now)
		expect(t, a, 1, leave, leave)
		expect(t, a, 20, reset, reset)
	})
}

func TestQueries(t *testing.T) {
	items := func(frontends ...Frontend) (list []*item) {
		for _, fe := range frontends {
			list = append(list, &item{flows: Flows{Frontend: fe}})
		}
		return list
	}
	many := items()
	for n := range uint16(maxQueries + 1) {
		many = append(many, items(udp(vip, 53+n), tcp(vip, 53+n), udp(vip6, 53+n))...)
	}
	tests := []struct {
		name  string
		items []*item
		want  []query
	}{
		{"none", nil, nil},
		{"one VIP", items(udp(vip, 53)), []query{{family: nft.IPv4, protocol: nft.UDP, port: 53, addr: vip}}},
		{"a node port", items(udp(nodePort, 30053)), []query{{family: nft.IPv4, protocol: nft.UDP, port: 30053}}},
		{"two VIPs with a port", items(udp(vip, 53), udp(vip2, 53)), []query{{family: nft.IPv4, protocol: nft.UDP, port: 53}}},
		{"both families", items(udp(vip, 53), udp(vip6, 53)), []query{{family: nft.IPv4, protocol: nft.UDP, port: 53, addr: vip}, {family: nft.IPv6, protocol: nft.UDP, port: 53, addr: vip6}}},
		{"many ports", many, []query{{family: nft.IPv4, protocol: nft.UDP}, {family: nft.IPv4, protocol: nft.TCP}, {family: nft.IPv6, protocol: nft.UDP}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := map[query]bool{}
			for _, q := range queriesFor(tt.items) {
				got[q] = true
			}
			for _, q := range tt.want {
				if !got[q] {
					t.Errorf("no query %+v in %+v", q, got)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("%d queries, want %d: %+v", len(got), len(tt.want), got)
			}
		})
	}
}
