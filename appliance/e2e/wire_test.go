package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// rounds is how often a process ends; `make soak` sets the variable.
func rounds(t *testing.T, quick int) int {
	t.Helper()
	text := os.Getenv("SVCCTL_SOAK_ANNOUNCED")
	if text == "" {
		return quick
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SVCCTL_SOAK_ANNOUNCED=%q is no number of rounds", text)
	}
	return n
}

// sniff has tcpdump write packets to a file until the end is called, which gives what tcpdump reads there.
func sniff(t *testing.T, h *netlab.Host, ifname, filter string) (end func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pcap")
	stop := h.Background("tcpdump", "-Z", "root", "-U", "--immediate-mode", "-i", ifname, "-w", path, filter)
	eventually(t, time.Minute, func() error { // it listens when the header of the file is there
		info, err := os.Stat(path)
		if err == nil && info.Size() == 0 {
			err = fmt.Errorf("%s is empty", path)
		}
		return err
	})
	return func() string {
		t.Helper()
		stop()
		out, _, err := h.Run("tcpdump", "-n", "-v", "-r", path)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// announcedByBoth is told of an address of toldBoth.
const announcedByBoth = "l2 ext0 announced, bgp tor announced"

// toldBoth makes a box whose announcer tells neighbors and a router of addresses on their segment.
func toldBoth(t *testing.T) *box {
	t.Helper()
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131"}})
	b.write("web.yaml", b.announcedDocuments(b.L1))
	b.svcctl.Start()
	b.bird(t, "", "")
	b.svcctl.Announcer("--l2", "ext0", "--asn", "64512", "--peer", "tor=64513@192.0.2.254").Launch()
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), announcedByBoth)
		b.leads(t, f, f.segmentVIP(1))
	}
	return b
}

// Killed, stopped and upgraded again and again, serve changes nothing on the wire: tcpdump sees no BGP UPDATE, and no
// frame about addresses of Services leaves the box but answers and the announcements that come anyway.
func Test493_serve_ends_and_the_wire_is_silent(t *testing.T) {
	b := toldBoth(t)
	began := time.Now()
	frames, updates := neighborFrames(t, b.GW1, "ext0"), sniff(t, b.RTR, "box", "tcp port 179")
	n := rounds(t, 6)
	for i := range n {
		switch i % 3 {
		case 0:
			b.svcctl.Kill()
			b.svcctl.Start()
		case 1:
			b.svcctl.Stop()
			b.svcctl.Start()
		default:
			b.svcctl.HandOver()
		}
	}
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), announcedByBoth)
	}
	ours, announcements := []netip.Addr{netip.MustParseAddr(ipv4.segmentVIP(1)), netip.MustParseAddr(ipv6.segmentVIP(1))}, 0
	for _, frame := range frames() {
		switch about := slices.Contains(ours, frame.from) || slices.Contains(ours, frame.target); {
		case about && frame.isProbe():
			t.Errorf("it asked whether others have it: %s", frame)
		case about && frame.toAll:
			announcements++
		}
	}
	most := 3 * (4 + int(time.Since(began)/time.Minute)) // those that follow a gain, and one a minute; in IPv4 each is two frames
	if t.Logf("serve ended %d times in %s: %d frames of announcements", n, time.Since(began).Round(time.Second), announcements); announcements > most {
		t.Errorf("%d frames of announcements, want at most %d", announcements, most)
	}
	if out := updates(); strings.Contains(out, "Update Message") {
		t.Errorf("the router was sent an UPDATE:\n%s", out)
	}
	// It sees one when there is a reason.
	updates = sniff(t, b.RTR, "box", "tcp port 179")
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	for _, f := range families {
		b.leadsNowhere(t, f, f.segmentVIP(1))
	}
	if out := updates(); !strings.Contains(out, "Update Message") {
		t.Errorf("tcpdump does not see an UPDATE:\n%s", out)
	}
}

// When two boxes that did not hear each other do so again, the one with the higher priority goes on and announces
// itself anew, and the other one stands by.
func Test494_split_brain_heals(t *testing.T) {
	p := newPair(t, election)
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })
	for _, h := range p.hosts { // heartbeats are lost, and nothing else: both answer on one segment
		h.LoadNft(`
table netdev split {
	chain in {
		type filter hook ingress device "lan0" priority 0
		ip protocol 112 drop
		ip6 nexthdr 112 drop
	}
}`)
	}
	for n := range p.hosts {
		eventually(t, time.Minute, func() error { return p.says(n, "l2 lan0 announced") })
	}
	macs := [2]string{macInside(t, p.hosts[0], "lan0"), macInside(t, p.hosts[1], "lan0")}
	for _, f := range families { // the client follows the one that is to go
		if _, errOut, err := p.client.Run("ip", "neigh", "replace", f.pairVIP().Addr().String(), "lladdr", macs[1], "dev", "eth0", "nud", "reachable"); err != nil {
			t.Fatalf("%v %s", err, errOut)
		}
	}
	for _, h := range p.hosts {
		h.Nft("delete", "table", "netdev", "split")
	}
	healed := time.Now()
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			out, _, err := p.client.Run("ip", "neigh", "show", f.pairVIP().Addr().String())
			if err == nil && strings.Contains(out, macs[0]) {
				return nil
			}
			if strings.TrimSpace(out) == "" { // the kernel removes entries when those of all namespaces are many: the next packet asks again
				_, _ = p.client.Ask("udp", f.pairVIP(), patiently)
			}
			return fmt.Errorf("the client has %q (%v), want %s", out, err, macs[0])
		})
	}
	t.Logf("the client follows the one that stays after %s", time.Since(healed).Round(time.Millisecond))
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })
	if err := p.says(0, "l2 lan0 announced"); err != nil {
		t.Error(err)
	}
	p.answersAs(t, 0)
}

// Ten thousand addresses are all announced, on a segment and by BGP.
func Test495_ten_thousand_addresses(t *testing.T) {
	const thousands = 10
	b := newBox(t, flags{"load-balancer-pool": {"10.200.0.0-10.200.63.255"}, "service-cluster-ip-range": {"172.30.0.0/16"}, "allow-mass-removal": {"true"}})
	b.GW1.AddAddr("ext0", "10.200.255.1/16")
	for k := range thousands {
		var addrs []string
		for n := range 1000 {
			addrs = append(addrs, fmt.Sprintf("10.200.%d.%d", 4*k+n/250, 1+n%250))
		}
		b.svcctl.Manifests.Write(fmt.Sprintf("web%d.yaml", k), service(fmt.Sprintf("web%d", k), "ipFamilies: [IPv4]", "clusterIP: "+fmt.Sprintf("172.30.1.%d", k+1),
			"externalIPs: ["+strings.Join(addrs, ", ")+"]", "ports: [{name: p80, port: 80}]")+"---\n"+
			strings.ReplaceAll(ipv4.slice("web", "p80: 80", b.L1), "web-4", fmt.Sprintf("web%d", k)))
	}
	b.svcctl.Start()
	b.bird(t, "", "")
	frames := neighborFrames(t, b.GW1, "ext0")
	began := time.Now()
	b.svcctl.Announcer("--l2", "ext0", "--asn", "64512", "--peer", "tor=64513@192.0.2.254").Launch()
	eventually(t, 2*time.Minute, func() error {
		out, _, err := b.RTR.Run("sh", "-c", "ip route show proto bird | grep -c ^10.200.")
		if n := strings.TrimSpace(out); n != fmt.Sprint(1000*thousands) {
			return fmt.Errorf("the router has %s routes of %d (%v)", n, 1000*thousands, err)
		}
		return nil
	})
	t.Logf("the router's kernel has them all %s after the start of the announcer", time.Since(began).Round(time.Millisecond))
	eventually(t, 2*time.Minute, func() error {
		out, _, _ := b.svcctl.Svcctl("announce", "status")
		if n := strings.Count(out, "announced"); n != 2*1000*thousands {
			return fmt.Errorf("%d places of %d are announced", n, 2*1000*thousands)
		}
		return nil
	})
	seen := map[netip.Addr]bool{}
	for _, f := range frames() {
		if !f.question && f.toAll && f.from == f.target {
			seen[f.target] = true
		}
	}
	if len(seen) != 1000*thousands {
		t.Errorf("%d addresses of %d were announced to all neighbors", len(seen), 1000*thousands)
	}
	b.reaches(t, b.EXT, "tcp", netip.MustParseAddrPort("10.200.36.250:80"), masq, ipv4.on(80, b.L1)...)
}

// An interface that is renamed is named in the status; when it is back under its name, neighbors and the router are
// led to the box again, and meanwhile everything that does not need it goes on.
func Test496_interface_that_goes_and_comes(t *testing.T) {
	b := toldBoth(t)
	ours := macInside(t, b.GW1, "ext0")
	rename := func(from, to string) {
		t.Helper()
		for _, args := range [][]string{{"link", "set", from, "down"}, {"link", "set", from, "name", to}, {"link", "set", to, "up"}, {"address", "replace", netlab.BoxAddr6 + "/64", "dev", to}} {
			if _, errOut, err := b.GW1.Run("ip", args...); err != nil {
				t.Fatalf("%v %s", err, errOut)
			}
		}
	}
	rename("ext0", "wan0")
	b.hasProblem(t, "", "nothing is announced on ext0: there is no such interface")
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "bgp tor announced") // by the same wire
		b.leads(t, f, f.segmentVIP(1))
		if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
			t.Errorf("%s answers for %s on an interface that nobody named", mac, f.segmentVIP(1))
		}
	}
	rename("wan0", "ext0")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), announcedByBoth)
		b.leads(t, f, f.segmentVIP(1))
		b.isAnswered(t, "when the interface is back", f, f.segmentVIP(1), ours)
		if _, err := b.RTR.Ask("tcp", f.at(f.segmentVIP(1), 80), patiently); err != nil {
			t.Error(err)
		}
	})
	eventually(t, time.Minute, func() error {
		for _, p := range b.status().Problems {
			if strings.Contains(p.Message, "ext0") {
				return fmt.Errorf("still a problem: %s", p)
			}
		}
		return nil
	})
}

// Killed again and again and started anew, the only announcer loses no packet of who knows the address, leaves it to nobody
// else, and announces it as often as each start does: tcpdump and a packet socket are the judges.
func Test498_announcer_is_killed_ten_times(t *testing.T) {
	kills := rounds(t, 10)
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131"}})
	b.write("web.yaml", func(f family) []string {
		return []string{f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.segmentVIP(1), "ports: [{name: u, port: 53, protocol: UDP}]"), f.slice("web", "u: 53/UDP", b.L1)}
	})
	b.svcctl.Start()
	announcer := b.svcctl.Announcer()
	announcer.Launch()
	ours := []netip.Addr{netip.MustParseAddr(ipv4.segmentVIP(1)), netip.MustParseAddr(ipv6.segmentVIP(1))}
	mac := macInside(t, b.GW1, "ext0")
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		if _, err := b.EXT.Ask("udp", f.at(f.segmentVIP(1), 53), patiently); err != nil { // the router knows it from now on
			t.Fatal(err)
		}
	}
	isKept(t, announcer)
	// The router asks the neighbor it knows, and has to wait while no box is there to answer: a minute, not the 8 s of Linux.
	for _, ip := range []string{"ipv4", "ipv6"} {
		b.RTR.Sysctl("net."+ip+".neigh.box.ucast_solicit", "60")
	}
	began := time.Now()
	heard, frames := sniff(t, b.RTR, "box", "arp or icmp6"), neighborFrames(t, b.GW1, "ext0")
	ends := map[family]func() (int, int){}
	for _, f := range families {
		ends[f] = asks(b.EXT, f.at(f.segmentVIP(1), 53), 2*time.Millisecond, patiently)
	}
	for range kills {
		announcer.Kill()
		announcer.Launch()
		for _, f := range families {
			b.isAnswered(t, "after a kill", f, f.segmentVIP(1), mac)
		}
	}
	for f, end := range ends {
		asked, lost := end()
		if t.Logf("%s: %d asked, %d lost", f, asked, lost); lost > 0 || asked < kills {
			t.Errorf("%s: %d of %d were lost", f, lost, asked)
		}
	}
	text, announcements := heard(), 0
	for _, frame := range frames() {
		switch about := slices.Contains(ours, frame.from) || slices.Contains(ours, frame.target); {
		case about && frame.isProbe():
			t.Errorf("it asked whether others have it: %s", frame)
		case about && frame.toAll:
			announcements++
		}
	}
	least, most := kills, 3*(4*(1+kills)+int(time.Since(began)/time.Minute)) // 4 follow a start, and one a minute; in IPv4 each is two frames
	if t.Logf("%d frames of announcements", announcements); announcements < least || announcements > most {
		t.Errorf("%d frames of announcements, want %d to %d", announcements, least, most)
	}
	for i, pattern := range []string{"Reply " + regexp.QuoteMeta(ours[0].String()) + " is-at ([0-9a-f:]+)", "tgt is " + ours[1].String() + ", Flags[^\n]*\n[^\n]*link-address option[^\n]*: ([0-9a-f:]+)"} {
		owners := map[string]int{}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			owners[m[1]]++
		}
		if len(owners) != 1 || owners[mac] < kills {
			t.Errorf("who said that it has %s, and how often: %v, want only %s", ours[i], owners, mac)
		}
	}
}
