package bgp

import (
	"errors"
	"testing"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// FuzzMessages: no bytes of a peer break the parsers, and what they refuse has a code.
func FuzzMessages(f *testing.F) {
	for _, m := range []*bgp.BGPMessage{
		openFrom(4200000000, 90, bgp.NewCapGracefulRestart(true, true, 120, []*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, true)})),
		bgp.NewBGPKeepAliveMessage(), bgp.NewBGPNotificationMessage(6, 2, []byte("\x04noon")), bgp.NewBGPRouteRefreshMessage(1, 0, 1),
	} {
		f.Add(serialize(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLength {
			return
		}
		h, err := parseHeader(b[:headerLength])
		var n *notification
		if err != nil {
			if !errors.As(err, &n) || n.code != 1 || n.detail == "" {
				t.Errorf("header %x: %v", b[:headerLength], err)
			}
			return
		}
		if h.length > len(b) {
			return
		}
		body := b[headerLength:h.length]
		switch h.kind {
		case typeOpen:
			o, err := parseOpen(body)
			if err != nil {
				if !errors.As(err, &n) || n.code != 2 || n.detail == "" {
					t.Errorf("OPEN %x: %v", body, err)
				}
				return
			}
			mine := openOf(Peer{LocalAS: 1, IPv4: true, IPv6: true, RouterID: v4("192.0.2.1")}, link{local: v4("192.0.2.1")}, true)
			if accept(Peer{LocalAS: 1, Dynamic: External}, mine, o) == nil && o.hold != 0 && o.hold < minHold {
				t.Errorf("OPEN %x taken with a hold time of %s", body, o.hold)
			}
		case typeNotification:
			if parseNotification(body).words(Peer{}) == "" {
				t.Errorf("NOTIFICATION %x without words", body)
			}
		case typeRefresh:
			parseRefresh(body)
		}
	})
}
