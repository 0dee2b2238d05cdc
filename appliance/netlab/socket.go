package netlab

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of the receive buffer in bytes: some 10,000 small packets.
const receiveBuffer = 16 << 20

// socket is a connected (or connecting) non-blocking socket of a Host.
type socket struct {
	*os.File
	local netip.AddrPort
}

// connect makes a socket on the Host's thread and starts to connect it. It does not
// wait for the connection.
func (h *Host) connect(kind, protocol int, to netip.AddrPort, o options) (*socket, error) {
	s := &socket{}
	err := h.Do(func() error {
		fd, err := unix.Socket(domainOf(to.Addr()), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		if s.local, err = prepare(fd, kind, to, o); err != nil {
			_ = unix.Close(fd)
			return err
		}
		s.File = os.NewFile(uintptr(fd), fmt.Sprintf("%s to %s", h.Name, to))
		return nil
	})
	return s, err
}

func prepare(fd, kind int, to netip.AddrPort, o options) (local netip.AddrPort, err error) {
	level, recverr, freebind := unix.SOL_IP, unix.IP_RECVERR, unix.IP_FREEBIND
	if to.Addr().Is6() {
		level, recverr, freebind = unix.SOL_IPV6, unix.IPV6_RECVERR, unix.IPV6_FREEBIND
	}
	if kind != unix.SOCK_STREAM {
		// Every ICMP error ends the wait, not only "port unreachable".
		if err := unix.SetsockoptInt(fd, level, recverr, 1); err != nil {
			return local, os.NewSyscallError("setsockopt RECVERR", err)
		}
	}
	if o.from.IsValid() || o.port != 0 {
		if err := bind(fd, kind, level, freebind, to, o); err != nil {
			return local, err
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		return local, os.NewSyscallError("connect", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return local, os.NewSyscallError("getsockname", err)
	}
	return netip.AddrPortFrom(sockaddrIP(sa), sockaddrPort(sa)), nil
}

func bind(fd, kind, level, freebind int, to netip.AddrPort, o options) error {
	from := o.from
	if !from.IsValid() {
		from = netip.IPv4Unspecified()
		if to.Addr().Is6() {
			from = netip.IPv6Unspecified()
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt REUSEADDR", err)
	}
	if err := unix.SetsockoptInt(fd, level, freebind, 1); err != nil {
		return os.NewSyscallError("setsockopt FREEBIND", err)
	}
	if o.port == 0 && kind != unix.SOCK_RAW {
		// The port is chosen by connect, for this destination: many more are free.
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return os.NewSyscallError("setsockopt BIND_ADDRESS_NO_PORT", err)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, o.port))))
}

// established waits until a TCP socket is connected, or is not going to be.
func (s *socket) established(deadline time.Time) error {
	if err := s.SetWriteDeadline(deadline); err != nil {
		return err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			result = err
		case errno != 0:
			result = unix.Errno(errno)
		default:
			_, err = unix.Getpeername(int(fd))
			return err == nil // ENOTCONN: not yet
		}
		return true
	})
	if err != nil {
		return err
	}
	return result
}

// resetOnClose makes Close send a reset, so that the same addresses and ports can be
// connected again at once.
func (s *socket) resetOnClose() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		result = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	if err != nil {
		return err
	}
	return result
}

func domainOf(addr netip.Addr) int {
	if addr.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
}

func sockaddrIP(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr)
	}
	return netip.Addr{}
}

func sockaddrPort(sa unix.Sockaddr) uint16 {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port)
	case *unix.SockaddrInet6:
		return uint16(sa.Port)
	}
	return 0
}
