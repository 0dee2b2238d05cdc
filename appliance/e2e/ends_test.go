package e2e

import (
	"bufio"
	"encoding/json"
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

// totals are the sums over the connections of an endpoint.
type totals struct{ Flows, BytesIn, BytesOut uint64 }

// endpointTotals are those of the endpoints of a Service, as `svcctl top` prints them, of a look that was made after it was
// asked for, and why there are no bytes.
func (b *box) endpointTotals(service string) (of map[string]totals, port totals, noBytes string, err error) {
	asked := time.Now()
	for deadline := asked.Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var seen struct {
			At      time.Time
			NoBytes string
			Ports   []struct {
				totals
				Endpoints []struct {
					totals
					Endpoint string
				}
			}
		}
		out, errOut, code := b.svcctl.Svcctl("top", "svc/"+service, "--once", "-o", "json")
		if code != 0 {
			return nil, port, "", fmt.Errorf("svcctl top: exit code %d: %s", code, errOut)
		}
		if err := json.Unmarshal([]byte(out), &seen); err != nil {
			return nil, port, "", err
		}
		if seen.At.Before(asked) {
			continue
		}
		of = map[string]totals{}
		for _, p := range seen.Ports {
			port.Flows, port.BytesIn, port.BytesOut = port.Flows+p.Flows, port.BytesIn+p.BytesIn, port.BytesOut+p.BytesOut
			for _, e := range p.Endpoints {
				n := of[e.Endpoint] // of another port
				of[e.Endpoint] = totals{n.Flows + e.Flows, n.BytesIn + e.BytesIn, n.BytesOut + e.BytesOut}
			}
		}
		return of, port, seen.NoBytes, nil
	}
	return nil, port, "", fmt.Errorf("no look for a minute")
}

// hasTotals waits until the totals of a Service's endpoints are these, and asserts that none of them is ever more.
func (b *box) hasTotals(t *testing.T, when, service string, want map[string]totals) {
	t.Helper()
	var sum totals
	for _, n := range want {
		sum = totals{sum.Flows + n.Flows, sum.BytesIn + n.BytesIn, sum.BytesOut + n.BytesOut}
	}
	eventually(t, time.Minute, func() error {
		of, port, _, err := b.endpointTotals(service)
		if err != nil {
			return err
		}
		for at, n := range want {
			if of[at].Flows > n.Flows || of[at].BytesIn > n.BytesIn || of[at].BytesOut > n.BytesOut {
				t.Fatalf("%s: %s has %+v, want %+v", when, at, of[at], n)
			}
			if of[at] != n {
				return fmt.Errorf("%s: %s has %+v, want %+v", when, at, of[at], n)
			}
		}
		if port != sum {
			return fmt.Errorf("%s: all have %+v, want %+v", when, port, sum)
		}
		return nil
	})
}

// kernelTotals has what the kernel itself says of the connections to each endpoint of a target port.
func (b *box) kernelTotals(f family, port int) map[string]totals {
	of := map[string]totals{}
	tuple := regexp.MustCompile(`src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) (?:\[UNREPLIED\] )?packets=\d+ bytes=(\d+)`)
	for line := range strings.Lines(b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"))) {
		found := tuple.FindAllStringSubmatch(line, -1)
		if len(found) != 2 || found[1][3] != strconv.Itoa(port) || found[0][2] == found[1][1] {
			continue
		}
		at := netip.AddrPortFrom(netip.MustParseAddr(found[1][1]), uint16(port)).String()
		in, _ := strconv.ParseUint(found[0][5], 10, 64)
		out, _ := strconv.ParseUint(found[1][5], 10, 64)
		n := of[at]
		of[at] = totals{n.Flows + 1, n.BytesIn + in, n.BytesOut + out}
	}
	return of
}

func add(a, b map[string]totals) map[string]totals {
	sum := map[string]totals{}
	for _, m := range []map[string]totals{a, b} {
		for at, n := range m {
			s := sum[at]
			sum[at] = totals{s.Flows + n.Flows, s.BytesIn + n.BytesIn, s.BytesOut + n.BytesOut}
		}
	}
	return sum
}

// Connections and bytes of each endpoint are those that the kernel counted, when connections are open and when
// they are over, through changes of endpoints, a foreign flush, a hand-over and a restart. After a crash totals begin anew,
// and connections from before the start are in none.
func Test338_totals_of_endpoints(t *testing.T) {
	b := newBox(t, flags{"traffic": {"flows"}})
	b.GW1.Sysctl("net.netfilter.nf_conntrack_acct", "1")
	// What is in the table stays until the test deletes it.
	for _, state := range []string{"tcp_timeout_close", "tcp_timeout_time_wait", "udp_timeout", "udp_timeout_stream"} {
		b.GW1.Sysctl("net.netfilter.nf_conntrack_"+state, "600")
	}
	serve := func(hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("web", "type: NodePort", "clusterIP: "+f.vip(41),
					fmt.Sprintf("ports: [{name: p80, port: 80, nodePort: %d}, {name: u80, port: 80, protocol: UDP}]", f.number(30080))),
				f.slice("web", "p80: 80, u80: 80/UDP", hosts...),
			}
		}
	}
	b.write("web.yaml", serve(b.L1, b.L2))
	b.svcctl.Start()
	traffic := func(n int) {
		for _, f := range families {
			b.ask(t, n, b.IN, "tcp", f.at(f.vip(41), 80))
			b.ask(t, n, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)))
			b.ask(t, n, b.EXT, "udp", f.at(f.vip(41), 80))
		}
	}
	over := map[family]map[string]totals{}
	check := func(when string) {
		t.Helper()
		for _, f := range families {
			b.hasTotals(t, when, f.name("web"), add(over[f], b.settled(t, f, 80)))
		}
	}
	end := func() {
		for _, f := range families {
			over[f] = add(over[f], b.settled(t, f, 80))
		}
		b.GW1.Conntrack("-D", "-f", "ipv4")
		b.GW1.Conntrack("-D", "-f", "ipv6")
	}
	traffic(4)
	check("in the table")
	end()
	check("when they ended")
	traffic(3)
	check("ended and in the table")
	end()
	b.rewrite("web.yaml", serve(b.L1))
	traffic(2)
	b.rewrite("web.yaml", serve(b.L1, b.L2))
	check("an endpoint went and came")
	end()
	b.GW1.Nft("flush", "ruleset")
	eventually(t, time.Minute, func() error {
		rules := b.GW1.Nft("list", "ruleset")
		for _, f := range families {
			if !strings.Contains(rules, f.vip(41)+" . tcp . 80 counter") {
				return fmt.Errorf("%s is not in the kernel", f.vip(41))
			}
		}
		return nil
	})
	traffic(2)
	check("after a foreign flush")

	b.svcctl.HandOver()
	traffic(1)
	check("after a hand-over")
	b.svcctl.Stop()
	traffic(1)
	b.svcctl.Start()
	check("after a restart")
	end()
	check("when they ended after a restart")
	traffic(1)
	b.svcctl.Kill()
	b.svcctl.Start()
	for _, f := range families {
		b.hasTotals(t, "after a crash", f.name("web"), map[string]totals{f.on(80, b.L1)[0].String(): {}, f.on(80, b.L2)[0].String(): {}})
		over[f] = nil
	}
	b.GW1.Conntrack("-D", "-f", "ipv4")
	b.GW1.Conntrack("-D", "-f", "ipv6")
	traffic(1)
	check("after what was there before ended")
}

// openTCP matches an entry of conntrack -L of a TCP connection that has not ended.
var openTCP = regexp.MustCompile(`(?m)^tcp .* (SYN_SENT|SYN_RECV|ESTABLISHED|FIN_WAIT|CLOSE_WAIT|LAST_ACK) .*`)

// settled returns the kernel's sums over connections, once nothing is under way any more: all that were opened are closed.
func (b *box) settled(t *testing.T, f family, port int) (now map[string]totals) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if open := openTCP.FindString(b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", "tcp", "--dport", "80")); open != "" {
			return fmt.Errorf("still open: %s", open)
		}
		before := fmt.Sprint(b.kernelTotals(f, port))
		time.Sleep(200 * time.Millisecond) // real time: the last packets of what was reset
		if now = b.kernelTotals(f, port); fmt.Sprint(now) != before {
			return fmt.Errorf("packets are under way")
		}
		return nil
	})
	return now
}

// Where the kernel counts no bytes there are none, and it is said why; connections are exact. No sysctl is set.
func Test339_no_bytes_unless_the_operator_asks(t *testing.T) {
	b := newBox(t, flags{"traffic": {"flows"}, "connection-log": {filepath.Join(t.TempDir(), "connections.log")}})
	settings := func() (list []string) {
		for _, name := range []string{"acct", "timestamp", "events"} {
			list = append(list, b.setting(t, "net/netfilter/nf_conntrack_"+name))
		}
		return list
	}
	before := settings()
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.ask(t, 3, b.IN, "tcp", f.cluster())
		b.hasTotals(t, "without bytes", f.name("web"), map[string]totals{f.on(80, b.L1)[0].String(): {Flows: 3}})
		_, _, why, err := b.endpointTotals(f.name("web"))
		if err != nil || !strings.Contains(why, "nf_conntrack_acct is 0") {
			t.Errorf("that there are no bytes is explained by %q, %v", why, err)
		}
		b.verbs(t).says(0, []string{"bytes are not counted: net.netfilter.nf_conntrack_acct is 0"}, "top", "svc/"+f.name("web"), "--once")
	})
	if after := settings(); !slices.Equal(after, before) {
		t.Errorf("settings of connection tracking were %v, and are %v", before, after)
	}
}

// logLine has the fields of the connection log that the tests read.
type logLine struct {
	Time, Begin, End               time.Time
	Namespace, Service, Port       string
	Protocol, Client, To, Endpoint string
	As, State                      string
	Answered, Relayed              bool
	RelayedTo                      []string
	BytesIn, BytesOut              uint64
}

// logLines are those of a connection log.
func logLines(path string) (lines []logLine, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		var l logLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Text(), err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// Each connection of a Service that asks for it is a line of the log when it is over, of others none is. A file that
// was renamed is made anew.
func Test340_connection_log(t *testing.T) {
	path := filepath.Join(t.TempDir(), "connections.log")
	b := newBox(t, flags{"connection-log": {path}})
	b.GW1.Sysctl("net.netfilter.nf_conntrack_acct", "1")
	const aws = "service.beta.kubernetes.io/aws-load-balancer-access-log-"
	b.write("web.yaml", func(f family) []string {
		return []string{
			annotated(f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}, {name: u80, port: 80, protocol: UDP}]"), "svcctl.io/connection-log", "true"),
			f.slice("web", "p80: 80, u80: 80/UDP", b.L1),
			f.service("quiet", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), f.slice("quiet", "p80: 80", b.L2),
			withAnnotations(f.service("cloud", "type: LoadBalancer", "loadBalancerIP: "+f.lb(5), "ports: [{name: p80, port: 80}]"),
				aws+"enabled: 'true'", aws+"emit-interval: '7'", aws+"s3-bucket-name: mine"),
			f.slice("cloud", "p80: 80", b.L2),
			f.userspace("relayed", ", svcctl.io/connection-log: 'true'", "clusterIP: "+f.vip(43), "ports: [{name: p80, port: 80}, {name: u80, port: 80, protocol: UDP}]"),
			f.slice("relayed", "p80: 80, u80: 80/UDP", b.L2),
		}
	})
	b.svcctl.Start()
	for _, f := range families {
		b.hasProblem(t, "Service default/"+f.name("cloud"), "emit-interval", `"7" is neither "5" nor "60"`)
		b.hasProblem(t, "Service default/"+f.name("cloud"), "s3-bucket-name", "the log of connections is written to "+path)
	}
	begin := time.Now()
	for _, f := range families {
		b.ask(t, 2, b.IN, "tcp", f.at(f.vip(41), 80))
		b.ask(t, 3, b.EXT, "udp", f.at(f.vip(41), 80))
		b.ask(t, 4, b.IN, "tcp", f.at(f.vip(42), 80))
		b.ask(t, 1, b.EXT, "tcp", f.at(f.lb(5), 80))
		b.ask(t, 2, b.EXT, "tcp", f.at(f.vip(43), 80))
		b.ask(t, 3, b.IN, "udp", f.at(f.vip(43), 80))
	}
	want := map[string]int{}
	for _, f := range families {
		want[fmt.Sprintf("default/%s p80 TCP %s %s", f.name("web"), f.at(f.vip(41), 80), f.on(80, b.L1)[0])] = 2
		want[fmt.Sprintf("default/%s u80 UDP %s %s masqueraded", f.name("web"), f.at(f.vip(41), 80), f.on(80, b.L1)[0])] = 3
		want[fmt.Sprintf("default/%s p80 TCP %s %s masqueraded", f.name("cloud"), f.at(f.lb(5), 80), f.on(80, b.L2)[0])] = 1
		want[fmt.Sprintf("default/%s p80 TCP %s the relay %s", f.name("relayed"), f.at(f.vip(43), 80), f.on(80, b.L2))] = 2
		want[fmt.Sprintf("default/%s u80 UDP %s the relay %s", f.name("relayed"), f.at(f.vip(43), 80), f.on(80, b.L2))] = 3
	}
	forget := func() {
		b.GW1.Conntrack("-D", "-f", "ipv4")
		b.GW1.Conntrack("-D", "-f", "ipv6")
	}
	forget()
	has := func(when string, want map[string]int) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			lines, err := logLines(path)
			if err != nil {
				return err
			}
			got := map[string]int{}
			for _, l := range lines {
				if l.Relayed && strings.HasSuffix(l.Endpoint, ":10270") {
					l.Endpoint = fmt.Sprint("the relay ", l.RelayedTo)
				}
				key := fmt.Sprintf("%s/%s %s %s %s %s", l.Namespace, l.Service, l.Port, l.Protocol, l.To, l.Endpoint)
				if l.As != "" {
					key += " masqueraded"
				}
				got[key]++
				if !l.Answered || l.BytesIn == 0 || l.BytesOut == 0 || l.Protocol == "TCP" && l.State == "" ||
					l.Begin.Before(begin.Add(-time.Minute)) || l.End.Before(l.Begin) || l.Time.Before(l.End.Add(-time.Second)) {
					t.Fatalf("%s: %+v", when, l)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%s: %v, want %v", when, got, want)
			}
			return nil
		})
	}
	has("all connections ended", want)

	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	want = map[string]int{}
	for _, f := range families {
		b.ask(t, 1, b.IN, "tcp", f.at(f.vip(41), 80))
		want[fmt.Sprintf("default/%s p80 TCP %s %s", f.name("web"), f.at(f.vip(41), 80), f.on(80, b.L1)[0])] = 1
	}
	forget()
	has("after a rotation", want)
}

// A log that cannot be written is a problem, and loses lines that are counted; connections go on, and so does the log
// when it can be written.
func Test341_connection_log_that_cannot_be_written(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	path := filepath.Join(dir, "connections.log")
	b := newBox(t, flags{"connection-log": {path}, "metrics-listen": {metricsAddr}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			annotated(f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), "svcctl.io/connection-log", "true"),
			f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	ends := func() {
		for _, f := range families {
			b.ask(t, 3, b.IN, "tcp", f.at(f.vip(41), 80))
		}
		b.GW1.Conntrack("-D", "-f", "ipv4")
		b.GW1.Conntrack("-D", "-f", "ipv6")
	}
	b.hasReason(t, time.Minute, "ConnectionLog", path, "no such file or directory")
	ends()
	eventually(t, time.Minute, func() error {
		if lost, err := b.tryMetric("svcctl_connection_log_lines_lost_total"); err != nil || lost != 6 {
			return fmt.Errorf("%d lines are lost, %v; want 6", lost, err)
		}
		return nil
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		for _, p := range b.status().Problems {
			if p.Reason == "ConnectionLog" {
				return fmt.Errorf("the file can be written: %s", p)
			}
		}
		return nil
	})
	ends()
	eventually(t, time.Minute, func() error {
		if lines, err := logLines(path); err != nil || len(lines) != 6 {
			return fmt.Errorf("%d lines, %v; want 6", len(lines), err)
		}
		return nil
	})
	if lost := b.metric(t, "svcctl_connection_log_lines_lost_total"); lost != 6 {
		t.Errorf("%d lines are lost, want 6", lost)
	}
}
