package announce

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// BFD ends a session when it was up for a second beside it, and when the neighbor did not want to.
func TestGuard(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	up := func(ms int) bfd.State { return bfd.State{Phase: bfd.Up, Since: at(ms)} }
	down := func(ms int, why bfd.Diagnostic, remote bfd.Phase) bfd.State {
		return bfd.State{Phase: bfd.Down, Since: at(ms), Failures: 1, Diagnostic: why, RemotePhase: remote}
	}
	session := func(ms int) bgp.State { return bgp.State{Phase: bgp.Established, Since: at(ms)} }
	for name, test := range map[string]struct {
		session bgp.State
		states  []bfd.State
		want    bool
	}{
		"silence":                         {session(0), []bfd.State{up(10), down(1010, bfd.Expired, 0)}, true},
		"the neighbor hears nothing":      {session(0), []bfd.State{up(10), down(1010, bfd.NeighborDown, bfd.Down)}, true},
		"the neighbor's operator":         {session(0), []bfd.State{up(10), down(1010, bfd.NeighborDown, bfd.AdminDown)}, false},
		"the session is young":            {session(500), []bfd.State{up(10), down(1499, bfd.Expired, 0)}, false},
		"BFD is young":                    {session(0), []bfd.State{up(500), down(1499, bfd.Expired, 0)}, false},
		"never up":                        {session(0), []bfd.State{{Phase: bfd.Down, Since: at(0)}, {Phase: bfd.Init, Since: at(2000)}}, false},
		"no session":                      {bgp.State{Phase: bgp.Connect, Since: at(0)}, []bfd.State{up(10), down(5000, bfd.Expired, 0)}, false},
		"up again before it was noticed":  {session(0), []bfd.State{up(10), {Phase: bfd.Up, Since: at(1500), Failures: 1}}, true},
		"still up":                        {session(0), []bfd.State{up(10), up(10)}, false},
		"down for long, told once":        {session(2000), []bfd.State{up(10), down(1010, bfd.Expired, 0), down(1010, bfd.Expired, 0)}, false},
		"up since before the session was": {session(5000), []bfd.State{up(10), down(6000, bfd.Expired, 0)}, true},
	} {
		var g guard
		got := false
		for _, s := range test.states {
			got = g.lost(test.session, s)
		}
		if got != test.want {
			t.Errorf("%s: lost is %t, want %t", name, got, test.want)
		}
	}
}

// What was announced before are the routes that a session begins with, and later changes are told.
func TestPeersKnowWhatIsWanted(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.50"), netip.MustParseAddr("2001:db8::50")
	wanted := map[netip.Addr]ad{a: {Flags: true}, b: {Flags: true}}
	tor := Peer{Name: "tor-1", Peer: bgp.Peer{Addr: netip.MustParseAddrPort("192.0.2.1:179"), LocalAS: 64512, RemoteAS: 64513, IPv4: true, IPv6: true}}
	ps, err := newPeers(&BGP{Peers: []Peer{tor}}, nil, wanted, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !ps.list[0].speaker.State().Pending || len(ps.table.routes) != 2 {
		t.Error("the session does not begin with what was announced")
	}
	for _, addr := range []netip.Addr{a, b} {
		if got := ps.statusesOf(addr); len(got) != 1 || got[0].By != "bgp tor-1" || got[0].State != "down" {
			t.Errorf("of %s is told %+v", addr, got)
		}
	}
	p := ps.list[0]
	p.state = bgp.State{Phase: bgp.Established, CannotIPv6: "no"}
	for _, test := range []struct {
		sent  bool
		addr  netip.Addr
		state string
	}{{false, a, "sending"}, {true, a, "announced"}, {true, b, "unsent"}, {false, b, "unsent"}} {
		p.summary = summary{established: true, sent: test.sent}
		if got := ps.statusesOf(test.addr); got[0].State != test.state {
			t.Errorf("sent %t: of %s is told %+v, want %s", test.sent, test.addr, got, test.state)
		}
	}
	if ps.leave(t.Context()); ps.left == nil {
		t.Error("there is nothing to leave")
	}
	none, err := newPeers(nil, nil, wanted, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if none.leave(t.Context()); none.left != nil || none.statusesOf(a) != nil || none.states() != nil {
		t.Error("without peers there is something to tell or to leave")
	}
	if _, err := newPeers(&BGP{Peers: []Peer{{Name: "bad"}}}, nil, wanted, false, nil); err == nil {
		t.Error("a peer without anything is taken")
	}
}

// byObjects configures peers, and routes to one of the name tor-1.
func byObjects(peers ...wire.PeerConfig) *wire.AnnounceConfig {
	return &wire.AnnounceConfig{Peers: peers, Advertisements: []wire.Advertisement{{Name: "m/all", Peers: []string{"tor-1"}, Length4: 32, Length6: 128}}}
}

var tor1 = wire.PeerConfig{Name: "tor-1", Address: "192.0.2.1:179", LocalAS: 64512, RemoteAS: 64513, IPv4: true, IPv6: true}

// A peer that comes while the box is drained is told of no route.
func Test663_peer_comes_to_drained_box(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.50")
	wanted := map[netip.Addr]ad{addr: {Via: []string{"m/all"}}}
	ps, err := newPeers(nil, byObjects(), wanted, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ps.setDrained(true)
	ps.configure(byObjects(tor1), wanted)
	if routes, places := ps.table.toPeer("tor-1"), ps.statusesOf(addr); len(routes) != 0 || len(places) != 1 || places[0].State != "drained" {
		t.Errorf("it is told of %v, and places are %+v", routes, places)
	}
	if since := ps.statusesOf(addr)[0].Since; since.Before(began.UTC()) {
		t.Errorf("drained since %s, which is before it was drained at %s", since, began.UTC())
	}
	ps.setDrained(false)
	if routes := ps.table.toPeer("tor-1"); len(routes) != 1 {
		t.Errorf("after the drain it is told of %v", routes)
	}
}

// Of routes whose time has come only their addresses are to be told of, also those of an aggregate.
func TestRipen(t *testing.T) {
	config := byObjects(tor1)
	config.Advertisements[0].Length4 = 30
	one, two, far := netip.MustParseAddr("192.0.2.49"), netip.MustParseAddr("192.0.2.50"), netip.MustParseAddr("192.0.2.54")
	where := ad{Via: []string{"m/all"}}
	ps, err := newPeers(nil, config, map[netip.Addr]ad{one: where, two: where, far: where}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	ps.update([]netip.Addr{one, two}, nil)
	ps.update([]netip.Addr{one, two}, map[netip.Addr]ad{one: where, two: where})
	if len(ps.damped) != 1 || ps.ripe == nil {
		t.Fatalf("damped are %v", ps.damped)
	}
	if early := ps.ripen(time.Time{}); len(early) != 0 {
		t.Errorf("at once there are %v", early)
	}
	got := ps.ripen(time.Now().Add(time.Minute))
	if slices.SortFunc(got, netip.Addr.Compare); !slices.Equal(got, []netip.Addr{one, two}) {
		t.Errorf("of %v is to be told", got)
	}
}

// Peers are left as they were when that began, whatever objects say meanwhile.
func TestPeersChangeWhileLeft(t *testing.T) {
	for range 100 {
		ps, err := newPeers(nil, byObjects(tor1), nil, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ps.leave(ctx)
		ps.configure(byObjects(), nil)
		cancel()
		<-ps.left
	}
}

// A BGPPeer that is the router of a --peer, or of another BGPPeer, is named, and its routes are announced in the session
// that there is.
func Test781_one_router_by_flag_and_by_object(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.50")
	router := func(text string) bgp.Peer {
		return bgp.Peer{Addr: netip.MustParseAddrPort(text), LocalAS: 64512, RemoteAS: 64513, IPv4: true}
	}
	object := func(name, at string) wire.PeerConfig {
		return wire.PeerConfig{Name: name, Address: at, LocalAS: 64512, RemoteAS: 64513, IPv4: true}
	}
	for name, tc := range map[string]struct {
		flags   []Peer
		objects []wire.PeerConfig
		problem string // "": none
		places  string
	}{
		"flag and object":          {[]Peer{{"tor", router("192.0.2.1:179")}}, []wire.PeerConfig{object("rack", "192.0.2.1:179")}, "is the same router as --peer tor (192.0.2.1)", "bgp tor"},
		"the same name too":        {[]Peer{{"tor", router("192.0.2.1:179")}}, []wire.PeerConfig{object("tor", "192.0.2.1:179")}, "is the same router as --peer tor (192.0.2.1)", "bgp tor"},
		"two objects":              {nil, []wire.PeerConfig{object("rack", "192.0.2.1:179"), object("again", "192.0.2.1:179")}, "the BGPPeer again is the same router as the BGPPeer rack (192.0.2.1)", "bgp rack"},
		"another port":             {[]Peer{{"tor", router("192.0.2.1:179")}}, []wire.PeerConfig{object("rack", "192.0.2.1:1179")}, "", "bgp rack"},
		"another router":           {[]Peer{{"tor", router("192.0.2.1:179")}}, []wire.PeerConfig{object("rack", "192.0.2.2:179")}, "", "bgp rack"},
		"its name, another router": {[]Peer{{"tor", router("192.0.2.1:179")}}, []wire.PeerConfig{object("tor", "192.0.2.2:179")}, "has the name of a --peer", "bgp tor"},
	} {
		t.Run(name, func(t *testing.T) {
			config := &wire.AnnounceConfig{Peers: tc.objects, Advertisements: []wire.Advertisement{{Name: "pool", Length4: 32, Length6: 128}}}
			for _, c := range tc.objects {
				config.Advertisements[0].Peers = append(config.Advertisements[0].Peers, c.Name)
			}
			wanted := map[netip.Addr]ad{addr: {Via: []string{"pool"}}}
			ps, err := newPeers(&BGP{Peers: tc.flags}, config, wanted, false, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // what it knows already, too
				problems := strings.Join(ps.problems(), "\n")
				if tc.problem == "" && problems != "" || !strings.Contains(problems, tc.problem) {
					t.Errorf("problems %q, want %q", problems, tc.problem)
				}
				places := ps.statusesOf(addr)
				if len(places) != 1 || places[0].By != tc.places {
					t.Errorf("announced by %+v, want %s", places, tc.places)
				}
				for _, p := range ps.list {
					if want := "bgp "+p.Name == tc.places; p.speaker.State().Pending != want {
						t.Errorf("peer %s is to get the route: %t, want %t", p.Name, !want, want)
					}
				}
				ps.configure(config, wanted)
			}
		})
	}
}
