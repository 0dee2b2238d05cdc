package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/providertest"
)

const patience = time.Minute

var (
	local  = netip.MustParseAddr("127.0.0.1")
	local6 = netip.IPv6Loopback()
)

// quick are the defaults with short times.
func quick() limits {
	l := defaults()
	l.removal, l.lastDrain, l.retry, l.backoff, l.stream = 0, 200*time.Millisecond, 20*time.Millisecond, time.Millisecond, 0
	return l
}

// lab is a Relay that runs until the test ends, or stop is called.
type lab struct {
	*Relay
	t    *testing.T
	log  *logged
	stop func()
}

func start(t *testing.T, l limits) *lab {
	t.Helper()
	log := &logged{}
	r := newRelay(slog.New(slog.NewTextHandler(log, nil)), nil, l)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	return &lab{r, t, log, stop}
}

// logged is the log output.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// set sets ports and waits until those with endpoints are listened on and others are
// not, as far as there is no problem.
func (l *lab) set(ports ...Port) {
	l.t.Helper()
	l.Set(ports)
	// Run has opened the listeners once it takes up a second Trigger.
	eventually(l.t, "the ports are set", func() bool { return !l.loopback.listeners.Pending() })
	l.loopback.listeners.Trigger()
	eventually(l.t, "the ports are set", func() bool { return !l.loopback.listeners.Pending() })
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// families are the loopback addresses of this host.
func families(t *testing.T, test func(t *testing.T, addr netip.Addr)) {
	for _, addr := range []netip.Addr{local, local6} {
		t.Run(addr.String(), func(t *testing.T) {
			ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
			if err != nil {
				t.Skipf("SKIPPED: this host has no %s: %v", addr, err)
			}
			_ = ln.Close()
			test(t, addr)
		})
	}
}

// freePort returns a port of an address without a socket.
func freePort(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(addr, uint16(providertest.FreePort(t)))
}

// tcpServer hands each of its connections to serve, and closes it afterwards.
func tcpServer(t *testing.T, addr netip.Addr, serve func(c *net.TCPConn)) netip.AddrPort {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		tasks.Wait()
	})
	tasks.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				defer c.Close()
				serve(c)
			})
		}
	})
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// namedTCP is a server that tells its name and sends back what it gets, with its end.
func namedTCP(t *testing.T, addr netip.Addr, name string) netip.AddrPort {
	return tcpServer(t, addr, func(c *net.TCPConn) {
		if _, err := io.WriteString(c, name+"\n"); err == nil {
			_, _ = io.Copy(c, c)
		}
	})
}

// dialTCP connects, under a deadline for everything that follows.
func dialTCP(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := tryTCP(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func tryTCP(to netip.AddrPort) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", to.String(), patience)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(patience))
}

func refuses(to netip.AddrPort) bool {
	c, err := tryTCP(to)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// line reads one line, byte by byte: what follows is left.
func line(t *testing.T, c net.Conn) string {
	t.Helper()
	s, err := tryLine(c)
	if err != nil {
		t.Fatalf("read a line: %v after %q", err, s)
	}
	return s
}

func tryLine(c net.Conn) (string, error) {
	var s []byte
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(c, b); err != nil || b[0] == '\n' {
			return string(s), err
		}
		s = append(s, b[0])
	}
}

// say sends a line and wants it back.
func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text+"\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, c); got != text {
		t.Fatalf("answer is %q, want %q", got, text)
	}
}

// named connects and gives the name of the server.
func named(t *testing.T, to netip.AddrPort) string {
	t.Helper()
	c := dialTCP(t, to)
	defer c.Close()
	return line(t, c)
}

// namedUDP is a server that answers each datagram with its name, the port of the client
// and the length and the start of what it got.
func namedUDP(t *testing.T, addr netip.Addr, name string) netip.AddrPort {
	t.Helper()
	return udpServer(t, addr, func(c *net.UDPConn, data []byte, from netip.AddrPort) {
		start := data[:min(len(data), 20)]
		_, _ = c.WriteToUDPAddrPort(fmt.Appendf(nil, "%s %d %d %s", name, from.Port(), len(data), start), from)
	})
}

func udpServer(t *testing.T, addr netip.Addr, serve func(c *net.UDPConn, data []byte, from netip.AddrPort)) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				serve(c, buf[:n], from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dialUDP is a client.
func dialUDP(t *testing.T, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a datagram and gives the answer. It waits for it no longer than wait.
func exchange(c *net.UDPConn, data []byte, wait time.Duration) (string, error) {
	if _, err := c.Write(data); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	buf := make([]byte, maxDatagram)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// answer is exchange that must succeed; fields are the parts of namedUDP's answer.
func answer(t *testing.T, c *net.UDPConn, text string) (fields []string) {
	t.Helper()
	got, err := exchange(c, []byte(text), patience)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(got)
}

// noAnswer reports whether an error is that of silence.
func noAnswer(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
