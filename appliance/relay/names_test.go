package relay

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/relay/tlsterm"
)

// helloOf is a ClientHello for a server name.
func helloOf(t *testing.T, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _ = tls.Client(near, &tls.Config{ServerName: name}).Handshake() }()
	_, hello, err := tlsterm.ReadHello(far)
	if err != nil {
		t.Fatal(err)
	}
	return hello
}

// restOf returns the data that clients without an endpoint have sent.
func restOf(s *State) (rest []byte) {
	for _, p := range s.Ports {
		for _, c := range p.Connections {
			rest = append(rest, c.There.Rest...)
		}
	}
	return rest
}

// What a client has said so far is said to its endpoint, wherever in its ClientHello the program is handed over.
func TestHandOverOfServerNames(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		const name = "www.example.com"
		hello := helloOf(t, name)
		header := []byte("PROXY TCP4 203.0.113.9 198.51.100.1 4000 443\r\n")
		at := freePort(t, addr)
		own, other := namedTCP(t, addr, "own"), namedTCP(t, addr, "other")
		port := func(endpoint netip.AddrPort, from ...netip.Prefix) Port {
			return Port{ID: "default/front", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{own}, ProxyFrom: from, Names: []Named{
				{"other.example.com", Port{ID: "default/other", Protocol: TCP, Endpoints: []netip.AddrPort{other}}},
				{name, Port{ID: "default/www", Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}, Connect: Connect{Timeout: patience}}},
			}}
		}
		www := namedTCP(t, addr, "www")
		for what, c := range map[string]struct {
			said  []byte
			read  []byte
			first netip.AddrPort // endpoint of the name before the hand-over
			from  []netip.Prefix
		}{
			"nothing":                 {nil, nil, www, nil},
			"a part of a ClientHello": {hello[:20], hello[:20], www, nil},
			"a ClientHello":           {hello, hello, deaf(t), nil},
			"a header":                {header, nil, www, []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}},
			"a header and a part":     {slices.Concat(header, hello[:20]), hello[:20], www, []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}},
		} {
			all := hello
			if c.from != nil {
				all = slices.Concat(header, hello)
			}
			g := next(t, quick(), nil, port(c.first, c.from...))
			client := dialTCP(t, at)
			if _, err := client.Write(c.said); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the client is accepted", func() bool { return g.quotas.tcp.loopback.used.Load() == 1 })
			state := g.handOver(t)
			eventually(t, what+" is read", func() bool {
				if slices.Equal(restOf(state), c.read) {
					return true
				}
				g = next(t, quick(), state, port(c.first, c.from...))
				state = g.handOver(t)
				return false
			})
			g = next(t, quick(), state, port(www, c.from...))
			if _, err := client.Write(all[len(c.said):]); err != nil {
				t.Fatal(err)
			}
			if got, err := tryLine(client); got != "www" {
				t.Fatalf("after %s: served by %q, %v", what, got, err)
			}
			echo := make([]byte, len(hello))
			if _, err := io.ReadFull(client, echo); err != nil || !slices.Equal(echo, hello) {
				t.Errorf("after %s: the endpoint got something else, %v", what, err)
			}
			g.cancel(nil)
			<-g.done
		}
	})
}

// Ports of one ID at one listener stay apart, as those of two server names of a Service, and clients of each keep
// their endpoint.
func TestHandOverOfNamesOfOneService(t *testing.T) {
	at := freePort(t, local)
	front := func(a, b []netip.AddrPort) Port {
		named := func(name string, endpoints []netip.AddrPort) Named {
			return Named{name, Port{ID: "default/www", Protocol: TCP, Endpoints: endpoints, Pick: Pick{Affinity: time.Hour}, Connect: Connect{Timeout: patience}}}
		}
		return Port{ID: "default/front", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, local, "own")}, Names: []Named{named("a", a), named("b", b)}}
	}
	ask := func(name string) *net.TCPConn {
		t.Helper()
		c := dialTCP(t, at)
		if _, err := c.Write(helloOf(t, name)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	silent := []netip.AddrPort{deaf(t)}
	g := next(t, quick(), nil, front(silent, silent))
	a, b := ask("a"), ask("b")
	eventually(t, "the clients are accepted", func() bool { return g.quotas.tcp.loopback.used.Load() == 2 })
	state := g.handOver(t)
	var ofA, ofB []netip.AddrPort
	for i := range 8 {
		ofA, ofB = append(ofA, namedTCP(t, local, fmt.Sprint("a", i))), append(ofB, namedTCP(t, local, fmt.Sprint("b", i)))
	}
	g = next(t, quick(), state, front(ofA, ofB))
	first := []string{line(t, a), line(t, b)}
	if first[0][0] != 'a' || first[1][0] != 'b' {
		t.Errorf("clients that waited are served by %v", first)
	}
	_, _ = a.Close(), b.Close()
	eventually(t, "their connections are over", func() bool { return g.quotas.tcp.loopback.used.Load()+g.quotas.tcp.redirected.used.Load() == 0 })
	for range 8 {
		g = next(t, quick(), g.handOver(t), front(ofA, ofB))
		if now := []string{line(t, ask("a")), line(t, ask("b"))}; !slices.Equal(now, first) {
			t.Fatalf("clients of %v go to %v", first, now)
		}
	}
}

// The load of a port is that of its names too, whose clients it lets in.
func TestLoadOfNames(t *testing.T) {
	r := start(t, quick())
	at, silent := freePort(t, local), freePort(t, local)
	own, www := namedTCP(t, local, "own"), namedTCP(t, local, "www")
	p := r.arriving.portOf(Port{ID: "default/front", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{own}, Names: []Named{
		{"www.example.com", Port{ID: "default/www", Protocol: TCP, Endpoints: []netip.AddrPort{www}}},
		{"gone.example.com", Port{ID: "default/gone", Protocol: TCP, Endpoints: []netip.AddrPort{silent}}},
	}})
	socket, err := r.listenTCP(at, nil, r.Relay.log, func(*net.TCPConn) (*tcpPort, netip.AddrPort, error) { return p, at, nil })
	if err != nil {
		t.Fatal(err)
	}
	socket.start(r.ctx)
	defer socket.close()
	for _, name := range []string{"www.example.com", "www.example.com", "other.example.com"} {
		c := dialTCP(t, at)
		if _, err := c.Write(helloOf(t, name)); err != nil {
			t.Fatal(err)
		}
		line(t, c)
	}
	c := dialTCP(t, at)
	if _, err := c.Write(helloOf(t, "gone.example.com")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("without an endpoint: %v, want a reset", err)
	}
	if l := p.load(); l.Taken != 4 || l.FailedConnects != 1 || len(l.Open) != 2 || l.Open[www] != 2 || l.Open[own] != 1 {
		t.Errorf("%+v, want 4 taken, 1 failed, 2 to %s, 1 to %s", l, www, own)
	}
	p.update(Port{ID: "default/front", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{own}})
	if l := p.load(); l.FailedConnects != 1 {
		t.Errorf("without names %d connects have failed, want 1 as before", l.FailedConnects)
	}
}

// A name has the port of the most specific pattern: its own, one label more, several labels more by the longest one, any.
func TestByName(t *testing.T) {
	ports := map[string]*tcpPort{}
	for _, name := range []string{"www.example.com", "*.example.com", "**.example.com", "**.b.example.com", "*.c.b.example.com", "*"} {
		ports[name] = &tcpPort{port: Port{ID: name}}
	}
	for name, want := range map[string]string{
		"www.example.com": "www.example.com", "a.example.com": "*.example.com", "x.y.example.com": "**.example.com", "x.b.example.com": "**.b.example.com",
		"x.y.b.example.com": "**.b.example.com", "x.c.b.example.com": "*.c.b.example.com", "example.com": "*", "b.example.com": "*.example.com", "": "*", "com": "*",
	} {
		if got := byName(ports, name).port.ID; got != want {
			t.Errorf("%q has the port of %s, want %s", name, got, want)
		}
	}
	delete(ports, "*")
	for _, name := range []string{"", "example.com", "example.org"} {
		if got := byName(ports, name); got != nil {
			t.Errorf("%q has the port of %s, want none", name, got.port.ID)
		}
	}
}
