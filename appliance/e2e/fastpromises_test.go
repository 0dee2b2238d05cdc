package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about what a Service promises while its connections are on the fast path.

// promised is a Service that asks for the fast path, and for something else.
type promised struct {
	name        string
	n           int // of its addresses
	annotations []string
	spec        []string
}

func (p promised) documents(f family, hosts ...*netlab.Host) []string {
	spec := append([]string{
		"type: LoadBalancer", "clusterIP: " + f.vip(p.n), "loadBalancerIP: " + f.lb(p.n),
		"ports: [{name: tcp, port: 80}, {name: udp, port: 53, protocol: UDP}]",
	}, p.spec...)
	return []string{
		withAnnotations(f.service(p.name, spec...), append([]string{"svcctl.io/fast-path: 'true'"}, p.annotations...)...),
		f.slice(p.name, "tcp: 80, udp: 53/UDP", hosts...),
	}
}

func (p promised) at(f family, port uint16) netip.AddrPort { return f.at(f.vip(p.n), port) }
func (p promised) lb(f family, port uint16) netip.AddrPort { return f.at(f.lb(p.n), port) }

// together are exchanges as one.
func together(exchanges ...func() error) func() error {
	return func() error {
		for _, exchange := range exchanges {
			if err := exchange(); err != nil {
				return err
			}
		}
		return nil
	}
}

func echo(conns ...*netlab.Conn) func() error {
	return func() error {
		for _, c := range conns {
			if err := c.Echo("fast", patiently); err != nil {
				return fmt.Errorf("%s to %s: %w", c.Local, c.Reply.At, err)
			}
		}
		return nil
	}
}

// asks sends a flow's next packet, which must be answered.
func (fl flow) asks() error {
	if reply, err := fl.ask(patiently); err != nil {
		return fmt.Errorf("%s: %v, %w", fl, reply, err)
	}
	return nil
}

// areFast has exchanges become fast, or ends the test.
func (b *box) areFast(t *testing.T, what string, exchange func() error) {
	t.Helper()
	if b.becomesFast(t, exchange) < 0 {
		t.Fatalf("%s: never fast\n%s", what, b.GW1.Nft("list", "ruleset"))
	}
}

// endsByReset waits until a connection's packets are answered by a reset. One may have come to the endpoint just before, whose
// answer is lost.
func endsByReset(t *testing.T, c *netlab.Conn) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		if err := c.Echo("still here"); netlab.RefusalOf(err) != netlab.Reset {
			return fmt.Errorf("%s to %s: %v, want a reset", c.Local, c.Reply.At, err)
		}
		return nil
	})
}

// Affinity, limits of open connections, source ranges, checks and endpoints that go are for fast connections what they are for
// others.
func Test1075_fast_connections_keep_what_is_promised(t *testing.T) {
	b := fastBox(t, nil)
	sticky := promised{"sticky", 1, nil, []string{"sessionAffinity: ClientIP"}}
	client := promised{"client", 2, []string{`svcctl.io/client-connections: "2"`}, nil}
	full := promised{"full", 3, []string{`svcctl.io/endpoint-connections: "2"`}, nil}
	rated := promised{"rated", 4, []string{"svcctl.io/client-rate-limit: 2/m"}, nil}
	narrow := promised{"narrow", 5, []string{"svcctl.io/drain-timeout: 0s"}, nil}
	checked := promised{"checked", 6, []string{
		"svcctl.io/drain-timeout: 0s", "svcctl.io/health-check: 'tcp:8081'", "svcctl.io/health-check-interval: 300ms",
		`svcctl.io/health-check-unhealthy-threshold: "1"`,
	}, nil}
	leaves := promised{"leaves", 7, nil, nil}
	documents := func(ranges string, hosts ...*netlab.Host) func(f family) (docs []string) {
		return func(f family) (docs []string) {
			for _, p := range []promised{client, full, rated} {
				docs = append(docs, p.documents(f, b.L1)...)
			}
			limited := narrow
			limited.spec = []string{f.ranges(ranges)}
			docs = append(docs, limited.documents(f, b.L1)...)
			for _, p := range []promised{sticky, checked} {
				docs = append(docs, p.documents(f, b.L1, b.R1)...)
			}
			return append(docs, leaves.documents(f, hosts...)...)
		}
	}
	b.R1.Serve("tcp", 8081)
	health := b.L1.Serve("tcp", 8081)
	b.write("fast.yaml", documents(everyone, b.L1))
	b.svcctl.Start()

	type fast struct {
		sticky, client, second, full, rated, shutOut, stays, dead, lives *netlab.Conn
		shutOutUDP, staysUDP, leavesUDP                                  flow
	}
	of := map[family]*fast{}
	for i, f := range families {
		x := &fast{
			sticky: open(t, b.IN, sticky.at(f, 80)),
			client: open(t, b.IN, client.at(f, 80)), second: open(t, b.IN, client.at(f, 80)),
			full: open(t, b.IN, full.at(f, 80)), rated: open(t, b.IN, rated.at(f, 80)),
			shutOut: open(t, b.BLK, narrow.lb(f, 80)), stays: open(t, b.EXT, narrow.lb(f, 80)),
			shutOutUDP: flow{f, "udp", b.BLK, narrow.lb(f, 53), uint16(11000 + i)},
			staysUDP:   flow{f, "udp", b.EXT, narrow.lb(f, 53), uint16(11010 + i)},
			leavesUDP:  flow{f, "udp", b.IN, leaves.at(f, 53), uint16(11020 + i)},
		}
		for x.dead == nil || x.lives == nil {
			if c := open(t, b.IN, checked.at(f, 80)); c.Reply.Server == b.L1.Name {
				x.dead = c
			} else {
				x.lives = c
			}
		}
		of[f] = x
		b.areFast(t, f.String(), together(echo(x.sticky, x.client, x.second, x.full, x.rated, x.shutOut, x.stays, x.dead, x.lives),
			x.shutOutUDP.asks, x.staysUDP.asks, x.leavesUDP.asks))

		for range 12 { // with a chance of 1 in 4,096 by bad luck
			reply, err := b.IN.Ask("tcp", sticky.at(f, 80), patiently)
			if err != nil || reply.Server != x.sticky.Reply.Server {
				t.Errorf("%s: affinity: %v, %v; the fast connection is at %s", f, reply, err, x.sticky.Reply.Server)
			}
		}
		if reply, err := b.IN.Ask("tcp", client.at(f, 80), patiently); netlab.RefusalOf(err) != netlab.Refused {
			t.Errorf("%s: beside two fast connections of two that a client may have: %v, %v; want a reset", f, reply, err)
		}
		x.second.Close()
		eventually(t, syncTimeout, func() error { // the kernel counts what is closed for a moment
			_, err := b.IN.Ask("tcp", client.at(f, 80))
			return err
		})
		open(t, b.IN, full.at(f, 80))
		b.hasProblem(t, f.object("Service", full.name), "EndpointFull")
		// Its second connection is the last one of this minute; the packets of the first one are not counted.
		open(t, b.IN, rated.at(f, 80))
		// real time: silence
		if reply, err := b.IN.Ask("tcp", rated.at(f, 80), netlab.Within(3*time.Second)); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("%s: a third connection within a minute: %v, %v; want silence", f, reply, err)
		}
	}

	health.Close()
	b.rewrite("fast.yaml", documents(extOnly, b.R1))
	for _, f := range families {
		x := of[f]
		endsByReset(t, x.shutOut)
		endsByReset(t, x.dead)
		eventually(t, syncTimeout, func() error {
			if reply, err := x.shutOutUDP.ask(shortly); netlab.RefusalOf(err) != netlab.Timeout {
				return fmt.Errorf("%s: got %v, %v; want silence", x.shutOutUDP, reply, err)
			}
			return nil
		})
		lead(t, []flow{x.leavesUDP}, b.R1, 53)
		if err := together(echo(x.sticky, x.client, x.full, x.rated, x.stays, x.lives), x.staysUDP.asks)(); err != nil {
			t.Errorf("%s: none of the changes is about %v", f, err)
		}
	}
}

// A connection stays fast, or becomes so again, when a server gets another MAC address behind a bridge, over a VLAN, and
// when an interface goes down, or is deleted and made again.
func Test1076_fast_connections_follow_the_network(t *testing.T) {
	b := fastBox(t, nil)
	const vlan = "v10"
	addVLAN := func(h *netlab.Host, below, addr string) {
		t.Helper()
		if err := h.Do(func() error {
			parent, err := netlink.LinkByName(below)
			if err != nil {
				return err
			}
			return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: vlan, ParentIndex: parent.Attrs().Index}, VlanId: 10})
		}); err != nil {
			t.Fatal(err)
		}
		h.SetUp(vlan)
		h.AddAddr(vlan, addr)
	}
	// The box is on the servers' segment by a bridge.
	on := []string{"10.180.255.254/16", "fd00:10:180::ffff/64"}
	for _, addr := range on {
		b.GW1.RemoveAddr("int0", addr)
	}
	if err := b.GW1.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		port, err := netlink.LinkByName("int0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	}); err != nil {
		t.Fatal(err)
	}
	b.GW1.SetUp("lan")
	for _, addr := range on {
		b.GW1.AddAddr("lan", addr)
	}
	addVLAN(b.GW1, "int2", "10.99.0.1/24")
	addVLAN(b.IN, "eth0", "10.99.0.2/24")
	b.IN.Route(fasts.at(ipv4, 80).Addr().String()+"/32", "10.99.0.1")
	b.fastServices(b.L1)
	b.svcctl.Start()
	if listed := b.GW1.Nft("list", "flowtables"); strings.Contains(listed, "int0") || !strings.Contains(listed, "lan") || !strings.Contains(listed, vlan) {
		t.Errorf("a port of a bridge is no interface of the fast path, the bridge and a VLAN are:\n%s", listed)
	}
	conns := map[family]*netlab.Conn{}
	for _, f := range families {
		conns[f] = open(t, b.IN, fasts.at(f, 80)) // of IPv4 by the VLAN
		b.areFast(t, f.String()+" behind a bridge", echo(conns[f]))
		b.staysFast(t, f.String()+" behind a bridge", echo(conns[f]))
	}
	t.Run("another MAC address", func(t *testing.T) {
		if err := b.L1.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 7, 7}); err != nil {
				return err
			}
			neighbors, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
			for i := range neighbors { // so that it asks for the box, by which that gets its address
				_ = netlink.NeighDel(&neighbors[i]) // those that are none
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if err := echo(conns[f])(); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			b.areFast(t, f.String(), echo(conns[f]))
		}
	})
	t.Run("deleted and made again", func(t *testing.T) {
		if err := b.GW1.Do(func() error {
			link, err := netlink.LinkByName(vlan)
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}); err != nil {
			t.Fatal(err)
		}
		addVLAN(b.GW1, "int2", "10.99.0.1/24")
		b.areFast(t, "with the interface made again", echo(conns[ipv4]))
		b.staysFast(t, "with the interface made again", echo(conns[ipv4]))
	})
	t.Run("down and up", func(t *testing.T) {
		b.GW1.SetDown(vlan)
		b.GW1.SetUp(vlan)
		b.areFast(t, "down and up", echo(conns[ipv4]))
		b.staysFast(t, "down and up", echo(conns[ipv4]))
	})
}

// without has the appliance start again with other flags, beside the same files.
func (b *box) without(fastPath string) {
	b.svcctl.Stop()
	b.flags["fast-path"] = []string{fastPath}
	next := b.GW1.Appliance(binary, b.flags.args()...)
	next.Manifests, next.Data = b.svcctl.Manifests, b.svcctl.Data
	b.svcctl = next
	b.svcctl.Start()
}

// A crash and the end of the fast path lose no packet of connections that are fast. The end of all rules leaves no flowtable.
func Test1077_the_end_of_the_fast_path(t *testing.T) {
	b := fastBox(t, nil)
	b.fastServices(b.L1)
	b.svcctl.Start()
	var conns []*netlab.Conn
	var datagrams []func() error
	for i, f := range families {
		conns = append(conns, open(t, b.IN, fasts.at(f, 80)), open(t, b.EXT, f.at(f.boxAddr(), fasts.nodePort(f))))
		datagrams = append(datagrams, flow{f, "udp", b.IN, fasts.at(f, 53), uint16(11000 + i)}.asks)
	}
	exchange := together(append(datagrams, echo(conns...))...)
	b.areFast(t, "before", exchange)
	under := func(what string, change func()) {
		t.Helper()
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if err := exchange(); err != nil {
					ended <- err
					return
				}
			}
		}()
		change()
		close(stop)
		err := <-ended
		for range 10 {
			if err == nil {
				err = exchange()
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	under("a crash", b.svcctl.Kill)
	b.staysFast(t, "after a crash", exchange)
	under("a start after it", b.svcctl.Start)
	under("--fast-path off", func() { b.without("off") })
	if listed := b.GW1.Nft("list", "flowtables"); strings.Contains(listed, "flowtable") {
		t.Errorf("with --fast-path off there are\n%s", listed)
	}
	if slow := b.slowOf50(t, exchange); slow < 100 {
		t.Errorf("with --fast-path off the rules saw %d packets of 50 exchanges", slow)
	}
	if out, _, _ := b.svcctl.Svcctl("explain", "svc/"+families[0].name(fasts.name)); !strings.Contains(out, "--fast-path off") {
		t.Errorf("explain has not why it is slow:\n%s", out)
	}
	b.without("all")
	b.areFast(t, "with --fast-path all", exchange)
	if listed := b.GW1.Nft("list", "set", "ip", "svcctl", "fast-services"); !strings.Contains(listed, slows.at(ipv4, 80).Addr().String()) {
		t.Errorf("with --fast-path all a Service that does not decline is not fast:\n%s", listed)
	}
	b.svcctl.Stop()
	if _, stderr, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
		t.Errorf("down: exit code %d: %s", code, stderr)
	}
	if listed := b.GW1.Nft("list", "ruleset"); strings.Contains(listed, "svcctl") || strings.Contains(listed, "flowtable") {
		t.Errorf("after down there is\n%s", listed)
	}
}

// A flowtable of another program takes nothing from what Services are promised, with and without a fast path of ours on the
// same interfaces.
func Test1078_flowtables_of_other_programs(t *testing.T) {
	for _, own := range []string{"off", "services"} {
		t.Run("--fast-path "+own, func(t *testing.T) {
			b := fastBox(t, flags{"fast-path": {own}})
			b.GW1.LoadNft("table inet firewall {\n flowtable theirs { hook ingress priority 0; devices = { ext0, int0, int1, int2 }; }\n" +
				" chain forward { type filter hook forward priority 10; policy accept; meta l4proto { tcp, udp } ct state established flow add @theirs; }\n}\n")
			drains := drainable{"drains", 51, "{svcctl.io/drain-timeout: 1s, svcctl.io/fast-path: 'true'}"}
			lasts := drainable{"lasts", 52, "{svcctl.io/drain-timeout: 1s}"}
			narrow := promised{"narrow", 5, []string{"svcctl.io/drain-timeout: 0s"}, nil}
			documents := func(ranges string, h *netlab.Host) func(f family) (docs []string) {
				return func(f family) (docs []string) {
					limited := narrow
					limited.spec = []string{f.ranges(ranges)}
					docs = append(drains.documents(f, f.endpoint(h)), lasts.documents(f, f.endpoint(b.L1))...)
					return append(docs, limited.documents(f, b.L1)...)
				}
			}
			b.write("web.yaml", documents(everyone, b.L1))
			servers := b.mute(t)
			b.svcctl.Start()
			var drain drainedConns
			var last, shutOut, stays []*netlab.Conn
			var datagrams []flow
			for i, f := range families {
				drain.clients = append(drain.clients, open(t, b.IN, drains.at(f, 80)), open(t, b.EXT, f.at(f.boxAddr(), drains.nodePort(f))))
				drain.mute = append(drain.mute, open(t, b.IN, drains.at(f, 9000)))
				drain.servers = append(drain.servers, <-servers)
				last = append(last, open(t, b.IN, lasts.at(f, 80)))
				shutOut, stays = append(shutOut, open(t, b.BLK, narrow.lb(f, 80))), append(stays, open(t, b.EXT, narrow.lb(f, 80)))
				datagrams = append(datagrams, flow{f, "udp", b.IN, drains.at(f, 53), uint16(11000 + i)})
			}
			b.areFast(t, "by another program's flowtable", func() error {
				drain.live(t, "fast")
				return together(echo(slices.Concat(last, shutOut, stays)...), datagrams[0].asks, datagrams[1].asks)()
			})
			if out, _, _ := b.svcctl.Svcctl("doctor"); !regexp.MustCompile(`table inet firewall, flowtable theirs\s+of ext0, int0, int1, int2`).MatchString(out) {
				t.Errorf("doctor does not have the flowtable:\n%s", out)
			}
			if out, _, _ := b.svcctl.Svcctl("top", "-A", "--connections"); !strings.Contains(out, "FAST") {
				t.Errorf("top --connections does not have what is fast:\n%s", out)
			}
			b.rewrite("web.yaml", documents(extOnly, b.R1))
			for _, c := range shutOut {
				endsByReset(t, c)
			}
			eventually(t, 2*time.Minute, func() error { // both are established until both are reset
				if fast := regexp.MustCompile(`(?m)^tcp.*dport=(80|9000) .*src=10\.180\.0\.1 .*$`).FindAllString(b.GW1.Conntrack("-L", "-d", ipv4.vip(drains.n)), -1); len(fast) > 0 {
					return fmt.Errorf("there are entries of connections that should be reset:\n%s", strings.Join(fast, "\n"))
				}
				return nil
			})
			drain.over(t)
			lead(t, datagrams, b.R1, 53)
			if err := echo(append(last, stays...)...)(); err != nil {
				t.Errorf("none of the changes is about %v", err)
			}
		})
	}
}

// Bulk data, fragments, silence and what is counted.
func Test1079_packets_of_fast_connections(t *testing.T) {
	b := fastBox(t, flags{"fast-path": {"services"}, "traffic": {"flows"}})
	b.GW1.Sysctl("net.netfilter.nf_conntrack_acct", "1")
	web := promised{"web", 1, nil, nil}
	b.write("fast.yaml", func(f family) []string { return web.documents(f, b.L1) })
	b.svcctl.Start()
	for i, f := range families {
		datagrams := flow{f, "udp", b.IN, web.at(f, 53), uint16(11000 + i)}
		for what, c := range map[string]*netlab.Conn{"one address translated": open(t, b.IN, web.at(f, 80)), "both": open(t, b.EXT, web.lb(f, 80))} {
			b.areFast(t, f.String()+", "+what, echo(c))
			line := strings.Repeat("0123456789abcdef", 4096)
			for range 32 {
				if err := c.Echo(line, patiently); err != nil {
					t.Fatalf("%s, %s: bulk data: %v", f, what, err)
				}
			}
			packets := func() (least int) {
				t.Helper()
				entry := b.GW1.Conntrack("-L", "-p", "tcp", "-f", f.pick("ipv4", "ipv6"), "--orig-port-src", fmt.Sprint(c.Local.Port()))
				counts := regexp.MustCompile(`packets=(\d+)`).FindAllStringSubmatch(entry, -1)
				if len(counts) != 2 {
					t.Fatalf("%s, %s: conntrack lists %q", f, what, entry)
				}
				var both [2]int
				for i, count := range counts {
					_, _ = fmt.Sscan(count[1], &both[i])
				}
				return min(both[0], both[1])
			}
			before := packets()
			b.staysFast(t, f.String()+", "+what, echo(c))
			if after := packets(); after < before+50 {
				t.Errorf("%s, %s: of 50 exchanges %d packets are counted in a direction", f, what, after-before)
			}
			c.Close()
		}
		b.areFast(t, f.String()+", UDP", datagrams.asks)
		lost := 0
		for range 20 {
			eventually(t, time.Minute, func() error {
				_, err := datagrams.ask(netlab.Within(3*time.Second), netlab.Sized(4000)) // real time: a datagram may be lost on a busy machine
				if err != nil {
					lost++
				}
				return err
			})
		}
		t.Logf("%s: %d datagrams in fragments were lost", f, lost)
		// Connections are counted by their first packets.
		connections, _ := b.countedUp(t, f, "", 1)
		if connections != 1 {
			t.Errorf("%s: top has %d connections of one flow", f, connections)
		}
	}
	// Silent connections leave the fast path and go on by the rules.
	b.GW1.Sysctl("net.netfilter.nf_flowtable_tcp_timeout", "1")
	c := open(t, b.IN, web.at(ipv4, 80))
	b.areFast(t, "before the silence", echo(c))
	eventually(t, time.Minute, func() error {
		if entry := b.GW1.Conntrack("-L", "-p", "tcp", "--orig-port-src", fmt.Sprint(c.Local.Port())); strings.Contains(entry, "[OFFLOAD]") {
			return errors.New("a silent connection stays in the flowtable: " + entry)
		}
		return nil
	})
	b.areFast(t, "after the silence", echo(c))
}
