package interop

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// flow is echo requests to one address, which the kernel of the host that has it answers: a test that
// is late to read or to run loses none.
type flow struct {
	to             netip.Addr
	conn           *net.IPConn
	request, reply byte // types of ICMP
	sent, answered atomic.Int64
}

// echoID identifies our echo requests.
const echoID = 0x5eed

// probe has the client send an echo request each millisecond to both VIPs. The returned function
// stops it and compares how many were not answered, or only says so when most is negative.
func (p *place) probe() (stop func(most int)) {
	p.t.Helper()
	p.t.Log("asked under load: a failure counts at once")
	flows := []*flow{
		{to: netip.MustParseAddr(vip4), request: 8, reply: 0},
		{to: netip.MustParseAddr(vip6), request: 128, reply: 129},
	}
	done := make(chan struct{})
	var senders sync.WaitGroup
	for _, f := range flows {
		if err := p.client.Do(f.open); err != nil {
			p.t.Fatal(err)
		}
		go f.receive()
		senders.Go(func() { f.send(done) })
	}
	time.Sleep(100 * time.Millisecond) // real time: packets go on
	return func(most int) {
		p.t.Helper()
		close(done)
		senders.Wait() // or the last request counts after its socket is closed
		deadline := time.Now().Add(time.Minute)
		for _, f := range flows {
			for f.answered.Load() < f.sent.Load() && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			_ = f.conn.Close()
			sent, answered := f.sent.Load(), f.answered.Load()
			if most < 0 {
				p.t.Logf("%s: %d of %d packets lost, one a millisecond", f.to, sent-answered, sent)
				continue
			}
			p.t.Logf("%s: %d of %d packets answered", f.to, answered, sent)
			if lost := sent - answered; lost > int64(most) || sent == 0 {
				p.t.Errorf("%s: %d of %d packets lost, want at most %d", f.to, lost, sent, most)
			}
		}
	}
}

func (f *flow) open() error {
	network, to := "ip4:icmp", &net.IPAddr{IP: f.to.AsSlice()}
	if f.to.Is6() {
		network = "ip6:ipv6-icmp"
	}
	conn, err := net.DialIP(network, nil, to)
	if err != nil {
		return err
	}
	f.conn = conn
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	})
	return errors.Join(err, failed)
}

func (f *flow) send(done <-chan struct{}) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for sequence := uint16(0); ; sequence++ {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		m := []byte{f.request, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(m[4:], echoID)
		binary.BigEndian.PutUint16(m[6:], sequence)
		if f.request == 8 { // the kernel computes that of ICMPv6
			binary.BigEndian.PutUint16(m[2:], checksum(m))
		}
		if _, err := f.conn.Write(m); err == nil {
			f.sent.Add(1)
		}
	}
}

func (f *flow) receive() {
	buf := make([]byte, 512)
	for {
		n, _, err := f.conn.ReadFromIP(buf) // which leaves the IPv4 header out
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil && n >= 8 && buf[0] == f.reply && binary.BigEndian.Uint16(buf[4:]) == echoID:
			f.answered.Add(1)
		}
	}
}

// checksum is that of RFC 1071; b has an even length.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
