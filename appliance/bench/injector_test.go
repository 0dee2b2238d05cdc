package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// The interfaces of a measured router: what comes from clients is written into the one,
// and leaves by the other, where it is dropped.
const (
	clientSide = "in0" // 100.64.0.0/10
	serverSide = "out0"
)

// port is a TUN interface. A packet that is written to it is received by the kernel, and
// goes all its way, in the thread that writes: so the thread's CPU time is the packet's.
type port struct{ fd int }

// openPort makes a TUN interface on a host, or with unix.IFF_TAP one of Ethernet.
func openPort(b *testing.B, h *netlab.Host, name, prefix string, kind uint16) port {
	b.Helper()
	var p port
	err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun (CONFIG_TUN): %w", err)
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(kind | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("make interface %s: %w", name, err)
		}
		p.fd = fd
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Close(p.fd) })
	h.SetUp(name)
	h.AddAddr(name, prefix)
	// What is sent is not read by anybody. With a queue of one packet the rest is dropped,
	// and counted, at once.
	err = h.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetTxQLen(link, 1)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// router is a host that forwards between the two sides.
type router struct {
	*netlab.Host
	in, out port
}

func newRouter(b *testing.B, lab *netlab.Lab, name string) *router {
	b.Helper()
	h := lab.Router(name)
	return &router{h, openPort(b, h, clientSide, "100.64.0.1/10", unix.IFF_TUN), openPort(b, h, serverSide, "10.128.0.1/9", unix.IFF_TUN)}
}

// flow is one packet's addresses.
type flow struct{ from, to netip.AddrPort }

// packet is an empty UDP datagram of a flow, without a checksum of its own.
func (f flow) packet() []byte {
	const headers, payload = 28, 18
	p := make([]byte, headers+payload)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], f.from.Addr().AsSlice())
	copy(p[16:], f.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[20:], f.from.Port())
	binary.BigEndian.PutUint16(p[22:], f.to.Port())
	binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	return p
}

// inject writes packets and gives the CPU time of the thread for each.
func (r *router) inject(b *testing.B, p port, packets [][]byte) time.Duration {
	b.Helper()
	var took time.Duration
	err := r.Do(func() error {
		before, err := threadTime()
		if err != nil {
			return err
		}
		for _, packet := range packets {
			// Not unix.Write, which tells Go's scheduler about each.
			if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.fd), uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet))); errno != 0 {
				return fmt.Errorf("inject a packet: %w", errno)
			}
		}
		after, err := threadTime()
		took = (after - before) / time.Duration(len(packets))
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return took
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// forgetFlows empties the connection tracking of the router.
func (r *router) forgetFlows(b *testing.B) {
	b.Helper()
	if err := r.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		b.Fatal(err)
	}
}

// sent reads how many packets an interface has sent.
func (r *router) sent(b *testing.B) (packets uint64) {
	b.Helper()
	err := r.Do(func() error {
		link, err := netlink.LinkByName(serverSide)
		if err == nil {
			s := link.Attrs().Statistics
			packets = s.TxPackets + s.TxDropped
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return packets
}
