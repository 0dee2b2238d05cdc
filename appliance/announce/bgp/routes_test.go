package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Routes that a session cannot carry are not sent, and the state has the reason.
func TestCannot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, nil)
		_ = s.Set(routes("203.0.113.1/32", "2001:db8:1::1/128"))
		s.dial = func() func(context.Context, Peer) (link, error) {
			peers := pipe(t, s)
			inner := s.dial
			go func() {
				p := <-peers
				p.greet(openFrom(64513, 90))
				for p.receive() != nil {
				}
			}()
			return func(ctx context.Context, peer Peer) (link, error) {
				l, err := inner(ctx, peer)
				l.next6 = netip.Addr{}
				return l, err
			}
		}()
		defer run(s)()
		time.Sleep(second)
		if st := s.State(); st.Routes != 1 || st.CannotIPv4 != "" || !strings.Contains(st.CannotIPv6, "no IPv6 next hop") {
			t.Errorf("state %+v", st)
		}
	})
}

func TestNextHops(t *testing.T) {
	at := func(local, next4, next6, linkLocal string) link {
		parse := func(s string) netip.Addr { a, _ := netip.ParseAddr(s); return a }
		return link{local: parse(local), next4: parse(next4), next6: parse(next6), linkLocal: parse(linkLocal)}
	}
	for name, c := range map[string]struct {
		peer         Peer
		link         link
		theirs       open
		next4, next6 string
	}{
		"IPv4 session":            {Peer{}, at("192.0.2.1", "192.0.2.1", "", ""), open{}, "[192.0.2.1]", "[]"},
		"IPv4 session, both":      {Peer{}, at("192.0.2.1", "192.0.2.1", "2001:db8::1", ""), open{}, "[192.0.2.1]", "[2001:db8::1]"},
		"IPv6 session":            {Peer{}, at("2001:db8::1", "192.0.2.1", "2001:db8::1", ""), open{}, "[192.0.2.1]", "[2001:db8::1]"},
		"IPv6 session, RFC 8950":  {Peer{}, at("2001:db8::1", "192.0.2.1", "2001:db8::1", ""), open{nextHop6: true}, "[2001:db8::1]", "[2001:db8::1]"},
		"unnumbered":              {Peer{}, at("fe80::1%eth0", "", "", "fe80::1%eth0"), open{nextHop6: true}, "[fe80::1 fe80::1]", "[fe80::1 fe80::1]"},
		"unnumbered, global":      {Peer{}, at("fe80::1%eth0", "", "2001:db8::1", "fe80::1%eth0"), open{nextHop6: true}, "[2001:db8::1 fe80::1]", "[2001:db8::1 fe80::1]"},
		"unnumbered, no RFC 8950": {Peer{}, at("fe80::1%eth0", "", "", "fe80::1%eth0"), open{}, "[]", "[fe80::1 fe80::1]"},
	} {
		got := pathOf(c.peer, c.link, c.theirs)
		if fmt.Sprint(got.next4) != c.next4 || fmt.Sprint(got.next6) != c.next6 {
			t.Errorf("%s: %v and %v, want %s and %s", name, got.next4, got.next6, c.next4, c.next6)
		}
	}
}

// TestManyRoutes: ten thousand routes of each family are cut into messages that a peer takes.
func TestManyRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, nil)
		wanted := map[netip.Prefix]*Attributes{}
		full := &Attributes{Large: make([]LargeCommunity, maxCommunities/12)}
		for i := range 10000 {
			wanted[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)] = full
			wanted[netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 14: byte(i >> 8), 15: byte(i)}), 128)] = nil
		}
		if err := s.Set(wanted); err != nil {
			t.Fatal(err)
		}
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.greet(openFrom(64513, 90))
		got := map[string]bool{}
		for _, u := range p.endOfRIBs() {
			for _, prefix := range announced(u) {
				got[prefix] = true
			}
		}
		if len(got) != len(wanted) {
			t.Errorf("%d routes arrived of %d", len(got), len(wanted))
		}
		_ = s.Set(nil)
		for len(got) > 0 {
			for _, prefix := range withdrawn(p.skipping().Body.(*bgp.BGPUpdate)) {
				delete(got, prefix)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	good := Peer{Addr: netip.MustParseAddrPort("192.0.2.2:0"), LocalAS: 1, RemoteAS: 2, IPv4: true}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	if got := good.withDefaults(); got.Addr.Port() != 179 || got.Timers.Hold != 90*second || got.Timers.Connect != 10*second {
		t.Errorf("defaults: %+v", got)
	}
	for want, edit := range map[string]func(*Peer){
		"either an address or an interface": func(p *Peer) { p.Interface = "eth0" },
		"of different families":             func(p *Peer) { p.Source = v4("2001:db8::1") },
		"local AS is missing":               func(p *Peer) { p.LocalAS = 0 },
		"stands for others":                 func(p *Peer) { p.RemoteAS = 23456 },
		"peer's AS is missing":              func(p *Peer) { p.RemoteAS = 0 },
		"leave one out":                     func(p *Peer) { p.Dynamic = Internal },
		"use \"internal\" or \"external\"":  func(p *Peer) { p.Dynamic = "sideways" },
		"no IPv4 address":                   func(p *Peer) { p.RouterID = v4("2001:db8::1") },
		"no routes":                         func(p *Peer) { p.IPv4 = false },
		"80":                                func(p *Peer) { p.Password = strings.Repeat("x", 81) },
		"needs a multihop peer":             func(p *Peer) { p.TTLSecurity = 3 },
		"from 0 to 254":                     func(p *Peer) { p.TTLSecurity = 255; p.MultiHop = true },
		"from 3 s":                          func(p *Peer) { p.Timers.Hold = 2 * second },
		"below the hold time":               func(p *Peer) { p.Timers.Hold, p.Timers.Keepalive = 9*second, 9*second },
		"restart time":                      func(p *Peer) { p.Timers.Restart = 5000 * second },
	} {
		p := good
		edit(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s := speaker(t, nil)
	if err := s.Set(map[netip.Prefix]*Attributes{netip.MustParsePrefix("192.0.2.0/24"): {Communities: make([]uint32, 600)}}); err == nil {
		t.Error("600 communities are taken")
	}
	if err := s.Update(map[netip.Prefix]*Attributes{{}: nil}, nil); err == nil {
		t.Error("a route without a prefix is taken")
	}
}

func TestNormalPrefixes(t *testing.T) {
	r := rib{map[netip.Prefix]*Attributes{}, map[netip.Prefix]struct{}{}}
	r.set(map[netip.Prefix]*Attributes{
		netip.MustParsePrefix("::ffff:192.0.2.9/120"): nil,
		netip.MustParsePrefix("2001:db8::1/64"):       nil,
	})
	var got []string
	for p := range r.take() {
		got = append(got, p.String())
	}
	slices.Sort(got)
	if want := []string{"192.0.2.0/24", "2001:db8::/64"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
