package relay

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
)

// maxDatagram exceeds the length of any UDP datagram in bytes, which is a 16-bit number.
const maxDatagram = 1 << 16

// datagrams has the buffers that datagrams are received into.
type datagrams struct{ buffers sync.Pool }

// datagram is a buffer for one, and for control messages about it.
type datagram struct {
	data    [maxDatagram]byte
	control [64]byte
}

func newDatagrams() *datagrams {
	return &datagrams{sync.Pool{New: func() any { return new(datagram) }}}
}

// receive waits for one datagram and calls use, which must not retain data; hops is with how many it came, 0 where they are not
// counted. It takes a buffer only when a datagram has arrived: thousands of idle sockets need none.
func (d *datagrams) receive(raw syscall.RawConn, use func(data []byte, from netip.AddrPort, hops int)) error {
	var result error
	err := raw.Read(func(fd uintptr) (done bool) {
		buf := d.buffers.Get().(*datagram)
		defer d.buffers.Put(buf)
		n, control, _, from, err := syscall.Recvmsg(int(fd), buf.data[:], buf.control[:], syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			result = os.NewSyscallError("recvmsg", err)
		default:
			use(buf.data[:n], addrPortOf(from), hopsOfDatagram(buf.control[:control]))
		}
		return true
	})
	if err != nil {
		return err
	}
	return result
}

// send sends a datagram on a connected socket without waiting. It fails with EAGAIN if the
// send buffer is full, so that one slow endpoint does not stop the other clients.
func send(raw syscall.RawConn, data []byte) error {
	var result error
	err := raw.Write(func(fd uintptr) (done bool) {
		_, err := syscall.Write(int(fd), data)
		result = os.NewSyscallError("write", err)
		return true
	})
	if err != nil {
		return err
	}
	return result
}

func addrPortOf(from syscall.Sockaddr) netip.AddrPort {
	switch from := from.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(from.Addr), uint16(from.Port))
	}
	return netip.AddrPort{}
}
