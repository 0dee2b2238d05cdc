package main

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce"
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
			{By: "l2 eth0", State: "announced", Since: since}, {By: "l2 eth1", State: "conflict", With: "02:00:00:00:00:01", Since: since}}},
		{Address: "192.0.2.17", Services: []string{"default/idle"}, Withheld: "no ready endpoint"},
		{Address: "192.0.2.18", Services: []string{"default/far"}},
	}}
	const want = `ADDRESS      SERVICE                BY        STATE                                                     SINCE
192.0.2.16   default/web,shop/web   l2 eth0   announced                                                 2025-11-20T09:30:15Z
192.0.2.16   default/web,shop/web   l2 eth1   conflict with 02:00:00:00:00:01                           2025-11-20T09:30:15Z
192.0.2.17   default/idle           -         withheld: no ready endpoint                               -
192.0.2.18   default/far            -         not announced: it lies on no segment of the interfaces    -
`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if got := announcementsText(all); squeeze(got) != squeeze(want) {
		t.Errorf("it is\n%s", got)
	}
	all.Announcer = nil
	all.Items = all.Items[2:]
	all.Items[0].Places = nil
	if got := announcementsText(all); !strings.Contains(got, "No announcer is connected") {
		t.Errorf("it is\n%s", got)
	}
	if got := announcementsText(&wire.Announcements{}); !strings.Contains(got, "--load-balancer-pool") {
		t.Errorf("it is\n%s", got)
	}
}
