package conntrack

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/nft"
)

// restored is Work after the rules of these frontends were away.
func restored(frontends ...Frontend) Work {
	w := Work{NodePorts: []netip.Addr{host}, Begun: map[Frontend]bool{}}
	for _, fe := range frontends {
		w.Begun[fe] = true
	}
	return w
}

func answered(e entry) entry {
	e.answered = true
	return e
}

func TestJudgeAfterTheRulesWereAway(t *testing.T) {
	web, syn := tcp(vip, 80), inState(plain(tcp(vip, 80)), tcpSynSent)
	masqueraded := syn
	masqueraded.replyTo = netip.AddrPortFrom(host, 1024)
	tests := []struct {
		name string
		entry
		want verdict
	}{
		{"SYN that was not translated", syn, forget},
		{"and was masqueraded by others", masqueraded, forget},
		{"SYN to an endpoint", inState(sent(web, l1), tcpSynSent), leave},
		{"SYN to an endpoint that is gone", inState(sent(web, l2), tcpSynSent), leave},
		{"SYN to a node port", inState(plain(tcp(host, 30080)), tcpSynSent), forget},
		{"SYN to another host's port of that number", inState(plain(tcp(l1.Addr(), 30080)), tcpSynSent), leave},
		{"SYN to another port of the VIP", inState(plain(tcp(vip, 81)), tcpSynSent), leave},
		{"answered SYN", answered(inState(plain(web), tcpSynReceived)), leave},
		{"connection to a program of the box", answered(plain(tcp(host, 30080))), leave},
		{"connection that was picked up in its middle", plain(web), leave},
		{"UDP that was not translated", plain(udp(vip, 53)), forget},
		{"UDP that was not translated and is answered", answered(plain(udp(vip, 53))), leave},
		{"UDP to an endpoint that does not answer", sent(udp(vip, 53), l1), leave},
		{"UDP to a port of no Service", plain(udp(vip, 54)), leave},
		{"SCTP that was not translated", plain(sctp(vip, 53)), forget},
	}
	work := restored(web, tcp(nodePort, 30080), udp(vip, 53), sctp(vip, 53))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Now()
			a := newSchedule()
			if got := a.judge(&tt.entry, now); got != leave {
				t.Errorf("while nothing was away: got %d, want %d", got, leave)
			}
			a.add(work, now)
			if got := a.judge(&tt.entry, now); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestAwayIsLookedForTwice(t *testing.T) {
	early, late := inState(plain(tcp(vip, 80)), tcpSynSent), plain(udp(vip, 53))
	table := &fakeTable{entries: []entry{early}, fails: 1}
	run(t, table, func(c *Cleaner) {
		c.Reconcile(restored(tcp(vip, 80), udp(vip, 53)))
		time.Sleep(rescanDelay / 2)
		synctest.Wait()
		if table.has(early) || c.Stats().Forgotten != 1 || c.Stats().Failures != 1 {
			t.Errorf("at once: %+v", c.Stats())
		}
		table.with(func() { table.entries = append(table.entries, late) })
		time.Sleep(rescanDelay)
		synctest.Wait()
		if table.has(late) || c.Stats().Forgotten != 2 {
			t.Errorf("a second later: %+v", c.Stats())
		}
		asked := table.asked()
		table.with(func() { table.entries = append(table.entries, late) })
		time.Sleep(time.Hour)
		if !table.has(late) || table.asked() != asked {
			t.Errorf("long after it: %d more queries, %+v", table.asked()-asked, c.Stats())
		}
	})
}

func TestAwayQueries(t *testing.T) {
	now := time.Now()
	a := newSchedule()
	a.add(restored(tcp(vip, 80), tcp(vip2, 443), udp(vip6, 53), tcp(nodePort, 30080)), now)
	got := a.queries(nil, now)
	slices.SortFunc(got, func(a, b query) int { return int(a.protocol) - int(b.protocol) })
	want := []query{{family: nft.IPv4, protocol: nft.TCP, unanswered: true}, {family: nft.IPv6, protocol: nft.UDP, unanswered: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := a.queries(nil, now.Add(-time.Second)); len(got) > 0 {
		t.Errorf("before it is time: %+v", got)
	}
}

func TestChangeTrackerKnowsAllFrontendsOfRestoredRules(t *testing.T) {
	l := NewChangeTracker()
	l.Update(&nft.Box{}, services{
		"a": port(Drain{}, to(l1), tcp(vip, 80), tcp(nodePort, 30080)), "b": port(Drain{}, nil, udp(vip6, 53)),
	})
	l.Update(nil, services{"c": port(Drain{}, to(l1), udp(vip, 53))})
	l.Update(nil, services{"c": nil})
	if w := l.Take(); len(w.Begun) > 0 {
		t.Errorf("nothing was away, and there is %v", w.Begun)
	}
	l.Restored()
	got := l.Take().Begun
	for _, fe := range []Frontend{tcp(vip, 80), tcp(nodePort, 30080), udp(vip6, 53)} {
		if _, has := got[fe]; !has {
			t.Errorf("%v is not among %v", fe, got)
		}
	}
	if len(got) != 3 || len(l.Take().Begun) > 0 {
		t.Errorf("got %v, or more than once", got)
	}
}

// A frontend of TCP that is new is looked at for connections that were begun before it; one that only changes is not.
func TestNewFrontendsOfTCP(t *testing.T) {
	l := NewChangeTracker()
	l.Update(&nft.Box{}, services{"a": port(Drain{}, to(l1), tcp(vip, 80))})
	if w := l.Take(); len(w.Begun) != 0 {
		t.Errorf("at the start: %v", w.Begun)
	}
	l.Update(nil, services{"a": port(Drain{}, to(r1), tcp(vip, 80)), "b": port(Drain{}, to(l1), tcp(vip2, 443)), "c": port(Drain{}, to(l1), udp(vip2, 53))})
	if w := l.Take(); !maps.Equal(w.Begun, map[Frontend]bool{tcp(vip2, 443): false}) {
		t.Errorf("got %v, want %v", w.Begun, tcp(vip2, 443))
	}
	l.Update(nil, services{"b": port(Drain{}, to(r1), tcp(vip2, 443))})
	if w := l.Take(); len(w.Begun) != 0 {
		t.Errorf("a change of its endpoints: %v", w.Begun)
	}
}

// TestBegunOneAfterTheOther: each frontend has a look after rescanDelay, and one whose rules were missing also at once; looks for new ones are
// rescanDelay apart, however many come, and none is kept after its last.
func TestBegunOneAfterTheOther(t *testing.T) {
	start := time.Now()
	at := func(tenths int) time.Time { return start.Add(time.Duration(tenths) * rescanDelay / 10) }
	forgets := func(a *schedule, tenths int, frontends ...Frontend) {
		t.Helper()
		for _, fe := range []Frontend{tcp(vip, 80), tcp(vip2, 443), tcp(vip2, 80)} {
			entry, want := inState(plain(fe), tcpSynSent), verdict(leave)
			if slices.Contains(frontends, fe) {
				want = forget
			}
			if got := a.judge(&entry, at(tenths)); got != want {
				t.Errorf("at %d: an entry of %v has verdict %d, want %d", tenths, fe, got, want)
			}
		}
	}
	looks := func(a *schedule, tenths int) {
		t.Helper()
		_, next := a.due(at(tenths).Add(-1))
		if tenths < 0 {
			_, next = a.due(at(1000))
		}
		if want := at(tenths); tenths < 0 && !next.IsZero() || tenths >= 0 && !next.Equal(want) {
			t.Errorf("the next look is after %v, want %v", next.Sub(start), want.Sub(start))
		}
	}

	a := newSchedule()
	a.add(restored(tcp(vip, 80)), at(0))
	looks(a, 0)
	forgets(a, 0, tcp(vip, 80))
	a.done(nil, at(0))
	a.add(restored(tcp(vip2, 443)), at(5))
	looks(a, 5)
	forgets(a, 5, tcp(vip, 80), tcp(vip2, 443))
	a.done(nil, at(5))
	looks(a, 15)
	forgets(a, 15, tcp(vip, 80), tcp(vip2, 443))
	a.done(nil, at(15))
	looks(a, -1)
	forgets(a, 1000)

	a = newSchedule()
	a.add(Work{Begun: map[Frontend]bool{tcp(vip, 80): false}}, at(0))
	a.add(Work{Begun: map[Frontend]bool{tcp(vip2, 443): false}}, at(9))
	looks(a, 10)
	forgets(a, 10, tcp(vip, 80), tcp(vip2, 443))
	a.done(nil, at(10))
	a.add(Work{Begun: map[Frontend]bool{tcp(vip2, 80): false}}, at(11))
	looks(a, 20)
	forgets(a, 20, tcp(vip2, 443), tcp(vip2, 80))
	a.done(nil, at(20))
	looks(a, 30)
	forgets(a, 30, tcp(vip2, 80))
	a.done(nil, at(30))
	looks(a, -1)
	forgets(a, 1000)
}

// TestExpect: a connection to an endpoint that serves from the commit on is not taken for
// stale by a look between the commit and Reconcile.
func TestExpect(t *testing.T) {
	l := NewChangeTracker()
	set := func(endpoints ...netip.AddrPort) {
		l.Update(nil, services{"a": port(Drain{}, endpoints, udp(vip, 53))})
	}
	set(l1, r1)
	l.Take()
	now := time.Now()
	a := newSchedule()
	set(l1)
	a.add(l.Take(), now)
	a.look(now)
	set(l2)
	a.expect(l.Pending())
	toNew, toOld, toGone := sent(udp(vip, 53), l2), sent(udp(vip, 53), l1), sent(udp(vip, 53), r1)
	if got := a.look(now.Add(rescanDelay), toNew, toOld, toGone); !slices.Equal(got, []verdict{leave, leave, forget}) {
		t.Errorf("before Reconcile: got %v", got)
	}
	a.add(l.Take(), now.Add(rescanDelay))
	if got := a.look(now.Add(rescanDelay), toNew, toOld, toGone); !slices.Equal(got, []verdict{leave, forget, forget}) {
		t.Errorf("after it: got %v", got)
	}
}
