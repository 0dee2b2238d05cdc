package relay

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestProblems(t *testing.T) {
	l := start(t, quick())
	endpoints := []netip.AddrPort{namedTCP(t, local, "a")}
	used, err := net.Listen("tcp", freePort(t, local).String())
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	occupied := used.Addr().(*net.TCPAddr).AddrPort()
	fine := freePort(t, local)
	l.set(
		Port{ID: "default/web/0-taken", Listen: occupied, Protocol: TCP, Endpoints: endpoints},
		Port{ID: "default/web/1-fine", Listen: fine, Protocol: TCP, Endpoints: endpoints},
		Port{ID: "default/web/2-sctp", Listen: fine, Protocol: SCTP, Endpoints: endpoints},
		Port{ID: "default/web/3-open", Listen: netip.AddrPortFrom(netip.IPv4Unspecified(), fine.Port()), Protocol: UDP, Endpoints: endpoints},
		Port{ID: "default/web/4-mapped", Listen: netip.MustParseAddrPort("[::ffff:127.0.0.1]:20000"), Protocol: TCP, Endpoints: endpoints},
		Port{ID: "default/web/5-zero", Protocol: TCP, Endpoints: endpoints},
		Port{ID: "default/web/6-unused", Listen: occupied, Protocol: TCP},
	)
	select {
	case <-l.Changed():
	case <-time.After(patience):
		t.Fatal("nobody is told of the problems")
	}
	got := l.Problems()
	desired := []struct{ id, reason, message string }{
		{"default/web/0-taken", ReasonListen, fmt.Sprintf(
			"node port %[1]d/TCP does not answer on 127.0.0.1: listen tcp4 %[2]s: bind: address already in use: "+
				"stop the program that has it (`ss -tulnp sport = :%[1]d` names it), or give the Service another node port", occupied.Port(), occupied)},
		{"default/web/2-sctp", ReasonProtocol, "only TCP and UDP are relayed on loopback"},
		{"default/web/3-open", ReasonNotLoopback, "does not answer on 0.0.0.0: only loopback addresses are relayed"},
		{"default/web/4-mapped", ReasonNotLoopback, "only loopback"},
		{"default/web/5-zero", ReasonNotLoopback, "only loopback"},
	}
	if len(got) != len(desired) {
		t.Fatalf("problems: %+v", got)
	}
	for i, w := range desired {
		if p := got[i]; p.ID != w.id || p.Reason != w.reason || !strings.Contains(p.Message, w.message) {
			t.Errorf("problem is %+v\nwant       %+v", p, w)
		}
	}
	if name := named(t, fine); name != "a" {
		t.Errorf("the port without a problem is answered by %q", name)
	}

	// It is tried again without another Set.
	if err := used.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the problem is over", func() bool { return len(l.Problems()) == len(desired)-1 })
	select {
	case <-l.Changed():
	case <-time.After(patience):
		t.Fatal("nobody is told that a problem is over")
	}
	if name := named(t, occupied); name != "a" {
		t.Errorf("the port is answered by %q", name)
	}
	l.set()
	if got := l.Problems(); len(got) != 0 {
		t.Errorf("problems without ports: %+v", got)
	}
}

// An address that goes from one port to another is free in between.
func TestPortChangesOwner(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	a, b := namedTCP(t, local, "a"), namedTCP(t, local, "b")
	l.set(Port{ID: "default/a/", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{a}})
	kept := dialTCP(t, at)
	line(t, kept)
	l.set(Port{ID: "default/b/", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{b}})
	if got := l.Problems(); len(got) != 0 {
		t.Errorf("problems: %+v", got)
	}
	if name := named(t, at); name != "b" {
		t.Errorf("the port is answered by %s", name)
	}
	say(t, kept, "still there")
}

// TCP and UDP have a port number each.
func TestSameNumber(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	l.set(
		Port{ID: "default/a/tcp", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, local, "stream")}},
		Port{ID: "default/b/udp", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{namedUDP(t, local, "datagram")}},
	)
	if name := named(t, at); name != "stream" {
		t.Errorf("TCP is answered by %s", name)
	}
	if got := answer(t, dialUDP(t, at), "x"); got[0] != "datagram" {
		t.Errorf("UDP is answered by %s", got[0])
	}
}

func TestSetNeverBlocks(t *testing.T) {
	r := New(slog.New(slog.DiscardHandler), nil) // and Run is not called
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			r.Set([]Port{{ID: "x"}})
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("Set blocks")
	}
}

func TestNothingIsLeft(t *testing.T) {
	stream, datagram := namedTCP(t, local, "a"), namedUDP(t, local, "a")
	slow := tcpServer(t, local, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)) })
	before := runtime.NumGoroutine()
	l := start(t, quick())
	at, atSlow := freePort(t, local), freePort(t, local)
	l.set(
		Port{ID: "default/a/tcp", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{stream}},
		Port{ID: "default/a/udp", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{datagram}},
		Port{ID: "default/slow/tcp", Listen: atSlow, Protocol: TCP, Endpoints: []netip.AddrPort{slow}},
	)
	var kept []*net.TCPConn
	for range 20 {
		c := dialTCP(t, at)
		line(t, c)
		kept = append(kept, c, dialTCP(t, atSlow))
		answer(t, dialUDP(t, at), "x")
	}
	l.stop()
	for _, c := range kept {
		// A client must not take the cut for the end of the answer.
		if _, err := c.Read(make([]byte, 1)); !isReset(err) {
			t.Errorf("a connection ends with %v, want a reset", err)
		}
	}
	if !refuses(at) {
		t.Error("the port is open after the end")
	}
	if used := l.quotas.tcp.loopback.used.Load(); used != 0 {
		t.Errorf("%d connections are counted after the end", used)
	}
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
}

// TestConcurrentUse is for the race detector: ports come, change and go under traffic.
func TestConcurrentUse(t *testing.T) {
	limits := quick()
	limits.tcp.loopback = bounds{4, 9}
	limits.unreplied, limits.replied = 50*time.Millisecond, 50*time.Millisecond // a busy machine answers in
	l := start(t, limits)
	streams := []netip.AddrPort{namedTCP(t, local, "a"), namedTCP(t, local, "b"), freePort(t, local)}
	datagrams := []netip.AddrPort{namedUDP(t, local, "a"), namedUDP(t, local, "b"), freePort(t, local)}
	at := freePort(t, local)
	const enough = 10 // answers; there are refusals in between
	deadline := time.Now().Add(patience)
	done := make(chan int)
	go func() {
		served := 0
		for served < enough && time.Now().Before(deadline) {
			if c, err := tryTCP(at); err == nil {
				if _, err := tryLine(c); err == nil {
					served++
				}
				_ = c.Close()
			}
			l.Problems()
		}
		done <- served
	}()
	go func() {
		served := 0
		for served < enough && time.Now().Before(deadline) {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
			if err != nil {
				continue
			}
			for range 2 {
				if _, err := exchange(c, []byte("x"), 200*time.Millisecond); err == nil {
					served++
				}
			}
			_ = c.Close()
		}
		done <- served
	}()
	var served []int
	for i := 0; len(served) < 2; i++ { // until both clients are served: where it stops there may be no endpoint
		n := i % 4 // 0: no endpoints
		affinity := time.Duration(i%2) * time.Second
		l.Set([]Port{
			{ID: "default/a/tcp", Listen: at, Protocol: TCP, Endpoints: streams[:min(n, 3)], Pick: Pick{Affinity: affinity}},
			{ID: "default/a/udp", Listen: at, Protocol: UDP, Endpoints: datagrams[:min(n, 3)], Pick: Pick{Affinity: affinity}},
		})
		select {
		case n := <-done:
			served = append(served, n)
		case <-time.After(time.Duration(3+i/50) * time.Millisecond): // the more rounds, the longer: an answer has to come within one
		}
	}
	if slices.Min(served) < enough {
		t.Errorf("%d questions were answered over one of TCP and UDP, and %d over the other, want %d each", served[0], served[1], enough)
	}
	l.stop()
	if used := l.quotas.tcp.loopback.used.Load(); used != 0 {
		t.Errorf("%d connections are counted after the end", used)
	}
}
