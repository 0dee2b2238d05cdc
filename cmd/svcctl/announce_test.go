package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/announce/vrrp"
)

func TestAnnounceFlags(t *testing.T) {
	b := newBench()
	var got announce.Config
	b.program.announce = func(_ context.Context, c announce.Config, _ *slog.Logger) error { got = c; return nil }
	for args, want := range map[string]announce.Config{
		"":                    {L2: []string{"auto"}},
		"--l2 eth0 --l2 eth1": {L2: []string{"eth0", "eth1"}},
		"--vrid 51":           {L2: []string{"auto"}, Election: &vrrp.Config{VRID: 51, Priority: 100, Interval: 100 * time.Millisecond}},
		"--vrid 255 --priority 254 --interval 1s --preempt": {L2: []string{"auto"}, Election: &vrrp.Config{VRID: 255, Priority: 254, Interval: time.Second, Preempt: true}},
		"--follow 192.0.2.1": {L2: []string{"auto"}, Follow: netip.MustParseAddr("192.0.2.1")},
	} {
		want.Socket, want.StateDir = "/run/svcctl/svcctl.sock", "/run/svcctl-announce"
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != exitDone || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: exit %d %s: %+v, want %+v", args, code, b.err.String(), got, want)
		}
	}
	for args, want := range map[string]string{
		"--vrid 0": "--vrid", "--vrid 256": "--vrid", "--vrid a": "--vrid", "--vrid 1 --priority 255": "--priority", "--vrid 1 --priority 1": "--priority",
		"--vrid 1 --interval 5ms": "--interval", "--vrid 1 --interval 15ms": "--interval", "--vrid 1 --interval 50s": "--interval",
		"--priority 100": "--priority", "--preempt": "--preempt", "--follow eth0": "--follow", "--follow 192.0.2.1 --vrid 1": "--follow",
		"--l2 a/b": "--l2", "--l2 sixteencharacters": "--l2", "--state-dir state": "--state-dir",
	} {
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
	}
}

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

// secret is a file with a password.
func secret(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnnounceBGPFlags(t *testing.T) {
	b := newBench()
	var got announce.Config
	b.program.announce = func(_ context.Context, c announce.Config, _ *slog.Logger) error { got = c; return nil }
	good := secret(t, "between us\n", 0o600)
	peer := func(name, at string, as uint32) announce.Peer {
		p := announce.Peer{Name: name, Peer: bgp.Peer{LocalAS: 64512, RemoteAS: as, IPv4: true, IPv6: true}}
		if addr, err := netip.ParseAddr(at); err == nil {
			p.Addr = netip.AddrPortFrom(addr, 179)
		} else {
			p.Interface = at
		}
		return p
	}
	with := func(p announce.Peer, change func(*announce.Peer)) announce.Peer { change(&p); return p }
	tor := peer("192.0.2.1", "192.0.2.1", 64513)
	for args, want := range map[string]announce.Config{
		"--peer 64513@192.0.2.1":           {BGP: &announce.BGP{Peers: []announce.Peer{tor}}},
		"--l2 auto --peer 64513@192.0.2.1": {L2: []string{"auto"}, BGP: &announce.BGP{Peers: []announce.Peer{tor}}},
		"--peer tor-1=64513@2001:db8::1 --peer 4200000000@fe80::1%eth0 --peer 64513@eth1": {BGP: &announce.BGP{Peers: []announce.Peer{
			peer("tor-1", "2001:db8::1", 64513), peer("fe80::1%eth0", "fe80::1%eth0", 4200000000), peer("eth1", "eth1", 64513)}}},
		"--peer external@192.0.2.1 --ttl-security --graceful-restart 2m --peer-password-file " + good: {BGP: &announce.BGP{Peers: []announce.Peer{
			with(tor, func(p *announce.Peer) {
				p.RemoteAS, p.Dynamic, p.TTLSecurity, p.Timers.Restart, p.Password = 0, bgp.External, 1, 2*time.Minute, "between us"
			})}}},
		"--peer 64512@192.0.2.1 --multihop --local-pref 200 --community 64512:7 --community no-export --community 4200000000:1:2 --bfd 100msx5": {BGP: &announce.BGP{
			Peers: []announce.Peer{with(tor, func(p *announce.Peer) { p.RemoteAS, p.MultiHop = 64512, true })},
			BFD:   &bfd.Timers{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 5}, BFDMinTTL: 1,
			Attributes: bgp.Attributes{LocalPref: 200, Communities: []uint32{64512<<16 | 7, 0xffffff01}, Large: []bgp.LargeCommunity{{4200000000, 1, 2}}}}},
		"--peer 64513@192.0.2.1 --bfd 1s": {BGP: &announce.BGP{Peers: []announce.Peer{tor}, BFD: &bfd.Timers{Transmit: time.Second, Receive: time.Second}, BFDMinTTL: 1}},
	} {
		want.Socket, want.StateDir = "/run/svcctl/svcctl.sock", "/run/svcctl-announce"
		if code := b.run(append([]string{"announce", "--asn", "64512"}, strings.Fields(args)...)...); code != exitDone || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: exit %d %s: %+v, want %+v", args, code, b.err.String(), got.BGP, want.BGP)
		}
	}
	const ok = "--asn 64512 --peer 64513@192.0.2.1 "
	for args, want := range map[string]string{
		"--asn 64512": "--asn", "--bfd 300ms": "--bfd", "--ttl-security": "--ttl-security", "--peer 64513@192.0.2.1": "--asn", "--asn 0 --peer 64513@192.0.2.1": "--asn",
		ok + "--peer 64514@192.0.2.1": "two of the name", ok + "--peer 192.0.2.2": "ASN@ADDRESS", ok + "--peer x@192.0.2.2": "an AS is a number",
		ok + "--peer 64513@192.0.2.300": "neither", ok + "--peer 64513@fe80::1": "fe80::1%eth0", ok + "--peer 64513@2001:db8::1%eth0": "link-local",
		ok + "--peer 64513@224.0.0.1": "no address of a router", ok + "--peer a,b=64513@192.0.2.2": "the name", ok + "--peer 23456@192.0.2.2": "23456",
		ok + "--peer 64513@interfacewithalongname": "neither", ok + "--bfd 10ms": "50 ms", ok + "--bfd 300msx0": "255", ok + "--bfd 300msx999": "255", ok + "--bfd 3": "interval",
		ok + "--community 64512": "--community", ok + "--community 70000:1": "--community", ok + "--community 1:2:x": "--community", ok + "--local-pref 100": "our own AS",
		"--asn 64512 --peer internal@192.0.2.1 --local-pref 0": "--local-pref", ok + "--graceful-restart 5000s": "--graceful-restart", ok + "--graceful-restart 1500ms": "--graceful-restart",
		ok + "--ttl-security --multihop": "--multihop", ok + "--vrid 1": "--l2", ok + "--follow 192.0.2.1": "--l2",
		ok + "--peer-password-file /nowhere": "/nowhere", ok + "--peer-password-file " + secret(t, "x", 0o644): "chmod 600",
		ok + "--peer-password-file " + secret(t, "\n", 0o600): "empty", ok + "--peer-password-file " + secret(t, strings.Repeat("x", 81), 0o600): "81 bytes",
	} {
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
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
