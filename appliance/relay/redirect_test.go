package relay

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Redirect is RedirectAll for one Service.
func (r *Relay) Redirect(service string, ports []Port, more bool) error {
	return r.RedirectAll(map[string][]Port{service: ports}, more)
}

func TestTurns(t *testing.T) {
	list := endpointsOf(4)
	c := newBalancer(Port{Endpoints: []netip.AddrPort{list[2], list[0], list[1]}, Pick: Pick{By: RoundRobin}}, 10, newOpenCounts())
	want := func(n ...int) {
		t.Helper()
		for _, i := range n {
			if got := c.one(local); got != list[i] {
				t.Errorf("the next one is %v, want %v", got, list[i])
			}
		}
	}
	want(0, 1, 2, 0, 1)
	c.set(Port{Endpoints: list, Pick: Pick{By: RoundRobin}}) // goes on where it was
	want(2, 3, 0)
	c.set(Port{Endpoints: list[2:], Pick: Pick{By: RoundRobin}})
	want(2, 3, 2)
	tried := []netip.AddrPort{}
	for range 2 {
		e, is := c.pick(from(local), netip.AddrPort{}, tried...)
		if !is || slices.Contains(tried, e) {
			t.Errorf("%v after %v", e, tried)
		}
		tried = append(tried, e)
	}
	if e, is := c.pick(from(local), netip.AddrPort{}, tried...); is {
		t.Errorf("%v though all were tried", e)
	}
	c.set(Port{Pick: Pick{By: RoundRobin}})
	if e, is := c.pick(from(local), netip.AddrPort{}); is {
		t.Errorf("%v of nothing", e)
	}
}

// redirectedUDP is a relay with one listener for redirected datagrams, and what its clients had sent to.
type redirectedUDP struct {
	*lab
	at netip.AddrPort

	mu      sync.Mutex
	origins map[netip.AddrPort]netip.AddrPort
	asked   int
}

func startUDP(t *testing.T, addr netip.Addr, l limits) *redirectedUDP {
	t.Helper()
	r := &redirectedUDP{lab: start(t, l), at: freePort(t, addr), origins: map[netip.AddrPort]netip.AddrPort{}}
	r.fronts.origin = func(_, client netip.AddrPort) (netip.AddrPort, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked++
		if to, is := r.origins[client]; is {
			return to, nil
		}
		return netip.AddrPort{}, errors.New("not tracked")
	}
	return r
}

// client is a socket that had sent to an address before it was redirected.
func (r *redirectedUDP) client(to netip.AddrPort) *net.UDPConn {
	r.t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.at))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.origins[c.LocalAddr().(*net.UDPAddr).AddrPort()] = to
	return c
}

// askUDP gives the answer to a datagram; "": none came in the time.
func askUDP(t *testing.T, c *net.UDPConn, within time.Duration) string {
	t.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// answerUDP is an endpoint that says its name.
func answerUDP(t *testing.T, addr netip.Addr, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(name), from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestRedirectedDatagrams(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		r := startUDP(t, addr, quick())
		vip, nodePort, other := netip.AddrPortFrom(addr, 53), netip.AddrPortFrom(addr, 30053), netip.AddrPortFrom(addr, 54)
		a, b := answerUDP(t, addr, "a"), answerUDP(t, addr, "b")
		port := func(id string, to netip.AddrPort, frontends ...netip.AddrPort) Port {
			return Port{ID: id, Listen: r.at, Protocol: UDP, Frontends: frontends, Endpoints: []netip.AddrPort{to}, Pick: Pick{By: RoundRobin}}
		}
		if err := r.Redirect("default/a", []Port{port("default/a", a, vip, netip.AddrPortFrom(netip.Addr{}, 30053))}, false); err != nil {
			t.Fatal(err)
		}
		if err := r.Redirect("default/b", []Port{port("default/b", b, other)}, false); err != nil {
			t.Fatal(err)
		}
		first := r.client(vip)
		for range 3 {
			if got := askUDP(t, first, patience); got != "a" {
				t.Errorf("%q answers, want a", got)
			}
		}
		if got := askUDP(t, r.client(nodePort), patience); got != "a" {
			t.Errorf("%q answers at the node port, want a", got)
		}
		if got := askUDP(t, r.client(other), patience); got != "b" {
			t.Errorf("%q answers, want b", got)
		}
		if r.asked != 3 {
			t.Errorf("%d lookups for 3 flows", r.asked)
		}
		if used := r.Stats().UDP.Redirected; used != 3 {
			t.Errorf("%d flows, want 3", used)
		}
		// Who was not redirected, or from elsewhere, gets nothing.
		if got := askUDP(t, r.client(r.at), 100*time.Millisecond); got != "" {
			t.Errorf("%q answers who asks the relay itself", got)
		}
		// A Service that goes takes its flows along; the other one stays.
		if err := r.Redirect("default/a", nil, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the flows end", func() bool { return r.Stats().UDP.Redirected == 1 })
		if got := askUDP(t, first, 100*time.Millisecond); got != "" {
			t.Errorf("%q answers at a Service that is gone", got)
		}
	})
}

// A flow that was answered ends, and its client begins another one.
func TestRedirectedFlowsExpire(t *testing.T) {
	l := quick()
	l.unreplied, l.replied = patience, 100*time.Millisecond
	r := startUDP(t, local, l)
	vip := netip.AddrPortFrom(local, 53)
	err := r.Redirect("default/a", []Port{{ID: "default/a", Listen: r.at, Protocol: UDP, Frontends: []netip.AddrPort{vip}, Endpoints: []netip.AddrPort{answerUDP(t, local, "a")}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	c := r.client(vip)
	for range 2 { // a client whose flow has expired begins another one
		if got := askUDP(t, c, patience); got != "a" {
			t.Errorf("%q answers, want a", got)
		}
		eventually(t, "the flow expires", func() bool { return r.Stats().UDP.Redirected == 0 })
	}
	if r.asked != 2 {
		t.Errorf("%d lookups for 2 flows", r.asked)
	}
}

// Who comes to the listener without having been redirected is reset.
func TestDirectConnections(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		r := start(t, quick())
		at := freePort(t, addr)
		accepted := answerTCP(t, addr)
		err := r.Redirect("default/a", []Port{{ID: "default/a", Listen: at, Protocol: TCP, Frontends: []netip.AddrPort{netip.AddrPortFrom(addr, 80)}, Endpoints: []netip.AddrPort{accepted}}}, false)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", at.String())
		if err == nil { // else the reset was faster
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client that was not redirected: %v, want a reset", err)
		}
	})
}

func answerTCP(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Clients wait for the first port of a listener, and not any more when no process has one.
func TestListenersForRedirected(t *testing.T) {
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	at := freePort(t, local)
	if err := r.Open(TCP, at); err != nil {
		t.Fatal(err)
	}
	if err := r.Open(TCP, at); err != nil {
		t.Errorf("once more: %v", err)
	}
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	other := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	if err := other.Open(TCP, at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener that another has: %v", err)
	}
	port := Port{ID: "default/a", Listen: at, Protocol: TCP, Frontends: []netip.AddrPort{netip.AddrPortFrom(local, 80)}}
	if err := r.Redirect("default/a", []Port{port}, false); err != nil {
		t.Fatal(err)
	}
	r.CloseUnused()
	if err := other.Open(TCP, at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener that a port of another has: %v", err)
	}
	if err := r.Redirect("default/a", nil, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the listener is closed with its last port", func() bool { return other.Open(TCP, at) == nil })
	other.CloseUnused()
	if err := r.Open(TCP, at); err != nil {
		t.Errorf("a listener that the other has closed: %v", err)
	}
	r.CloseUnused()
}

// Clients that the kernel has redirected before it heard of a removal are still served. A port that comes back
// has its frontends again.
func TestRemovedPortServesLateClients(t *testing.T) {
	l := quick()
	l.removal = time.Hour
	r := startUDP(t, local, l)
	vip := netip.AddrPortFrom(local, 53)
	endpoints := map[string]netip.AddrPort{"a": answerUDP(t, local, "a"), "b": answerUDP(t, local, "b")}
	redirect := func(service string, endpoint ...string) {
		t.Helper()
		var ports []Port
		for _, e := range endpoint {
			ports = append(ports, Port{ID: service, Listen: r.at, Protocol: UDP, Frontends: []netip.AddrPort{vip}, Endpoints: []netip.AddrPort{endpoints[e]}})
		}
		if err := r.Redirect(service, ports, false); err != nil {
			t.Fatal(err)
		}
		r.CloseUnused()
	}
	answers := func(when, want string) {
		t.Helper()
		if got := askUDP(t, r.client(vip), patience); got != want {
			t.Errorf("%s: %q answers, want %s", when, got, want)
		}
	}
	redirect("default/a", "a")
	redirect("default/a")
	answers("after the removal", "a")
	redirect("default/b", "b")
	answers("another Service has the frontend", "b")
	redirect("default/b")
	redirect("default/a", "a")
	answers("the first has it again", "a")
}

// A port is removed in time, and one that came back is not.
func TestRemovedPortGoes(t *testing.T) {
	l := quick()
	l.removal = 20 * time.Millisecond
	r := startUDP(t, local, l)
	port := Port{ID: "default/a", Listen: r.at, Protocol: UDP, Frontends: []netip.AddrPort{netip.AddrPortFrom(local, 53)}, Endpoints: []netip.AddrPort{answerUDP(t, local, "a")}}
	for range 5 {
		for _, ports := range [][]Port{{port}, nil, {port}} {
			if err := r.Redirect("default/a", ports, false); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * l.removal) // real time: a timer that was stopped too late would remove it
		if got := askUDP(t, r.client(port.Frontends[0]), patience); got != "a" {
			t.Fatalf("a port that came back: %q answers", got)
		}
	}
	if err := r.Redirect("default/a", nil, false); err != nil {
		t.Fatal(err)
	}
	other := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	eventually(t, "the listener is closed", func() bool { return other.Open(UDP, r.at) == nil })
	other.CloseUnused()
}

// Of too many connections those are refused that come last, for a port and for all.
func TestRedirectedLimits(t *testing.T) {
	l := quick()
	l.tcp.redirected = bounds{2, 3}
	r := start(t, l)
	ports := map[string]*tcpPort{}
	for _, id := range []string{"default/a", "default/b"} {
		ports[id] = r.arriving.newTCPPort(Port{ID: id, Protocol: TCP, Frontends: []netip.AddrPort{}, Endpoints: []netip.AddrPort{answerTCP(t, local)}})
	}
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for i, tt := range []struct {
		id   string
		took bool
	}{{"default/a", true}, {"default/a", true}, {"default/a", false}, {"default/b", true}, {"default/b", false}} {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		accepted, err := listener.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		before := r.Stats().TCP.Redirected
		ports[tt.id].accepted(t.Context(), accepted, netip.AddrPort{})
		if took := r.Stats().TCP.Redirected > before; took != tt.took {
			t.Errorf("connection %d, of %s: taken %t, want %t", i, tt.id, took, tt.took)
		}
		if !tt.took {
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection %d: %v, want a reset", i, err)
			}
		}
	}
	if n := r.log.count("there are too many at once"); n != 2 {
		t.Errorf("%d lines in the log, want one for each port", n)
	}
}
