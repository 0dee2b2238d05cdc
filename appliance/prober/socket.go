package prober

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/health"
)

// conn is a connected socket. It is closed with a reset.
type conn struct {
	*os.File
	remote netip.AddrPort
}

func (c *conn) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// adopt makes a connected socket one that a goroutine can wait for.
func (n *network) adopt(p probe, fd int, deadline time.Time) *conn {
	c := &conn{File: os.NewFile(uintptr(fd), "probe"), remote: p.target.addr}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		deadline = time.Unix(1, 0)
	}
	_ = c.SetDeadline(deadline)
	n.talking[p.serial] = c
	return c
}

func (n *network) release(serial uint64, c *conn) {
	n.mu.Lock()
	delete(n.talking, serial)
	n.mu.Unlock()
	_ = c.Close()
}

// socket makes a socket for a probe, and connects it: with EINPROGRESS it is on the way. It leaves
// from the fixed port of the target, or from another if that is taken.
func (n *network) socket(p probe, kind int) (int, error) {
	if n.ports.First > 0 && !p.ephemeral {
		if fd, err := connect(p.target, kind, n.ports.of(p.target.hash)); !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EADDRINUSE) {
			return fd, err
		}
	}
	return connect(p.target, kind, 0)
}

// of is the fixed port of a target.
func (p Ports) of(hash uint32) uint16 {
	return p.First + uint16(mix(hash)%(uint32(p.Last)-uint32(p.First)+1))
}

func connect(t *target, kind int, port uint16) (fd int, err error) {
	to, family := sockaddr(t.addr)
	fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	if kind == unix.SOCK_STREAM {
		if err := halfOpen(fd); err != nil {
			return fd, err
		}
	}
	if port > 0 {
		// Many sockets have the same port, and each another server.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fd, err
		}
		var from unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
		if family == unix.AF_INET6 {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
				return fd, err
			}
			from = &unix.SockaddrInet6{Port: int(port)}
		}
		if err := unix.Bind(fd, from); err != nil {
			return fd, err
		}
	}
	return fd, unix.Connect(fd, to)
}

// halfOpen makes a socket end its handshake with a reset if it is closed as soon as the server's
// part has come: the acknowledgment waits for data, at most 200 ms, and closing discards both.
func halfOpen(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
}

func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	if addr := a.Addr().Unmap(); addr.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, unix.AF_INET6
}

// own has the errors of this host, which are no failures of the server.
var own = []error{
	unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EPERM, unix.EACCES,
	unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EAFNOSUPPORT, unix.ENOSPC, unix.EINVAL,
}

// refusal is the Result of an error of the kernel before the server has said anything.
func refusal(err error) health.Result {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return failed(health.Void, "not asked: this host had no time for it before the timeout")
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return failed(health.Refused, "no connection")
	}
	for _, of := range own {
		if errors.Is(errno, of) {
			return failed(health.Void, "not asked: "+errno.Error())
		}
	}
	if errno == unix.ETIMEDOUT {
		return failed(health.Silent, "no answer")
	}
	return failed(health.Refused, errno.Error())
}

// broken is the Result of an error in a conversation. what the server has not sent is missing.
// Only the kind of the error is reported: its text may have bytes of the server.
func broken(err error, c *check, missing string) health.Result {
	var errno unix.Errno
	var alert *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return silence(c, "connected, ")
	case errors.As(err, &alert) && alert.Op == "remote error": // with TLS 1.3 also after the handshake; in words of crypto/tls
		return failed(health.Refused, "TLS alert of the server: "+strings.TrimPrefix(alert.Err.Error(), "tls: "))
	case errors.As(err, &errno):
		return refusal(errno)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failed(health.Refused, "connection closed before "+missing)
	}
	return failed(health.Refused, "the answer is not "+missing)
}

func silence(c *check, before string) health.Result {
	return failed(health.Silent, fmt.Sprintf("%sno answer in %s", before, c.Timeout))
}

func failed(o health.Outcome, why string) health.Result { return health.Result{Outcome: o, Why: why} }
