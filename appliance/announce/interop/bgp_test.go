package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/announce/bgp"
)

// routersWith are the routers that each test of sessions tries: told one neighbor, in their own
// words.
var routersWith = map[string]func(p *place, neighbor string){
	"BIRD": func(p *place, neighbor string) { bird(p.t, p.router, birdPeer("box", neighbor, birdBoth)) },
	"FRR": func(p *place, neighbor string) {
		frr(p.t, p.router, "", fmt.Sprintf(`
router bgp %d
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 neighbor %s remote-as %d
 neighbor %s passive
%s`, routerAS, neighbor, boxAS, neighbor, frrBoth(neighbor)))
	},
}

// Test300: routes of both families get into the router's kernel over one session of either
// family, and clients are answered; what is withdrawn goes, and the rest stays.
func Test300_routes_reach_the_router(t *testing.T) {
	t.Parallel()
	for name, begin := range routersWith {
		for family, at := range map[string][2]string{"IPv4": {router4, box4}, "IPv6": {router6, box6}} {
			t.Run(name+" over "+family, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t)
				begin(p, at[1])
				s := speaker(t, p.box, spec{Peer: peer(at[0]), Routes: vips()})
				s.established(2)
				p.routed(box4, box6)
				p.answeredBy("box")
				s.tell(order{Withdraw: prefixes(vip4 + "/32"), Announce: prefixes("198.51.100.0/24")})
				eventually(t, func() error {
					if got := kernel(p.router, vip4+"/32"); got != "" {
						return fmt.Errorf("withdrawn, and the router has %s", got)
					}
					if kernel(p.router, "198.51.100.0/24") == "" || kernel(p.router, vip6+"/128") == "" {
						return fmt.Errorf("what is announced is not there")
					}
					return nil
				})
				s.kill() // without graceful restart all goes
				p.unrouted()
			})
		}
	}
}

// Test301: the router sees the attributes that were given.
func Test301_attributes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	birdc := bird(t, p.router, birdPeer("box", box4, birdBoth))
	s := speaker(t, p.box, spec{Peer: peer(router4), Routes: vips(), Attributes: &bgp.Attributes{
		MED: 70, Prepend: 2, LocalPref: 500, Communities: []uint32{boxAS<<16 | 100, 65535<<16 | 65281}, Large: []bgp.LargeCommunity{{boxAS, 7, 8}},
	}})
	s.established(2)
	p.routed(box4, box6)
	got := birdc("show route all")
	for _, want := range []string{
		"BGP.as_path: 64512 64512 64512", "BGP.med: 70", "BGP.local_pref: 100", // not ours: the session is external
		"BGP.community: (64512,100) (65535,65281)", "BGP.large_community: (64512, 7, 8)", "BGP.next_hop: 192.0.2.11", "BGP.next_hop: 2001:db8:2::11", "BGP.origin: IGP",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if reply := birdc("reload in box"); strings.Contains(reply, "not") || !strings.Contains(reply, "reloading") {
		t.Errorf("route refresh: %s", reply)
	}
	p.routed(box4, box6)
}

// Test302: sessions with passwords come up with the right one only, and say what may be wrong.
func Test302_passwords(t *testing.T) {
	t.Parallel()
	for family, at := range map[string][2]string{"IPv4": {router4, box4}, "IPv6": {router6, box6}} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			bird(t, p.router, birdPeer("box", at[1], birdBoth+` password "se cret";`))
			with := peer(at[0])
			for _, wrong := range []string{"other", ""} {
				with.Password = wrong
				s := speaker(t, p.box, spec{Peer: with, Routes: vips()})
				s.downBecause("password")
				s.kill()
			}
			with.Password = "se cret"
			speaker(t, p.box, spec{Peer: with, Routes: vips()}).established(2)
			p.routed(box4, box6)
		})
	}
}

// Test303: with ttl security a peer that is farther away than it may be is not heard.
func Test303_ttl_security(t *testing.T) {
	t.Parallel()
	for family, at := range map[string]struct{ router, box, far string }{
		"IPv4": {router4, box4, "10.1.0.2"}, "IPv6": {router6, box6, "2001:db8:1::2"},
	} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			bird(t, p.router, birdPeer("box", at.box, birdBoth+" ttl security on;"))
			with := peer(at.router)
			with.TTLSecurity = 1
			s := speaker(t, p.box, spec{Peer: with, Routes: vips()})
			s.established(2)
			p.routed(box4, box6)

			// Two hops away: its packets arrive with TTL 254.
			bird(t, p.client, birdPeer("box", at.box, birdBoth+" multihop 2; ttl security on;"))
			with = peer(at.far)
			with.MultiHop, with.TTLSecurity = true, 1
			far := speaker(t, p.box, spec{Peer: with, Routes: vips()})
			far.downBecause("does not send with TTL 255")
			far.kill()
			with.TTLSecurity = 2
			speaker(t, p.box, spec{Peer: with, Routes: vips()}).established(2)
		})
	}
}

// Test304: what a router refuses is said in words.
func Test304_reasons(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := speaker(t, p.box, spec{Peer: peer(router4), Routes: vips()})
	s.downBecause("refused the connection")
	s.kill()
	p.box.Sysctl("net.ipv4.neigh.eth0.mcast_solicit", "3") // as Linux has it: the kernel finds no neighbor within the time of a connect
	s = speaker(t, p.box, spec{Peer: peer("192.0.2.99"), Routes: vips()})
	s.downBecause("no way to the peer")
	s.kill()
	bird(t, p.router, birdPeer("box", box4, birdBoth))
	with := peer(router4)
	with.RemoteAS = 64999
	s = speaker(t, p.box, spec{Peer: with, Routes: vips()})
	s.downBecause("the peer is AS 64513, and AS 64999 is configured")
	s.kill()
	with = peer(router4)
	with.LocalAS = 64998
	s = speaker(t, p.box, spec{Peer: with, Routes: vips()})
	s.downBecause("it expects another AS than our 64998")
	s.kill()
	with = peer(router4)
	with.RemoteAS, with.Dynamic = 0, bgp.External
	r := speaker(t, p.box, spec{Peer: with, Routes: vips()}).established(2)
	if r.BGP.Agreed.RemoteAS != routerAS {
		t.Errorf("the dynamic peer is AS %d", r.BGP.Agreed.RemoteAS)
	}
}

// Test305: a speaker that is killed and comes back half a second later loses no packet.
func Test305_graceful_restart(t *testing.T) {
	t.Parallel()
	// begin starts a router. ended reports why the router still has the session of a box that was killed: FRR resets a session that begins before
	// it has read the end of the one before. missing reports why its routes are not all sent again since the last restart: those that are not yet
	// are deleted when the box restarts a second time (RFC 4724, section 4.2).
	for name, begin := range map[string]func(p *place) (ended, missing func() error){
		"BIRD": func(p *place) (ended, missing func() error) {
			birdc := bird(p.t, p.router, birdPeer("box", box4, birdBoth+" graceful restart on;"))
			ended = func() error {
				if got := birdc("show protocols all box"); strings.Contains(got, "Established") {
					return errors.New(got)
				}
				return nil
			}
			return ended, func() error {
				if got := birdc("show protocols all box"); !strings.Contains(got, "Established") || strings.Contains(got, "graceful restart active") {
					return errors.New(got)
				}
				return nil
			}
		},
		"FRR": func(p *place) (ended, missing func() error) {
			router := frr(p.t, p.router, "", fmt.Sprintf(`
router bgp %d
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 bgp graceful-restart
 neighbor %s remote-as %d
 neighbor %s passive
%s`, routerAS, box4, boxAS, box4, frrBoth(box4)))
			ended = func() error {
				if got := router.vtysh("show bgp neighbors " + box4); strings.Contains(got, "BGP state = Established") {
					return errors.New(got)
				}
				return nil
			}
			return ended, func() error {
				got := router.vtysh("show bgp ipv4 unicast "+vip4+"/32") + router.vtysh("show bgp ipv6 unicast "+vip6+"/128")
				if strings.Count(got, "best") < 2 || strings.Contains(got, "tale") {
					return errors.New(got)
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			ended, missing := begin(p)
			with := spec{Peer: peer(router4), Routes: vips()}
			with.Peer.Timers.Restart = 120 * time.Second
			s := speaker(t, p.box, with)
			if r := s.established(2); !r.BGP.Agreed.GracefulRestart {
				t.Error("no graceful restart was agreed")
			}
			p.routed(box4, box6)
			stop := p.probe()
			for range 2 {
				s.kill()
				eventually(t, ended)
				time.Sleep(500 * time.Millisecond) // real time: there is no session, and packets go on
				s = speaker(t, p.box, with)
				s.established(2)
				eventually(t, missing)
			}
			stop(0)
			p.routed(box4, box6)
		})
	}
}

// Test306: of two boxes that announce the same addresses one leaves, and no packet is lost.
func Test306_leaving_loses_nothing(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(p *place){
		"BIRD": func(p *place) {
			bird(p.t, p.router, birdPeer("box", box4, birdBoth)+birdPeer("box2", "192.0.2.12", birdBoth))
		},
		"FRR": func(p *place) {
			frr(p.t, p.router, "", fmt.Sprintf(`
router bgp %d
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 neighbor %s remote-as %d
 neighbor %s passive
 neighbor 192.0.2.12 remote-as %d
 neighbor 192.0.2.12 passive
%s`, routerAS, box4, boxAS, box4, boxAS, frrBoth(box4, "192.0.2.12")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			other := p.second()
			begin(p)
			s := speaker(t, p.box, spec{Peer: peer(router4), Routes: vips(), Attributes: &bgp.Attributes{MED: 1}})
			s.established(2)
			speaker(t, other, spec{Peer: peer(router4), Routes: vips(), Attributes: &bgp.Attributes{MED: 2}}).established(2)
			p.routed(box4, box6)
			stop := p.probe()
			s.tell(order{Leave: true})
			<-s.ended
			p.routed("192.0.2.12", "2001:db8:2::12")
			stop(0)
			p.answeredBy("other")
		})
	}
}

// Test307: ten thousand routes of each family arrive, and go.
func Test307_ten_thousand_routes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	birdc := bird(t, p.router, birdPeer("box", box4, birdBoth))
	many := vips()
	for i := range 10000 {
		many = append(many, prefixes(fmt.Sprintf("10.9.%d.%d/32", i>>8, i&255), fmt.Sprintf("2001:db8:9::%x/128", i+1))...)
	}
	s := speaker(t, p.box, spec{Peer: peer(router4)})
	s.established(0)
	count := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if got := birdc("show route where source = RTS_BGP count"); strings.Count(got, want) < 2 {
				return fmt.Errorf("BIRD has, and should have %q:\n%s", want, got)
			}
			return nil
		})
	}
	began := time.Now()
	s.tell(order{Announce: many})
	count("\n10001 of ")
	p.routed(box4, box6)
	t.Logf("20,002 routes were in BIRD and the kernel after %s", time.Since(began))
	s.tell(order{Withdraw: many})
	count("\n0 of ")
	p.unrouted()
}

// Test308: a peer is found by its interface alone, and takes IPv4 routes with an IPv6 next hop.
func Test308_unnumbered(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.router.RemoveAddr("eth0", router4+"/24")
	p.box.RemoveAddr("eth0", box4+"/24")
	frr(t, p.router, "", fmt.Sprintf(`
router bgp %d
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 neighbor eth0 interface remote-as %d
%s`, routerAS, boxAS, frrBoth("eth0")))
	with := bgp.Peer{Interface: "eth0", LocalAS: boxAS, RemoteAS: routerAS, IPv4: true, IPv6: true}
	speaker(t, p.box, spec{Peer: with, Routes: vips()}).established(2)
	p.routed("fe80::", "fe80::")
}

// Test309: OpenBGPD and ExaBGP take the routes of both families with their attributes, and their
// withdrawal.
func Test309_other_speakers(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(p *place) (seen func() string){
		"OpenBGPD": func(p *place) func() string {
			daemon, ctl := need(p.t, "bgpd", "openbgpd"), need(p.t, "bgpctl", "openbgpd")
			// Where its parts lock themselves in; a unit of systemd would have it made.
			if os.Mkdir("/run/openbgpd", 0o755) == nil {
				p.t.Cleanup(func() { _ = os.Remove("/run/openbgpd") })
			}
			dir, err := os.MkdirTemp("", "openbgpd")
			if err != nil {
				p.t.Fatal(err)
			}
			p.t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket := filepath.Join(dir, "sock")
			file := write(p.t, dir, "bgpd.conf", fmt.Sprintf(`
AS %d
router-id 192.0.2.1
fib-update no
socket "%s"
neighbor %s {
	remote-as %d
	passive
	tcp md5sig password "secret"
	announce IPv4 unicast
	announce IPv6 unicast
}
allow from any
`, routerAS, socket, box4, boxAS))
			if err := os.Chmod(file, 0o600); err != nil {
				p.t.Fatal(err)
			}
			start(p.t, p.router, nil, daemon, "-d", "-f", file)
			return func() string {
				out, _, err := p.router.Run(ctl, "-s", socket, "show", "rib", "detail")
				return fmt.Sprint(out, err)
			}
		},
		"ExaBGP": func(p *place) func() string {
			daemon := need(p.t, "exabgp", "exabgp")
			dir := p.t.TempDir()
			log := filepath.Join(dir, "seen")
			file := write(p.t, dir, "exabgp.conf", fmt.Sprintf(`
process see {
	run /bin/sh -c "cat > %s";
	encoder text;
}
neighbor %s {
	router-id 192.0.2.1;
	local-address 192.0.2.1;
	local-as %d;
	peer-as %d;
	passive true;
	md5-password secret;
	family { ipv4 unicast; ipv6 unicast; }
	api { processes [ see ]; receive { parsed; update; } }
}
`, log, box4, routerAS, boxAS))
			start(p.t, p.router, []string{
				"exabgp.daemon.user=root", "exabgp.tcp.bind=192.0.2.1", "exabgp.tcp.port=179", "exabgp.api.ack=false", "exabgp.api.cli=false",
			}, daemon, file)
			return func() string {
				text, err := os.ReadFile(log)
				return fmt.Sprint(string(text), err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			seen := begin(p)
			with := peer(router4)
			with.Password = "secret"
			s := speaker(t, p.box, spec{Peer: with, Routes: vips(), Attributes: &bgp.Attributes{MED: 70, Communities: []uint32{boxAS<<16 | 100}}})
			s.established(2)
			has := func(what ...string) {
				t.Helper()
				eventually(t, func() error {
					got := seen()
					for _, w := range what {
						if !strings.Contains(got, w) {
							return fmt.Errorf("%s has no %q:\n%s", name, w, got)
						}
					}
					return nil
				})
			}
			has(vip4+"/32", vip6+"/128", "64512:100", "70")
			s.tell(order{Withdraw: prefixes(vip4 + "/32")})
			if name == "ExaBGP" { // it prints what comes, and keeps nothing
				has("withdraw")
				return
			}
			eventually(t, func() error {
				if got := seen(); strings.Contains(got, vip4+"/32") || !strings.Contains(got, vip6+"/128") {
					return fmt.Errorf("after the withdrawal of %s:\n%s", vip4, got)
				}
				return nil
			})
		})
	}
}
