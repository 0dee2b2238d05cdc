package bgp

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// TestLeave: others are preferred first, then the routes go, then the session.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, func(p *Peer) { p.RemoteAS = 64512; p.Timers.Restart = 120 * second })
		_ = s.Set(routes("203.0.113.1/32", "2001:db8:1::1/128"))
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.greet(openFrom(64512, 90, bgp.NewCapGracefulRestart(false, false, 120, nil)))
		p.endOfRIBs()
		left := make(chan error)
		go func() { left <- s.Leave(context.Background()) }()
		began := time.Now()
		for range 2 {
			u := p.skipping().Body.(*bgp.BGPUpdate)
			communities, _ := attribute[*bgp.PathAttributeCommunities](u)
			preference, _ := attribute[*bgp.PathAttributeLocalPref](u)
			if len(announced(u)) != 1 || communities == nil || !slices.Equal(communities.Value, []uint32{0xffff0000}) || preference.Value != 0 {
				t.Errorf("graceful shutdown: %v", u)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("graceful shutdown after %s", took)
		}
		for range 2 {
			if u := p.skipping().Body.(*bgp.BGPUpdate); len(withdrawn(u)) != 1 {
				t.Errorf("withdrawal: %v", u)
			}
		}
		if took := time.Since(began); took != 2*second {
			t.Errorf("withdrawal after %s", took)
		}
		p.notified(6, 2)
		if took := time.Since(began); took != 3*second {
			t.Errorf("cease after %s", took)
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
	})
}

// TestEnd: a program that ends says so, unless the peer is to keep the routes for its return.
func TestEnd(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("graceful restart ", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := speaker(t, func(p *Peer) { p.Timers.Restart = 60 * second })
				peers := pipe(t, s)
				stop := run(s)
				p := <-peers
				var more []bgp.ParameterCapabilityInterface
				if restart {
					more = append(more, bgp.NewCapGracefulRestart(false, false, 120, nil))
				}
				open := p.greet(openFrom(64513, 90, more...))
				p.endOfRIBs()
				var gr *bgp.CapGracefulRestart
				for _, o := range open.OptParams {
					for _, c := range o.(*bgp.OptionParameterCapability).Capability {
						if c, is := c.(*bgp.CapGracefulRestart); is {
							gr = c
						}
					}
				}
				if gr == nil || gr.Time != 60 || gr.Flags&0x8 == 0 || len(gr.Tuples) != 2 || gr.Tuples[0].Flags != 0x80 || gr.Tuples[1].Flags != 0x80 {
					t.Errorf("graceful restart capability %+v", gr)
				}
				go stop()
				if !restart {
					p.notified(6, 2)
					return
				}
				if m := p.skipping(); m != nil {
					t.Errorf("the last message was %+v", m)
				}
			})
		})
	}
}

func TestRefreshAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, nil)
		_ = s.Set(routes("203.0.113.1/32", "2001:db8:1::1/128"))
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		for afi, want := range map[uint16]string{bgp.AFI_IP: "203.0.113.1/32", bgp.AFI_IP6: "2001:db8:1::1/128"} {
			p.send(bgp.NewBGPRouteRefreshMessage(afi, 0, bgp.SAFI_UNICAST))
			if got := announced(p.skipping().Body.(*bgp.BGPUpdate)); !slices.Equal(got, []string{want}) {
				t.Errorf("refreshed %v, want %s", got, want)
			}
		}
		s.Reset("BFD lost the peer")
		p.notified(6, 10)
		down(t, s, "BFD lost the peer")
		p = <-peers // dialed again, with all routes
		p.greet(openFrom(64513, 90))
		if got := p.endOfRIBs(); len(got) != 2 {
			t.Errorf("after the reset: %v", got)
		}
	})
}

// TestNotificationInWords: the peer's reasons become sentences.
func TestNotificationInWords(t *testing.T) {
	for want, n := range map[string]*bgp.BGPMessage{
		"it expects another AS than our 64512":             bgp.NewBGPNotificationMessage(2, 2, nil),
		"administrative shutdown (\"until \\\"noon\\\"\")": bgp.NewBGPNotificationMessage(6, 2, append([]byte{13}, "until \"noon\"\a"...)),
		"it has no such peer any more":                     bgp.NewBGPNotificationMessage(6, 3, nil),
		"error 77, subcode 3":                              bgp.NewBGPNotificationMessage(77, 3, nil),
		"error 6, subcode 250":                             bgp.NewBGPNotificationMessage(6, 250, []byte{250}),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := speaker(t, nil)
			peers := pipe(t, s)
			defer run(s)()
			p := <-peers
			p.receive()
			p.send(n)
			_ = p.conn.Close()
			down(t, s, want)
		})
	}
}

// TestBackoff: attempts come after 1, 2, 4, ... seconds, at most the connect time apart, and a
// quarter less by chance.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := speaker(t, func(p *Peer) { p.Timers.Connect = 5 * second })
		var at []time.Time
		s.dial = func(context.Context, Peer) (link, error) {
			at = append(at, time.Now())
			return link{}, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		stop := run(s)
		time.Sleep(60 * second)
		stop()
		for i, want := range []time.Duration{1, 2, 4, 5, 5, 5} {
			want *= second
			if got := at[i+1].Sub(at[i]); got > want || got < want*3/4 {
				t.Errorf("wait %d: %s, want %s or up to a quarter less", i, got, want)
			}
		}
		if got := s.State().LastDown; !strings.Contains(got, "refused the connection") {
			t.Errorf("reason %q", got)
		}
	})
}
