package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// newEgress is a box behind which hosts of int0 may leave with an address of a Service, and those of int1 and int2 may not. Hosts
// outside have a route to all of them.
func newEgress(t *testing.T) *box {
	t.Helper()
	b := newBox(t, flags{"egress-from": {"10.180.0.0/16", "fd00:10:180::/64"}, "cluster-cidr": nil})
	b.RTR.Route("10.180.0.0/15", netlab.BoxAddr4)
	b.RTR.Route("fd00:10::/32", netlab.BoxAddr6)
	return b
}

// mail is a Service whose endpoints leave with its address, a load balancer IP.
func (f family) mail(name string, n int, spec ...string) string {
	return f.annotated(name, []string{"svcctl.io/egress: vip"}, append([]string{"type: LoadBalancer", "clusterIP: " + f.vip(40+n), "loadBalancerIP: " + f.lb(n), "externalTrafficPolicy: Local", "ports: [{name: p80, port: 80}]"}, spec...)...)
}

// leavesAs asks a server for the client that it sees.
func (b *box) leavesAs(t *testing.T, network string, from *netlab.Host, to netip.AddrPort, want string, opts ...netlab.Option) {
	t.Helper()
	reply, err := from.Ask(network, to, append(opts, patiently)...)
	if err != nil || reply.Client.Addr().String() != want {
		t.Errorf("%s to %s over %s leaves as %v (%v), want %s", from.Name, to, network, reply.Client, err, want)
	}
}

// What endpoints begin leaves with the address of their Service, whatever their state and over each protocol; what others begin, what
// stays inside, and what endpoints ask a Service for does not. Without the annotation all is as before.
func Test1030_endpoints_leave_with_the_address_of_their_service(t *testing.T) {
	b := newEgress(t)
	documents := func(f family) []string {
		notReady := fmt.Sprintf("{addresses: [%q], conditions: {ready: false}}", f.of(b.L2))
		return []string{
			f.mail("mail", 4), f.rawSlice("mail", "mail", "p80: 80", f.endpoint(b.L1), notReady, f.endpoint(b.R1)),
			f.service("plain", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}]"), f.slice("plain", "p80: 80", b.R2),
		}
	}
	b.write("mail.yaml", documents)
	for _, host := range []*netlab.Host{b.EXT, b.IN} {
		for _, network := range []string{"tcp", "udp", "sctp"} {
			host.Serve(network, 7000)
		}
	}
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, network := range []string{"tcp", "udp", "sctp"} {
			for _, host := range []*netlab.Host{b.L1, b.L2} {
				b.leavesAs(t, network, host, f.at(f.of(b.EXT).String(), 7000), f.lb(4))
				b.leavesAs(t, network, host, f.at(f.of(b.IN).String(), 7000), f.lb(4))
			}
			for _, host := range []*netlab.Host{b.Near, b.R1} { // no endpoint, and outside of the border
				b.leavesAs(t, network, host, f.at(f.of(b.EXT).String(), 7000), f.of(host).String())
			}
		}
		for _, host := range []*netlab.Host{b.L1, b.L2} {
			if err := host.Ping(f.of(b.EXT), patiently); err != nil {
				t.Errorf("ping: %v", err)
			}
			b.leavesAs(t, "tcp", host, f.at(f.vip(60), 80), f.of(host).String()) // a client of a Service
		}
		b.leavesAs(t, "tcp", b.R1, f.at(f.of(b.L1).String(), 80), f.of(b.R1).String())
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1)...)
		b.hasProblem(t, f.object("Service", "mail"), "EgressNotAllowed", f.of(b.R1).String(), "10.180.0.0/16")
		if out := b.GW1.Nft("list", "map", strings.Fields(f.table())[0], "svcctl", "egress"); !strings.Contains(out, fmt.Sprintf("%s counter packets", f.of(b.L1))) || !strings.Contains(out, ": "+f.lb(4)) {
			t.Errorf("the map is\n%s", out)
		}
	})
	// The kernel keeps the port.
	b.leavesAs(t, "tcp", b.L1, ipv4.at(ipv4.of(b.EXT).String(), 7000), ipv4.lb(4), netlab.FromPort(40123))
	if out := b.GW1.Conntrack("-L", "-p", "tcp", "--orig-port-src", "40123"); !strings.Contains(out, "dst=198.51.100.4 sport=7000 dport=40123") {
		t.Errorf("the entry is %s", out)
	}
	monitor := b.GW1.Monitor() // a restart commits nothing
	b.svcctl.Stop()
	b.svcctl.Start()
	for _, tx := range monitor.Transactions() {
		if regexp.MustCompile(`in ip6? svcctl(,|$)`).MatchString(tx.String()) { // the sentinel is another table
			t.Errorf("the restart commits %s", tx)
		}
	}
	b.rewrite("mail.yaml", func(f family) []string {
		all := documents(f)
		all[0] = strings.Replace(all[0], "svcctl.io/egress: vip", "example.com/egress: vip", 1)
		return all
	})
	for _, f := range families {
		b.leavesAs(t, "tcp", b.L1, f.at(f.of(b.EXT).String(), 7000), f.of(b.L1).String())
	}
	if out := b.GW1.Nft("list", "ruleset"); strings.Contains(out, "egress") {
		t.Errorf("without the annotation there is\n%s", out)
	}
}

// dockers are the rules that Docker 27 loads for its default bridge and a published port, by iptables-nft.
const dockers = `
table ip nat {
	chain DOCKER {
		iifname "docker0" counter return
		iifname != "docker0" meta l4proto tcp tcp dport 8080 counter dnat to 172.17.0.2:80
	}
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade
		meta l4proto tcp ip saddr 172.17.0.2 ip daddr 172.17.0.2 tcp dport 80 counter masquerade
		oifname "ext0" counter masquerade
	}
	chain PREROUTING {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local counter jump DOCKER
	}
	chain OUTPUT {
		type nat hook output priority -100; policy accept;
		ip daddr != 127.0.0.0/8 fib daddr type local counter jump DOCKER
	}
}
table ip6 nat {
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "ext0" counter masquerade
	}
}
`

// The masquerade rule of another program does not decide, whether it is loaded before ours, after them, or again.
func Test1031_the_masquerade_of_others(t *testing.T) {
	b := newEgress(t)
	b.GW1.LoadNft(dockers)
	b.write("mail.yaml", func(f family) []string { return []string{f.mail("mail", 4), f.slice("mail", "p80: 80", b.L1)} })
	b.EXT.Serve("tcp", 7000)
	leave := func(when string) {
		t.Helper()
		for _, f := range families {
			t.Log(when)
			b.leavesAs(t, "tcp", b.L1, f.at(f.of(b.EXT).String(), 7000), f.lb(4))
			b.leavesAs(t, "tcp", b.Near, f.at(f.of(b.EXT).String(), 7000), f.boxAddr())
		}
	}
	b.svcctl.Start()
	leave("loaded before")
	for range 3 {
		b.GW1.LoadNft("delete table ip nat\ndelete table ip6 nat\n" + dockers)
		leave("loaded again")
	}
	b.rewrite("mail.yaml", func(f family) []string { return nil })
	b.rewrite("mail.yaml", func(f family) []string { return []string{f.mail("mail", 4), f.slice("mail", "p80: 80", b.L1)} })
	leave("ours loaded after")
	b.GW1.Nft("flush", "ruleset")
	b.GW1.LoadNft(dockers)
	eventually(t, syncTimeout, func() error {
		if !strings.Contains(b.GW1.Nft("list", "ruleset"), "@egress") {
			return fmt.Errorf("the rules are not there again")
		}
		return nil
	})
	leave("after a flush of all")
}

// No packet outside of a connection leaves with the address of an endpoint.
func Test1032_strays_of_endpoints_do_not_leave(t *testing.T) {
	b := newEgress(t)
	documents := func(f family) []string {
		return []string{f.mail("mail", 4), f.rawSlice("mail", "mail", "p80: 80", f.endpoint(b.L1), fmt.Sprintf("{addresses: [%q], conditions: {ready: false}}", f.of(b.L2)))}
	}
	b.write("mail.yaml", documents)
	b.EXT.Serve("tcp", 7000)
	b.svcctl.Start()
	const fin = 0x01
	// strays has an endpoint that serves and one that does not send segments and ICMP errors of no connection, and returns
	// those that left.
	port := uint16(50000)
	strays := func(f family) (left []netlab.Packet) {
		capture := b.GW1.Capture("ext0")
		for _, host := range []*netlab.Host{b.L1, b.L2} {
			to := f.at(f.of(b.EXT).String(), 9)
			for _, flags := range []uint8{netlab.TCPRst, fin, fin | netlab.TCPAck, netlab.TCPSyn | netlab.TCPAck, netlab.TCPRst | netlab.TCPAck} {
				port++
				host.SendTCP(netlab.TCPHeader{From: netip.AddrPortFrom(f.of(host), port), To: to, Seq: 1, Ack: 1, Flags: flags})
			}
			sendUnreachable(t, host, f.of(host), f.of(b.EXT))
			b.leavesAs(t, "tcp", host, f.at(f.of(b.EXT).String(), 7000), map[bool]string{true: f.lb(4), false: f.of(host).String()}[strings.Contains(b.GW1.Nft("list", "chains"), "egress")])
		}
		return capture.Packets(func(p netlab.Packet) bool {
			return p.Outgoing && (p.From.Addr() == f.of(b.L1) || p.From.Addr() == f.of(b.L2)) && p.To.Port() != 7000
		})
	}
	// resets has the server send a segment in mid-stream to the address, which two hosts share, and returns what the box answers.
	resets := func(f family) []netlab.Packet {
		to := netip.AddrPortFrom(netip.MustParseAddr(f.lb(4)), 41000)
		capture := b.GW1.Capture("ext0")
		for n := range uint16(3) {
			b.EXT.SendTCP(netlab.TCPHeader{From: netip.AddrPortFrom(f.of(b.EXT), 7001+n), To: to, Seq: 1, Ack: 1, Flags: netlab.TCPAck})
		}
		b.leavesAs(t, "tcp", b.Near, f.at(f.of(b.EXT).String(), 7000), f.of(b.Near).String())
		return capture.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.From == to && p.TCPFlags&netlab.TCPRst != 0 })
	}
	for _, f := range families {
		if left := strays(f); len(left) > 0 {
			t.Errorf("%s: %v left", f, left)
		}
		if sent := resets(f); len(sent) > 0 {
			t.Errorf("%s: a segment for one of two hosts is reset: %v", f, sent)
		}
	}
	b.rewrite("mail.yaml", func(f family) []string {
		all := documents(f)
		all[0] = strings.Replace(all[0], "svcctl.io/egress: vip", "example.com/egress: vip", 1)
		return all
	})
	for _, f := range families {
		if left := strays(f); len(left) < 6 {
			t.Errorf("%s: without the annotation %v left: the test shows nothing", f, left)
		}
		if sent := resets(f); len(sent) == 0 {
			t.Errorf("%s: without the annotation nothing is reset: the test shows nothing", f)
		}
	}
}

// With svcctl.io/egress-to the destinations in source sets alone see the address of the Service, and those of sets with ! do not. A
// file that changes has flows of UDP follow at once. A set that is missing has endpoints leave with their own addresses.
func Test1037_destinations_by_source_sets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(name string, hosts ...*netlab.Host) string {
		path, text := filepath.Join(dir, name), ""
		for _, h := range hosts {
			text += fmt.Sprintf("%s\n%s\n", ipv4.of(h), ipv6.of(h))
		}
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
		return name + "=" + path
	}
	s := netlab.NewStandard(t)
	s.RTR.Route("10.180.0.0/15", netlab.BoxAddr4)
	s.RTR.Route("fd00:10::/32", netlab.BoxAddr6)
	f := standardFlags()
	f["egress-from"], f["cluster-cidr"] = []string{"10.180.0.0/16,fd00:10:180::/64"}, nil
	f["source-set"] = []string{set("partner", s.EXT), set("lab", s.IN)}
	b := &box{Standard: s, svcctl: s.GW1.Appliance(binary, f.args()...), t: t, flags: f}
	to := func(value string) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.annotated("mail", []string{"svcctl.io/egress: vip", fmt.Sprintf("svcctl.io/egress-to: %q", value)}, "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
				f.slice("mail", "p80: 80", b.L1),
				f.mail("plain", 5), f.slice("plain", "p80: 80", b.L2),
			}
		}
	}
	leave := func(ext, in bool) {
		t.Helper()
		for _, f := range families {
			for host, with := range map[*netlab.Host]bool{b.EXT: ext, b.IN: in} {
				want := map[bool]string{true: f.lb(4), false: f.of(b.L1).String()}[with]
				b.leavesAs(t, "tcp", b.L1, f.at(f.of(host).String(), 7000), want)
				leavesWith(t, b.L1, "udp", f.at(f.of(host).String(), 7000), want)
				b.leavesAs(t, "tcp", b.L2, f.at(f.of(host).String(), 7000), f.lb(5))
			}
		}
	}
	for _, host := range []*netlab.Host{b.EXT, b.IN} {
		host.Serve("tcp", 7000)
		host.Serve("udp", 7000)
	}
	b.write("mail.yaml", to("partner"))
	b.svcctl.Start()
	leave(true, false)
	b.rewrite("mail.yaml", to("!lab"))
	leave(true, false)
	set("lab", b.EXT)
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.at(f.of(b.IN).String(), 7000), f.lb(4))
	}
	leave(false, true)
	b.rewrite("mail.yaml", to("partner,!lab"))
	leave(false, false)
	set("lab", b.Near)
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.at(f.of(b.EXT).String(), 7000), f.lb(4))
	}
	leave(true, false)
	for text, args := range map[string][]string{
		ipv4.lb(4) + " for " + ipv4.of(b.L1).String() + ", to partner,!lab; ": {"describe", "svc", ipv4.name("mail")},
		"for destinations of partner,!lab alone, by ":                         {"explain", ipv4.of(b.L1).String()},
	} {
		eventually(t, syncTimeout, func() error { // the counters are read every 10 s
			if out, errOut, _ := b.svcctl.Svcctl(args[0], args[1:]...); !strings.Contains(out, text) {
				return fmt.Errorf("svcctl %v has no %q:\n%s%s", args, text, out, errOut)
			}
			return nil
		})
	}
	monitor := b.GW1.Monitor() // a restart commits nothing
	b.svcctl.Stop()
	b.svcctl.Start()
	for _, tx := range monitor.Transactions() {
		if regexp.MustCompile(`in ip6? svcctl(,|$)`).MatchString(tx.String()) { // the sentinel is another table
			t.Errorf("the restart commits %s", tx)
		}
	}
	b.rewrite("mail.yaml", to("partner,other"))
	leave(false, false)
	b.hasProblem(t, ipv4.object("Service", "mail"), "UnknownSourceSet", "there is no --source-set other, so endpoints leave with their own addresses")
}

// A Service whose hosts only go out is no outage, in any view.
func Test1038_hosts_that_only_go_out(t *testing.T) {
	b := newBox(t, leaving(metered))
	b.svcctl.Manifests.Write("mail.yaml", ipv4.mail("mail", 4))
	b.svcctl.Manifests.Write("slice.yaml", ipv4.rawSlice("mail", "mail", "p80: 80", fmt.Sprintf("{addresses: [%q], conditions: {ready: false}}", ipv4.of(b.L1))))
	b.EXT.Serve("tcp", 7000)
	b.svcctl.Start()
	b.leavesAs(t, "tcp", b.L1, ipv4.at(ipv4.of(b.EXT).String(), 7000), ipv4.lb(4))
	const meant = "clients are refused, as is written"
	eventually(t, syncTimeout, func() error {
		out, errOut, code := b.svcctl.Svcctl("status")
		if code != 0 || !strings.Contains(out, "has no endpoint on purpose") || !strings.Contains(out, meant) || strings.Contains(out, "✗") {
			return fmt.Errorf("status: exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
	for _, args := range [][]string{{"explain", "svc/" + ipv4.name("mail")}, {"describe", "svc", ipv4.name("mail")}, {"get", "svc", ipv4.name("mail"), "-o", "yaml"}} {
		if out, errOut, _ := b.svcctl.Svcctl(args[0], args[1:]...); !strings.Contains(out, meant) || strings.Contains(out, "none is ready") {
			t.Errorf("svcctl %v: %s%s", args, out, errOut)
		}
	}
	eventually(t, syncTimeout, func() error {
		page, err := b.GW1.Get(netip.MustParseAddrPort(metricsAddr), "/metrics")
		if err != nil || !strings.Contains(page.Body, `svcctl_service_states{state="idle"} 1`) {
			return fmt.Errorf("%v: the metrics have no idle Service", err)
		}
		return nil
	})
}

// sendUnreachable sends an ICMP error about a packet from port 12345 to port 12346, of the other end.
func sendUnreachable(t *testing.T, h *netlab.Host, from, to netip.Addr) {
	t.Helper()
	protocol, message := unix.IPPROTO_ICMP, []byte{3, 1, 0, 0, 0, 0, 0, 0}
	about := append([]byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(to.AsSlice(), from.AsSlice()...)...)
	if to.Is6() {
		protocol, message = unix.IPPROTO_ICMPV6, []byte{1, 3, 0, 0, 0, 0, 0, 0}
		about = append([]byte{0x60, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 64}, append(to.AsSlice(), from.AsSlice()...)...)
	}
	message = append(append(message, about...), 0x30, 0x39, 0x30, 0x3a, 0, 8, 0, 0)
	if !to.Is6() {
		sum := uint32(0)
		for i := 0; i < len(message); i += 2 {
			sum += uint32(message[i])<<8 | uint32(message[i+1])
		}
		for sum>>16 != 0 {
			sum = sum&0xffff + sum>>16
		}
		message[2], message[3] = byte(^sum>>8), byte(^sum)
	}
	sendRaw(t, h, protocol, to, message)
}

// A new endpoint and its first packet come together, a thousand times: with the rule of the operator that the page has, no packet leaves
// with an address of an endpoint, and each endpoint gets through.
func Test1033_a_slice_and_the_first_packet(t *testing.T) {
	b := newEgress(t)
	page, err := os.ReadFile("../../docs/egress.md")
	if err != nil {
		t.Fatal(err)
	}
	guard := regexp.MustCompile("(?s)```text\n(table inet guard.*?)```").FindStringSubmatch(string(page))
	if guard == nil {
		t.Fatal("docs/egress.md has no rule of the operator")
	}
	b.GW1.LoadNft(strings.NewReplacer("10.1.2.0/24", "10.180.32.0/19", "wan", "ext0").Replace(guard[1]))
	b.L1.Own("10.180.32.0/19")
	b.EXT.Serve("udp", 7000)
	b.svcctl.Manifests.Write("mail.yaml", ipv4.mail("mail", 4))
	b.svcctl.Start()
	capture := b.GW1.Capture("ext0")
	to := ipv4.at(ipv4.of(b.EXT).String(), 7000)
	const rounds = 1000
	early := 0
	for i := range rounds {
		source := netip.AddrFrom4([4]byte{10, 180, byte(32 + i/250), byte(1 + i%250)})
		written := make(chan struct{})
		go func() {
			defer close(written)
			b.svcctl.Manifests.Write("slice.yaml", ipv4.rawSlice("mail", "mail", "p80: 80", fmt.Sprintf("{addresses: [%q]}", source)))
		}()
		eventually(t, syncTimeout, func() error {
			reply, err := b.L1.Ask("udp", to, netlab.From(source), netlab.Within(50*time.Millisecond))
			if err != nil {
				early++
				return err
			}
			if reply.Client.Addr().String() != ipv4.lb(4) {
				t.Fatalf("round %d: %s left as %s", i, source, reply.Client)
			}
			return nil
		})
		<-written
		if i%100 == 99 {
			for _, p := range capture.Packets(func(p netlab.Packet) bool {
				return p.Outgoing && p.To == to && p.From.Addr() != netip.MustParseAddr(ipv4.lb(4))
			}) {
				t.Fatalf("it left: %s", p)
			}
		}
	}
	t.Logf("%d first packets came before the rules, and did not leave", early)
}

// Connections that endpoints began go on when the other box takes over, in four drains and four deaths, and on the way back, whichever
// end sends first if their address has one source; where it has several, those go on that the endpoint sends on.
func Test1034_what_endpoints_began_outlives_a_box(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	k := &keeping{pair: &pair{t: t, client: l.Host("partner")}, push: make(chan struct{}), peers: map[string]*peer{}}
	lan := l.Segment("lan").Attach(k.client, "eth0", "192.0.2.9/24", "2001:db8::9/64")
	inside := l.Segment("inside")
	k.serve(t, k.client)
	k.client.Serve("udp", 80)
	for n := range 3 {
		source := l.Host(fmt.Sprintf("source%d", n+1))
		inside.Attach(source, "eth0", fmt.Sprintf("10.1.0.1%d/24", n+1), fmt.Sprintf("fd00:10:1::1%d/64", n+1))
		source.Route("default", "10.1.0.254")
		source.Route("default", "fd00:10:1::fe")
		k.servers = append(k.servers, source)
	}
	for n := range k.hosts {
		box := k.attach(n, l, lan, inside, "--egress-from", "10.1.0.0/24,fd00:10:1::/64")
		box.Manifests.Write("mail.yaml", both(func(f family) []string {
			mail := func(name string, vip netip.AddrPort) string {
				return f.annotated(name, []string{"svcctl.io/egress: vip"}, "type: LoadBalancer", "loadBalancerIP: "+vip.Addr().String(), "externalTrafficPolicy: Local", "ports: [{name: p25, port: 25}]")
			}
			idle := func(h *netlab.Host) string {
				return fmt.Sprintf("{addresses: [%q], conditions: {ready: false}}", f.of(h))
			}
			return []string{
				mail("one", f.keptVIP()), f.rawSlice("one", "one", "p25: 25", idle(k.servers[0])), // announced though no client is served
				mail("several", f.randomVIP()), f.rawSlice("several", "several", "p25: 25", idle(k.servers[1]), idle(k.servers[2])),
			}
		}))
		k.hosts[n].Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1")
		box.Start()
		k.announcers[n] = box.Announcer("--l2", "lan0", "--l2", "int0", "--vrid", "51", "--priority", fmt.Sprint(200-n), "--preempt",
			"--gateway", "10.1.0.254", "--gateway", "fd00:10:1::fe")
	}
	k.begin(t)
	var streams, silent []*stream // silent ones have nothing sent, until the partner sends first after the death
	for _, f := range families {
		to := f.at(f.of(k.client).String(), streamPort)
		for range 3 {
			for _, kind := range []string{"talk", "download", "upload"} {
				streams = append(streams, k.openFrom(t, k.servers[0], f.keptVIP().Addr(), kind, to))
			}
			silent = append(silent, k.openFrom(t, k.servers[0], f.keptVIP().Addr(), "push", to))
			for _, source := range k.servers[1:] {
				streams = append(streams, k.openFrom(t, source, f.randomVIP().Addr(), "talk", to), k.openFrom(t, source, f.randomVIP().Addr(), "upload", to))
			}
		}
	}
	goOn := func(when string) {
		t.Helper()
		if ended := all(streams, when); len(ended) > 0 {
			t.Fatalf("%s: of %d connections %d ended: %v", when, len(streams), len(ended), errors.Join(ended...))
		}
		for _, f := range families {
			for n, source := range k.servers { // the same flow again, by its port
				vip := map[bool]netip.AddrPort{true: f.keptVIP(), false: f.randomVIP()}[n == 0]
				reply, err := source.Ask("udp", f.at(f.of(k.client).String(), 80), netlab.FromPort(uint16(40000+n)), patiently)
				if want := netip.AddrPortFrom(vip.Addr(), uint16(40000+n)); err != nil || reply.Client != want {
					t.Errorf("%s: UDP of %s leaves as %s (%v), want %s", when, source.Name, reply.Client, err, want)
				}
			}
		}
	}
	goOn("before")
	const rounds = 4
	for round := 1; ; round++ {
		for n, verb := range []string{"drain", "undrain"} {
			if out, errOut, code := k.boxes[0].Svcctl("announce", verb); code != 0 {
				t.Fatalf("announce %s: exit code %d: %s%s", verb, code, out, errOut)
			}
			eventually(t, time.Minute, func() error { return k.isActive(1 - n) })
			goOn(verb)
		}
		if round == rounds {
			break
		}
		k.fail(t)
		goOn("death")
		k.revive()
		eventually(t, time.Minute, func() error { return k.isActive(0) })
		goOn("back")
	}
	k.dies(t)
	streams = append(streams, silent...)
	goOn("the last death")
	t.Logf("%d connections went on", len(streams))
}
