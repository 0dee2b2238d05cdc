package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A drain hands over to the other box without a lost packet, ends when it is silent, and lasts over restarts of both
// programs until undrain.
func Test271_drain_hands_over_to_the_other_box(t *testing.T) {
	p := newPair(t, election)
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })
	end4, end6 := p.asks(t, ipv4), p.asks(t, ipv6)
	out, errOut, code := p.boxes[0].Svcctl("announce", "drain", "--wait", "--timeout", "1m")
	if code != 0 || !strings.Contains(out, "box1 is drained, and no packet came for 2s") {
		t.Fatalf("drain: exit code %d: %s%s", code, out, errOut)
	}
	p.answersAs(t, 1)
	for f, end := range map[family]func() (int, int){ipv4: end4, ipv6: end6} {
		asked, lost := end()
		if t.Logf("%s: %d asked, %d lost", f, asked, lost); lost > 0 || asked == 0 {
			t.Errorf("%s: %d of %d were lost in a drain", f, lost, asked)
		}
	}
	p.boxes[0].Stop()
	p.boxes[0].Start()
	p.announcers[0].Kill()
	p.announcers[0].Launch()
	eventually(t, time.Minute, func() error { return p.says(0, "l2 lan0 standby 192.0.2.2") })
	if out, _, _ := p.boxes[0].Svcctl("announce", "status"); !strings.Contains(out, "This box is drained") || !strings.Contains(out, "Virtual router 51: out") {
		t.Errorf("of a drained box is told:\n%s", out)
	}
	p.announcers[1].Kill()  // no other box is there, and a drained one does not take over
	time.Sleep(time.Second) // real time: a takeover would be seen by then
	if mac := macOf(t, p.client, "eth0", ipv4, ipv4.pairVIP().Addr().String()); mac != "" {
		t.Errorf("%s answers, and one box is drained and the announcer of the other dead", mac)
	}
	if out, errOut, code := p.boxes[0].Svcctl("announce", "undrain"); code != 0 {
		t.Fatalf("undrain: exit code %d: %s%s", code, out, errOut)
	}
	p.answersAs(t, 0)
	reason := func() error {
		out, _, _ := p.boxes[0].Svcctl("get", "events", "-o", "wide")
		if !strings.Contains(out, "nodeAssigned") || !strings.Contains(out, "nodeUnassigned") {
			return fmt.Errorf("events are:\n%s", out)
		}
		return nil
	}
	eventually(t, time.Minute, reason)
}

// Without an election a drained box leaves the addresses on segments alone, and BGP routers are asked for other paths
// before the routes go; the session stays, and the label of the Node does the same.
func Test272_drain_on_segments_and_of_routes(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131"}, "metrics-listen": {metricsAddr}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.segmentVIP(1), "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.birdOf(t, `
router id 192.0.2.254;
log stderr all;
protocol device { scan time 1; }
protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; import none; }; }
filter noted { if (65535, 0) ~ bgp_community then print "avoid ", net; accept; }
protocol bgp box {
	local 192.0.2.254 as 64513;
	neighbor 192.0.2.1 as 64512;
	passive on;
	ipv4 { import filter noted; export none; };
	ipv6 { import filter noted; export none; };
}
`)
	b.svcctl.Announcer("--l2", "ext0", "--asn", "64512", "--peer", "tor=64513@192.0.2.254").Launch()
	both := "l2 ext0 announced, bgp tor announced"
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), both)
		b.leads(t, f, f.segmentVIP(1))
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "drain", "--wait"); code != 0 {
		t.Fatalf("drain: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "bgp tor drained")
		b.leadsNowhere(t, f, f.segmentVIP(1))
		if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
			t.Errorf("%s answers for %s of a drained box", mac, f.segmentVIP(1))
		}
	}
	if got := b.metric(t, "svcctl_drained"); got != 1 {
		t.Errorf("svcctl_drained is %d, want 1", got)
	}
	if out, _, _ := b.svcctl.Svcctl("explain", ipv4.segmentVIP(1)+":80"); !strings.Contains(out, "is not announced to the BGP peer tor: this box is drained") {
		t.Errorf("explain says:\n%s", out)
	}
	if b.metric(t, `svcctl_bgp_session_up{peer="tor"}`) != 1 || b.metric(t, `svcctl_bgp_routes{peer="tor"}`) != 0 {
		t.Error("the session did not stay, or has routes")
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "undrain"); code != 0 {
		t.Fatalf("undrain: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), both)
		b.leads(t, f, f.segmentVIP(1))
	}
}

// Boxes of an election with different manifests are a problem of the one that stands by, until they agree.
func Test273_unequal_boxes_are_told(t *testing.T) {
	p := newPair(t, election)
	manifests := func(services ...int) string {
		return both(func(f family) []string {
			docs := []string{}
			for _, n := range services {
				name := fmt.Sprintf("web%d", n)
				docs = append(docs, f.service(name, "type: LoadBalancer", fmt.Sprintf("loadBalancerIP: "+f.pick("192.0.2.5%d", "2001:db8::5%d"), n), "ports: [{name: t, port: 80}]"),
					f.slice(name, "t: 80", p.client))
			}
			return docs
		})
	}
	p.boxes[0].Manifests.Write("more.yaml", manifests(1, 2))
	p.boxes[1].Manifests.Write("more.yaml", manifests(1, 3))
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	eventually(t, time.Minute, func() error {
		out, _, _ := p.boxes[1].Svcctl("status")
		for _, want := range []string{"the addresses of virtual router 51", "192.0.2.1:", "it alone announces 192.0.2.52", "this box alone would announce 192.0.2.53"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q in the status:\n%s", want, out)
			}
		}
		return nil
	})
	if out, _, _ := p.boxes[0].Svcctl("status"); strings.Contains(out, "virtual router 51") {
		t.Errorf("the box that answers hears no other, and says:\n%s", out)
	}
	p.boxes[1].Manifests.Write("more.yaml", manifests(1, 2))
	eventually(t, time.Minute, func() error {
		if out, _, _ := p.boxes[1].Svcctl("status"); strings.Contains(out, "virtual router 51") {
			return errors.New(out)
		}
		return nil
	})
}

// Boxes of an election with the same manifests and other pools announce others of their addresses, which is a problem of
// the one that stands by, until it has the same pool.
func Test497_unequal_pools_are_told(t *testing.T) {
	p := newPair(t, election)
	address := func(n int, f family) string { return fmt.Sprintf(f.pick("198.18.0.%d", "2001:db8:99::%d"), n) }
	for n, box := range p.boxes {
		for _, f := range families { // a network of the segment that the pools of the flags are not in
			p.hosts[n].AddAddr("lan0", address(n+1, f)+f.pick("/24", "/64"))
		}
		box.Manifests.Write("more.yaml", both(func(f family) []string {
			docs := []string{}
			for n := 51; n <= 52; n++ {
				name := fmt.Sprintf("web%d", n)
				docs = append(docs, f.service(name, "externalIPs: ["+address(n, f)+"]", "ports: [{name: t, port: 80}]"), f.slice(name, "t: 80", p.client))
			}
			return docs
		})+metallb("L2Advertisement", "all", "{}"))
	}
	pool := func(n, last int) {
		p.boxes[n].Manifests.Write("pool.yaml", metallb("IPAddressPool", "more", fmt.Sprintf("{addresses: [198.18.0.51-198.18.0.%d, '2001:db8:99::51-2001:db8:99::%d']}", last, last)))
	}
	pool(0, 52)
	pool(1, 51)
	for _, a := range p.announcers {
		a.Launch()
		eventually(t, time.Minute, func() error { return p.says(0, "l2 lan0 announced") })
	}
	told := func(yes bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, _, _ := p.boxes[1].Svcctl("status")
			if is := strings.Contains(out, "the addresses of virtual router 51") && strings.Contains(out, "it alone announces 198.18.0.52"); is != yes {
				return errors.New(out)
			}
			return nil
		})
	}
	told(true)
	if out, _, _ := p.boxes[1].Svcctl("status"); strings.Contains(out, "this box alone would announce") || strings.Contains(out, "198.18.0.51") {
		t.Errorf("both have 198.18.0.51, and the status says:\n%s", out)
	}
	pool(1, 52)
	told(false)
	eventually(t, time.Minute, func() error {
		b := &box{svcctl: p.boxes[1], t: p.t}
		if got := b.announcement("198.18.0.52"); got != "l2 lan0 standby 192.0.2.1" {
			return fmt.Errorf("198.18.0.52 is %q", got)
		}
		return nil
	})
}

// A route that comes and goes stays away for longer each time, which is told; others are not concerned.
func Test274_routes_that_flap_are_damped(t *testing.T) {
	b, announcer := told(t)
	b.bird(t, "", "")
	announcer.Launch()
	for _, f := range families {
		b.leads(t, f, f.routedVIP(1))
	}
	const flaps = 5 // it stays away for 1, 2, 4, 8 and 16 s
	for n := range flaps {
		b.rewrite("web.yaml", b.toldDocuments())
		for _, f := range families {
			b.leadsNowhere(t, f, f.routedVIP(1))
		}
		b.rewrite("web.yaml", b.toldDocuments(b.L1))
		if n == flaps-1 { // before, it may be back until a busy machine looks
			for _, f := range families {
				b.becomes(t, f.routedVIP(1), "bgp tor damped")
				b.leads(t, f, f.routedVIP(2))
			}
			if out, _, _ := b.svcctl.Svcctl("announce", "status"); !strings.Contains(out, "damped: it came and went, and is announced again at ") {
				t.Errorf("announcements:\n%s", out)
			}
		}
		for _, f := range families {
			b.leads(t, f, f.routedVIP(1))
		}
	}
	for _, f := range families {
		b.becomes(t, f.routedVIP(1), "bgp tor announced")
		b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L1)...)
	}
}

// BFD with a router that may be several hops away comes up with BIRD, which sends with a TTL of 64, and not when a higher
// one is asked for.
func Test275_BFD_over_several_hops(t *testing.T) {
	for name, test := range map[string]struct {
		flags []string
		up    bool
	}{"default": {nil, true}, "at least 255": {[]string{"--bfd-minimum-ttl", "255"}, false}} {
		t.Run(name, func(t *testing.T) {
			b, announcer := told(t, append([]string{"--multihop", "--bfd", "100msx25"}, test.flags...)...)
			b.bird(t, "multihop; bfd on;", `protocol direct { ipv4; ipv6; }
protocol bfd { multihop { min rx interval 100 ms; min tx interval 100 ms; multiplier 25; }; }`)
			announcer.Launch()
			for _, f := range families {
				b.leads(t, f, f.routedVIP(1))
			}
			state := func() string {
				out, _, _ := b.svcctl.Svcctl("announce", "status")
				return out
			}
			if !test.up {
				time.Sleep(3 * time.Second) // real time: BFD does not come up meanwhile
				if out := state(); strings.Contains(out, " Up ") {
					t.Errorf("BFD is up:\n%s", out)
				}
				return
			}
			eventually(t, time.Minute, func() error {
				if out := state(); !strings.Contains(out, " Up ") {
					return fmt.Errorf("BFD is not up:\n%s", out)
				}
				return nil
			})
		})
	}
}

// Without an election no other box announces the addresses of a segment: a drain names them, and changes nothing without
// --yes. Where nothing is announced there is no question.
func Test755_drain_of_the_only_box_asks(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.segmentVIP(1), "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.svcctl.Announcer("--l2", "ext0").Launch()
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
	}
	out, errOut, code := b.svcctl.Svcctl("announce", "drain")
	if code != 2 || !strings.Contains(errOut, "no other box announces "+ipv4.segmentVIP(1)+", "+ipv6.segmentVIP(1)+": clients lose them; repeat it with --yes") {
		t.Fatalf("drain: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac == "" {
			t.Errorf("no box answers for %s after a drain that was refused", f.segmentVIP(1))
		}
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "drain", "--yes"); code != 0 {
		t.Fatalf("drain --yes: exit code %d: %s%s", code, out, errOut)
	}
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
				return fmt.Errorf("%s answers for %s of a drained box", mac, f.segmentVIP(1))
			}
			return nil
		})
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "drain"); code != 0 {
		t.Errorf("drain of a drained box: exit code %d: %s%s", code, out, errOut)
	}
	if out, errOut, code := b.svcctl.Svcctl("announce", "undrain"); code != 0 || !strings.Contains(out, "announces its addresses again") {
		t.Errorf("undrain: exit code %d: %s%s", code, out, errOut)
	}
}
