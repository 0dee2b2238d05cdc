package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func TestTCP(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		l := start(t, quick())
		at := freePort(t, addr)
		l.set(Port{ID: "default/web/http", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, addr, "a")}})
		c := dialTCP(t, at)
		if name := line(t, c); name != "a" {
			t.Errorf("the server is %s", name)
		}
		for range 3 {
			say(t, c, "hello")
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("the end is %q, %v", rest, err)
		}
		eventually(t, "the connection is over", func() bool { return l.quotas.tcp.loopback.used.Load() == 0 })
	})
}

// Each side may end its direction and go on to receive.
func TestTCPHalfClose(t *testing.T) {
	const size = 8 << 20 // more than all buffers on the way
	source := rand.NewChaCha8([32]byte{1})
	payload := make([]byte, size)
	_, _ = source.Read(payload) // never fails
	sum := fmt.Sprintf("%x", sha256.Sum256(payload))
	l := start(t, quick())

	t.Run("client", func(t *testing.T) {
		at := freePort(t, local)
		// The server answers only once it has seen the end of the question.
		endpoint := tcpServer(t, local, func(c *net.TCPConn) {
			h := sha256.New()
			if _, err := io.Copy(h, c); err == nil {
				_, _ = fmt.Fprintf(c, "%x\n", h.Sum(nil))
			}
		})
		l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}})
		c := dialTCP(t, at)
		if _, err := io.Copy(c, bytes.NewReader(payload)); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := line(t, c); got != sum {
			t.Errorf("the server got %s, want %s", got, sum)
		}
	})
	t.Run("server", func(t *testing.T) {
		at := freePort(t, local)
		got := make(chan string, 1)
		endpoint := tcpServer(t, local, func(c *net.TCPConn) {
			_, _ = c.Write(payload)
			_ = c.CloseWrite()
			rest, _ := io.ReadAll(c)
			got <- string(rest)
		})
		l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}})
		c := dialTCP(t, at)
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)); got != sum {
			t.Errorf("the client got %s, want %s", got, sum)
		}
		if _, err := io.WriteString(c, "thanks"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if rest := <-got; rest != "thanks" {
			t.Errorf("the server got %q after its end", rest)
		}
	})
}

// ask connects, says something and takes a line. A reset may come at any of it, even
// before the client knows that it is connected.
func ask(t *testing.T, to netip.AddrPort) (*net.TCPConn, error) {
	t.Helper()
	c, err := tryTCP(to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "x"); err != nil {
		return nil, err
	}
	_, err = tryLine(c)
	return c, err
}

// What is not an end in good order does not look like one.
func TestTCPReset(t *testing.T) {
	l := start(t, quick())
	for _, test := range []struct {
		name     string
		endpoint func(t *testing.T) netip.AddrPort
	}{
		{"nobody at the endpoint", func(t *testing.T) netip.AddrPort { return freePort(t, local) }},
		{"endpoint resets", func(t *testing.T) netip.AddrPort {
			return tcpServer(t, local, func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 1))
				_ = c.SetLinger(0)
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := freePort(t, local)
			l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{test.endpoint(t)}})
			if _, err := ask(t, at); !isReset(err) {
				t.Errorf("the connection ends with %v, want a reset", err)
			}
		})
	}
	t.Run("client resets", func(t *testing.T) {
		at := freePort(t, local)
		end := make(chan error, 1)
		endpoint := tcpServer(t, local, func(c *net.TCPConn) {
			_, err := io.Copy(io.Discard, c)
			end <- err
		})
		l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}})
		c := dialTCP(t, at)
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection is relayed", func() bool { return l.quotas.tcp.loopback.used.Load() > 0 })
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-end; !isReset(err) {
			t.Errorf("the endpoint's connection ends with %v, want a reset", err)
		}
	})
	eventually(t, "all connections are over", func() bool { return l.quotas.tcp.loopback.used.Load() == 0 })
}

// An endpoint that does not answer is given up.
func TestTCPDialTimeout(t *testing.T) {
	limits := quick()
	limits.dial = 50 * time.Millisecond
	l := start(t, limits)
	at := freePort(t, local)
	l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{deaf(t)}})
	c := dialTCP(t, at)
	began := time.Now()
	if _, err := c.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("the connection ends with %v, want a reset", err)
	}
	if took := time.Since(began); took < limits.dial {
		t.Errorf("it took %v, less than the time to connect", took)
	}
}

// deaf is an endpoint that never answers a SYN: its queue is full.
func deaf(t *testing.T) netip.AddrPort {
	t.Helper()
	at, _ := deafSocket(t)
	return at
}

// deafSocket is deaf with its listening socket.
func deafSocket(t *testing.T) (at netip.AddrPort, fd int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at = addrPortOf(name)
	for range 10 { // a queue of length 0 takes one, and some kernels more
		c, err := net.DialTimeout("tcp", at.String(), 50*time.Millisecond)
		if err != nil {
			return at, fd
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue does not fill")
	return at, fd
}

// inode is that of the socket that listens at an address of IPv4.
func inode(t *testing.T, at netip.AddrPort) string {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	a := at.Addr().As4()
	for _, row := range strings.Split(string(table), "\n") {
		f := strings.Fields(row)
		const listening = "0A"
		if len(f) > 9 && f[1] == fmt.Sprintf("%02X%02X%02X%02X:%04X", a[3], a[2], a[1], a[0], at.Port()) && f[3] == listening {
			return f[9]
		}
	}
	return ""
}

// Endpoints change for new connections alone, and the listener stays the same.
func TestTCPEndpointsChange(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	a, b := namedTCP(t, local, "a"), namedTCP(t, local, "b")
	port := func(endpoints ...netip.AddrPort) Port {
		return Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: endpoints}
	}
	l.set(port(a))
	socket := inode(t, at)
	kept := dialTCP(t, at)
	line(t, kept)
	l.set(port(b))
	for range 10 {
		if name := named(t, at); name != "b" {
			t.Fatalf("a new connection goes to %s", name)
		}
	}
	say(t, kept, "still there")
	l.set(port(a, b))
	seen := map[string]int{}
	for range 60 { // one of the two is missed once in 10^17 runs
		seen[named(t, at)]++
	}
	if seen["a"] == 0 || seen["b"] == 0 {
		t.Errorf("connections went to %v", seen)
	}
	if now := inode(t, at); socket == "" || now != socket {
		t.Errorf("the listening socket was %q and is %q", socket, now)
	}

	l.set(port())
	if !refuses(at) {
		t.Error("a port without endpoints does not refuse")
	}
	say(t, kept, "even now")
	l.set(port(b))
	if name := named(t, at); name != "b" {
		t.Errorf("a new connection goes to %s", name)
	}
	l.set()
	if !refuses(at) {
		t.Error("a port that is gone does not refuse")
	}
	say(t, kept, "to the end")
}

func TestTCPAffinity(t *testing.T) {
	l := start(t, quick())
	at := freePort(t, local)
	var endpoints []netip.AddrPort
	for i := range 8 {
		endpoints = append(endpoints, namedTCP(t, local, fmt.Sprint(i)))
	}
	l.set(Port{ID: "x", Listen: at, Protocol: TCP, Endpoints: endpoints, Pick: Pick{Affinity: time.Hour}})
	first := named(t, at)
	for range 20 {
		if name := named(t, at); name != first {
			t.Fatalf("the client of %s goes to %s", first, name)
		}
	}
}

func TestTCPLimits(t *testing.T) {
	limits := quick()
	limits.tcp.loopback = bounds{2, 4}
	l := start(t, limits)
	at, other := freePort(t, local), freePort(t, local)
	endpoints := []netip.AddrPort{namedTCP(t, local, "a")}
	l.set(
		Port{ID: "default/one/", Listen: at, Protocol: TCP, Endpoints: endpoints},
		Port{ID: "default/two/", Listen: other, Protocol: TCP, Endpoints: endpoints},
	)
	must := func(to netip.AddrPort) *net.TCPConn {
		t.Helper()
		c, err := ask(t, to)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	mustNot := func(to netip.AddrPort) {
		t.Helper()
		if _, err := ask(t, to); !isReset(err) {
			t.Fatalf("one too many ends with %v, want a reset", err)
		}
	}
	first := must(at)
	must(at)
	for range 5 {
		mustNot(at) // the port is full
	}
	must(other)
	mustNot(other) // and now all ports together are
	if got := l.log.count("connections to a relayed port are refused"); got != 2 {
		t.Errorf("%d lines in the log, want one for each port", got)
	}
	if got := l.log.count("svc=default/one/ ip=127.0.0.1"); got != 1 {
		t.Errorf("%d lines name the first port", got)
	}
	_ = first.Close()
	eventually(t, "there is room again", func() bool { return l.quotas.tcp.loopback.used.Load() == 2 })
	must(other)
}

// Silent peers are asked whether they are there, on both sides.
func TestKeepAlive(t *testing.T) {
	r := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	l, err := r.listenTCP(netip.MustParseAddrPort("127.0.0.1:0"), nil, r.log, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	endpoint, err := dial(t.Context(), time.Minute, nil, netip.AddrPort{}, l.socket.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	defer endpoint.Close()
	client, err := l.socket.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for side, c := range map[string]*net.TCPConn{"client": client, "endpoint": endpoint} {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for option, want := range map[[2]int]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 15, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 15, {unix.IPPROTO_TCP, unix.TCP_NODELAY}: 1} {
			if err := raw.Control(func(fd uintptr) {
				if got, err := unix.GetsockoptInt(int(fd), option[0], option[1]); err != nil || got != want {
					t.Errorf("%s: option %v is %d, want %d (%v)", side, option, got, want, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
