package announce

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/node"
)

func link(index int, name string, addrs ...string) node.Link {
	l := node.Link{Index: index, Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(index)}, Carrier: true}
	if name == "lo" || strings.HasPrefix(name, "tun") {
		l.MAC = nil
	}
	for _, a := range addrs {
		l.Addresses = append(l.Addresses, netip.MustParsePrefix(a))
	}
	return l
}

func TestOnLink(t *testing.T) {
	l := link(1, "eth0", "192.0.2.1/24", "198.51.100.0/31", "203.0.113.7/32", "2001:db8::1/64", "fe80::1/64")
	for addr, want := range map[string]bool{
		"192.0.2.50": true, "192.0.2.0": false, "192.0.2.255": false, "192.0.3.1": false,
		"198.51.100.1": true, "203.0.113.7": false,
		"2001:db8::50": true, "2001:db8::": false, "2001:db8::ffff:ffff:ffff:ffff": true, "2001:db8:1::1": false, "fe80::5": false,
	} {
		if got := onLink(netip.MustParseAddr(addr), &l); got != want {
			t.Errorf("%s is on the link: %t, want %t", addr, got, want)
		}
	}
}

func TestHostAnswers(t *testing.T) {
	links := []node.Link{link(1, "lo", "192.0.2.50/32", "2001:db8::50/128"), link(2, "eth0", "192.0.2.1/24", "192.0.2.51/32", "2001:db8::51/128")}
	for addr, want := range map[string]bool{
		"192.0.2.1": true, "192.0.2.50": true, "192.0.2.51": true, "192.0.2.52": false,
		"2001:db8::51": true, "2001:db8::50": false, // on lo: no host answers for it on eth0
	} {
		if got := hostAnswers(netip.MustParseAddr(addr), &links[1], links); got != want {
			t.Errorf("the host answers for %s: %t, want %t", addr, got, want)
		}
	}
}

func TestMeant(t *testing.T) {
	ranges := []Range{{netip.MustParseAddr("192.0.2.16"), netip.MustParseAddr("192.0.2.31")}}
	links := []node.Link{link(1, "lo"), link(2, "eth0", "192.0.2.1/24"), link(3, "eth1", "192.0.2.17/29"), link(4, "tun0", "192.0.2.2/24"), link(5, "eth2", "10.0.0.1/8", "192.0.2.16/32")}
	for l2, want := range map[string]string{
		"auto": "eth0 eth1 / ", "eth1": "eth1 / ", "eth1 eth7": "eth1 / nothing is announced on eth7", "eth2": "eth2 / ", "tun0": " / nothing is announced on tun0", "auto eth7": "eth0 eth1 / nothing is announced on eth7",
	} {
		all := selectLinks(links, strings.Fields(l2), ranges)
		var names []string
		for _, i := range slices.Sorted(maps.Keys(all)) {
			names = append(names, all[i].Name)
		}
		var problems []string
		for _, p := range missing(links, strings.Fields(l2)) {
			before, _, _ := strings.Cut(p, ":")
			problems = append(problems, before)
		}
		if got := strings.Join(names, " ") + " / " + strings.Join(problems, " "); got != want {
			t.Errorf("--l2 %s: %q, want %q", l2, got, want)
		}
	}
}

func TestRanges(t *testing.T) {
	for text, prefix := range map[string]string{
		"192.0.2.16-192.0.2.31": "192.0.2.16/28", "192.0.2.15-192.0.2.16": "192.0.2.0/27", "192.0.2.1-192.0.2.1": "192.0.2.1/32",
		"0.0.0.0-255.255.255.255": "0.0.0.0/0", "2001:db8::1-2001:db8::ff": "2001:db8::/120",
	} {
		r, err := parseRange(text)
		if err != nil || r.prefix().String() != prefix {
			t.Errorf("%s: %v %v, want %s", text, r.prefix(), err, prefix)
		}
	}
	for _, text := range []string{"", "192.0.2.1", "192.0.2.2-192.0.2.1", "192.0.2.1-2001:db8::1", "a-b"} {
		if _, err := parseRange(text); err == nil {
			t.Errorf("%q is a range", text)
		}
	}
}

func TestRecall(t *testing.T) {
	dir := t.TempDir()
	if s, err := loadState(dir); err != nil || s.Wanted != nil {
		t.Errorf("of nothing %+v is known: %v", s, err)
	}
	s := state{Ranges: []string{"192.0.2.16-192.0.2.31"}, Wanted: []string{"192.0.2.17", "192.0.2.18", "198.51.100.1"}, Announced: []string{"192.0.2.17"}}
	for name, test := range map[string]struct {
		stopped time.Time
		known   int
	}{"killed": {time.Time{}, 1}, "stopped": {time.Now(), 1}, "stopped for long": {time.Now().Add(-time.Minute), 0}} {
		s.Stopped = test.stopped
		if err := s.save(dir); err != nil {
			t.Fatal(err)
		}
		last, err := loadState(dir)
		a := &announcer{wanted: map[netip.Addr]ad{}, segments: newSegments(nil, nil, nil)}
		a.restore(last)
		if err != nil || len(a.wanted) != 2 || len(a.segments.known) != test.known { // the third one lies in no range
			t.Errorf("%s: wanted %v, known %v, %v", name, a.wanted, a.segments.known, err)
		}
	}
}

// What the process before announced is kept until the ports of this one have told: it may be killed at once, too, and
// serve may be heard before the interfaces are known.
func TestKilledAgain(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.17")
	a := &announcer{wanted: map[netip.Addr]ad{}, segments: newSegments(nil, nil, nil)}
	a.restore(state{Ranges: []string{"192.0.2.16-192.0.2.31"}, Wanted: []string{"192.0.2.17", "192.0.2.18"}, Announced: []string{"192.0.2.17"}})
	keeps := func(what string, want ...string) {
		t.Helper()
		if got := a.state().Announced; !slices.Equal(got, want) || a.lastStatus(addr).Announced != (len(want) > 0) {
			t.Errorf("%s: kept are %v and %+v, want %v", what, got, a.lastStatus(addr), want)
		}
	}
	keeps("at first", "192.0.2.17")
	a.place(addr)
	keeps("before the interfaces are known", "192.0.2.17")
	a.segments.keepKnown()
	if !a.segments.known[addr] {
		t.Error("other ranges have it forgotten")
	}
	a.segments.links = []node.Link{}
	a.segments.unreported[addr] = true
	a.place(addr)
	keeps("before its port has told", "192.0.2.17")
	delete(a.segments.unreported, addr)
	keeps("announced by no port")
}
