package bench

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packet is how long it takes from a change to the first packet that goes to an endpoint:
// packets of new flows are sent without pause.
func (x *box) packet(b *testing.B, to netip.AddrPort, endpoint netip.Addr, change func()) time.Duration {
	b.Helper()
	time.Sleep(pause)
	x.host.out.drain(b)
	began := time.Now()
	change()
	for time.Since(began) < patience {
		x.flow++
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 66, byte(x.flow >> 16), byte(x.flow >> 8)}), uint16(1024+x.flow&0xff))
		x.host.inject(b, x.host.in, [][]byte{flow{from, to}.packet()})
		if _, at, sent := x.host.out.next(b); sent && at.Addr() == endpoint {
			return time.Since(began)
		}
	}
	b.Fatalf("no packet reaches %s\n%s", endpoint, x.Log())
	return 0
}

// next is a packet that the kernel sent through the interface: who sends it to whom.
func (p port) next(b *testing.B) (from, to netip.AddrPort, sent bool) {
	b.Helper()
	var packet [2048]byte
	n, err := unix.Read(p.fd, packet[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return from, to, false
	case err != nil:
		b.Fatal(err)
	case n < 28 || packet[0] != 0x45:
		return from, to, false // not one of ours
	}
	end := func(addr, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[addr:addr+4])), uint16(packet[port])<<8|uint16(packet[port+1]))
	}
	return end(12, 20), end(16, 22), true
}

// drain takes what the kernel has sent before.
func (p port) drain(b *testing.B) {
	b.Helper()
	for sent := true; sent; {
		_, _, sent = p.next(b)
	}
}
