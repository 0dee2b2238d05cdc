package relay

import (
	"net/netip"
	"os"
	"syscall"
)

// maxDatagram is more than any UDP datagram holds, in bytes: its length is 16 bits.
const maxDatagram = 1 << 16

// receive waits for one datagram and hands it to use, which must not keep it. A buffer
// is taken only once there is one: thousands of idle sockets need none.
func (r *Relay) receive(raw syscall.RawConn, use func(data []byte, from netip.AddrPort)) error {
	var result error
	err := raw.Read(func(fd uintptr) (done bool) {
		buf := r.buffers.Get().(*[maxDatagram]byte)
		defer r.buffers.Put(buf)
		n, from, err := syscall.Recvfrom(int(fd), buf[:], 0)
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			result = os.NewSyscallError("recvfrom", err)
		default:
			use(buf[:n], addrPort(from))
		}
		return true
	})
	if err != nil {
		return err
	}
	return result
}

// send sends a datagram on a connected socket or fails with EAGAIN: a client whose
// endpoint cannot take more must not stop the others.
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

func addrPort(from syscall.Sockaddr) netip.AddrPort {
	switch from := from.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(from.Addr), uint16(from.Port))
	}
	return netip.AddrPort{}
}
