package box

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

func TestAnnouncementsText(t *testing.T) {
	since := time.Date(2025, 11, 20, 9, 30, 15, 0, time.UTC)
	all := &wire.Announcements{Ranges: []string{"192.0.2.16-192.0.2.31"}, Announcer: &wire.Announcer{}, Items: []wire.Announcement{
		{Address: "192.0.2.16", Services: []string{"default/web", "shop/web"}, Places: []wire.Place{
			{By: "l2 eth0", State: "announced", Since: since}, {By: "l2 eth1", State: "conflict", With: "02:00:00:00:00:01", Since: since},
			{By: "l2 eth2", State: "standby", With: "192.0.2.2", Since: since}}},
		{Address: "192.0.2.17", Services: []string{"default/idle"}, Withheld: "no ready endpoint"},
		{Address: "192.0.2.18", Services: []string{"default/far"}, Nowhere: "it lies in no network of eth0 (10.0.0.1/24)"},
	}}
	const want = `ADDRESS      SERVICE                BY        STATE                                                     SINCE
192.0.2.16   default/web,shop/web   l2 eth0   announced                                                 2025-11-20T09:30:15Z
192.0.2.16   default/web,shop/web   l2 eth1   conflict with 02:00:00:00:00:01                           2025-11-20T09:30:15Z
192.0.2.16   default/web,shop/web   l2 eth2   standby: 192.0.2.2 answers                                2025-11-20T09:30:15Z
192.0.2.17   default/idle           -         withheld: no ready endpoint                               -
192.0.2.18   default/far            -         not announced: it lies in no network of eth0 (10.0.0.1/24)    -
`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if got := announcementsText(all, false); squeeze(got) != squeeze(want) {
		t.Errorf("it is\n%s", got)
	}
	all.Announcer = nil
	all.Items = all.Items[2:]
	all.Items[0].Places = nil
	if got := announcementsText(all, false); !strings.Contains(got, "No announcer is connected") {
		t.Errorf("it is\n%s", got)
	}
	if got := announcementsText(&wire.Announcements{}, false); !strings.Contains(got, "--load-balancer-pool") {
		t.Errorf("it is\n%s", got)
	}
}

func TestPeersText(t *testing.T) {
	since := time.Date(2025, 11, 20, 9, 30, 15, 0, time.UTC)
	all := &wire.Announcements{Ranges: []string{"192.0.2.16-192.0.2.31"}, Announcer: &wire.Announcer{},
		Items: []wire.Announcement{{Address: "192.0.2.16", Services: []string{"default/web"}, Places: []wire.Place{
			{By: "bgp tor-1", State: "announced", Since: since}, {By: "bgp tor-2", State: "unsent", Why: "the session carries no IPv4 routes", Since: since}}}},
		Peers: []wire.Peer{
			{Name: "tor-1", At: "192.0.2.1", AS: 64513, State: wire.Established, Since: since, Routes: 1, BFD: "Up"},
			{Name: "tor-2", At: "eth1", State: "Idle", Since: since, LastDown: "no router was heard", DownAt: since},
		}}
	const want = `ADDRESS SERVICE BY STATE SINCE
192.0.2.16 default/web bgp tor-1 announced 2025-11-20T09:30:15Z
192.0.2.16 default/web bgp tor-2 unsent: the session carries no IPv4 routes 2025-11-20T09:30:15Z
PEER AT AS STATE SINCE ROUTES BFD LAST DOWN
tor-1 192.0.2.1 64513 Established 2025-11-20T09:30:15Z 1 Up -
tor-2 eth1 - Idle 2025-11-20T09:30:15Z 0 - 2025-11-20T09:30:15Z: no router was heard`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if got := announcementsText(all, false); squeeze(got) != squeeze(want) {
		t.Errorf("it is\n%s", got)
	}
	all.Items = nil
	if got := announcementsText(all, false); !strings.Contains(got, "tor-2") {
		t.Errorf("without addresses it is\n%s", got)
	}
}

// Connections that the appliance does not list are not taken for silent.
func TestStillActive(t *testing.T) {
	for want, is := range map[string][2]int{
		"": {0, 0}, "packets of 1 connection still come": {1, 0}, "packets of 2 connections still come": {2, 7},
		"7 connections could not be looked at: there are more than 100000": {0, 7},
	} {
		if got := stillActive(is[0], is[1]); got != want {
			t.Errorf("of %d active and %d unlisted ones is said %q, want %q", is[0], is[1], got, want)
		}
	}
}

// A connection counts as active when its time to be forgotten began anew between two looks.
func TestActiveConnections(t *testing.T) {
	vips := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.50"): true}
	look := func(expires ...int) *wire.Connections {
		all := &wire.Connections{}
		for id, e := range expires {
			all.Connections = append(all.Connections, wire.Connection{ID: uint32(id), To: "192.0.2.50:80", State: "ESTABLISHED", Expires: e})
		}
		return all
	}
	other, over := look(100), look(100)
	other.Connections[0].To, over.Connections[0].State = "192.0.2.51:80", "TIME_WAIT"
	for name, test := range map[string]struct {
		before, now  *wire.Connections
		active, open int
	}{
		"silent":           {look(100), look(98), 0, 1},
		"a packet came":    {look(100, 100), look(100, 97), 1, 2},
		"a new one":        {look(100), look(98, 30), 1, 2},
		"the first look":   {nil, look(98, 30), 2, 2},
		"another address":  {nil, other, 0, 0},
		"a closed one":     {nil, over, 0, 0},
		"one that is gone": {look(100), look(), 0, 0},
	} {
		if active, open := activeConnections(test.before, test.now, vips); active != test.active || open != test.open {
			t.Errorf("%s: %d active and %d open, want %d and %d", name, active, open, test.active, test.open)
		}
	}
}
