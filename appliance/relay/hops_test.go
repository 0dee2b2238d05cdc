package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Two relays that point to each other pass a client on maxHops times at most, and the port has a problem.
func TestRelaysThatPointToEachOther(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		for _, c := range []struct {
			name, protocol string
			front          *Front
		}{{"tcp", TCP, nil}, {"http", TCP, &Front{HTTP: true, ResponseTimeout: patience}}, {"udp", UDP, nil}} {
			t.Run(c.name, func(t *testing.T) {
				a, b := start(t, quick()), start(t, quick())
				here, there := freePort(t, addr), freePort(t, addr)
				a.set(Port{ID: "default/a/p", Protocol: c.protocol, Listen: here, Endpoints: []netip.AddrPort{there}, Front: c.front})
				b.set(Port{ID: "default/b/p", Protocol: c.protocol, Listen: there, Endpoints: []netip.AddrPort{here}, Front: c.front})
				taken := func(l *lab) int64 { return l.Stats().TCP.Taken + l.Stats().UDP.Taken }
				switch {
				case c.protocol == UDP:
					if _, err := dialUDP(t, here).Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
				case c.front != nil:
					r, err := http.Post("http://"+here.String(), "text/plain", strings.NewReader("x"))
					if err != nil {
						t.Fatal(err)
					}
					if r.StatusCode < 500 {
						t.Errorf("answered %s", r.Status)
					}
					_ = r.Body.Close()
				default:
					conn, err := net.Dial("tcp", here.String())
					if err == nil { // on a busy machine it may be reset before that
						defer conn.Close()
						_, err = conn.Read(make([]byte, 1))
					}
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%v, want a reset", err)
					}
				}
				loops := func() (list []Overloaded) { return append(a.Overloaded(), b.Overloaded()...) }
				eventually(t, "the loop is found", func() bool { return len(loops()) > 0 })
				if l := loops(); len(l) != 1 || !l[0].Looped {
					t.Errorf("%+v, want a loop", l)
				}
				if n := taken(a) + taken(b); n < 8 || n > maxHops {
					t.Errorf("%d clients were let in, want at most %d", n, maxHops)
				}
			})
		}
	})
}

// An endpoint gets one hop less than the relay did.
func TestEndpointsGetOneHopLess(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		network := networkOf(TCP, addr)
		send := func(hops int) func(_, _ string, c syscall.RawConn) error {
			return func(_, _ string, c syscall.RawConn) error { return sendHops(network, c, hops) }
		}
		for came, want := range map[int]int{33: 32, 64: 63, 255: maxHops, 2: 1} {
			l, err := start(t, quick()).listenTCP(netip.AddrPortFrom(addr, 0), nil, start(t, quick()).Relay.log, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, quick())
			at := freePort(t, addr)
			r.set(Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{l.socket.Addr().(*net.TCPAddr).AddrPort()}})
			client, err := (&net.Dialer{Control: send(came)}).DialContext(context.Background(), network, at.String())
			if err != nil {
				t.Fatal(err)
			}
			got, err := l.socket.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			if hops := hopsOf(got); hops != want {
				t.Errorf("TCP that came with %d hops arrives with %d, want %d", came, hops, want)
			}
			_, _, _ = client.Close(), got.Close(), l.socket.Close()

			seen := make(chan int, 1)
			udp, err := net.ListenUDP(networkOf(UDP, addr), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			if err != nil {
				t.Fatal(err)
			}
			raw, err := udp.SyscallConn()
			if err == nil {
				err = countHops(networkOf(UDP, addr), raw)
			}
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_ = receiveDatagram(raw, func(_ []byte, _ netip.AddrPort, hops int) { seen <- hops })
			}()
			from := freePort(t, addr)
			r.set(Port{ID: "default/dns", Protocol: UDP, Listen: from, Endpoints: []netip.AddrPort{udp.LocalAddr().(*net.UDPAddr).AddrPort()}})
			c := dialUDP(t, from)
			near, err := c.SyscallConn() // raw is read by another goroutine
			if err == nil {
				err = sendHops(networkOf(UDP, addr), near, came)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			select {
			case hops := <-seen:
				if hops != want {
					t.Errorf("UDP that came with %d hops arrives with %d, want %d", came, hops, want)
				}
			case <-time.After(patience):
				t.Error("no datagram")
			}
			_ = udp.Close()
		}
	})
	if got := hopsIn(nil, unix.SOL_IP, unix.IP_TTL); got != 0 {
		t.Errorf("%d hops in no message", got)
	}
}
