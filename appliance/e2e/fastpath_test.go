package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about the fast path. Judge of what is fast is a counter in the forward chain of another
// program's table: packets of the fast path do not come there.

var (
	fasts = drainable{"fasts", 51, "{svcctl.io/fast-path: 'true', svcctl.io/drain-timeout: 1s}"}
	slows = drainable{"slows", 52, "{}"}
)

// hasFast reports whether the kernel has flowtables that the product does not refuse.
func (b *box) hasFast(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	var major, minor int
	err := unix.Uname(&name)
	if _, scanned := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil || scanned != nil {
		t.Fatal(err, scanned)
	}
	if major < 6 || major == 6 && minor < 1 || major > 6 || minor >= 19 {
		return false
	}
	_, _, err = b.GW1.RunInput("table ip try {\n flowtable f { hook ingress priority 0; }\n chain c { flow add @f; }\n}\ndelete table ip try\n", "nft", "-f", "-")
	return err == nil
}

// fastBox is a box with a fast path; a test is skipped on a kernel without.
func fastBox(t *testing.T, other flags) *box {
	t.Helper()
	if other == nil {
		other = flags{"fast-path": {"services"}}
	}
	b := newBox(t, other)
	if !b.hasFast(t) {
		t.Skip("SKIPPED: this kernel has no flowtables that serve")
	}
	b.GW1.LoadNft("table inet judge {\n counter slow { }\n chain forward { type filter hook forward priority 0; policy accept; meta l4proto { tcp, udp } counter name slow; }\n}\n")
	return b
}

// fastServices writes the Services of these tests.
func (b *box) fastServices(hosts ...*netlab.Host) {
	b.write("fast.yaml", func(f family) []string {
		var endpoints []string
		for _, h := range hosts {
			endpoints = append(endpoints, "{addresses: ['"+f.on(80, h)[0].Addr().String()+"']}")
		}
		return append(fasts.documents(f, endpoints...), slows.documents(f, endpoints...)...)
	})
}

// slow is the number of packets that the rules of others saw.
func (b *box) slow(t *testing.T) int {
	t.Helper()
	fields := strings.Fields(b.GW1.Nft("list", "counter", "inet", "judge", "slow"))
	i := slices.Index(fields, "packets")
	if i < 0 {
		t.Fatalf("nft lists %v", fields)
	}
	n, err := strconv.Atoi(fields[i+1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// becomesFast sends until packets skip the rules, and reports the number of exchanges that took; -1: they never did.
func (b *box) becomesFast(t *testing.T, exchange func() error) int {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for n, before := 0, b.slow(t); time.Now().Before(deadline); {
		for range 10 {
			if err := exchange(); err != nil {
				t.Fatalf("exchange %d: %v", n, err)
			}
			n++
		}
		now := b.slow(t)
		if now == before {
			return n
		}
		before = now
	}
	return -1
}

// slowOf50 reports the number of packets of 50 exchanges that the rules saw.
func (b *box) slowOf50(t *testing.T, exchange func() error) int {
	t.Helper()
	before := b.slow(t)
	for i := range 50 {
		if err := exchange(); err != nil {
			t.Fatalf("exchange %d: %v", i, err)
		}
	}
	return b.slow(t) - before
}

// staysFast asserts that the rules see no packet of 50 exchanges. The kernel ends all flows when routes change, as by an
// address that was found to be unique, so that some packets pass the rules then.
func (b *box) staysFast(t *testing.T, what string, exchange func() error) {
	t.Helper()
	slow := 0
	for range 5 {
		if slow = b.slowOf50(t, exchange); slow == 0 {
			return
		}
	}
	t.Errorf("%s: the rules saw %d packets of 50 exchanges\n%s", what, slow, b.GW1.Nft("list", "flowtables"))
}

// reportsFast asserts that verbs have what is fast.
func (b *box) reportsFast(t *testing.T) {
	t.Helper()
	out, _, code := b.svcctl.Svcctl("top", "-A", "--connections")
	if code != 0 || !strings.Contains(out, "FAST") || !strings.Contains(out, "yes") {
		t.Errorf("top --connections does not have what is fast:\n%s", out)
	}
	out, _, _ = b.svcctl.Svcctl("explain", "svc/"+families[0].name(fasts.name))
	if !strings.Contains(out, "is on the fast path") {
		t.Errorf("explain does not have that it is fast:\n%s", out)
	}
	out, _, _ = b.svcctl.Svcctl("doctor")
	if !strings.Contains(out, "connections are fast between ") {
		t.Errorf("doctor does not have the devices:\n%s", out)
	}
}

func Test1068_established_connections_skip_the_rules(t *testing.T) {
	b := fastBox(t, nil)
	b.fastServices(b.L1)
	b.svcctl.Start()
	ask := func(from *netlab.Host, to netip.AddrPort, port uint16) func() error {
		return func() error {
			_, err := from.Ask("udp", to, patiently, netlab.FromPort(port))
			return err
		}
	}
	for _, f := range families {
		inside, outside := open(t, b.IN, fasts.at(f, 80)), open(t, b.EXT, f.at(f.boxAddr(), fasts.nodePort(f)))
		for what, exchange := range map[string]func() error{
			"TCP to a cluster IP":             echo(inside),
			"TCP to a node port, NAT of both": echo(outside),
			"UDP to a cluster IP":             ask(b.IN, fasts.at(f, 53), 5353),
		} {
			if n := b.becomesFast(t, exchange); n < 0 {
				t.Errorf("%s, %s: never fast\n%s", f, what, b.GW1.Nft("list", "flowtables"))
				continue
			}
			b.staysFast(t, f.String()+", "+what, exchange)
		}
		other := open(t, b.IN, slows.at(f, 80))
		if slow := b.slowOf50(t, echo(other)); slow < 100 {
			t.Errorf("%s: of a Service that does not ask, the rules saw %d packets of 50 exchanges", f, slow)
		}
		if f == families[1] {
			b.reportsFast(t)
		}
		for _, c := range []*netlab.Conn{inside, outside, other} {
			c.Close() // or the judge counts their keepalives
		}
	}
	// A foreign flush, a restart and the end of the fast path lose nothing.
	c := open(t, b.IN, fasts.at(families[0], 80))
	b.becomesFast(t, echo(c))
	goesOn := func(when string) {
		for i := range 20 {
			if err := c.Echo(when, patiently); err != nil {
				t.Fatalf("%s, exchange %d: %v", when, i, err)
			}
		}
	}
	b.GW1.Nft("flush", "ruleset")
	goesOn("after a flush of the ruleset")
	b.GW1.LoadNft("table inet judge {\n counter slow { }\n chain forward { type filter hook forward priority 0; policy accept; meta l4proto { tcp, udp } counter name slow; }\n}\n")
	if b.becomesFast(t, echo(c)) < 0 {
		t.Errorf("after a flush of the ruleset: never fast again")
	}
	before := b.GW1.Nft("list", "ruleset", "ip")
	b.svcctl.Stop()
	goesOn("while svcctl is down")
	b.svcctl.Start()
	goesOn("after a restart")
	b.staysFast(t, "after a restart", echo(c))
	if after := b.GW1.Nft("list", "flowtables", "ip"); !strings.Contains(before, strings.TrimSpace(strings.SplitN(after, "\n", 3)[1])) {
		t.Errorf("the flowtable is not the same after a restart:\n%s", after)
	}
}

// A rule that another program adds stops fast connections, too, whichever direction it drops: what the other end repeats, which the rule
// lets pass, does not make them fast again. As one packet of 16 asks for that, there are many connections.
func Test1069_rules_of_others_stop_fast_connections(t *testing.T) {
	const many = 20
	b := fastBox(t, nil)
	b.fastServices(b.L1)
	b.svcctl.Start()
	for _, f := range families {
		for _, dropped := range []string{"dport", "sport"} {
			conns := make([]*netlab.Conn, many)
			for i := range conns {
				conns[i] = open(t, b.IN, fasts.at(f, 80))
			}
			if b.becomesFast(t, echo(conns...)) < 0 {
				t.Fatalf("%s: never fast", f)
			}
			b.GW1.LoadNft("table inet block {\n chain forward { type filter hook forward priority 0; policy accept; meta nfproto " + f.pick("ipv4", "ipv6") + " tcp " + dropped + " 80 drop; }\n}\n")
			loaded := time.Now()
			last, again := make([]time.Duration, many), make([]bool, many)
			var wg sync.WaitGroup
			for i, c := range conns {
				wg.Go(func() {
					// The line is always the same: an answer that comes late is one, too.
					for last[i] < time.Minute && c.Echo("fast", netlab.Within(3*time.Second)) == nil { // real time: silence is what is waited for
						last[i] = time.Since(loaded)
					}
					again[i] = c.Echo("fast", netlab.Within(20*time.Second)) == nil // real time: silence is what is waited for, while both ends repeat
				})
			}
			wg.Wait()
			if slices.Max(last) >= time.Minute || slices.Contains(again, true) {
				t.Errorf("%s: a rule that drops by %s: the last packets passed after %v, connections that went on %v\n%s\n%s\n%s", f, dropped, last, again,
					b.GW1.Nft("list", "table", "inet", "block"), b.GW1.Nft("list", "flowtables"), b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6")))
			}
			t.Logf("%s, %s: the last packet passed %v after the rule was loaded", f, dropped, slices.Max(last))
			b.GW1.Nft("delete", "table", "inet", "block")
			for _, c := range conns {
				c.Close() // or the judge counts what they repeat
			}
		}
	}
}

// echoes counts the connections of a server that ended by a reset.
type echoes struct {
	mu   sync.Mutex
	ends map[netip.AddrPort]error // by client; nil: it is open
}

// serveEcho has the test be a server of port 9000 that echoes.
func serveEcho(t *testing.T, h *netlab.Host, f family) *echoes {
	t.Helper()
	r := &echoes{ends: map[netip.AddrPort]error{}}
	var listener *net.TCPListener
	err := h.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(f.on(9000, h)[0]))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				from := netip.MustParseAddrPort(c.RemoteAddr().String())
				r.set(from, nil)
				fmt.Fprintf(c, "%s %s %s\n", h.Name, c.LocalAddr(), from)
				buf := make([]byte, 64)
				for {
					n, err := c.Read(buf)
					if err == nil {
						_, err = c.Write(buf[:n])
					}
					if err != nil {
						r.set(from, err)
						return
					}
				}
			}()
		}
	}()
	return r
}

func (r *echoes) set(from netip.AddrPort, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends[from] = err
}

func (r *echoes) count() (open, reset, other int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.ends {
		switch {
		case err == nil:
			open++
		case isReset(err):
			reset++
		default:
			other++
		}
	}
	return open, reset, other
}

// An endpoint that is drained resets fast connections at both ends, and those of others go on.
func Test1070_fast_connections_are_drained(t *testing.T) {
	const many = 100
	b := fastBox(t, nil)
	b.fastServices(b.L1, b.L2)
	f := families[0]
	arrived := b.IN.Capture("eth0")
	gone, stays := serveEcho(t, b.L1, f), serveEcho(t, b.L2, f)
	b.svcctl.Start()
	conns := make([]*netlab.Conn, many)
	for i := range conns {
		conns[i] = open(t, b.IN, fasts.at(f, 9000))
	}
	round := func() error {
		for _, c := range conns {
			if err := c.Echo("round", patiently); err != nil {
				return err
			}
		}
		return nil
	}
	if n := b.becomesFast(t, round); n < 0 {
		t.Fatal("never all fast")
	}
	onGone, _, _ := gone.count()
	onOther, _, _ := stays.count()
	if onGone == 0 || onOther == 0 {
		t.Fatalf("%d connections at one endpoint and %d at the other one", onGone, onOther)
	}
	b.fastServices(b.L2)
	netlab.Eventually(t, 2*time.Minute, func() error {
		reset := 0
		for _, c := range conns {
			if err := c.Echo("are you there?", patiently); netlab.RefusalOf(err) == netlab.Reset {
				reset++
			}
		}
		if _, server, _ := gone.count(); reset != onGone || server != onGone {
			return fmt.Errorf("%d clients and %d servers of %d were reset", reset, server, onGone)
		}
		return nil
	})
	if still, _, _ := stays.count(); still != onOther {
		t.Errorf("%d of %d connections to the endpoint that stays are open", still, onOther)
	}
	if strange := arrived.Packets(func(p netlab.Packet) bool {
		return p.Protocol == unix.IPPROTO_TCP && !p.Outgoing && p.From.Addr() == f.of(b.L1)
	}); len(strange) > 0 {
		t.Errorf("the client got %d packets that were not translated", len(strange))
	}
}

// Devices come and go under fast connections, and the list follows.
func Test1071_devices_come_and_go(t *testing.T) {
	const many = 200
	b := fastBox(t, nil)
	b.fastServices(b.L1)
	b.svcctl.Start()
	conns := make([]*netlab.Conn, 100)
	for i := range conns {
		conns[i] = open(t, b.IN, fasts.at(families[i%2], 80))
	}
	b.areFast(t, "before", echo(conns...))
	link := func(i int, change func(netlink.Link) error) {
		t.Helper()
		if err := b.GW1.Do(func() error {
			return change(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("d%d", i), Flags: net.FlagUp}})
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		link(i, netlink.LinkAdd)
		if i >= 10 {
			link(i-10, netlink.LinkDel)
		}
		if err := echo(conns[i%len(conns)])(); err != nil {
			t.Fatalf("device %d: %v", i, err)
		}
	}
	netlab.Eventually(t, time.Minute, func() error {
		listed := b.GW1.Nft("list", "flowtables", "ip")
		if !strings.Contains(listed, "d199") || strings.Contains(listed, "d189") {
			return errors.New(listed)
		}
		return nil
	})
	if err := echo(conns...)(); err != nil {
		t.Fatal(err)
	}
	b.areFast(t, "after devices", echo(conns[:4]...))
	b.staysFast(t, "after devices", echo(conns[:4]...))
	if out, _, _ := b.svcctl.Svcctl("status"); strings.Contains(out, "error") {
		t.Errorf("a Service is blamed:\n%s", out)
	}
}

// A kernel without flowtables, or with those that break connections, is named, and everything else works.
func Test1072_no_fast_path(t *testing.T) {
	b := newBox(t, flags{"fast-path": {"services"}})
	if b.hasFast(t) {
		t.Skip("SKIPPED: this kernel has no lack of flowtables")
	}
	b.fastServices(b.L1)
	b.svcctl.Start()
	lacks := ""
	for _, p := range b.status().Problems {
		if p.Reason == "FastPath" {
			lacks, _, _ = strings.Cut(p.Message, "; until then --fast-path has no effect, and everything else works")
		}
	}
	if t.Log(lacks); !strings.Contains(lacks, "use Linux 6.1") && !strings.Contains(lacks, "modprobe -a nf_flow_table_inet nft_flow_offload") {
		t.Errorf("the status has %q for what the kernel lacks", lacks)
	}
	for _, f := range families {
		c := open(t, b.IN, fasts.at(f, 80))
		if err := c.Echo("served", patiently); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		out, _, _ := b.svcctl.Svcctl("explain", "svc/"+f.name(fasts.name))
		if !strings.Contains(strings.Join(strings.Fields(out), " "), "is not on the fast path: "+lacks) {
			t.Errorf("explain has not why it is slow:\n%s", out)
		}
	}
	for _, want := range []string{"reason=FastPath ", "reason=FastPathUnused "} {
		if !strings.Contains(b.svcctl.Log(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
}
