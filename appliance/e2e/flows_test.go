package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// metered makes an appliance show its numbers, see metric.
var metered = flags{"metrics-listen": {metricsAddr}}

const metricsAddr = "127.0.0.1:9753" // in the box's own namespace

// metric is one number of the appliance, without labels, as a scraper sees it.
func (b *box) metric(t *testing.T, name string) int {
	t.Helper()
	n, err := b.tryMetric(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *box) tryMetric(name string) (int, error) {
	var conn net.Conn
	err := b.GW1.Do(func() (err error) {
		conn, err = net.Dial("tcp", metricsAddr)
		return err
	})
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	response, err := client.Get("http://" + metricsAddr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("no %s at /metrics", name)
}

// Numbers of what became of connections to endpoints that were gone.
const (
	looks     = "svcctl_conntrack_looks_total"
	forgotten = "svcctl_conntrack_forgotten_total"
	resets    = "svcctl_conntrack_reset_total"
	drained   = "svcctl_conntrack_draining"
)

// looked waits until the appliance, since it was started, has looked for stale
// connections as often as it does after its start: at once, and once more.
func (b *box) looked(t *testing.T) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		if n := b.metric(t, looks); n < 2 {
			return fmt.Errorf("%s is %d, want 2", looks, n)
		}
		return nil
	})
}

// everywhere is a Service with ports of all protocols, each of them on a cluster IP, a load
// balancer IP, an external IP and a node port. Its endpoints have UDP and SCTP on port.
func everywhere(port int, hosts ...*netlab.Host) func(f family) []string {
	return func(f family) []string {
		var endpoints []string
		for _, h := range hosts {
			endpoints = append(endpoints, f.endpoint(h))
		}
		return []string{f.everywhereService("tcp", "udp", "sctp"), f.everywhereSlice(port, endpoints...)}
	}
}

func (f family) everywhereService(networks ...string) string {
	spec := []string{"type: LoadBalancer", "clusterIP: " + f.vip(41), "loadBalancerIP: " + f.lb(4), "externalIPs: [" + f.external(99) + "]", "ports:"}
	for _, network := range networks {
		port := 53
		if network == "tcp" {
			port = 80
		}
		spec = append(spec, fmt.Sprintf("- {name: %s, port: %d, protocol: %s, nodePort: %d}", network, port, strings.ToUpper(network), f.everywherePort(network)))
	}
	return f.service("any", spec...)
}

// everywherePort is the node port of the Service everywhere.
func (f family) everywherePort(network string) uint16 {
	return f.number(map[string]uint16{"tcp": 30080, "udp": 30053, "sctp": 30055}[network])
}

func (f family) everywhereSlice(port int, endpoints ...string) string {
	return f.rawSlice("any", "any", fmt.Sprintf("tcp: 80, udp: %d/UDP, sctp: %d/SCTP", port, port), endpoints...)
}

// flow is a client that goes on to send from the same port to the same address: for the
// box that is one connection, however long it lasts.
type flow struct {
	family
	network string // "udp" or "sctp"
	from    *netlab.Host
	to      netip.AddrPort
	port    uint16 // of the client
}

func (fl flow) String() string {
	return fmt.Sprintf("%s %s port %d to %s", fl.network, fl.from.Name, fl.port, fl.to)
}

// ask sends the flow's next packet.
func (fl flow) ask(opts ...netlab.Option) (netlab.Reply, error) {
	return fl.from.Ask(fl.network, fl.to, append(opts, netlab.FromPort(fl.port))...)
}

// shortly is how long to wait for an answer that must not come.
var shortly = netlab.Within(50 * time.Millisecond) // real time: silence

// has reports whether an entry is the flow's.
func (fl flow) has(e entry) bool {
	return e.network == fl.network && e.from == netip.AddrPortFrom(fl.of(fl.from), fl.port) && e.to == fl.to
}

// flows are one flow of EXT to every address of the Service everywhere, in both families.
// first is the port of the first one; they take 8.
func (b *box) flows(network string, first uint16) (all []flow) {
	for _, f := range families {
		for _, to := range []netip.AddrPort{
			f.at(f.vip(41), 53), f.at(f.lb(4), 53), f.at(f.external(99), 53), f.at(f.boxAddr(), f.everywherePort(network)),
		} {
			all = append(all, flow{f, network, b.EXT, to, first + uint16(len(all))})
		}
	}
	return all
}

// lead asserts that, within a sync, the next packet of every flow is answered at a port
// of a host.
func lead(t *testing.T, flows []flow, h *netlab.Host, port uint16) {
	t.Helper()
	for _, fl := range flows {
		eventually(t, syncTimeout, func() error {
			reply, err := fl.ask(netlab.Within(time.Second))
			if want := netip.AddrPortFrom(fl.of(h), port); err == nil && reply.At != want {
				err = fmt.Errorf("answered at %s, want %s", reply.At, want)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", fl, err)
			}
			return err
		})
	}
}

// refused asserts that, within a sync, the next packet of every flow is refused, and that
// no entry is left of it.
func (b *box) refused(t *testing.T, flows []flow) {
	t.Helper()
	for _, fl := range flows {
		eventually(t, syncTimeout, func() error {
			reply, err := fl.ask(netlab.Within(time.Second))
			var failure *netlab.Failure
			if !errors.As(err, &failure) || !failure.PortUnreachable() {
				return fmt.Errorf("%s: got %v, %v; want port unreachable", fl, reply, err)
			}
			return nil
		})
	}
	entries := b.entries(t)
	for _, fl := range flows {
		for e := range entries {
			if fl.has(e) {
				t.Errorf("%s is refused and has an entry: %s", fl, e)
			}
		}
	}
}

// entry is a connection that the box tracks: what its client sends, and what answers.
type entry struct {
	network                    string
	from, to, answer, answerTo netip.AddrPort
}

func (e entry) String() string {
	return fmt.Sprintf("%s %s > %s, %s answers %s", e.network, e.from, e.to, e.answer, e.answerTo)
}

// entries are the connections of TCP, UDP and SCTP that the box tracks. The id tells one
// from a later one with the same addresses.
func (b *box) entries(t *testing.T) map[entry]string {
	t.Helper()
	all := map[entry]string{}
	for _, f := range families {
		for line := range strings.Lines(b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-o", "id")) {
			var values = map[string][]string{}
			words := strings.Fields(line)
			for _, word := range words {
				if key, value, found := strings.Cut(word, "="); found {
					values[key] = append(values[key], value)
				}
			}
			if len(values["sport"]) != 2 || len(values["id"]) != 1 {
				continue // no ports: ICMP
			}
			end := func(addr, port string, i int) netip.AddrPort {
				n, err := strconv.ParseUint(values[port][i], 10, 16)
				if err != nil {
					t.Fatalf("conntrack -L: %q: %v", line, err)
				}
				return f.at(values[addr][i], uint16(n))
			}
			e := entry{words[0], end("src", "sport", 0), end("dst", "dport", 0), end("src", "sport", 1), end("dst", "dport", 1)}
			all[e] = values["id"][0]
		}
	}
	return all
}

// entriesOf are those entries that flows have; each must have one.
func (b *box) entriesOf(t *testing.T, flows ...flow) map[entry]string {
	t.Helper()
	of, err := b.tryEntriesOf(t, flows...)
	if err != nil {
		t.Fatal(err)
	}
	return of
}

func (b *box) tryEntriesOf(t *testing.T, flows ...flow) (map[entry]string, error) {
	t.Helper()
	all, of := b.entries(t), map[entry]string{}
	for _, fl := range flows {
		found := false
		for e, id := range all {
			if fl.has(e) {
				of[e], found = id, true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no entry in the connection table", fl)
		}
	}
	return of, nil
}

// unanswered sends packets of flows without an answer until each has an entry: in a
// short time a busy machine does not always come to send one.
func (b *box) unanswered(t *testing.T, flows []flow) (of map[entry]string) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		for _, fl := range flows {
			if reply, err := fl.ask(shortly); err == nil {
				return fmt.Errorf("%s: answered by %s, want no answer", fl, reply)
			}
		}
		var err error
		of, err = b.tryEntriesOf(t, flows...)
		return err
	})
	return of
}

// untouched asserts that entries are there and the same ones as before.
func (b *box) untouched(t *testing.T, before map[entry]string) {
	t.Helper()
	now := b.entries(t)
	for e, id := range before {
		switch now[e] {
		case id:
		case "":
			t.Errorf("deleted: %s", e)
		default:
			t.Errorf("deleted and made anew: %s", e)
		}
	}
}

// stream has EXT send a packet of every flow, which are of UDP, each 5 ms until the test
// ends: it never pauses, as metrics and logs do.
func (b *box) stream(t *testing.T, flows []flow) {
	t.Helper()
	t.Log("asked under load: a failure counts at once")
	var conns []*net.UDPConn
	for _, fl := range flows {
		err := fl.from.Do(func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{Port: int(fl.port)}, net.UDPAddrFromAddrPort(fl.to))
			if err == nil {
				conns = append(conns, c)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ticker, done := time.NewTicker(5*time.Millisecond), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			for _, c := range conns {
				_, _ = c.Write([]byte("who?\n")) // an error is about an earlier one, refused
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		ticker.Stop()
		for _, c := range conns {
			_ = c.Close()
		}
	})
}

// manyEntries is how many connections of others the box tracks in Test100.
const manyEntries = 200_000

// crowd makes the box track manyEntries connections, of IN to every port of R2, or as many
// as fit. They are written into its table: packets for them would keep other tests waiting.
func (b *box) crowd(t *testing.T) (entries int) {
	t.Helper()
	text, _, err := b.GW1.Run("sysctl", "-n", "net.netfilter.nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	entries = min(manyEntries, limit-10_000)
	if entries < manyEntries {
		t.Logf("ONLY %d ENTRIES instead of %d: net.netfilter.nf_conntrack_max is %d", entries, manyEntries, limit)
	}
	var list strings.Builder
	const perPort = 60_000 // of IN
	for i := range entries {
		from, to := 11000+i/perPort, 1+i%perPort
		fmt.Fprintf(&list, "-I -p udp -s %[1]s --sport %[2]d -d %[3]s --dport %[4]d -r %[3]s --reply-port-src %[4]d -q %[1]s --reply-port-dst %[2]d -t 600 -u SEEN_REPLY\n",
			b.IN.Addr4(), from, b.R2.Addr4(), to)
	}
	before := b.tracked(t)
	if _, _, err := b.GW1.RunInput(list.String(), "conntrack", "-R", "-"); err != nil {
		t.Fatal(err)
	}
	if made := b.tracked(t) - before; made != entries {
		t.Fatalf("%d entries were made, want %d", made, entries)
	}
	return entries
}

// tracked returns the number of conntrack entries of the box.
func (b *box) tracked(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(b.GW1.Conntrack("-C")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
