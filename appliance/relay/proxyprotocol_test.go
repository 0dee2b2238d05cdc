package relay

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

func TestHeaders(t *testing.T) {
	for _, tt := range []struct{ from, to, v1 string }{
		{"192.0.2.7:40000", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n"},
		{"[2001:db8::7]:40000", "[2001:db8:1::1]:443", "PROXY TCP6 2001:db8::7 2001:db8:1::1 40000 443\r\n"},
		{"[::ffff:192.0.2.7]:40000", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n"},
	} {
		from, to := netip.MustParseAddrPort(tt.from), netip.MustParseAddrPort(tt.to)
		v1, err := headerOf(1, from, to)
		if err != nil || string(v1) != tt.v1 {
			t.Errorf("version 1: %q, %v, want %q", v1, err, tt.v1)
		}
		v2, err := headerOf(2, from, to)
		if err != nil || !bytes.HasPrefix(v2, []byte("\r\n\r\n\x00\r\nQUIT\n\x21")) {
			t.Errorf("version 2: %q, %v", v2, err)
		}
		read, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(v2)))
		if err != nil || read.DestinationAddr.String() != tt.to {
			t.Errorf("version 2 reads as %+v, %v", read, err)
		}
	}
}

// told is an endpoint that says the header that it got, and then sends back what comes.
func told(t *testing.T, addr netip.Addr) netip.AddrPort {
	return tcpServer(t, addr, func(c *net.TCPConn) {
		in := bufio.NewReader(c)
		header, err := in.ReadString('\n')
		if err == nil {
			_, _ = io.WriteString(c, header)
			_, _ = io.Copy(c, in)
		}
	})
}

func TestHeadersFromBalancers(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		limits := quick()
		limits.header = patience
		l := start(t, limits)
		limits.header = 300 * time.Millisecond
		hasty := start(t, limits)
		at, others, soon := freePort(t, addr), freePort(t, addr), freePort(t, addr)
		port := func(at netip.AddrPort, from string) Port {
			return Port{ID: "default/" + from, Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{told(t, addr)},
				ProxyFrom: []netip.Prefix{netip.MustParsePrefix(from)}, Connect: Connect{ProxyProtocol: 1}}
		}
		l.set(port(at, netip.PrefixFrom(addr, addr.BitLen()).String()), port(others, "192.0.2.0/24"))
		hasty.set(port(soon, netip.PrefixFrom(addr, addr.BitLen()).String()))
		v2 := func(header *proxyproto.Header) string {
			b, err := header.Format()
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		client := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.ParseIP("203.0.113.9"), Port: 4000}, &net.TCPAddr{IP: net.ParseIP("198.51.100.1"), Port: 80})
		health := &proxyproto.Header{Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}
		datagram := &proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UDPv4,
			SourceAddr: &net.UDPAddr{IP: net.ParseIP("203.0.113.9"), Port: 4000}, DestinationAddr: &net.UDPAddr{IP: net.ParseIP("198.51.100.1"), Port: 80}}
		own := func(c net.Conn, to netip.AddrPort) string {
			family := "TCP4"
			if addr.Is6() {
				family = "TCP6"
			}
			from := c.LocalAddr().(*net.TCPAddr)
			return fmt.Sprintf("PROXY %s %s %s %d %d\r", family, from.IP, to.Addr(), from.Port, to.Port())
		}
		for _, tt := range []struct {
			name, sends string
			at          netip.AddrPort
			want        string // the header of the endpoint; "": a reset; "own": that of the connection
		}{
			{"version 1", "PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r\n", at, "PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r"},
			{"version 1 of IPv6", "PROXY TCP6 2001:db8::9 2001:db8::1 4000 80\r\n", at, "PROXY TCP6 2001:db8::9 2001:db8::1 4000 80\r"},
			{"unknown", "PROXY UNKNOWN\r\n", at, "own"},
			{"version 2", v2(client), at, "PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r"},
			{"a health check", v2(health), at, "own"},
			{"of a datagram", v2(datagram), at, "own"},
			{"no header", "GET / HTTP/1.0\r\n\r\n", at, ""},
			{"nonsense", "PROXY TCP4 nobody 198.51.100.1 4000 80\r\n", at, ""},
			{"two families", "PROXY TCP4 203.0.113.9 2001:db8::1 4000 80\r\n", at, ""},
			{"too long", "PROXY TCP4 " + strings.Repeat(" ", 200) + "\r\n", at, ""},
			{"too long, version 2", string(signature2) + "\x21\x11\xff\xff", at, ""},
			{"cut off", "PROXY TCP4 203.0.113.9", soon, ""},
			{"nothing", "", soon, ""},
			{"from elsewhere", "", others, "own"},
		} {
			for _, slow := range []bool{false, true} {
				c := dialTCP(t, tt.at)
				var broken error
				for i := range tt.sends {
					if !slow {
						_, _ = io.WriteString(c, tt.sends+"hello\n")
						break
					}
					if _, broken = io.WriteString(c, tt.sends[i:i+1]); broken != nil {
						break // it was reset, which is told once
					}
					if i%16 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
				if slow || tt.sends == "" {
					if tt.want != "" {
						_, _ = io.WriteString(c, "hello\n")
					}
				} else if tt.name == "cut off" {
					continue // "hello" is part of it
				}
				want := tt.want
				if want == "own" {
					want = own(c, tt.at)
				}
				got, err := tryLine(c)
				switch {
				case want == "" && !isReset(err) && !isReset(broken):
					t.Errorf("%s, slow %t: %q, %v, want a reset", tt.name, slow, got, err)
				case want != "" && got != want:
					t.Errorf("%s, slow %t: the endpoint was told %q, %v, want %q", tt.name, slow, got, err, want)
				case want != "":
					if got := line(t, c); got != "hello" {
						t.Errorf("%s, slow %t: %q follows the header", tt.name, slow, got)
					}
				}
				_ = c.Close()
			}
		}
		// What others send is no header, whatever it looks like.
		c := dialTCP(t, others)
		if _, err := io.WriteString(c, "PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r\n"); err != nil {
			t.Fatal(err)
		}
		if got, want := line(t, c), own(c, others); got != want {
			t.Errorf("an endpoint was told %q by a client that is no balancer, want %q", got, want)
		}
		if got := line(t, c); !strings.HasPrefix(got, "PROXY TCP4 203.0.113.9") {
			t.Errorf("what the client sent arrives as %q", got)
		}
	})
}

// Clients that a balancer names keep their endpoints, each its own.
func TestAffinityBehindBalancer(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	var endpoints []netip.AddrPort
	for i := range 16 {
		endpoints = append(endpoints, namedTCP(t, local, fmt.Sprint(i)))
	}
	l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: endpoints, Pick: Pick{Affinity: time.Hour, By: RoundRobin},
		ProxyFrom: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	seen := map[string]bool{}
	for range 2 {
		for i := range 8 {
			c := dialTCP(t, at)
			if _, err := fmt.Fprintf(c, "PROXY TCP4 203.0.113.%d 198.51.100.1 4000 80\r\n", i); err != nil {
				t.Fatal(err)
			}
			seen[line(t, c)] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("8 clients, asking twice, were served by %d endpoints, want 8", len(seen))
	}
}

// A client that has not said who it is when the program is handed over says it to the next one.
func TestHandOverBeforeHeader(t *testing.T) {
	at := freePort(t, local)
	port := Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{told(t, local)},
		ProxyFrom: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Connect: Connect{ProxyProtocol: 1}}
	g := next(t, quick(), nil, port)
	c := dialTCP(t, at)
	if _, err := io.WriteString(c, "PROXY TCP4 203.0.113.9 "); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client is accepted", func() bool { return g.quotas.tcp.loopback.used.Load() == 1 })
	next(t, quick(), g.handOver(t), port)
	if _, err := io.WriteString(c, "198.51.100.1 4000 80\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, c); got != "PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r" {
		t.Errorf("the endpoint was told %q", got)
	}
}

// FuzzHeaders has headers come in two pieces: what is taken for a header does not depend on where it is cut.
func FuzzHeaders(f *testing.F) {
	for _, text := range []string{
		"PROXY TCP4 203.0.113.9 198.51.100.1 4000 80\r\nGET /", "PROXY UNKNOWN\r\n", "PROXY ", "GET / HTTP/1.0\r\n", "",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x09\xc6\x33\x64\x01\x0f\xa0\x00\x50rest",
		"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", "\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24",
	} {
		f.Add([]byte(text), uint16(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		b = b[:min(len(b), maxHeader)]
		size, err := headerSize(b)
		part, partErr := headerSize(b[:int(cut)%(len(b)+1)])
		switch {
		case partErr != nil && err == nil:
			t.Fatalf("%q is a header and what it begins with is none: %v", b, partErr)
		case partErr == nil && part != 0 && part != size:
			t.Fatalf("%q has a header of %d bytes, what it begins with one of %d", b, size, part)
		case err != nil || size == 0 || size > len(b):
			return
		}
		from, to, err := readHeader(b[:size])
		if err != nil || !from.IsValid() {
			return
		}
		if !to.IsValid() || from.Addr().Is4() != to.Addr().Is4() {
			t.Fatalf("%q: from %s to %s", b, from, to)
		}
		for version := 1; version <= 2; version++ {
			again, err := headerOf(version, from, to)
			if err != nil {
				t.Fatalf("%q, from %s to %s, cannot be said: %v", b, from, to, err)
			}
			if f, d, err := readHeader(again); err != nil || f != from || d != to {
				t.Fatalf("%q: from %s to %s is read again as %s, %s, %v", b, from, to, f, d, err)
			}
		}
	})
}
