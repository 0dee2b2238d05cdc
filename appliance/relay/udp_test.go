package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestUDP(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		l := start(t, quick())
		at := freePort(t, addr)
		endpoint := namedUDP(t, addr, "a")
		l.set(Port{ID: "default/dns/", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}})
		c := dialUDP(t, at) // takes answers from there alone
		flow := answer(t, c, "first")[1]
		for _, size := range []int{0, 1, 512, 1500, 60000} {
			got := answer(t, c, strings.Repeat("x", size))
			if got[0] != "a" || got[1] != flow || got[2] != fmt.Sprint(size) {
				t.Errorf("a datagram of %d bytes is answered %q; want server a, client %s", size, got, flow)
			}
		}
		if other := answer(t, dialUDP(t, at), "x")[1]; other == flow {
			t.Error("two clients look the same to the endpoint")
		}
	})
}

// An endpoint may answer several times, once and never, and say something first.
func TestUDPManyAnswers(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	endpoint := udpServer(t, local, func(c *net.UDPConn, data []byte, from netip.AddrPort) {
		for i := range len(data) {
			_, _ = c.WriteToUDPAddrPort(data[i:i+1], from)
		}
		_, _ = c.WriteToUDPAddrPort(nil, from)
	})
	l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}})
	c := dialUDP(t, at)
	if _, err := c.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	for _, desired := range []string{"a", "b", "c", ""} {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 10)
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != desired {
			t.Errorf("answer is %q %v, want %q", buf[:n], err, desired)
		}
	}
}

// A client keeps its endpoint while that is there.
func TestUDPEndpointsChange(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	endpoints := map[string]netip.AddrPort{"a": namedUDP(t, local, "a"), "b": namedUDP(t, local, "b")}
	port := func(names ...string) Port {
		p := Port{ID: "x", Listen: at, Protocol: UDP}
		for _, name := range names {
			p.Endpoints = append(p.Endpoints, endpoints[name])
		}
		return p
	}
	l.set(port("a", "b"))
	c := dialUDP(t, at)
	first := answer(t, c, "x")
	for range 20 {
		if got := answer(t, c, "x"); got[0] != first[0] || got[1] != first[1] {
			t.Fatalf("the client of %v goes to %v", first, got)
		}
	}
	l.set(port(first[0]))
	if got := answer(t, c, "x"); got[1] != first[1] {
		t.Errorf("the client of %v was forgotten: %v", first, got)
	}
	other := map[string]string{"a": "b", "b": "a"}[first[0]]
	l.set(port(other))
	if got := answer(t, c, "x"); got[0] != other {
		t.Errorf("the client goes to %v after its endpoint was removed", got)
	}
	seen := map[string]bool{}
	l.set(port("a", "b"))
	for range 60 {
		seen[answer(t, dialUDP(t, at), "x")[0]] = true
	}
	if len(seen) != 2 {
		t.Errorf("clients go to %v", seen)
	}
	for _, p := range []Port{port(), {}} {
		l.set(p)
		if _, err := exchange(c, []byte("x"), patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port without endpoints answers %v, want it refused", err)
		}
		if used := l.quotas.udp.loopback.used.Load(); used != 0 {
			t.Errorf("%d clients are remembered", used)
		}
	}
}

func TestUDPAffinity(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	var endpoints []netip.AddrPort
	for i := range 8 {
		endpoints = append(endpoints, namedUDP(t, local, fmt.Sprint(i)))
	}
	l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: endpoints, Pick: Pick{Affinity: time.Hour}})
	first := answer(t, dialUDP(t, at), "x")[0]
	for range 20 {
		if got := answer(t, dialUDP(t, at), "x")[0]; got != first {
			t.Fatalf("the client of %s goes to %s", first, got)
		}
	}
}

// Clients are forgotten when they are idle: sooner without any answer.
func TestUDPIdle(t *testing.T) {
	for _, test := range []struct {
		name               string
		unreplied, replied time.Duration
		answers            bool
		forgotten          bool
	}{
		{"unreplied, soon", 50 * time.Millisecond, time.Hour, false, true},
		{"unreplied, not yet", time.Hour, 50 * time.Millisecond, false, false},
		{"replied, soon", time.Hour, 50 * time.Millisecond, true, true},
		{"replied, not yet", 50 * time.Millisecond, time.Hour, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			limits := quick()
			limits.unreplied, limits.replied = test.unreplied, test.replied
			l := start(t, limits)
			at := freePort(t, local)
			endpoint := udpServer(t, local, func(c *net.UDPConn, data []byte, from netip.AddrPort) {
				if test.answers {
					_, _ = c.WriteToUDPAddrPort(data, from)
				}
			})
			l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}})
			c := dialUDP(t, at)
			began := time.Now()
			if test.answers {
				// On a busy machine the client may be forgotten before its first answer.
				eventually(t, "an answer", func() bool { _, err := exchange(c, []byte("x"), 30*time.Millisecond); return err == nil })
			} else if _, err := exchange(c, []byte("x"), 30*time.Millisecond); !noAnswer(err) {
				t.Fatalf("answer: %v", err)
			}
			if test.forgotten {
				eventually(t, "the client is forgotten", func() bool { return l.quotas.udp.loopback.used.Load() == 0 })
				if took := time.Since(began); took < 50*time.Millisecond {
					t.Errorf("it was forgotten after %v", took)
				}
				return
			}
			time.Sleep(150 * time.Millisecond) // real time: it is not forgotten meanwhile
			if used := l.quotas.udp.loopback.used.Load(); used != 1 {
				t.Errorf("%d clients are remembered, want 1", used)
			}
		})
	}
	t.Run("in use", func(t *testing.T) {
		t.Parallel()
		limits := quick()
		limits.unreplied, limits.replied = time.Second, time.Second
		l := start(t, limits)
		at := freePort(t, local)
		l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{namedUDP(t, local, "a")}})
		c := dialUDP(t, at)
		before := time.Now()
		first := answer(t, c, "x")[1]
		for range 15 { // longer than that in all, never idle, unless this machine is too busy to send in time
			time.Sleep(100 * time.Millisecond)
			now := time.Now()
			got := answer(t, c, "x")[1]
			if got != first && time.Since(before) < limits.replied {
				t.Fatal("the client was forgotten while it was active")
			}
			before, first = now, got
		}
	})
}

// Too many clients push out the one that has been idle longest.
func TestUDPLimits(t *testing.T) {
	limits := quick()
	limits.udp.loopback = bounds{3, 5}
	l := start(t, limits)
	at, other := freePort(t, local), freePort(t, local)
	endpoints := []netip.AddrPort{namedUDP(t, local, "a")}
	l.set(
		Port{ID: "default/one/", Listen: at, Protocol: UDP, Endpoints: endpoints},
		Port{ID: "default/two/", Listen: other, Protocol: UDP, Endpoints: endpoints},
	)
	var clients []*net.UDPConn
	var flows []string
	for range 3 {
		c := dialUDP(t, at)
		clients, flows = append(clients, c), append(flows, answer(t, c, "x")[1])
	}
	answer(t, clients[0], "x") // the second is the one idle longest now
	for range 5 {
		answer(t, dialUDP(t, at), "x")
		answer(t, clients[0], "x")
		answer(t, clients[2], "x")
	}
	for i, kept := range []bool{true, false, true} {
		if same := answer(t, clients[i], "x")[1] == flows[i]; same != kept {
			t.Errorf("client %d is remembered: %v", i, same)
		}
	}
	if used := l.quotas.udp.loopback.used.Load(); used != 3 {
		t.Errorf("%d clients are remembered, want 3", used)
	}
	if got, named := l.Stats().UDP.TurnedAway, len(l.Overloaded()); got != 6 || named != 0 {
		t.Errorf("%d clients were forgotten, want 6; %d ports are named, though nobody waited for an answer", got, named)
	}
	if got := answer(t, dialUDP(t, other), "x"); got[0] != "a" {
		t.Errorf("the other port answers %v", got)
	}
	if got := answer(t, dialUDP(t, other), "x"); got[0] != "a" { // all together are full: it pushes out its own
		t.Errorf("the other port answers %v", got)
	}
	if used := l.quotas.udp.loopback.used.Load(); used != 4 {
		t.Errorf("%d clients are remembered, want 4", used)
	}
}

// Who is forgotten while it waits for an answer is a problem, and so is its port.
func TestUDPForgottenEarly(t *testing.T) {
	limits := quick()
	limits.udp.loopback = bounds{1, 5}
	l := start(t, limits)
	at := freePort(t, local)
	silent := udpServer(t, local, func(*net.UDPConn, []byte, netip.AddrPort) {})
	l.set(Port{ID: "default/one/", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{silent}})
	for range 3 {
		if _, err := dialUDP(t, at).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the port is named", func() bool { return len(l.Overloaded()) == 1 && l.Stats().UDP.TurnedAway == 2 })
	if got := l.log.count("are forgotten early"); got != 1 {
		t.Errorf("%d lines in the log, want 1", got)
	}
}

// Who asks once is remembered for a shorter time than who goes on, as in conntrack.
func TestUDPStreams(t *testing.T) {
	limits := quick()
	limits.unreplied, limits.replied, limits.stream = 50*time.Millisecond, patience, 30*time.Millisecond
	l := start(t, limits)
	at := freePort(t, local)
	l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{namedUDP(t, local, "a")}})
	answer(t, dialUDP(t, at), "x")
	eventually(t, "who asked once is forgotten", func() bool { return l.quotas.udp.loopback.used.Load() == 0 })
	c := dialUDP(t, at)
	eventually(t, "who goes on is remembered", func() bool {
		port := answer(t, c, "x")[1]
		time.Sleep(limits.stream) // real time: who asks now goes on
		return answer(t, c, "x")[1] == port && l.quotas.udp.loopback.used.Load() == 1
	})
}

// A client that comes when other ports have taken all the room is not answered, and
// disturbs no other.
func TestUDPNoRoom(t *testing.T) {
	limits := quick()
	limits.udp.loopback.total = 1
	l := start(t, limits)
	at, other := freePort(t, local), freePort(t, local)
	endpoints := []netip.AddrPort{namedUDP(t, local, "a")}
	l.set(
		Port{ID: "default/one/", Listen: at, Protocol: UDP, Endpoints: endpoints},
		Port{ID: "default/two/", Listen: other, Protocol: UDP, Endpoints: endpoints},
	)
	c := dialUDP(t, at)
	answer(t, c, "x")
	if got, err := exchange(dialUDP(t, other), []byte("x"), 50*time.Millisecond); !noAnswer(err) {
		t.Errorf("answer is %q %v", got, err)
	}
	answer(t, c, "x")
	if got := l.log.count("svc=default/two/"); got != 1 {
		t.Errorf("%d lines in the log, want 1", got)
	}
}

// A datagram that is lost for its size does not end the client's flow. IPv6 carries
// larger ones than IPv4.
func TestUDPTooLarge(t *testing.T) {
	probe, err := net.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Skipf("SKIPPED: this host has no ::1: %v", err)
	}
	_ = probe.Close()
	l := start(t, quick())
	at := freePort(t, local6)
	l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{namedUDP(t, local, "a")}})
	c := dialUDP(t, at)
	first := answer(t, c, "x")[1]
	if _, err := c.Write(make([]byte, 65520)); err != nil {
		t.Fatal(err)
	}
	if got := answer(t, c, "x")[1]; got != first {
		t.Error("the client was forgotten")
	}
}

// A client whose endpoint refuses is not bound to it.
func TestUDPRefused(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	dead := freePort(t, local)
	l.set(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{dead, namedUDP(t, local, "a")}})
	for range 10 {
		c := dialUDP(t, at)
		eventually(t, "the client finds the other endpoint", func() bool {
			_, err := exchange(c, []byte("x"), 20*time.Millisecond)
			return err == nil
		})
	}
	if used := l.quotas.udp.loopback.used.Load(); used > 10 {
		t.Errorf("%d clients are remembered, want at most 10", used)
	}
}

// What was received when a hand-over begins is still passed on, also of a new client, and in both directions.
func TestUDPReceivedBeforeAHandOver(t *testing.T) {
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	got := make(chan string, 2)
	endpoint := udpServer(t, local, func(_ *net.UDPConn, data []byte, _ netip.AddrPort) { got <- string(data) })
	at := freePort(t, local)
	var port *udpPort
	l, err := r.listenUDP(at, nil, r.log, func(netip.AddrPort) (*udpPort, netip.AddrPort, error) { return port, at, nil })
	if err != nil {
		t.Fatal(err)
	}
	port = l.newPort(Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}})
	clients := []*net.UDPConn{dialUDP(t, at), dialUDP(t, at)}
	addr := func(i int) netip.AddrPort { return clients[i].LocalAddr().(*net.UDPAddr).AddrPort() }
	if err := l.forward([]byte("before"), addr(0), 0); err != nil {
		t.Fatal(err)
	}
	<-got
	l.pause()
	for i, text := range []string{"a flow's", "a new client's"} {
		if err := l.forward([]byte(text), addr(i), 0); err != nil {
			t.Errorf("%s datagram is dropped: %v", text, err)
			continue
		}
		if passed := <-got; passed != text {
			t.Errorf("%q is passed on as %q", text, passed)
		}
	}
	l.answer(l.flows[addr(0)], []byte("an answer"))
	buf := make([]byte, 20)
	_ = clients[0].SetReadDeadline(time.Now().Add(patience))
	if n, err := clients[0].Read(buf); string(buf[:n]) != "an answer" {
		t.Errorf("the answer is %q, %v", buf[:n], err)
	}
	r.tasks.Wait() // no flow is waited for
	if len(l.flows) != 2 {
		t.Errorf("%d flows are there to be handed over", len(l.flows))
	}
	l.paused = false
	l.close()
}

// Datagrams of the refused share are dropped, by chance and by the client's hash: they reach no endpoint, and no client of another
// share loses its own.
func TestUDPRefusedShare(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		const clients = 1500
		var arrived atomic.Int32
		endpoint := udpServer(t, addr, func(c *net.UDPConn, data []byte, from netip.AddrPort) {
			if string(data) == "end" {
				_, _ = c.WriteToUDPAddrPort(data, from)
				return
			}
			arrived.Add(1)
		})
		odd := func(client, _ netip.AddrPort) (netip.AddrPort, bool) {
			return []netip.AddrPort{endpoint, {}}[client.Port()%2], true
		}
		for what, pick := range map[string]Pick{"chance": {Refused: 0.3}, "turns": {By: RoundRobin, Refused: 0.3}, "a hash": {Refused: 0.5, Choose: odd}} {
			l := start(t, quick())
			at := freePort(t, addr)
			port := Port{ID: "x", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{endpoint}}
			l.set(port)
			known := dialUDP(t, at)
			answer(t, known, "end") // it keeps its endpoint
			port.Pick = pick
			l.set(port)
			arrived.Store(0)
			want := 0.0
			for i := range clients {
				c := dialUDP(t, at)
				if _, err := c.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				if pick.Choose == nil {
					want += 1 - pick.Refused
				} else if netip.MustParseAddrPort(c.LocalAddr().String()).Port()%2 == 0 {
					want++
				}
				if i%20 == 19 {
					answer(t, known, "end") // behind all that were sent before
				}
				_ = c.Close()
			}
			off := 7 * math.Sqrt(clients*0.3*0.7)
			if pick.Choose != nil {
				off = 0
			}
			if got := float64(arrived.Load()); math.Abs(got-want) > off {
				t.Errorf("by %s: %v of %d datagrams arrive, want %v", what, got, clients, want)
			}
			l.stop()
		}
	})
}
