package bgp

import (
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
			down(t, s, "had a connection of its own under way; before that the peer ended the session: "+said)
		}

		// It is forgotten with the next session.
		p = <-peers
		p.greet(openFrom(64513, 90))
		p.endOfRIBs()
		p.conn.Close()
		synctest.Wait()
		if got, want := s.State().LastDown, "the peer closed the connection without a word: it was stopped, restarts, or takes fewer prefixes than we announce"; got != want {
			t.Errorf("down because %q, want %q", got, want)
		}
	})
}
