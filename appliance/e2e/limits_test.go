package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// limited is a Service with limits, at a cluster IP, a load balancer IP with policy Local, and node ports.
func (b *box) limited(annotations ...string) func(f family) []string {
	return func(f family) []string {
		svc := f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "externalTrafficPolicy: Local", "ports:",
			"- {name: tcp, port: 80, nodePort: "+f.port(30080)+"}", "- {name: udp, port: 53, protocol: UDP, nodePort: "+f.port(30053)+"}")
		return []string{
			withAnnotations(svc, annotations...), f.slice("web", "tcp: 80, udp: 53/UDP", b.L1),
			f.service("plain", "clusterIP: "+f.vip(42), "ports: [{name: tcp, port: 80}]"), f.slice("plain", "tcp: 80", b.L1),
		}
	}
}

// A client has as many open connections as it may, by all addresses of a Service together; more are
// refused, and let in as soon as others are closed. Other clients and other Services are not concerned.
func Test392_open_connections_of_a_client(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.limited(`svcctl.io/client-connections: "3"`))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		dial := func(client *netlab.Host, to netip.AddrPort) *netlab.Conn {
			t.Helper()
			conn, err := client.Dial(to, patiently)
			if err != nil {
				t.Fatalf("%s to %s: %v", client.Name, to, err)
			}
			t.Cleanup(conn.Close)
			return conn
		}
		to := []netip.AddrPort{f.at(f.lb(4), 80), f.at(f.boxAddr(), f.number(30080)), f.at(f.vip(41), 80)}
		var open []*netlab.Conn
		for _, at := range to {
			open = append(open, dial(b.EXT, at))
		}
		refused := func(at netip.AddrPort) {
			t.Helper()
			if reply, err := b.EXT.Ask("tcp", at, patiently); netlab.RefusalOf(err) != netlab.Refused {
				t.Errorf("one connection more to %s: %s, %v; want a reset", at, reply, err)
			}
		}
		for _, at := range to {
			refused(at)
		}
		dial(b.BLK, to[0])
		dial(b.EXT, f.at(f.vip(42), 80))
		for _, conn := range open[:2] {
			conn.Close()
		}
		for _, at := range to[:2] {
			eventually(t, syncTimeout, func() error { // the kernel counts what is closed for a moment
				conn, err := b.EXT.Dial(at)
				if err == nil {
					t.Cleanup(conn.Close)
				}
				return err
			})
		}
		refused(to[2])
		if err := open[2].Echo("still here", patiently); err != nil {
			t.Errorf("a connection that was let in: %v", err)
		}
		v := b.verbs(t)
		eventually(t, syncTimeout, func() error { // the first counts are those of the start
			if text := v.does(0, "explain", "svc/"+f.name("web")); !strings.Contains(text, "limited to 3 open connections of a client (") {
				return errors.New(text)
			}
			return nil
		})
		// What the kernel lists loads again, with the clients that it knows.
		family := f.pick("ip", "ip6")
		if _, errOut, err := b.GW1.Run("sh", "-c", "list=$(nft list table "+family+" svcctl) && printf '%s\\n' \"$list\" | unshare -n sh -c 'for i in ext0 alt0 int0 int1 int2; do ip link add $i type veth; done; nft -f -'"); err != nil {
			t.Errorf("nft does not load what it lists: %v\n%s", err, errOut)
		}
	})
	// A restart finds nothing to do, and the kernel goes on to count.
	to := ipv4.at(ipv4.vip(41), 80)
	for range 3 {
		conn, err := b.IN.Dial(to, patiently)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
	}
	monitor := b.GW1.Monitor()
	b.svcctl.Stop()
	b.svcctl.Start()
	for _, tx := range monitor.Transactions() {
		if ours(tx) {
			t.Errorf("a restart commits %v", tx)
		}
	}
	if reply, err := b.IN.Ask("tcp", to, patiently); netlab.RefusalOf(err) != netlab.Refused {
		t.Errorf("after a restart one connection more gets %s, %v; want a reset", reply, err)
	}
}

// burst sends a datagram of each of n ports of a client, as fast as it can. It returns how long that took.
// All sockets stay open until the end: the kernel would give a port of one that is closed once more.
func burst(t *testing.T, host *netlab.Host, from netip.Addr, to netip.AddrPort, n int) time.Duration {
	t.Helper()
	start := time.Now()
	err := host.Do(func() error {
		for range n {
			fd, err := unix.Socket(map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[to.Addr().Is6()], unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			var local, remote unix.Sockaddr
			if to.Addr().Is6() {
				_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
				local, remote = &unix.SockaddrInet6{Addr: from.As16()}, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
			} else {
				local, remote = &unix.SockaddrInet4{Addr: from.As4()}, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
			}
			if err := unix.Bind(fd, local); err != nil {
				return err
			}
			if err := unix.Sendto(fd, []byte("x"), 0, remote); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// countedOf are the connections of the Service's UDP port, and what was refused for a reason, as the kernel has counted them.
func (b *box) countedOf(t *testing.T, f family, reason string) (connections, refused int) {
	t.Helper()
	type port struct {
		Port        string
		Connections int
	}
	var top struct {
		Ports    []port
		Refusals map[string]int
	}
	if err := json.Unmarshal([]byte(b.verbs(t).does(0, "top", "svc/"+f.name("web"), "--once", "-o", "json")), &top); err != nil {
		t.Fatal(err)
	}
	for _, p := range top.Ports {
		if p.Port == "udp" {
			connections = p.Connections
		}
	}
	return connections, top.Refusals[reason]
}

// through asserts that, of n new connections in a burst, as many passed as the rate allows: those of one
// second at once, and what the time of the burst adds; all others were counted as refused.
func through(t *testing.T, what string, n, passed, refused int, perSecond float64, atOnce int, took time.Duration) {
	t.Helper()
	most := atOnce + int(math.Ceil(perSecond*took.Seconds())) + 1
	if passed+refused != n || passed < atOnce || passed > most {
		t.Errorf("%s: of %d new connections within %s, %d passed and %d were refused; want %d to %d, and all others refused", what, n, took, passed, refused, atOnce, most)
	}
}

// A Service port gets as many new connections as its limit says, by all addresses together; those over it get
// no answer and are counted.
func Test393_new_connections_of_a_service(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.limited("svcctl.io/rate-limit: 7/s"))
	b.svcctl.Start()
	for _, f := range families { // refusals are counted together
		before, refusedBefore := b.countedUp(t, f, "rate-limit", 0)
		took := burst(t, b.EXT, f.client(1), f.at(f.lb(4), 53), 50) + burst(t, b.EXT, f.client(2), f.at(f.boxAddr(), f.number(30053)), 50)
		connections, refused := b.countedUp(t, f, "rate-limit", before+refusedBefore+100)
		through(t, f.String(), 100, connections-before, refused-refusedBefore, 7, 7, took)
		answers(t, b.EXT, "tcp", f.at(f.vip(42), 80))
		contains(t, b.verbs(t).does(0, "explain", "svc/"+f.name("web")), "limited to 7/s new connections of each port (")
	}
	// A client of TCP that is over the limit tries again and is let in.
	b.rewrite("web.yaml", b.limited("svcctl.io/rate-limit: 1/s"))
	for _, f := range families {
		for range 3 {
			conn, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
			if err != nil {
				t.Fatalf("%s: a client that tries again: %v", f, err)
			}
			conn.Close()
		}
	}
	// Without the limit everything passes, and what was counted stays.
	b.rewrite("web.yaml", b.limited())
	for _, f := range families {
		before, refusedBefore := b.countedUp(t, f, "rate-limit", 0)
		burst(t, b.EXT, f.client(3), f.at(f.lb(4), 53), 50)
		if connections, refused := b.countedUp(t, f, "rate-limit", before+refusedBefore+50); connections-before != 50 || refused != refusedBefore {
			t.Errorf("%s: without the limit %d of 50 passed, %d were refused", f, connections-before, refused-refusedBefore)
		}
	}
}

// countedUp is countedOf, once the kernel has counted sum of both. A look may be a moment old, or a minute on a machine where
// one takes a second.
func (b *box) countedUp(t *testing.T, f family, reason string, sum int) (connections, refused int) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		time.Sleep(time.Second) // real time: the next look
		connections, refused = b.countedOf(t, f, reason)
		if connections+refused < sum {
			return fmt.Errorf("%d connections and %d refusals are counted, want %d together", connections, refused, sum)
		}
		return nil
	})
	return connections, refused
}

// Each client makes as many new connections as the limit of clients says; what one has sent over its own does not
// take from those of others.
func Test394_new_connections_of_a_client(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.limited("svcctl.io/client-rate-limit: 120/m", "svcctl.io/rate-limit: 1000/s"))
	b.svcctl.Start()
	for _, f := range families {
		for i := range 4 {
			before, refusedBefore := b.countedUp(t, f, "client-rate-limit", 0)
			took := burst(t, b.EXT, f.client(10+i), f.at(f.lb(4), 53), 40)
			connections, refused := b.countedUp(t, f, "client-rate-limit", before+refusedBefore+40)
			through(t, fmt.Sprintf("%s client %d", f, i), 40, connections-before, refused-refusedBefore, 2, 2, took)
		}
	}
	v := b.verbs(t)
	to := ipv4.at(ipv4.lb(4), 53)
	text := v.traced(func() { burst(t, b.EXT, ipv4.of(b.EXT), to, 20) }, "203.0.113.2", to.String()+"/udp")
	contains(t, text, "the Service has limits, which are asked first")
}

// An endpoint that has as many open connections as it may gets no new ones, until a tenth of them are closed;
// when all are full, clients are refused. Open connections go on, and a restart leaves it so.
func Test396_open_connections_of_an_endpoint(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		svc := f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]")
		return []string{withAnnotations(svc, `svcctl.io/endpoint-connections: "10"`), f.slice("web", "p80: 80", b.L1, b.R1)}
	})
	b.svcctl.Start()
	f, to := ipv4, ipv4.at(ipv4.vip(41), 80)
	object, ends := f.object("Service", "web"), f.on(80, b.L1, b.R1)
	left := func(at netip.AddrPort) string { return "endpoint " + at.Addr().String() + " is left out" }
	open := map[netip.AddrPort][]*netlab.Conn{}
	fill := func(at netip.AddrPort) { // opens connections until an endpoint is full
		for len(open[at]) < 10 {
			conn, err := b.IN.Dial(to, patiently)
			if err != nil {
				t.Fatalf("with %d and %d open connections: %v", len(open[ends[0]]), len(open[ends[1]]), err)
			}
			t.Cleanup(conn.Close)
			open[conn.Reply.At] = append(open[conn.Reply.At], conn)
		}
		b.hasProblem(t, object, "EndpointFull", left(at), "svcctl.io/endpoint-connections")
	}
	reaches := func(at netip.AddrPort) { // with one connection at a time: many at once fill it
		t.Helper()
		for range 50 {
			eventually(t, syncTimeout, func() error {
				reply, err := b.IN.Ask("tcp", to, patiently)
				if client := b.seenAs(b.IN, at.Addr(), plain); err == nil && (reply.At != at || reply.Client.Addr() != client) {
					t.Errorf("%s saw %s, want %s and %s", reply.At, reply.Client, at, client)
				}
				return err
			})
		}
	}
	fill(ends[0])
	if len(open[ends[1]]) < 10 {
		reaches(ends[1])
		fill(ends[1])
	}
	eventually(t, syncTimeout, func() error { return b.tryRefusesNew(to) })
	contains(t, b.verbs(t).does(1, "explain", "svc/"+f.name("web")), left(ends[0])[len("endpoint "):])
	// A restart commits nothing, while both are full.
	monitor := b.GW1.Monitor()
	b.svcctl.Stop()
	b.svcctl.Start()
	b.hasProblem(t, object, "EndpointFull", left(ends[0]))
	for _, tx := range monitor.Transactions() {
		if ours(tx) {
			t.Errorf("a restart commits %v", tx)
		}
	}
	for at, conns := range open {
		for _, conn := range conns {
			if err := conn.Echo("still here", patiently); err != nil {
				t.Errorf("an open connection to %s: %v", at, err)
			}
		}
	}
	for _, conn := range open[ends[0]] {
		conn.Close()
	}
	eventually(t, syncTimeout, func() error {
		_, err := b.IN.Ask("tcp", to)
		return err
	})
	if len(open[ends[1]]) >= 10 {
		reaches(ends[0])
	}
}

// tryRefusesNew reports whether a new connection of IN is refused.
func (b *box) tryRefusesNew(to netip.AddrPort) error {
	reply, err := b.IN.Ask("tcp", to)
	if netlab.RefusalOf(err) != netlab.Refused {
		return fmt.Errorf("a new connection to %s gets %s, %v; want a reset", to, reply, err)
	}
	return nil
}

func contains(t *testing.T, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("no %q in:\n%s", want, text)
	}
}
