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

	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

func TestAnnounceFlags(t *testing.T) {
	b := newBench()
	var got announce.Config
	b.Env.Announce = func(_ context.Context, c announce.Config, _ *slog.Logger) error { got = c; return nil }
	for args, want := range map[string]announce.Config{
		"":                    {L2: []string{"auto"}},
		"--l2 eth0 --l2 eth1": {L2: []string{"eth0", "eth1"}},
		"--vrid 51":           {L2: []string{"auto"}, Election: &vrrp.Config{VRID: 51, Priority: 100, Interval: 100 * time.Millisecond}},
		"--vrid 255 --priority 254 --interval 1s --preempt": {L2: []string{"auto"}, Election: &vrrp.Config{VRID: 255, Priority: 254, Interval: time.Second, Preempt: true}},
		"--follow 192.0.2.1": {L2: []string{"auto"}, Follow: netip.MustParseAddr("192.0.2.1")},
	} {
		want.Socket, want.StateDir = "/run/svcctl/svcctl.sock", "/run/svcctl-announce"
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != cli.ExitDone || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: exit %d %s: %+v, want %+v", args, code, b.err.String(), got, want)
		}
	}
	for args, want := range map[string]string{
		"--vrid 0": "--vrid", "--vrid 256": "--vrid", "--vrid a": "--vrid", "--vrid 1 --priority 255": "--priority", "--vrid 1 --priority 1": "--priority",
		"--vrid 1 --interval 5ms": "--interval", "--vrid 1 --interval 15ms": "--interval", "--vrid 1 --interval 50s": "--interval",
		"--priority 100": "--priority", "--preempt": "--preempt", "--follow eth0": "--follow", "--follow 192.0.2.1 --vrid 1": "--follow",
		"--l2 a/b": "--l2", "--l2 sixteencharacters": "--l2", "--state-dir state": "--state-dir",
	} {
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
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
	b.Env.Announce = func(_ context.Context, c announce.Config, _ *slog.Logger) error { got = c; return nil }
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
		if code := b.run(append([]string{"announce", "--asn", "64512"}, strings.Fields(args)...)...); code != cli.ExitDone || !reflect.DeepEqual(got, want) {
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
		if code := b.run(append([]string{"announce"}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
	}
}
