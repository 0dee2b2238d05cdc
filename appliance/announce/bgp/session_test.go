package bgp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func TestSessionTellsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, func(p *Peer) { p.Timers.Restart = 120 * second })
		shared := &Attributes{MED: 7, Prepend: 2, Communities: []uint32{64512<<16 | 100}, Large: []LargeCommunity{{64512, 1, 2}}, LocalPref: 300}
		first := routes("203.0.113.1/32", "2001:db8:1::1/128")
		first[netip.MustParsePrefix("203.0.113.2/32")] = shared
		first[netip.MustParsePrefix("203.0.113.3/32")] = &Attributes{MED: 7, Prepend: 2, Communities: shared.Communities, Large: shared.Large, LocalPref: 300}
		if err := s.Set(first); err != nil {
			t.Fatal(err)
		}
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		open := p.greet(openFrom(64513, 90, bgp.NewCapGracefulRestart(false, false, 120, nil)))
		if open.MyAS != 64512 || open.HoldTime != 90 || open.ID != v4("192.0.2.1") {
			t.Errorf("OPEN: %+v", open)
		}
		got := p.endOfRIBs()
		if len(got) != 3 {
			t.Fatalf("%d updates, want one for each group of attributes and family: %v", len(got), got)
		}
		for _, u := range got {
			path, _ := attribute[*bgp.PathAttributeAsPath](u)
			switch all := announced(u); {
			case slices.Equal(all, []string{"203.0.113.1/32"}):
				if next, is := attribute[*bgp.PathAttributeNextHop](u); !is || next.Value != v4("192.0.2.1") || path.String() != "{AsPath: 64512}" {
					t.Errorf("next hop %v, path %s", next, path)
				}
			case slices.Equal(all, []string{"203.0.113.2/32", "203.0.113.3/32"}):
				communities, _ := attribute[*bgp.PathAttributeCommunities](u)
				large, _ := attribute[*bgp.PathAttributeLargeCommunities](u)
				med, _ := attribute[*bgp.PathAttributeMultiExitDisc](u)
				_, preference := attribute[*bgp.PathAttributeLocalPref](u)
				if path.String() != "{AsPath: 64512 64512 64512}" || med.Value != 7 || preference ||
					!slices.Equal(communities.Value, shared.Communities) || *large.Values[0] != *bgp.NewLargeCommunity(64512, 1, 2) {
					t.Errorf("attributes: %v", u.PathAttributes)
				}
			case slices.Equal(all, []string{"2001:db8:1::1/128"}):
				if mp, _ := attribute[*bgp.PathAttributeMpReachNLRI](u); mp.Nexthop != v4("2001:db8::1") {
					t.Errorf("next hop %s", mp.Nexthop)
				}
			default:
				t.Errorf("announced %v", all)
			}
		}
		synctest.Wait()
		if st := s.State(); st.Phase != Established || st.Routes != 4 || st.Pending || !st.Agreed.GracefulRestart || st.Agreed.RemoteAS != 64513 {
			t.Errorf("state %+v", st)
		}

		// Only what changes is sent: what is new first, then what goes.
		if err := s.Update(routes("203.0.113.1/32", "203.0.113.9/32"), []netip.Prefix{netip.MustParsePrefix("203.0.113.2/32"), netip.MustParsePrefix("198.51.100.1/32")}); err != nil {
			t.Fatal(err)
		}
		u := p.skipping().Body.(*bgp.BGPUpdate)
		if got := announced(u); !slices.Equal(got, []string{"203.0.113.9/32"}) {
			t.Errorf("announced %v", got)
		}
		if got := withdrawn(p.skipping().Body.(*bgp.BGPUpdate)); !slices.Equal(got, []string{"203.0.113.2/32"}) {
			t.Errorf("withdrawn %v", got)
		}
		if err := s.Set(routes("203.0.113.1/32", "203.0.113.9/32", "203.0.113.3/32")); err != nil {
			t.Fatal(err)
		}
		u = p.skipping().Body.(*bgp.BGPUpdate)
		if path, _ := attribute[*bgp.PathAttributeAsPath](u); !slices.Equal(announced(u), []string{"203.0.113.3/32"}) || path.String() != "{AsPath: 64512}" {
			t.Errorf("changed attributes: %v", u)
		}
		if got := withdrawn(p.skipping().Body.(*bgp.BGPUpdate)); !slices.Equal(got, []string{"2001:db8:1::1/128"}) {
			t.Errorf("withdrawn %v", got)
		}
	})
}

func TestInternalAndOldPeers(t *testing.T) {
	for name, c := range map[string]struct {
		edit   func(*Peer)
		answer *bgp.BGPMessage
		check  func(*testing.T, *bgp.BGPUpdate)
	}{
		"internal": {
			func(p *Peer) { p.RemoteAS = 64512 }, openFrom(64512, 90),
			func(t *testing.T, u *bgp.BGPUpdate) {
				path, _ := attribute[*bgp.PathAttributeAsPath](u)
				preference, _ := attribute[*bgp.PathAttributeLocalPref](u)
				if path.String() != "{AsPath: }" || preference.Value != 200 {
					t.Errorf("path %q, local preference %v", path, preference)
				}
			},
		},
		"two octets": {
			func(p *Peer) { p.LocalAS = 4200000000 }, func() *bgp.BGPMessage {
				m, _ := bgp.NewBGPOpenMessage(64513, 90, v4("192.0.2.2"), nil)
				return m
			}(),
			func(t *testing.T, u *bgp.BGPUpdate) {
				path, _ := attribute[*bgp.PathAttributeAsPath](u)
				four, is := attribute[*bgp.PathAttributeAs4Path](u)
				if path.String() != "{AsPath: 23456}" || !is || len(four.Value) != 1 || !slices.Equal(four.Value[0].AS, []uint32{4200000000}) {
					t.Errorf("path %s, in four octets %v", path, four)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, c.edit)
				_ = s.Set(map[netip.Prefix]*Attributes{netip.MustParsePrefix("203.0.113.1/32"): {LocalPref: 200}})
				peers := pipe(t, s)
				defer run(s)()
				p := <-peers
				p.old = name == "two octets"
				p.greet(c.answer)
				c.check(t, p.skipping().Body.(*bgp.BGPUpdate))
			})
		})
	}
}

// TestRefusedOpen: what the peer's OPEN must not say, and what both sides learn of it.
func TestRefusedOpen(t *testing.T) {
	noID := openFrom(64513, 90)
	noID.Body.(*bgp.BGPOpen).ID = v4("0.0.0.0")
	sameID := openFrom(64512, 90)
	sameID.Body.(*bgp.BGPOpen).ID = v4("192.0.2.1")
	old := openFrom(64513, 90)
	old.Body.(*bgp.BGPOpen).Version = 3
	vpn, _ := bgp.NewBGPOpenMessage(64513, 90, v4("192.0.2.2"), []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_VPN)}),
	})
	for name, c := range map[string]struct {
		edit          func(*Peer)
		answer        *bgp.BGPMessage
		code, subcode uint8
		want          string
	}{
		"wrong AS":         {nil, openFrom(64999, 90), 2, 2, "the peer is AS 64999, and AS 64513 is configured"},
		"not internal":     {func(p *Peer) { p.RemoteAS, p.Dynamic = 0, Internal }, openFrom(64513, 90), 2, 2, "an internal peer would be AS 64512"},
		"not external":     {func(p *Peer) { p.RemoteAS, p.Dynamic = 0, External }, openFrom(64512, 90), 2, 2, "as we are"},
		"no router ID":     {nil, noID, 2, 3, "no router ID"},
		"our router ID":    {func(p *Peer) { p.RemoteAS = 64512 }, sameID, 2, 3, "our router ID 192.0.2.1"},
		"hold time":        {nil, openFrom(64513, 2), 2, 6, "hold time of 2s"},
		"version":          {nil, old, 2, 1, "version 3"},
		"no common family": {nil, vpn, 2, 7, "no routes of a family"},
		"keepalive first":  {nil, bgp.NewBGPKeepAliveMessage(), 5, 1, "before the session was up"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, c.edit)
				peers := pipe(t, s)
				defer run(s)()
				p := <-peers
				p.receive()
				p.send(c.answer)
				p.notified(c.code, c.subcode)
				down(t, s, c.want)
			})
		})
	}
}

// TestRefusedBytes: what is no message ends the session with the error that RFC 4271 names.
func TestRefusedBytes(t *testing.T) {
	message := func(length uint16, kind uint8, body ...byte) []byte {
		b := slices.Repeat([]byte{0xff}, 16)
		return append(append(b, byte(length>>8), byte(length), kind), body...)
	}
	long := message(29+200, typeOpen, append([]byte{4, 0xfc, 1, 0, 90, 192, 0, 2, 2, 255}, make([]byte, 200)...)...)
	for name, c := range map[string]struct {
		bytes         []byte
		code, subcode uint8
	}{
		"no marker":        {make([]byte, 19), 1, 1},
		"too short":        {message(18, typeKeepalive), 1, 2},
		"too long":         {message(5000, typeUpdate), 1, 2},
		"keepalive + body": {message(20, typeKeepalive, 1), 1, 2},
		"unknown type":     {message(19, 99), 1, 3},
		"overlong OPEN":    {long, 2, 0},
		"OPEN cut short":   {message(31, typeOpen, 4, 0xfc, 1, 0, 90, 192, 0, 2, 2, 2, 2, 40), 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, nil)
				peers := pipe(t, s)
				defer run(s)()
				p := <-peers
				p.receive()
				go func() { _, _ = p.conn.Write(c.bytes) }() // not all of it may be read
				p.notified(c.code, c.subcode)
			})
		})
	}
}

// TestFullTable: a peer that sends everything it knows costs nothing here.
func TestFullTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, nil)
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		g := group{attributes: plain}
		for i := range 700 {
			g.prefixes = append(g.prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
		}
		update := path{as: 64513, peerAS: 64512, fourAS: true, next4: []netip.Addr{v4("192.0.2.2")}}.updates(g)[0]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const messages = 1000 // 700,000 routes
		for range messages {
			p.write(update)
		}
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if got := s.State().Counters.Dropped; got != messages {
			t.Errorf("%d updates dropped, want %d", got, messages)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
			t.Errorf("700,000 routes allocated %d bytes", grown)
		}
	})
}

// TestHoldTimer: silence and half messages end the session when the hold time is over.
func TestHoldTimer(t *testing.T) {
	for name, last := range map[string][]byte{"silence": nil, "half a message": keepalive()[:10]} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, func(p *Peer) { p.Timers.Hold = 30 * second })
				peers := pipe(t, s)
				defer run(s)()
				p := <-peers
				p.greet(openFrom(64513, 9)) // the smaller one counts
				p.endOfRIBs()
				beats := 0
				go func() {
					for range 5 {
						time.Sleep(8 * second)
						p.write(keepalive())
					}
					p.write(last)
				}()
				began := time.Now()
				for {
					m := p.receive()
					if m == nil {
						t.Fatal("no NOTIFICATION")
					}
					if n, is := m.Body.(*bgp.BGPNotification); is {
						if n.ErrorCode != 4 {
							t.Errorf("NOTIFICATION %d", n.ErrorCode)
						}
						break
					}
					beats++
				}
				if took := time.Since(began); took < 49*second || took > 51*second {
					t.Errorf("ended after %s, want 40 s and the hold time", took)
				}
				if beats < 15 || beats > 17 {
					t.Errorf("%d keepalives, want one each 3 s", beats)
				}
				down(t, s, "silent for the hold time of 9s")
			})
		})
	}
}

// lateReader is a connection of a process that was stopped: its deadline is over before it
// gets to read what has arrived.
type lateReader struct {
	net.Conn
	stopped atomic.Bool
	until   time.Time
}

func (c *lateReader) SetReadDeadline(t time.Time) error {
	c.until = t
	return c.Conn.SetReadDeadline(t)
}

func (c *lateReader) Read(b []byte) (int, error) {
	if c.stopped.CompareAndSwap(true, false) {
		time.Sleep(time.Until(c.until) + second)
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Read(b)
}

func TestStoppedProcessReadsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, func(p *Peer) { p.Timers.Hold = 9 * second })
		peers := pipe(t, s)
		inner := s.dial
		late := &lateReader{}
		s.dial = func(ctx context.Context, p Peer) (link, error) {
			l, err := inner(ctx, p)
			late.Conn = l.Conn
			l.Conn = late
			return l, err
		}
		defer run(s)()
		p := <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		go func() {
			for p.receive() != nil {
			}
		}()
		late.stopped.Store(true)
		for range 10 { // the first one waits to be read
			p.write(keepalive())
			time.Sleep(3 * second)
		}
		if st := s.State(); st.Phase != Established || st.Counters.Established != 1 {
			t.Errorf("after a stop of this process: %+v", st)
		}
	})
}

// A peer that reads nothing is left at once, and when nobody leaves it, after the hold time, or a time of ours when it
// wants none.
func TestPeerThatReadsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		hold uint16
		end  func(*Speaker, context.CancelFunc)
		most time.Duration
	}{
		"stop":               {90, func(_ *Speaker, cancel context.CancelFunc) { cancel() }, 0},
		"stop, no hold time": {0, func(_ *Speaker, cancel context.CancelFunc) { cancel() }, 0},
		"BFD":                {0, func(s *Speaker, _ context.CancelFunc) { s.Reset("BFD lost the peer") }, lastWords},
		"leave":              {0, func(s *Speaker, _ context.CancelFunc) { go func() { _ = s.Leave(context.Background()) }() }, leavePatience + 2*lastWords},
		"nobody":             {0, func(*Speaker, context.CancelFunc) {}, holdOfNone + 2*lastWords},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, nil)
				peers := pipe(t, s)
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() { defer close(done); s.Run(ctx) }()
				defer func() { cancel(); <-done }()
				p := <-peers
				p.greet(openFrom(64513, c.hold))
				p.endOfRIBs()
				_ = s.Set(routes("203.0.113.1/32", "203.0.113.2/32"))
				synctest.Wait()
				began := time.Now()
				c.end(s, cancel)
				for synctest.Wait(); s.State().Phase == Established && time.Since(began) < time.Hour; synctest.Wait() {
					time.Sleep(10 * time.Millisecond)
				}
				if took := time.Since(began); took > c.most+20*time.Millisecond+lastWords {
					t.Errorf("it took %v", took)
				}
				if words := s.State().LastDown; name == "BFD" && !strings.Contains(words, "BFD lost the peer") {
					t.Errorf("the reason is %q", words)
				}
			})
		})
	}
}
