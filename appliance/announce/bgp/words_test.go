package bgp

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A router that does not take this box says so once, and is silent for a minute.
func Test662_what_the_router_said_stays_known(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const said = "it expects another AS than our 64512"
		s := speaker(t, nil)
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.receive()
		p.send(bgp.NewBGPNotificationMessage(bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS, nil))
		down(t, s, "the peer ended the session: "+said)
		for range 2 {
			p = <-peers
			p.receive()
			p.conn.Close()
			down(t, s, "the peer ended the session: "+said+"; after that the peer closed the connection without a reason")
		}

		// It is forgotten with the next session.
		p = <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		p.conn.Close()
		synctest.Wait()
		if got, want := s.State().LastDown, "the peer closed the connection without a reason: it was stopped, restarts, or takes fewer prefixes than we announce"; got != want {
			t.Errorf("down because %q, want %q", got, want)
		}
	})
}

// A reason that is found on this side stays first, while the router is in its error wait and closes what comes.
func Test780_what_this_side_found_stays_known(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const found = "the peer is AS 64777, and AS 64513 is configured"
		s := speaker(t, nil)
		peers := pipe(t, s)
		defer run(s)()
		p := <-peers
		p.receive()
		p.send(openFrom(64777, 90))
		p.notified(bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS)
		down(t, s, found)
		for range 3 {
			p = <-peers
			p.receive()
			p.conn.Close()
			down(t, s, found+"; after that the peer closed the connection without a reason")
		}
		p = <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		p.conn.Close()
		synctest.Wait()
		if got, want := s.State().LastDown, "the peer closed the connection without a reason: it was stopped, restarts, or takes fewer prefixes than we announce"; got != want {
			t.Errorf("down because %q, want %q", got, want)
		}
	})
}

// What forbids a connection on this box is named, with where to allow it.
func Test782_sandbox_is_named(t *testing.T) {
	for _, tc := range []struct {
		peer  string
		errno syscall.Errno
		want  string
	}{
		{"192.0.2.1:179", syscall.EAFNOSUPPORT, "RestrictAddressFamilies=AF_INET into"},
		{"[2001:db8::1]:179", syscall.EAFNOSUPPORT, "RestrictAddressFamilies=AF_INET6 into"},
		{"192.0.2.1:179", syscall.EPERM, "IPAddressAllow=192.0.2.1 into"},
	} {
		got := explain(Peer{Addr: netip.MustParseAddrPort(tc.peer)}, Connect, os.NewSyscallError("socket", tc.errno))
		if !strings.Contains(got, tc.want) || !strings.Contains(got, "systemctl edit svcctl-announce") {
			t.Errorf("%s, %v: %s, want %q", tc.peer, tc.errno, got, tc.want)
		}
	}
}
