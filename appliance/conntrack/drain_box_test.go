package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// shortly is how long connections are drained here.
var shortly = Drain{true, time.Second}

// speaker accepts connections on a host and hands them out.
func speaker(t *testing.T, h *netlab.Host, at netip.AddrPort) <-chan net.Conn {
	t.Helper()
	var listener *net.TCPListener
	err := h.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	conns := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() }) // and not when it is garbage
			fmt.Fprintf(c, "%s %s %s\n", h.Name, at, c.RemoteAddr())
			conns <- c
		}
	}()
	return conns
}

// hears returns the next event at a connection's end after it sent something.
func hears(c net.Conn) error {
	if _, err := c.Write([]byte("are you there?\n")); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 64))
	return err
}

// dial connects, or fails the test.
func (b *box) dial(from *netlab.Host, to netip.AddrPort, server string) *netlab.Conn {
	b.t.Helper()
	c, err := from.Dial(to)
	if err != nil {
		b.t.Fatalf("%s to %s: %v", from.Name, to, err)
	}
	b.t.Cleanup(c.Close)
	if c.Reply.Server != server {
		b.t.Fatalf("%s answers at %s, want %s", c.Reply.Server, to, server)
	}
	return c
}

// TestDrain: connections open at the removal of their endpoint live as long as they may;
// then the side that sends next is answered by a reset, the client as well as the endpoint,
// and neither sees a packet of the other that was not translated.
func TestDrain(t *testing.T) {
	for _, family := range nft.Families {
		for _, others := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, others serve: %t", family, others), func(t *testing.T) {
				b := newBox(t)
				l1, r1 := endpoint(b.L1, family, 9000), endpoint(b.R1, family, 9000)
				atL1, _ := speaker(t, b.L1, l1), speaker(t, b.R1, r1)
				svc, at := everywhere(nft.TCP, family, 80, 30080)
				svc.drain = shortly
				b.apply("web", svc, l1)

				// By the VIP the endpoint sees the client, by the node port the box.
				var quiet, talking []*netlab.Conn
				var ends []net.Conn
				for _, at := range []netip.AddrPort{at[0], at[3]} {
					talking = append(talking, b.dial(b.IN, at, "L1"))
					<-atL1
					quiet = append(quiet, b.dial(b.IN, at, "L1"))
					ends = append(ends, <-atL1)
				}
				over := b.dial(b.IN, at[0], "L1")
				(<-atL1).Close()
				over.Close()

				client, server := b.IN.Capture("eth0"), b.L1.Capture("eth0")
				left := []netip.AddrPort{}
				if others {
					left = append(left, r1)
				}
				// Later than this, on a busy machine, they may have ended.
				end := time.Now().Add(shortly.Timeout)
				b.apply("web", svc, left...)
				if others {
					kept := b.dial(b.IN, at[0], "R1")
					defer func() {
						if e, there := b.hasEntry(nft.TCP, at[0], kept.Local.Port()); !there {
							t.Errorf("the connection to an endpoint that serves has no entry (%s)", e)
						}
					}()
				}
				if n := b.cleaner.Stats().Reset; n != 0 && time.Now().Before(end) {
					t.Errorf("%d connections were reset at once", n)
				}
				for _, c := range talking {
					if e, there := b.hasEntry(nft.TCP, c.Reply.At, c.Local.Port()); there && time.Now().Before(end) {
						t.Errorf("what is drained is a dead end: %s", e)
					}
				}
				eventually(t, shortly.Timeout+withinSync, func() error {
					if n := b.cleaner.Stats().Reset; n != 4 {
						return fmt.Errorf("%d connections were reset, want 4", n)
					}
					return nil
				})
				for _, c := range talking {
					if err := c.Echo("are you there?"); netlab.RefusalOf(err) != netlab.Reset {
						t.Errorf("client of %s: %v, want a reset", c.Reply.At, err)
					}
				}
				for _, c := range ends {
					if err := hears(c); !errors.Is(err, unix.ECONNRESET) {
						t.Errorf("endpoint of %s: %v, want a reset", c.RemoteAddr(), err)
					}
				}
				for i, c := range append(talking, quiet...) {
					to := []netip.AddrPort{at[0], at[3]}[i%2]
					if e, there := b.hasEntry(nft.TCP, to, c.Local.Port()); there != (i >= 2) {
						t.Errorf("%s: entry: %t %s", c.Local, there, e)
					}
				}
				for host, capture := range map[string]*netlab.Capture{"the client": client, "the endpoint": server} {
					strange := capture.Packets(func(p netlab.Packet) bool {
						return p.Protocol == unix.IPPROTO_TCP && !p.Outgoing &&
							(host == "the client" && p.From == l1 || host == "the endpoint" && p.To != l1)
					})
					if len(strange) > 0 {
						t.Errorf("%s got packets that were not translated: %v", host, strange)
					}
				}
			})
		}
	}
}

// TestDrainEnds: an endpoint that is back in time loses no connection, and without the
// annotation none is lost at all.
func TestDrainEnds(t *testing.T) {
	b := newBox(t)
	l1, r1 := endpoint(b.L1, nft.IPv4, 80), endpoint(b.R1, nft.IPv4, 80)
	drained, at := everywhere(nft.TCP, nft.IPv4, 80, 30080)
	drained.drain = shortly
	lasting, _ := everywhere(nft.TCP, nft.IPv4, 80, 30081)
	lasting.frontends = lasting.frontends[3:]
	nodePort := netip.AddrPortFrom(at[3].Addr(), 30081)
	b.apply("drained", drained, l1)
	b.apply("lasting", lasting, l1)
	first, second := b.dial(b.IN, at[0], "L1"), b.dial(b.EXT, nodePort, "L1")

	b.apply("lasting", lasting, r1)
	b.apply("drained", drained, r1)
	b.apply("drained", drained, l1, r1)
	time.Sleep(2 * shortly.Timeout) // real time: no reset comes meanwhile
	if err := first.Echo("still there"); err != nil {
		t.Errorf("of an endpoint that is back: %v", err)
	}
	b.apply("lasting", nil)
	if err := second.Echo("still there"); err != nil {
		t.Errorf("of an endpoint that is gone, without draining: %v", err)
	}
	if s := b.cleaner.Stats(); s.Reset != 0 || s.Draining != 0 {
		t.Errorf("%+v", s)
	}

	// The same over a restart: the time begins anew.
	b.restart(func() { b.load("drained", drained, r1) })
	if err := first.Echo("still there"); err != nil {
		t.Errorf("right after a restart: %v", err)
	}
	eventually(t, shortly.Timeout+withinSync, func() error {
		if err := first.Echo("still there"); netlab.RefusalOf(err) != netlab.Reset {
			return fmt.Errorf("drained: %v, want a reset", err)
		}
		return nil
	})
}

// TestWithoutDeadEnds: where no address of the box is known entries are only deleted.
// The client's next packet begins a connection then, and is reset by the endpoint that
// it is balanced to, or refused.
func TestWithoutDeadEnds(t *testing.T) {
	b := newBox(t)
	b.nft.LocalAddresses = nil
	l1, r1 := endpoint(b.L1, nft.IPv4, 80), endpoint(b.R1, nft.IPv4, 80)
	svc, at := everywhere(nft.TCP, nft.IPv4, 80, 30080)
	svc.drain = shortly
	for _, left := range [][]netip.AddrPort{{r1}, nil} {
		b.apply("web", svc, l1)
		reset := b.cleaner.Stats().Forgotten
		c := b.dial(b.IN, at[0], "L1")
		b.apply("web", svc, left...)
		eventually(t, shortly.Timeout+withinSync, func() error {
			if b.cleaner.Stats().Forgotten == reset {
				return errors.New("nothing was deleted")
			}
			return nil
		})
		if err := c.Echo("are you there?"); netlab.RefusalOf(err) != netlab.Reset {
			t.Errorf("endpoints %v serve: %v, want a reset", left, err)
		}
	}
}

// TestDrainOfTheBox: the box may be the client, or the endpoint.
func TestDrainOfTheBox(t *testing.T) {
	for _, family := range nft.Families {
		t.Run(family.String(), func(t *testing.T) {
			b := newBox(t)
			box := endpoint(b.GW1, family, 9000)
			atBox := speaker(t, b.GW1, box)
			svc, at := everywhere(nft.TCP, family, 80, 30080)
			svc.drain = shortly
			b.apply("web", svc, box, endpoint(b.L1, family, 80))
			var clients []*netlab.Conn
			var ends []net.Conn
			for range 100 { // of which half come to the box
				from := b.IN
				if len(clients) >= 2 {
					from = b.GW1
				}
				c, err := from.Dial(at[0])
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(c.Close)
				if c.Reply.Server != "gw1" {
					continue
				}
				clients, ends = append(clients, c), append(ends, <-atBox)
				if len(clients) == 4 {
					break
				}
			}
			b.apply("web", svc, endpoint(b.R1, family, 80))
			eventually(t, shortly.Timeout+withinSync, func() error {
				if s := b.cleaner.Stats(); s.Reset < 4 || s.Draining > 0 {
					return fmt.Errorf("%d connections were reset, want 4 at least; %d endpoints are draining", s.Reset, s.Draining)
				}
				return nil
			})
			for i, c := range clients {
				if i%2 == 0 {
					if err := c.Echo("are you there?"); netlab.RefusalOf(err) != netlab.Reset {
						t.Errorf("client %s: %v, want a reset", c.Local, err)
					}
				} else if err := hears(ends[i]); !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("endpoint of %s: %v, want a reset", c.Local, err)
				}
			}
		})
	}
}
