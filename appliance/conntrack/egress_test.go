package conntrack

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
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

// Other destinations of a source, by name or by content, have those flows of UDP begin again that left with another address than they
// would now, and those of TCP end by the drain timeout that have the address and would not get it.
func TestDestinationsChange(t *testing.T) {
	start, source, addr := time.Now(), netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("192.0.2.200")
	l, a := NewChangeTracker(), newSchedule()
	box := &nft.Box{EgressFrom: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, InternalSources: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		LocalAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	update := func(to *nft.SourceSets) {
		a.departures = nil
		l.Update(box, map[string][]Port{"default/mail": {{Family: nft.IPv4, Drain: oneMinute, Egress: nft.Egress{Addr: addr, Sources: []netip.Addr{source}, To: to}}}})
		a.add(l.Take(), start)
	}
	ended := func(after time.Duration, protocol nft.Protocol) (ended string) {
		for name, far := range map[string]string{"partner": "203.0.113.5:53", "lab": "198.51.100.5:53", "inside": "10.1.3.4:53", "cluster": "10.9.3.4:53", "box": "192.0.2.1:53"} {
			for with, replyTo := range map[string]netip.Addr{"own": source, "vip": addr} {
				far := netip.MustParseAddrPort(far)
				e := &entry{family: nft.IPv4, protocol: protocol, from: netip.AddrPortFrom(source, 4000), to: far, replyFrom: far, replyTo: netip.AddrPortFrom(replyTo, 4000), state: tcpEstablished}
				if v := a.judge(e, start.Add(after)); v != leave {
					ended += name + " " + with + ","
				}
			}
		}
		list := strings.Split(strings.Trim(ended, ","), ",")
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	set := func(name string, version uint64, prefix string) *nft.SourceSet {
		return nft.NewSourceSet(name, version, []netip.Prefix{netip.MustParsePrefix(prefix)})
	}
	partner, lab, both := set("partner", 1, "203.0.113.0/24"), set("lab", 1, "198.51.100.0/24"), set("partner", 2, "0.0.0.0/0")
	const inside = "box vip, cluster vip, inside vip, "
	for i, step := range []struct {
		to  *nft.SourceSets
		udp string
		tcp string // after the drain timeout
	}{
		{nil, inside + "lab own, partner own", "box vip, cluster vip, inside vip"}, // at the start
		{nil, "", ""},
		{&nft.SourceSets{Allow: []*nft.SourceSet{partner}}, inside + "lab vip, partner own", inside + "lab vip"},
		{&nft.SourceSets{Allow: []*nft.SourceSet{partner}}, "", ""},
		{&nft.SourceSets{Allow: []*nft.SourceSet{both}}, inside + "lab own, partner own", "box vip, cluster vip, inside vip"},
		{&nft.SourceSets{Allow: []*nft.SourceSet{both}, Deny: []*nft.SourceSet{lab}}, inside + "lab vip, partner own", inside + "lab vip"},
		{nil, inside + "lab own, partner own", "box vip, cluster vip, inside vip"},
	} {
		update(step.to)
		if got := ended(0, nft.UDP); got != step.udp {
			t.Errorf("step %d: flows of UDP that end: %s; want %s", i, got, step.udp)
		}
		if got := ended(0, nft.TCP); got != "" {
			t.Errorf("step %d: connections that end before the drain timeout: %s", i, got)
		}
		if got := ended(time.Minute, nft.TCP); got != step.tcp {
			t.Errorf("step %d: connections that end by the drain timeout: %s; want %s", i, got, step.tcp)
		}
	}
	a.departures = nil
	l.Restored() // the rules were away
	a.add(l.Take(), start)
	if got, want := ended(0, nft.UDP), inside+"lab own, partner own"; got != want {
		t.Errorf("after the rules were away flows end: %s; want %s", got, want)
	}
}

// What an earlier process left in the kernel is what sources leave with before the first plan; the entries of those that stay are looked
// at, as their destinations may be others.
func TestDepartedBeforeTheStart(t *testing.T) {
	kept, gone, addr := netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("10.1.2.12"), netip.MustParseAddr("192.0.2.200")
	l := NewChangeTracker()
	l.Adopt(nft.Ruleset{nft.IPv4: {Sets: map[string]*nft.SetContent{"egress": {Elements: nft.Elements{
		string(kept.AsSlice()): string(addr.AsSlice()), string(gone.AsSlice()): string(addr.AsSlice()),
	}}}}})
	now := nft.Egress{Addr: addr, Sources: []netip.Addr{kept}}
	l.Update(nil, map[string][]Port{"default/mail": {{Family: nft.IPv4, Egress: now}}})
	want := map[leaver]Departed{{gone, addr}: {}, {source: gone}: {Back: true}, {kept, addr}: {Back: true}, {source: kept}: {now: now}}
	if got := l.Take().Departed; !reflect.DeepEqual(got, want) {
		t.Errorf("departed are %+v, want %+v", got, want)
	}
}
