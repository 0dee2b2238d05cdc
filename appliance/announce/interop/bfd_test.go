package interop

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// Timers of these tests: a tenth of a second to send, and enough of them that a busy machine
// takes no session down.
var bfdTimers = bfd.Timers{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 25}

const birdBFD = `
protocol bfd {
	interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; idle tx interval 500 ms; multiplier 25; };
	multihop { min rx interval 100 ms; min tx interval 100 ms; idle tx interval 500 ms; multiplier 25; };
}
`

const frrBFD = `
bfd
 profile quick
  detect-multiplier 25
  receive-interval 100
  transmit-interval 100
`

// frrPeer is the router of FRR that asks BFD about its neighbor, and has more options for it.
func frrPeer(neighbor, options string) string {
	return fmt.Sprintf(`
router bgp %d
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 neighbor %[2]s remote-as %[3]d
 neighbor %[2]s passive
 neighbor %[2]s bfd
 neighbor %[2]s bfd profile quick
%[4]s
%[5]s`, routerAS, neighbor, boxAS, options, frrBoth(neighbor))
}

// withBFD is a speaker with a BFD session beside it.
func withBFD(at [2]string, edit func(*spec)) spec {
	s := spec{Peer: peer(at[0]), Routes: vips(), BFD: &bfd.Config{
		Local: netip.MustParseAddr(at[1]), Peer: netip.MustParseAddr(at[0]), Timers: bfdTimers,
	}}
	if edit != nil {
		edit(&s)
	}
	return s
}

// bfdUp waits until BFD and BGP are up, and BFD was so since BGP is.
func (p *program) bfdUp() report {
	p.t.Helper()
	return p.until("an Up session of BFD", func(r report) bool {
		return r.BFD != nil && r.BFD.Phase == bfd.Up && r.BGP.Phase == bgp.Established
	})
}

// Test320: BFD comes up with the routers over one hop and several, and both ends notice when
// the other one is gone: the router drops the routes of a box that fell silent long before its
// hold time, and the box ends the session with a router that did.
func Test320_bfd(t *testing.T) {
	t.Parallel()
	v4, v6 := [2]string{router4, box4}, [2]string{router6, box6}
	secured := func(s *spec) { s.Peer.TTLSecurity = 1 }
	for name, c := range map[string]struct {
		at    [2]string
		edit  func(*spec)
		begin func(p *place) *bfdRouter
	}{
		"BIRD over IPv4": {v4, nil, func(p *place) *bfdRouter { return birdAs(p, birdPeer("box", box4, birdBoth+" bfd on;")+birdBFD) }},
		"BIRD over IPv6": {v6, nil, func(p *place) *bfdRouter { return birdAs(p, birdPeer("box", box6, birdBoth+" bfd on;")+birdBFD) }},
		// BIRD sends to neighbors several hops away with TTL 64.
		"BIRD multihop": {v4, func(s *spec) { s.BFD.MultiHop, s.BFD.MinTTL, s.Peer.MultiHop = true, 64, true }, func(p *place) *bfdRouter {
			return birdAs(p, birdPeer("box", box4, birdBoth+" multihop; source address "+router4+"; bfd on;")+birdBFD)
		}},
		"FRR over IPv4": {v4, nil, func(p *place) *bfdRouter { return frrAs(p, box4, "") }},
		"FRR over IPv6": {v6, nil, func(p *place) *bfdRouter { return frrAs(p, box6, "") }},
		// FRR speaks BFD over several hops then, on the other port.
		"FRR with ttl security": {v4, secured, func(p *place) *bfdRouter { return frrAs(p, box4, " neighbor "+box4+" ttl-security hops 1") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			router := c.begin(p)
			s := speaker(t, p.box, withBFD(c.at, c.edit))
			port := uint16(bfd.SingleHopPort)
			if strings.Contains(name, "multihop") || strings.Contains(name, "ttl security") {
				port = bfd.MultiHopPort
			}
			if r := s.bfdUp(); r.BFD.Port != port {
				t.Errorf("packets go to port %d, want %d", r.BFD.Port, port)
			}
			p.routed(box4, box6)
			router.bfdUp(t)

			// The box is there and says nothing: hold time 90 s, BFD 2.5 s.
			stop(t, s, syscall.SIGSTOP)
			p.unrouted()
			stop(t, s, syscall.SIGCONT)
			s.bfdUp()
			p.routed(box4, box6)

			// And the router. FRR starts BFD again after BGP: then it is not silence that ends the session, and it is tried again.
			for gone, tries := false, 1; !gone; tries++ {
				failures := s.bfdUp().BFD.Failures
				stop(t, router.daemon, syscall.SIGSTOP)
				r := s.until("the end of BFD", func(r report) bool { return r.BFD.Phase != bfd.Up })
				if gone = r.BFD.Failures > failures && r.BFD.Diagnostic == bfd.Expired; !gone {
					stop(t, router.daemon, syscall.SIGCONT)
				}
				if tries == 10 {
					t.Fatalf("BFD ends ten times, and not by silence: %+v", r.BFD)
				}
			}
			s.downBecause("BFD lost the peer")
			stop(t, router.daemon, syscall.SIGCONT)
			s.bfdUp()
		})
	}
}

func stop(t *testing.T, p *program, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// bfdRouter is a router that speaks BFD.
type bfdRouter struct {
	daemon *program      // which does
	show   func() string // its BFD sessions
}

// bfdUp waits until the router has a session that is Up: it may be so after the box, and one that is not yet Up ends
// no session of BGP.
func (r *bfdRouter) bfdUp(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		if got := r.show(); !regexp.MustCompile(`Status: Up|\sUp\s`).MatchString(got) {
			return fmt.Errorf("the router has no BFD session that is Up:\n%s", got)
		}
		return nil
	})
}

func birdAs(p *place, config string) *bfdRouter {
	birdc, daemon := birdProcess(p.t, p.router, config)
	return &bfdRouter{daemon, func() string { return birdc("show bfd sessions") }}
}

// frrAs starts FRR with one neighbor that BFD watches, and more options for it.
func frrAs(p *place, neighbor, options string) *bfdRouter {
	daemon := frr(p.t, p.router, frrBFD, frrPeer(neighbor, options))
	return &bfdRouter{daemon, func() string { return daemon.vtysh("show bgp neighbors " + neighbor) }}
}

// Test321: a BFD packet with a TTL below 255 is not taken.
func Test321_bfd_wants_ttl_255(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	// Before BIRD sends its first packet: one that has passed the hook may wait for ARP, and come later with its TTL of 255.
	p.router.LoadNft("table ip t {\nchain c {\ntype filter hook output priority 0\nudp dport { 3784, 4784 } ip ttl set 254\n}\n}\n")
	birdc := bird(t, p.router, birdPeer("box", box4, birdBoth+" bfd on;")+birdBFD)
	s := speaker(t, p.box, withBFD([2]string{router4, box4}, nil))
	r := s.until("dropped packets", func(r report) bool { return r.BFD != nil && r.BFD.Dropped > 0 })
	if !strings.Contains(r.BFD.LastDropped, "TTL 254") || r.BFD.Phase != bfd.Down || r.BFD.Received > 0 {
		t.Errorf("%+v; BIRD says: %s", r.BFD, birdc("show bfd sessions"))
	}
	p.router.Nft("delete table ip t")
	s.until("an Up session", func(r report) bool { return r.BFD.Phase == bfd.Up })
}

// Test322: of two boxes that announce the same addresses one dies, and the other one has its
// packets as soon as BFD finds out, long before the hold time.
func Test322_box_dies(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(p *place) *bfdRouter{
		"BIRD": func(p *place) *bfdRouter {
			return birdAs(p, birdPeer("box", box4, birdBoth+" bfd on;")+birdPeer("box2", "192.0.2.12", birdBoth)+birdBFD)
		},
		"FRR": func(p *place) *bfdRouter {
			return frrAs(p, box4, " neighbor 192.0.2.12 remote-as 64512\n neighbor 192.0.2.12 passive\n"+frrBoth("192.0.2.12"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			other := p.second()
			router := begin(p)
			s := speaker(t, p.box, withBFD([2]string{router4, box4}, func(s *spec) { s.Attributes = &bgp.Attributes{MED: 1} }))
			s.bfdUp()
			speaker(t, other, spec{Peer: peer(router4), Routes: vips(), Attributes: &bgp.Attributes{MED: 2}}).established(2)
			p.routed(box4, box6)
			router.bfdUp(t) // without BFD it would be the hold time
			stop := p.probe()
			p.box.SetDown("eth0")
			p.routed("192.0.2.12", "2001:db8:2::12")
			stop(-1)
			p.answeredBy("other")
		})
	}
}

// Test323: a process that was stopped for longer than the detection time does not take its
// neighbor for dead, whose packets wait to be read.
func Test323_stopped_process(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	bird(t, p.router, birdPeer("box", box4, birdBoth+" bfd on;")+birdBFD)
	const detection = 2500 * time.Millisecond // of the box, which BIRD's intervals make
	patient := withBFD([2]string{router4, box4}, func(s *spec) { s.BFD.Timers.Multiplier = 250 })
	s := speaker(t, p.box, patient)
	s.bfdUp()
	routes := 2
	reports := func(wanted func(report) bool) (r report) { // a report comes with a change
		t.Helper()
		eventually(t, func() error {
			routes++
			s.tell(order{Announce: prefixes(fmt.Sprintf("198.51.%d.%d/32", routes>>8, routes&255))})
			if r = s.established(routes); !wanted(r) {
				return fmt.Errorf("BFD is still %+v", r.BFD)
			}
			return nil
		})
		return r
	}
	r := reports(func(r report) bool { return r.BFD.Detection == detection })
	for range 2 {
		stop(t, s, syscall.SIGSTOP)
		time.Sleep(3 * detection) // real time: the neighbor's packets wait for longer than the detection time
		stop(t, s, syscall.SIGCONT)
		before := r.BFD.Received
		r = reports(func(r report) bool { return r.BFD.Received > before+25 })
	}
	if r.BFD.Phase != bfd.Up || r.BFD.Failures != 0 || r.BGP.Counters.Established != 1 {
		t.Errorf("after two stops: %+v", r)
	}
}
