package conntrack

import (
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// Connections of a source end when it leaves with another address: at once over UDP, after the drain timeout over TCP. One that has
// its address again keeps them.
func TestDeparted(t *testing.T) {
	start := time.Now()
	source, old, other := netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("192.0.2.201")
	ports := func(drain Drain, addr netip.Addr) map[string][]Port {
		p := Port{Family: nft.IPv4, Protocol: nft.TCP, Drain: drain, Frontends: []Frontend{{Addr: old, Family: nft.IPv4, Protocol: nft.TCP, Port: 25}}}
		if addr.IsValid() {
			p.Egress = nft.Egress{Addr: addr, Sources: []netip.Addr{source}}
		}
		return map[string][]Port{"default/mail": {p}}
	}
	left := func(protocol nft.Protocol, addr netip.Addr) *entry {
		far := netip.MustParseAddrPort("203.0.113.5:53")
		e := &entry{family: nft.IPv4, protocol: protocol, from: netip.AddrPortFrom(source, 4000), to: far, replyFrom: far, replyTo: netip.AddrPortFrom(addr, 4000)}
		if protocol == nft.TCP {
			e.state = tcpEstablished
		}
		return e
	}
	l, a := NewChangeTracker(), newSchedule()
	change := func(after time.Duration, drain Drain, addr netip.Addr) {
		l.Update(nil, ports(drain, addr))
		a.add(l.Take(), start.Add(after))
	}
	is := func(after time.Duration, e *entry, want verdict) {
		t.Helper()
		if got := a.judge(e, start.Add(after)); got != want {
			t.Errorf("after %s: %+v: verdict %d, want %d", after, e, got, want)
		}
	}
	wakes := func(after time.Duration, queries int, next time.Duration) {
		t.Helper()
		now := start.Add(after)
		if q := a.queries(nil, now); len(q) != queries {
			t.Errorf("after %s: %d queries %+v, want %d", after, len(q), q, queries)
		}
		a.done(nil, now)
		if _, at := a.due(now); at.IsZero() != (next == 0) || !at.IsZero() && at.Sub(start) != next {
			t.Errorf("after %s: the next look is at %s, want %s", after, at.Sub(start), next)
		}
	}
	answered := func(port uint16) *entry { // by an answer that was on its way when the entry was deleted
		far := netip.MustParseAddrPort("203.0.113.5:53")
		return &entry{family: nft.IPv4, protocol: nft.UDP, from: far, to: netip.AddrPortFrom(source, port), replyFrom: netip.AddrPortFrom(source, port), replyTo: far}
	}
	change(0, Drain{}, old)
	is(0, answered(4000), leave)         // a client of the source
	is(0, left(nft.UDP, source), forget) // it began with its own address
	is(0, left(nft.TCP, source), leave)
	is(0, left(nft.UDP, old), leave)
	wakes(0, 2, rescanDelay)
	is(rescanDelay, answered(4000), forget)
	is(rescanDelay, answered(4001), leave)
	wakes(rescanDelay, 2, 2*rescanDelay)
	is(2*rescanDelay, answered(4000), forget)
	wakes(2*rescanDelay, 2, 3*rescanDelay)
	wakes(3*rescanDelay, 2, 0)
	is(3*rescanDelay, answered(4000), leave)
	is(rescanDelay, left(nft.UDP, source), leave)
	is(0, left(nft.UDP, old), leave)
	change(0, oneMinute, other)
	is(0, left(nft.UDP, old), forget)
	is(0, left(nft.UDP, other), leave)
	is(0, left(nft.TCP, old), leave) // it was not to be drained
	wakes(0, 2, rescanDelay)
	wakes(rescanDelay, 2, 0)
	is(rescanDelay, left(nft.UDP, old), leave)

	change(time.Hour, oneMinute, netip.Addr{})
	is(time.Hour, left(nft.TCP, other), leave)
	is(time.Hour+time.Minute, left(nft.TCP, other), reset)
	wakes(time.Hour, 2, time.Hour+rescanDelay)
	wakes(time.Hour+rescanDelay, 2, time.Hour+time.Minute)
	change(time.Hour+2*rescanDelay, oneMinute, other) // it is back
	is(time.Hour+time.Minute, left(nft.TCP, other), leave)
	wakes(time.Hour+time.Minute, 2, 0) // for flows that began while it was away
	change(2*time.Hour, oneMinute, netip.Addr{})
	wakes(2*time.Hour+time.Minute, 3, 0)
}

// Other destinations of a source, by name or by content, have its flows of UDP begin again, and leave those of TCP.
func TestDestinationsChange(t *testing.T) {
	source, addr := netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("192.0.2.200")
	l := NewChangeTracker()
	update := func(to *nft.SourceSets) map[leaver]Departed {
		l.Update(nil, map[string][]Port{"default/mail": {{Family: nft.IPv4, Drain: oneMinute, Egress: nft.Egress{Addr: addr, Sources: []netip.Addr{source}, To: to}}}})
		return l.Take().Departed
	}
	update(nil)
	one, other := nft.NewSourceSet("partner", 1, nil), nft.NewSourceSet("partner", 2, nil)
	for _, step := range []struct {
		to      *nft.SourceSets
		changed bool
	}{{nil, false}, {&nft.SourceSets{Allow: []*nft.SourceSet{one}}, true}, {&nft.SourceSets{Allow: []*nft.SourceSet{one}}, false},
		{&nft.SourceSets{Allow: []*nft.SourceSet{other}}, true}, {&nft.SourceSets{Deny: []*nft.SourceSet{other}}, true}, {nil, true}} {
		left := update(step.to)
		if at, is := left[leaver{source, addr}]; is != step.changed || at.Drain.On || at.Back || is && left[leaver{source: source}].now != addr {
			t.Errorf("destinations %+v: departed are %+v", step.to, left)
		}
	}
}

// What an earlier process left in the kernel is what sources leave with before the first plan.
func TestDepartedBeforeTheStart(t *testing.T) {
	kept, gone, addr := netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("10.1.2.12"), netip.MustParseAddr("192.0.2.200")
	l := NewChangeTracker()
	l.Adopt(nft.Ruleset{nft.IPv4: {Sets: map[string]*nft.SetContent{"egress": {Elements: nft.Elements{
		string(kept.AsSlice()): string(addr.AsSlice()), string(gone.AsSlice()): string(addr.AsSlice()),
	}}}}})
	l.Update(nil, map[string][]Port{"default/mail": {{Family: nft.IPv4, Egress: nft.Egress{Addr: addr, Sources: []netip.Addr{kept}}}}})
	if work := l.Take(); len(work.Departed) != 1 || work.Departed[leaver{gone, addr}].Back {
		t.Errorf("departed are %v, want %s alone", work.Departed, gone)
	}
}
