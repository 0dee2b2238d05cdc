package relay

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// flood is an endpoint that sends so many bytes, and counts them.
func flood(t *testing.T, addr netip.Addr, size int, sent *atomic.Int64) netip.AddrPort {
	return tcpServer(t, addr, func(c *net.TCPConn) {
		piece := make([]byte, 64<<10)
		for left := size; left > 0; left -= len(piece) {
			piece = piece[:min(left, len(piece))]
			n, err := c.Write(piece)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
}

// stalls waits until nothing more is counted.
func stalls(t *testing.T, what string, n *atomic.Int64) int64 {
	t.Helper()
	last, since := int64(-1), time.Now()
	eventually(t, what, func() bool {
		if now := n.Load(); now != last {
			last, since = now, time.Now()
		}
		time.Sleep(5 * time.Millisecond)
		return last > 0 && time.Since(since) > 500*time.Millisecond // real time: nothing more is counted meanwhile
	})
	return last
}

// Clients that do not read stop their endpoints, take no memory, and disturb no other client; what they read later is whole.
func TestSlowClients(t *testing.T) {
	const size, clients, pipes = 64 << 20, 12, 2
	limits := quick()
	limits.pipes = pipes // fewer than clients: the others copy
	l := start(t, limits)
	at, other := freePort(t, local), freePort(t, local)
	var sent atomic.Int64
	l.set(
		Port{ID: "slow", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{flood(t, local, size, &sent)}},
		Port{ID: "other", Listen: other, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, local, "a")}},
	)
	before := heap()
	var slow []*net.TCPConn
	for range clients {
		slow = append(slow, dialTCP(t, at))
	}
	if n := stalls(t, "the endpoints stop", &sent); n >= size*clients {
		t.Errorf("clients that read nothing were sent all of %d bytes", n)
	}
	if made := l.pump.made.Load(); made > pipes {
		t.Errorf("there are %d pipes, want at most %d", made, pipes)
	}
	// A buffer of 16 KiB is held for each that does not take what came, and its socket holds the rest.
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d clients that do not read take %d bytes of memory", clients, grown)
	}
	if got := named(t, other); got != "a" {
		t.Errorf("beside slow clients %q answers", got)
	}
	for i, c := range slow {
		if n, err := io.Copy(io.Discard, c); err != nil || n != size {
			t.Errorf("client %d read %d bytes of %d: %v", i, n, size, err)
		}
		_ = c.Close()
	}
	eventually(t, "all connections are over", func() bool { return l.quotas.tcp.loopback.used.Load() == 0 })
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An endpoint that does not read stops its clients, and one that reads slowly gets every byte.
func TestSlowEndpoints(t *testing.T) {
	const size = 48 << 20
	l := start(t, quick())
	at, other := freePort(t, local), freePort(t, local)
	read := make(chan struct{})
	endpoint := tcpServer(t, local, func(c *net.TCPConn) {
		<-read
		h := sha256.New()
		for piece := 1; ; piece = min(piece*2, 1<<20) { // first byte by byte
			if _, err := io.CopyN(h, c, int64(piece)); err != nil {
				break
			}
		}
		_, _ = fmt.Fprintf(c, "%x\n", h.Sum(nil))
	})
	l.set(
		Port{ID: "slow", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{endpoint}},
		Port{ID: "other", Listen: other, Protocol: TCP, Endpoints: []netip.AddrPort{namedTCP(t, local, "a")}},
	)
	payload := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(payload) // never fails
	c := dialTCP(t, at)
	var sent atomic.Int64
	ended := make(chan error, 1)
	go func() {
		for left := payload; len(left) > 0; {
			n, err := c.Write(left[:min(len(left), 64<<10)])
			left = left[n:]
			if sent.Add(int64(n)); err != nil {
				ended <- err
				return
			}
		}
		ended <- c.CloseWrite()
	}()
	if n := stalls(t, "the client stops", &sent); n >= size {
		t.Errorf("an endpoint that reads nothing was sent all of %d bytes", n)
	}
	if got := named(t, other); got != "a" {
		t.Errorf("beside a slow endpoint %q answers", got)
	}
	close(read)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got, want := line(t, c), fmt.Sprintf("%x", sha256.Sum256(payload)); got != want {
		t.Errorf("the endpoint got bytes with the sum %s, want %s", got, want)
	}
}
