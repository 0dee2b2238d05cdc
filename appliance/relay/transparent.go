package relay

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// asOthers lets a socket have an address that this host does not have (ip(7), IP_TRANSPARENT), and a port
// that the kernel finds while it connects (IP_BIND_ADDRESS_NO_PORT).
func asOthers(network, _ string, c syscall.RawConn) (err error) {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	failed := c.Control(func(fd uintptr) {
		if err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, option, 1)); err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
		}
	})
	if err == nil {
		err = failed
	}
	return err
}
