package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// leaving are flags with which the endpoints of the standard network may leave with an address of their Service.
func leaving(other flags) flags {
	f := flags{"egress-from": {"10.180.0.0/16,10.181.0.0/16,fd00:10:180::/64,fd00:10:181::/64"}}
	for name, values := range other {
		f[name] = values
	}
	return f
}

// mail is a Service whose endpoints leave with its n-th load balancer IP.
func (b *box) mail(f family, n int, annotations []string, hosts ...*netlab.Host) []string {
	return []string{
		f.annotated("mail", append([]string{"svcctl.io/egress: vip"}, annotations...), "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(n), "ports: [{port: 25}]"),
		f.slice("mail", "\"\": 80", hosts...),
	}
}

// leavesWith waits until a server sees a host with an address, at the same source port over and over.
func leavesWith(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, want string) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		reply, err := from.Ask(network, to, netlab.FromPort(4001))
		if err == nil && reply.Client.Addr().String() != want {
			err = fmt.Errorf("%s over %s: the server sees %s, want %s", from.Name, network, reply.Client, want)
		}
		return err
	})
}

// A flow of UDP whose source gets an address, another one, or none, leaves with that at once; connections of TCP keep theirs, and end by the
// drain timeout of the Service, if it has one.
func Test1052_flows_of_a_source_that_changes(t *testing.T) {
	b := newBox(t, leaving(nil))
	b.EXT.Serve("udp", 5353)
	b.EXT.Serve("tcp", 5353)
	b.GW1.LoadNft(`table inet operator { chain c { type nat hook postrouting priority srcnat; oifname "ext0" masquerade; }; }`)
	b.svcctl.Start()
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.on(5353, b.EXT)[0], f.boxAddr())
	}
	b.rewrite("mail.yaml", func(f family) []string { return b.mail(f, 4, nil, b.L1) })
	held := map[family]*netlab.Conn{}
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.on(5353, b.EXT)[0], f.lb(4))
		c, err := b.L1.Dial(f.on(5353, b.EXT)[0], patiently)
		if err != nil || c.Reply.Client.Addr().String() != f.lb(4) {
			t.Fatalf("%s: %v, %+v", f, err, c)
		}
		defer c.Close()
		held[f] = c
	}
	eventually(t, syncTimeout, func() error { return b.doctorHas("net.netfilter.nf_conntrack_tcp_be_liberal is 0") })
	goesOn := func() {
		t.Helper()
		for f, c := range held {
			if err := c.Echo("still there", patiently); err != nil {
				t.Errorf("%s: %v", f, err)
			}
		}
	}
	b.rewrite("mail.yaml", func(f family) []string { return b.mail(f, 5, nil, b.L1) })
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.on(5353, b.EXT)[0], f.lb(5))
	}
	goesOn()
	b.rewrite("mail.yaml", func(f family) []string { return b.mail(f, 4, []string{"svcctl.io/drain-timeout: 0s"}, b.L1) })
	goesOn() // it has its address again
	b.rewrite("mail.yaml", func(f family) []string { return b.mail(f, 4, []string{"svcctl.io/drain-timeout: 0s"}, b.R1) })
	for _, f := range families {
		leavesWith(t, b.L1, "udp", f.on(5353, b.EXT)[0], f.boxAddr())
		eventually(t, syncTimeout, func() error {
			if held[f].Echo("and now", patiently) == nil {
				return errors.New("the connection of a source that was removed goes on, drained after 0s")
			}
			return nil
		})
	}
}

// The ports of an address run out: the warning comes before the first connection is lost, with the place and the host that use most.
// The views name what left; what is lost is counted; and the warning goes when ports are free.
func Test1053_the_ports_of_an_address_run_out(t *testing.T) {
	b := newBox(t, leaving(metered))
	f := ipv4
	b.write("mail.yaml", func(f family) []string { return b.mail(f, 4, nil, b.L1, b.R1) })
	b.EXT.Serve("tcp", 5353, 5354)
	b.svcctl.Start()
	to := f.on(5353, b.EXT)[0]
	leavesWith(t, b.L1, "tcp", to, f.lb(4))
	held, err := b.L1.Dial(to, patiently)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	shows := func(text, verb string, args ...string) {
		t.Helper()
		if out, errOut, _ := b.svcctl.Svcctl(verb, args...); !strings.Contains(out, text) {
			t.Errorf("svcctl %s %v has no %q:\n%s%s", verb, args, text, out, errOut)
		}
	}
	eventually(t, syncTimeout, func() error { // the counters are read every 10 s
		if out, errOut, _ := b.svcctl.Svcctl("describe", "svc", f.name("mail")); !strings.Contains(out, f.lb(4)+" for "+f.of(b.L1).String()+", "+f.of(b.R1).String()+"; ") || strings.Contains(out, "; 0 open") {
			return errors.New(out + errOut)
		}
		return nil
	})
	shows("it leaves with "+f.lb(4)+" of default/"+f.name("mail"), "explain", f.of(b.L1).String())
	shows("no connection that it began has passed this box: is it the default route of "+f.of(b.R1).String(), "explain", f.of(b.R1).String())
	shows(held.Local.String()+" (out)", "top", "--connections", f.name("mail"))

	shows("OUT/s", "top", "--once")
	shows(" by ext0 (most connections to "+to.String()+"/TCP)", "explain", f.of(b.L1).String())
	shows("leaves with "+f.lb(4), "trace", f.of(b.L1).String(), to.String(), "--predict")
	shows("passes without translation", "trace", f.of(b.L2).String(), to.String(), "--predict")
	killed, err := b.L1.Dial(f.on(5354, b.EXT)[0], patiently) // whose segments that are sent again are in the way of none of those below
	if err != nil {
		t.Fatal(err)
	}
	defer killed.Close()
	out, errOut, _ := b.svcctl.Svcctl("top", "--connections", f.name("mail"))
	id := regexp.MustCompile(`(?m)^(\d+) .*` + regexp.QuoteMeta(killed.Local.String()+" (out)")).FindStringSubmatch(out)
	if id == nil {
		t.Fatalf("%s is not in\n%s%s", killed.Local, out, errOut)
	}
	shows("", "top", "--kill", id[1])
	if killed.Echo("and now", patiently) == nil {
		t.Error("a connection that was ended goes on")
	}

	// What is begun is not answered, so its port stays taken.
	b.EXT.LoadNft("table ip quiet { chain input { type filter hook input priority 0; tcp dport 5353 tcp flags syn / syn,ack drop; }; }")
	failed := insertFailed(b.GW1)
	b.GW1.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_syn_sent", "3600")                // to the end of the test
	b.GW1.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_max_retrans", "3600")             // for those that are sent again
	use := func(by *netlab.Host, connections int) { begin(by, f.of(by), to, connections) } // again those that a busy machine dropped
	warning := f.lb(4) + " uses 80 % of its 64512 ports towards " + to.String() + "/TCP, most by " + f.of(b.L1).String()
	eventually(t, 3*syncTimeout, func() error {
		use(b.L1, 52_000)
		problems := b.status().Problems
		if !slices.ContainsFunc(problems, func(p problem) bool { return p.Reason == "EgressPorts" && strings.Contains(p.String(), warning) }) {
			return fmt.Errorf("no problem with %q in:\n%s", warning, list(problems))
		}
		return nil
	})
	if lost := insertFailed(b.GW1) - failed; lost != 0 {
		t.Errorf("%d connections were lost before the warning", lost)
	}
	shows("give some endpoints another address", "status")
	total := regexp.MustCompile(`svcctl_egress_connections_total{namespace="default",service="` + f.name("mail") + `"} (5[2-9]|[6-9]\d|[1-9]\d\d)\d{3}`)
	eventually(t, 3*syncTimeout, func() error { // the counters are read every 10 s
		page, err := b.GW1.Get(netip.MustParseAddrPort(metricsAddr), "/metrics/services")
		if err != nil || !strings.Contains(page.Body, `svcctl_egress_port_use_ratio{address="`+f.lb(4)+`"} 0.8`) || !total.MatchString(page.Body) {
			return fmt.Errorf("%v: %s", err, page.Body)
		}
		return nil
	})
	came := b.EXT.Capture("eth0")
	eventually(t, 3*syncTimeout, func() error {
		use(b.L1, 52_000)
		use(b.R1, 60_000)
		if insertFailed(b.GW1) == failed {
			return errors.New("nothing is lost with more connections than ports")
		}
		return nil
	})
	if inner := came.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.From.Addr() == f.of(b.R1) }); len(inner) > 0 {
		t.Errorf("%d packets left with their own address: %v", len(inner), inner[0])
	}
	if err := held.Echo("still here", patiently); err != nil {
		t.Errorf("the connection that was there: %v", err)
	}
	b.GW1.Conntrack("-F")
	eventually(t, syncTimeout, func() error {
		for _, p := range b.status().Problems {
			if p.Reason == "EgressPorts" {
				return errors.New(p.String())
			}
		}
		return nil
	})
	shows(f.lb(4)+" uses 80 % of its 64512 ports", "journal", "--since", "1h")
}

// What changed while svcctl serve was stopped holds for flows of UDP at its next start: an address, the destinations and what is in their
// source sets, the annotation, and the border of the operator. A flow that nothing changed for goes on.
func Test1136_changes_while_serve_is_stopped(t *testing.T) {
	dir := t.TempDir()
	set := func(b *box, host *netlab.Host) {
		if err := os.WriteFile(filepath.Join(dir, "partner"), fmt.Appendf(nil, "%s\n%s\n", ipv4.of(host), ipv6.of(host)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := leaving(flags{"cluster-cidr": nil, "source-set": {"partner=" + filepath.Join(dir, "partner")}})
	b := newBox(t, flags)
	set(b, b.EXT)
	b.RTR.Route("10.180.0.0/15", netlab.BoxAddr4)
	b.RTR.Route("fd00:10::/32", netlab.BoxAddr6)
	b.EXT.Serve("udp", 5353)
	b.IN.Serve("udp", 5353)
	write := func(b *box, n int, annotations ...string) {
		b.write("mail.yaml", func(f family) []string {
			return []string{
				f.annotated("mail", annotations, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(n), "ports: [{port: 25}]"), f.slice("mail", "\"\": 80", b.L1),
				f.mail("plain", 5), f.slice("plain", "p80: 80", b.L2),
			}
		})
	}
	own := func(f family) string { return f.of(b.L1).String() }
	lb := func(n int) func(family) string { return func(f family) string { return f.lb(n) } }
	entry := map[family]string{}
	leave := func(b *box, when string, ext, in func(family) string) {
		t.Helper()
		for _, f := range families {
			t.Log(when, f)
			leavesWith(t, b.L1, "udp", f.on(5353, b.EXT)[0], ext(f))
			leavesWith(t, b.L1, "udp", f.on(5353, b.IN)[0], in(f))
			leavesWith(t, b.L2, "udp", f.on(5353, b.EXT)[0], f.lb(5))
			out := b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", "udp", "-o", "id", "--orig-src", f.of(b.L2).String())
			id := regexp.MustCompile(`id=\d+`).FindString(out)
			if id == "" || entry[f] != "" && entry[f] != id {
				t.Errorf("%s: the entry of a flow that nothing changed for has %s, and had %s:\n%s", when, id, entry[f], out)
			}
			entry[f] = id
		}
	}
	const vip, partner = "svcctl.io/egress: vip", "svcctl.io/egress-to: partner"
	write(b, 4, vip)
	b.svcctl.Start()
	leave(b, "at first", lb(4), lb(4))
	for _, step := range []struct {
		when    string
		change  func()
		ext, in func(family) string
	}{
		{"destinations", func() { write(b, 4, vip, partner) }, lb(4), own},
		{"another content of their set", func() { set(b, b.IN) }, own, lb(4)},
		{"another address", func() { write(b, 6, vip, partner) }, own, lb(6)},
		{"all destinations", func() { write(b, 6, vip) }, lb(6), lb(6)},
		{"no annotation", func() { write(b, 6) }, own, own},
		{"the annotation", func() { write(b, 6, vip) }, lb(6), lb(6)},
	} {
		b.svcctl.Stop()
		step.change()
		b.svcctl.Start()
		leave(b, step.when, step.ext, step.in)
	}
	flags["egress-from"] = []string{"10.180.0.2/32,fd00:10:180::2/128"}
	narrow := newBoxFrom(t, b, flags)
	write(narrow, 6, vip)
	narrow.svcctl.Start()
	leave(narrow, "a border that is narrower", own, own)
}

// The address that endpoints leave with goes to another pool, and to none: what is open keeps its conntrack entries, and what begins leaves
// with it as before, until the Service asks for another one. A link-local address is no endpoint: the slice that names one is refused, and
// what was in force stays.
func Test1045_an_egress_address_whose_pool_changes(t *testing.T) {
	b := newBox(t, leaving(flags{"load-balancer-pool": nil}))
	pool := func(name, addresses string) string {
		return "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: " + name + "}\nspec: {addresses: [" + addresses + "]}\n"
	}
	const low, high = "198.51.100.0/28, '2001:db8:198::/124'", "198.51.100.16/28, '2001:db8:198::20/124'"
	b.svcctl.Manifests.Write("pool.yaml", pool("first", low))
	b.write("mail.yaml", func(f family) []string { return b.mail(f, 4, nil, b.L1) })
	b.EXT.Serve("udp", 5353)
	b.EXT.Serve("tcp", 5353)
	b.svcctl.Start()
	leave := func(n int) {
		t.Helper()
		for _, f := range families {
			for _, network := range []string{"udp", "tcp"} {
				leavesWith(t, b.L1, network, f.on(5353, b.EXT)[0], f.lb(n))
			}
		}
	}
	leave(4)
	var held []*netlab.Conn
	for _, f := range families {
		c, err := b.L1.Dial(f.on(5353, b.EXT)[0], patiently)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		held = append(held, c)
	}
	entries := map[entry]string{}
	for e, id := range b.entries(t) {
		if slices.ContainsFunc(held, func(c *netlab.Conn) bool {
			return e.from == c.Local || e.network == "udp" && e.from == netip.AddrPortFrom(c.Local.Addr(), 4001)
		}) {
			entries[e] = id
		}
	}
	if len(entries) != 4 {
		t.Fatalf("the entries are %v, want those of TCP and UDP of each family", entries)
	}
	for _, addresses := range []string{low, high} {
		b.change(func() { b.svcctl.Manifests.Write("pool.yaml", pool("second", addresses)) })
		leave(4)
		b.untouched(t, entries)
	}
	b.hasProblem(t, ipv4.object("Service", "mail"), ipv4.lb(4)+" lies in no load balancer pool", "keeps it until it asks for another one")
	b.rewrite("mail.yaml", func(f family) []string {
		docs := b.mail(f, 4, nil, b.L1)
		docs[1] = f.rawSlice("mail", "mail", "\"\": 80", f.endpoint(b.L1), "{addresses: ['"+f.pick("169.254.7.7", "fe80::7")+"']}")
		return docs
	})
	for _, f := range families {
		b.hasProblem(t, f.object("EndpointSlice", "mail"), "endpoints[1].addresses[0]", "link-local")
	}
	leave(4)
	b.untouched(t, entries)
	b.rewrite("mail.yaml", func(f family) []string { return b.mail(f, 20, nil, b.L1) })
	leave(20)
	for _, c := range held {
		if err := c.Echo("still there", patiently); err != nil {
			t.Errorf("a connection that was there: %v", err)
		}
	}
}
