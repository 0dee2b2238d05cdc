package e2e

import (
	"errors"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// A client comes in by the second uplink, whose provider drops what another uplink's packets should be: with the rules of
// docs/uplinks.md it is answered, by endpoints at its own address, by relays, and by the box.
func Test990_two_uplinks(t *testing.T) {
	b := newBox(t, flags{"egress-from": {"10.180.0.0/16", "fd00:10:180::/64"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "externalTrafficPolicy: Local", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
			f.userspace("relayed", "", "type: LoadBalancer", "clusterIP: "+f.vip(42), "loadBalancerIP: "+f.lb(5), "ports: [{name: p80, port: 80}]"),
			f.slice("relayed", "p80: 80", b.L1),
			f.mail("mail", 6), f.slice("mail", "p80: 80", b.L2),
		}
	})
	b.EXT.Serve("tcp", 7000)
	// The second uplink has the network of the VIPs.
	b.GW1.AddAddr("alt0", "198.51.100.14/24")
	b.GW1.AddAddr("alt0", "2001:db8:198::e/64")
	ip(t, b.RTR, "route", "replace", "198.51.100.0/24", "via", netlab.BoxAltAddr4)
	ip(t, b.RTR, "-6", "route", "replace", "2001:db8:198::/64", "via", netlab.BoxAltAddr6)
	b.RTR.LoadNft(`table inet provider { chain c { type filter hook prerouting priority -400; iifname "box" ip saddr 198.51.100.0/24 drop; iifname "box" ip6 saddr 2001:db8:198::/64 drop; }; }`)
	ip(t, b.GW1, "route", "add", "default", "via", "192.0.3.254", "dev", "alt0", "metric", "100")
	ip(t, b.GW1, "-6", "route", "add", "default", "via", "2001:db8:1::fe", "dev", "alt0", "metric", "2000")
	b.svcctl.Start()
	for _, f := range families {
		if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80)); err == nil {
			t.Errorf("%s: without rules: %s, want no answer", f, reply)
		}
		if reply, err := b.L2.Ask("tcp", f.at(f.of(b.EXT).String(), 7000)); err == nil {
			t.Errorf("%s: without rules an endpoint leaves as %s, want no answer", f, reply)
		}
	}
	eventually(t, syncTimeout, func() error { return b.doctorHas("replies from 198.51.100.4", "leave by ext0", "svcctl-uplinks") })

	page, err := os.ReadFile("../../docs/uplinks.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```text\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 3 {
		t.Fatalf("docs/uplinks.md has %d blocks, want the ruleset, the routes and the rules of egress", len(blocks))
	}
	b.GW1.LoadNft(blocks[0][1])
	for line := range strings.Lines(blocks[1][1] + blocks[2][1]) {
		args := strings.Fields(strings.NewReplacer("203.0.113.254", "192.0.3.254", "2001:db8:ff::fe", "2001:db8:1::fe", "wan2", "alt0",
			"10.1.2.11", ipv4.of(b.L2).String(), "2001:db8:1:2::11", ipv6.of(b.L2).String()).Replace(line))
		ip(t, b.GW1, args[1:]...)
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(5), 80), masq, f.on(80, b.L1)...)
		for _, inside := range []*netlab.Host{b.IN, b.Near} {
			b.reaches(t, inside, "tcp", f.at(f.lb(5), 80), masq, f.on(80, b.L1)...)
		}
		b.reaches(t, b.IN, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1)...)
		for _, client := range []*netlab.Host{b.EXT, b.IN} {
			if _, err := client.Ask("tcp", f.at(f.lb(4), 81), patiently); netlab.RefusalOf(err) != netlab.Refused {
				t.Errorf("%s at a port without a Service: %v, want a refusal", client.Name, err)
			}
		}
		b.leavesAs(t, "tcp", b.L2, f.at(f.of(b.EXT).String(), 7000), f.lb(6))
		if err := b.EXT.Ping(netip.MustParseAddr(f.lb(4))); err != nil {
			t.Errorf("ping: %v", err)
		}
	})
	if err := b.doctorHas("leave by ext0"); err == nil {
		t.Error("with the rules doctor reports the uplinks")
	}
}

// doctorHas returns an error if the output of doctor lacks a text.
func (b *box) doctorHas(texts ...string) error {
	out, errOut, _ := b.svcctl.Svcctl("doctor")
	for _, text := range texts {
		if !strings.Contains(out, text) {
			return errors.New(text + " is not in\n" + out + errOut)
		}
	}
	return nil
}

// ip runs ip(8) on a host.
func ip(t *testing.T, h *netlab.Host, args ...string) {
	t.Helper()
	if out, errOut, err := h.Run("ip", args...); err != nil {
		t.Fatalf("%s: ip %v: %v\n%s%s", h.Name, args, err, out, errOut)
	}
}
