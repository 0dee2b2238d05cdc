package conntrack

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/nft"
)

// restored is Work after the rules of these frontends were away.
func restored(frontends ...Frontend) Work {
	w := Work{NodePorts: []netip.Addr{host}, Begun: map[Frontend]struct{}{}}
	for _, fe := range frontends {
		w.Begun[fe] = struct{}{}
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
	if w := l.Take(); len(w.Begun) != 1 || w.Begun[tcp(vip2, 443)] != struct{}{} {
		t.Errorf("got %v, want %v", w.Begun, tcp(vip2, 443))
	}
	l.Update(nil, services{"b": port(Drain{}, to(r1), tcp(vip2, 443))})
	if w := l.Take(); len(w.Begun) != 0 {
		t.Errorf("a change of its endpoints: %v", w.Begun)
	}
}

// TestBegunOneAfterTheOther: each frontend has its second look, also if others come before that, and none is kept after it.
func TestBegunOneAfterTheOther(t *testing.T) {
	start := time.Now()
	at := func(after time.Duration) time.Time { return start.Add(after) }
	a := newSchedule()
	first, second := inState(plain(tcp(vip, 80)), tcpSynSent), inState(plain(tcp(vip2, 443)), tcpSynSent)
	a.add(restored(tcp(vip, 80)), at(0))
	a.done(nil, at(0))
	a.add(restored(tcp(vip2, 443)), at(rescanDelay/2))
	for _, after := range []time.Duration{rescanDelay / 2, rescanDelay, rescanDelay * 3 / 2} {
		_, next := a.due(at(after - 1))
		if !next.Equal(at(after)) {
			t.Errorf("the look after %v is after %v", after, next.Sub(start))
		}
		want := verdict(forget)
		if after > rescanDelay {
			want = leave
		}
		if got := a.judge(&first, next); got != want {
			t.Errorf("after %v the first has verdict %d, want %d", after, got, want)
		}
		if got := a.judge(&second, next); got != forget {
			t.Errorf("after %v the second has verdict %d", after, got)
		}
		a.done(nil, next)
	}
	if _, next := a.due(at(time.Hour)); !next.IsZero() || a.judge(&second, at(time.Hour)) != leave {
		t.Errorf("a look is left, at %v", next)
	}
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
