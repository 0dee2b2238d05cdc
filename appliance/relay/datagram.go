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

func newDatagrams() *datagrams {
	return &datagrams{sync.Pool{New: func() any { return new([maxDatagram]byte) }}}
}

// receive waits for one datagram and calls use, which must not retain data. It takes a
// buffer only when a datagram has arrived: thousands of idle sockets need none.
func (d *datagrams) receive(raw syscall.RawConn, use func(data []byte, from netip.AddrPort)) error {
	var result error
	err := raw.Read(func(fd uintptr) (done bool) {
		buf := d.buffers.Get().(*[maxDatagram]byte)
		defer d.buffers.Put(buf)
		n, from, err := syscall.Recvfrom(int(fd), buf[:], syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			result = os.NewSyscallError("recvfrom", err)
		default:
			use(buf[:n], addrPortOf(from))
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
