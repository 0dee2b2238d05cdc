package relay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/handover"
)

// generation is a Relay that hands over to the next one.
type generation struct {
	*Relay
	cancel context.CancelCauseFunc
	done   chan error
}

// next starts a Relay with what the one before has left; nil: nothing.
func next(t *testing.T, l limits, state *State, ports ...Port) *generation {
	t.Helper()
	g := &generation{Relay: newRelay(slog.New(slog.DiscardHandler), nil, l), done: make(chan error, 1)}
	if state != nil {
		g.Inherit(state)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	g.cancel = cancel
	go func() { g.done <- g.Run(ctx) }()
	t.Cleanup(func() { g.end(nil); cancel(nil) })
	g.Set(ports)
	eventually(t, "the ports are set", func() bool { return !g.loopback.listeners.Pending() })
	g.Settle()
	eventually(t, "the ports are set", func() bool { return !g.loopback.listeners.Pending() })
	return g
}

// handOver ends the Relay and gives what it has left, as the next program reads it: with descriptors of
// its own, as here both are in one process.
func (g *generation) handOver(t *testing.T) *State {
	t.Helper()
	g.cancel(handover.ErrRequested)
	select {
	case err := <-g.done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the relay does not come to rest")
	}
	s := g.HandedOver()
	if s == nil {
		t.Fatal("nothing is handed over")
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = ParseState(text); err != nil {
		t.Fatal(err)
	}
	again := func(fd *int) {
		if *fd == 0 {
			return
		}
		if *fd, err = unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s.Listeners {
		again(&s.Listeners[i].FD)
	}
	for _, p := range s.Ports {
		for i := range p.Connections {
			again(&p.Connections[i].Client)
			again(&p.Connections[i].Endpoint)
		}
		for i := range p.Flows {
			again(&p.Flows[i].FD)
		}
	}
	// What the process had would be gone by now.
	for _, c := range g.leaving.state.conns {
		_ = c.(io.Closer).Close()
	}
	return s
}

func TestHandOver(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		at := freePort(t, addr)
		gone := freePort(t, addr)
		stream, datagram := namedTCP(t, addr, "a"), namedUDP(t, addr, "u")
		tcp := Port{ID: "default/web/tcp", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{stream}}
		udp := Port{ID: "default/web/udp", Listen: at, Protocol: UDP, Endpoints: []netip.AddrPort{datagram}}
		other := Port{ID: "default/gone/tcp", Listen: gone, Protocol: TCP, Endpoints: []netip.AddrPort{stream}}
		g := next(t, quick(), nil, tcp, udp, other)
		kept, orphan := dialTCP(t, at), dialTCP(t, gone)
		line(t, kept)
		line(t, orphan)
		half := dialTCP(t, at)
		line(t, half)
		if err := half.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(half); err != nil || len(rest) > 0 {
			t.Fatalf("%q, %v", rest, err)
		}
		flow := dialUDP(t, at)
		port := answer(t, flow, "x")[1]
		for range 3 {
			state := g.handOver(t)
			// While no process serves, clients wait.
			late := dialTCP(t, at)
			if _, err := io.WriteString(kept, "on the way\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := flow.Write([]byte("y")); err != nil {
				t.Fatal(err)
			}
			g = next(t, quick(), state, tcp, udp)
			if got := line(t, kept); got != "on the way" {
				t.Errorf("a connection that was handed over says %q", got)
			}
			say(t, kept, "hello")
			say(t, orphan, "still there")
			if got := line(t, late); got != "a" {
				t.Errorf("who came meanwhile is served by %q", got)
			}
			_ = late.Close()
			if got := answer(t, flow, "x"); got[1] != port {
				t.Errorf("the flow comes from port %s, want %s as before", got[1], port)
			}
			answer(t, flow, "x") // of what was sent meanwhile
			eventually(t, "a port that nobody names any more is closed", func() bool { return refuses(gone) })
		}
		_, _ = kept.Close(), orphan.Close()
		eventually(t, "all connections are over", func() bool { return g.quotas.tcp.loopback.used.Load() == 0 })
	})
}

// Bytes in all places on their way arrive, though the relay changes all the time.
func TestHandOverUnderLoad(t *testing.T) {
	const size, connections = 24 << 20, 4
	at := freePort(t, local)
	endpoint := tcpServer(t, local, func(c *net.TCPConn) {
		h := sha256.New()
		if _, err := io.Copy(io.MultiWriter(h, c), c); err == nil {
			_, _ = c.Write(h.Sum(nil))
		}
	})
	port := Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}}
	g := next(t, quick(), nil, port)
	ended := make(chan error, connections)
	for i := range connections {
		c := dialTCP(t, at)
		go func() { ended <- echoed(c, size, byte(i)) }()
	}
	pause := 20 * time.Millisecond // grows: on a busy machine, bytes get on between two changes
	for left := connections; left > 0; {
		select {
		case err := <-ended:
			if left--; err != nil {
				t.Error(err)
			}
		case <-time.After(pause):
			g = next(t, quick(), g.handOver(t), port)
			pause += pause / 20
		}
	}
}

// echoed sends bytes, half of them slowly read, and wants the same ones back, and then their sum.
func echoed(conn *net.TCPConn, size int, seed byte) error {
	c := patient{conn}
	payload := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(payload)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(payload)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(io.LimitReader(c, int64(size)/2))
	if err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond) // real time: buffers fill
	rest, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	sum := sha256.Sum256(payload)
	if got = append(got, rest...); !slices.Equal(got, append(payload, sum[:]...)) {
		return fmt.Errorf("%d bytes came back, want %d and their sum", len(got), size)
	}
	return nil
}

// patient is a connection of which each read and each write has a time of its own: how long all of them take is up to the machine.
type patient struct{ *net.TCPConn }

// Read implements io.Reader.
func (c patient) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(patience)) // a closed connection fails below
	return c.TCPConn.Read(b)
}

// Write implements io.Writer.
func (c patient) Write(b []byte) (n int, err error) {
	const most = 64 << 10 // few enough bytes to be on their way in one time
	for part := range slices.Chunk(b, most) {
		_ = c.SetWriteDeadline(time.Now().Add(patience)) // a closed connection fails below
		wrote, err := c.TCPConn.Write(part)
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// A client that waits for an endpoint gets one from the next program. That the connect was cut short is no failure
// of its endpoint, which may be the only one.
func TestHandOverWithoutEndpoint(t *testing.T) {
	at := freePort(t, local)
	port := Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{deaf(t)}, Connect: Connect{Timeout: 10 * patience}}
	g := next(t, quick(), nil, port)
	c := dialTCP(t, at)
	for range 3 {
		eventually(t, "the endpoint is asked", func() bool { return g.open.counts(countKey{"x", TCP}, port.Endpoints)[0] == 1 })
		state := g.handOver(t)
		if n := g.Stats().FailedConnects; n != 0 {
			t.Errorf("%d connects count as failed", n)
		}
		if held := state.Ports[0].Connections; len(held) != 1 || held[0].Endpoint != 0 || !held[0].From.IsValid() {
			t.Fatalf("handed over: %+v", held)
		}
		g = next(t, quick(), state, port)
	}
	eventually(t, "the endpoint is asked", func() bool { return g.open.counts(countKey{"x", TCP}, port.Endpoints)[0] == 1 })
	state := g.handOver(t)
	port.Endpoints = []netip.AddrPort{namedTCP(t, local, "a")}
	next(t, quick(), state, port)
	if got := line(t, c); got != "a" {
		t.Errorf("the client is served by %q", got)
	}
}

// Clients keep their endpoint, and turns go on.
func TestHandOverOfChoices(t *testing.T) {
	at, turns := freePort(t, local), freePort(t, local)
	var endpoints []netip.AddrPort
	for i := range 8 {
		endpoints = append(endpoints, namedTCP(t, local, fmt.Sprint(i)))
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	ports := []Port{
		{ID: "x", Listen: at, Protocol: TCP, Endpoints: endpoints, Pick: Pick{Affinity: time.Hour}},
		{ID: "y", Listen: turns, Protocol: TCP, Endpoints: endpoints, Pick: Pick{By: RoundRobin}},
	}
	g := next(t, quick(), nil, ports...)
	first := named(t, at)
	var order []string
	for i := range 16 {
		if i%3 == 0 {
			g = next(t, quick(), g.handOver(t), ports...)
		}
		if got := named(t, at); got != first {
			t.Fatalf("the client of %s goes to %s", first, got)
		}
		order = append(order, named(t, turns))
	}
	if !slices.Equal(order[:8], order[8:]) {
		t.Errorf("the turns were %v", order)
	}
}

// A socket that was kept goes on, and one that no port wants is closed.
func TestKeptSockets(t *testing.T) {
	at, unused := freePort(t, local), freePort(t, local)
	var clients []*net.TCPConn
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	for _, addr := range []netip.AddrPort{at, unused} {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, dialTCP(t, addr))
		_ = l.Close()
		if err := r.InheritSocket(f); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.InheritSocket(file); err == nil {
		t.Error("/dev/null was taken for a socket")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.Set([]Port{{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, local, "a")}}})
	r.Settle()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if got := line(t, clients[0]); got != "a" {
		t.Errorf("who waited is served by %q", got)
	}
	if _, err := clients[1].Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("who waited for a port that is gone: %v, want a reset", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
