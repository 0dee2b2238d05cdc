package box

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/wire"
)

// TestAnnouncedAlone tells addresses of which this box is the only announcer from those that others may announce.
func TestAnnouncedAlone(t *testing.T) {
	item := func(address string, places ...string) wire.Announcement {
		a := wire.Announcement{Address: address}
		for _, place := range places {
			by, state, _ := strings.Cut(place, "=")
			a.Places = append(a.Places, wire.Place{By: by, State: state})
		}
		return a
	}
	items := []wire.Announcement{
		item("192.0.2.1", "l2 eth0=announced"), item("192.0.2.2", "l2 eth0=announced", "bgp tor=announced"), item("192.0.2.3", "bgp tor=sending"),
		item("192.0.2.4", "l2 eth0=standby"), item("192.0.2.5"), item("192.0.2.6", "l2 eth0=conflict", "bgp tor=down"), item("192.0.2.7", "l2 eth0=announced", "l2 eth1=conflict"),
	}
	alone, unknown := announcedAlone(&wire.Announcements{Items: items})
	if diff := cmp.Diff([][]string{{"192.0.2.1", "192.0.2.7"}, {"192.0.2.2", "192.0.2.3"}}, [][]string{alone, unknown}); diff != "" {
		t.Errorf("without an election (-want +got):\n%s", diff)
	}
	alone, unknown = announcedAlone(&wire.Announcements{Items: items, Group: &wire.Group{State: "active"}})
	if diff := cmp.Diff([][]string{nil, {"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.7"}}, [][]string{alone, unknown}); diff != "" {
		t.Errorf("in an election (-want +got):\n%s", diff)
	}
}
