package bfd

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestReadsBeforeItBlames: when the detection time is over, a packet that waits in the socket
// counts, and one that is not the neighbor's does not.
func TestReadsBeforeItBlames(t *testing.T) {
	local, peer := netip.MustParseAddr("127.83.68.1"), netip.MustParseAddr("127.83.68.2")
	for name, c := range map[string]struct {
		from netip.Addr
		ttl  bool
		port uint16
		want Phase
	}{
		"the neighbor's":       {peer, true, SingleHopPort, Up},
		"on the multihop port": {peer, true, MultiHopPort, Up},
		"with TTL 64":          {peer, false, SingleHopPort, Down},
		"somebody else's":      {netip.MustParseAddr("127.83.68.3"), true, SingleHopPort, Down},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHub(nil)
			s, err := h.Session(Config{Local: local, Peer: peer, Timers: quick}, nil)
			if err != nil {
				t.Fatal(err)
			}
			l := &listener{hub: h, local: local} // without a goroutine that reads
			for i, port := range []uint16{SingleHopPort, MultiHopPort} {
				if l.conns[i], err = receiver(netip.AddrPortFrom(local, port)); err != nil {
					t.Fatal(err)
				}
				if l.raws[i], err = l.conns[i].SyscallConn(); err != nil {
					t.Fatal(err)
				}
			}
			defer l.shut()
			p := Packet{Phase: Init, Multiplier: 3, Mine: 9, Yours: s.mine, MinTx: 50 * time.Millisecond, MinRx: 50 * time.Millisecond}
			s.receive(p, SingleHopPort, time.Now())
			if s.step(l); s.State().Phase != Up {
				t.Fatalf("the session is %s", s.State().Phase)
			}

			var out *net.UDPConn
			if c.ttl {
				out, err = sender(c.from)
			} else {
				out, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.from, 0)))
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = out.Close() }()
			p.Phase = Up
			if _, err := out.WriteToUDPAddrPort(p.Bytes(), netip.AddrPortFrom(local, c.port)); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			time.Sleep(time.Until(s.machine.Expires())) // real time: the end of the detection time
			s.machine.spared = true                     // whatever the time, this is the end of it
			s.mu.Unlock()
			s.step(l)
			if st := s.State(); st.Phase != c.want || !c.ttl && !strings.Contains(st.LastDropped, "TTL 64") {
				t.Errorf("the session is %s, want %s: %+v", st.Phase, c.want, st)
			}
		})
	}
}

// A listener is closed while its reader looks for the session of a packet, which anybody may send. The test holds the
// lock that both wait for, so that the one that closes is the first to have it.
func TestCloseBesidePackets(t *testing.T) {
	local := netip.MustParseAddr("127.83.68.5")
	out, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	h := NewHub(nil)
	for range 10 {
		l, err := h.open(local)
		if err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		closed := make(chan struct{})
		go func() { h.close(l); close(closed) }()
		time.Sleep(5 * time.Millisecond) // real time: it waits for h.mu now; if it does not, there is less to be tried
		if _, err := out.WriteToUDPAddrPort(make([]byte, 24), netip.AddrPortFrom(local, SingleHopPort)); err != nil {
			t.Fatal(err)
		}
		for l.mu.TryLock() { // until the reader has the packet
			l.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
		h.mu.Unlock()
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("the listener is not closed: its reader and the one that closes it wait for each other")
		}
	}
}
