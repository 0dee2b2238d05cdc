package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	proxyproto "github.com/pires/go-proxyproto"
)

// introduce sends an endpoint the header of the PROXY protocol (haproxy.org, proxy-protocol.txt), if the port has
// one: the client, and the address that it connected to. It is the first data on the connection, so it fits into
// the send buffer.
func (t *tcpPort) introduce(endpoint *net.TCPConn, client, asked netip.AddrPort) error {
	t.mu.Lock()
	version := t.port.Connect.ProxyProtocol
	t.mu.Unlock()
	if version == 0 {
		return nil
	}
	header, err := headerOf(version, client, asked)
	if err != nil {
		return err
	}
	_, err = endpoint.Write(header)
	return err
}

// headerOf is a header of a version, 1 or 2.
func headerOf(version int, from, to netip.AddrPort) ([]byte, error) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	header, err := proxyproto.HeaderProxyFromAddrs(byte(version), net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)).Format()
	if err != nil {
		return nil, fmt.Errorf("header from %s to %s: %w", from, to, err)
	}
	return header, nil
}

// maxHeader bounds a header, in bytes: one of version 2 with what balancers add to it (TLVs).
const maxHeader = 4096

// The first bytes of a header.
var (
	signature1 = []byte("PROXY ")
	signature2 = []byte("\r\n\r\n\x00\r\nQUIT\n")
)

var (
	errNoHeader   = errors.New("it does not begin with a header of the PROXY protocol")
	errLongHeader = errors.New("its header of the PROXY protocol is too long")
)

// clientOf returns the address of a client and its destination: those of the PROXY header, if the peer is a balancer
// that sends one, and otherwise those of the kernel. A header is read as a whole or not at all, and what follows
// is left, so that it can be read again after ctx is done.
func (t *tcpPort) clientOf(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) (from, to netip.AddrPort, err error) {
	from = client.RemoteAddr().(*net.TCPAddr).AddrPort()
	from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
	t.mu.Lock()
	balancers := t.port.ProxyFrom
	t.mu.Unlock()
	if !slices.ContainsFunc(balancers, func(p netip.Prefix) bool { return p.Contains(from.Addr()) }) {
		return from, asked, nil
	}
	if err := client.SetReadDeadline(time.Now().Add(t.shared.limits.header)); err != nil {
		return from, asked, err
	}
	stop := context.AfterFunc(ctx, func() { interrupt(client) })
	defer stop()
	raw, err := client.SyscallConn()
	if err != nil {
		return from, asked, err
	}
	header, err := takeHeader(raw, &t.shared.pump.buffers)
	if err != nil {
		return from, asked, err
	}
	source, destination, err := readHeader(header)
	if err != nil {
		return from, asked, err
	}
	if source.IsValid() { // else a connection of the balancer itself, as a health check
		from, asked = source, destination
	}
	return from, asked, client.SetReadDeadline(time.Time{})
}

// takeHeader waits for a header and takes it from a connection, with nothing of what follows. buffers are those of a
// pump.
func takeHeader(raw syscall.RawConn, buffers *sync.Pool) (header []byte, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) (done bool) {
		buf := buffers.Get().(*[chunk]byte)
		defer buffers.Put(buf)
		b := buf[:maxHeader]
		n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return false
		case err != nil || n == 0:
			failed = errors.Join(err, errNoHeader)
			return true
		}
		size, err := headerSize(b[:n])
		switch {
		case err != nil:
			failed = err
		case size == 0 || size > n:
			return false // more is to come
		default:
			header = bytes.Clone(b[:size])
			if n, failed = unix.Read(int(fd), b[:size]); failed == nil && n < size {
				failed = errNoHeader
			}
		}
		return true
	})
	return header, errors.Join(err, failed)
}

// headerSize returns the size of the header that b begins with, which may be more than has arrived; 0: it
// is not known yet.
func headerSize(b []byte) (int, error) {
	begins := func(signature []byte) bool {
		n := min(len(b), len(signature))
		return bytes.Equal(b[:n], signature[:n])
	}
	switch {
	case begins(signature2):
		if len(b) < 16 {
			return 0, nil
		}
		size := 16 + int(b[14])<<8 + int(b[15])
		if size > maxHeader {
			return 0, errLongHeader
		}
		return size, nil
	case begins(signature1):
		const longest = 107 // with its end
		if i := bytes.Index(b[:min(len(b), longest)], []byte("\r\n")); i >= 0 {
			return i + 2, nil
		}
		if len(b) >= longest {
			return 0, errLongHeader
		}
		return 0, nil
	}
	return 0, errNoHeader
}

// readHeader returns the addresses of a header; zero AddrPorts when it has none of a client (LOCAL, UNKNOWN, or no
// addresses of TCP).
func readHeader(b []byte) (from, to netip.AddrPort, err error) {
	header, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return from, to, fmt.Errorf("header of the PROXY protocol: %w", err)
	}
	source, destination, is := header.TCPAddrs()
	if header.Command.IsLocal() || !is {
		return from, to, nil
	}
	from, to = source.AddrPort(), destination.AddrPort()
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if from.Addr().Is4() != to.Addr().Is4() {
		return netip.AddrPort{}, netip.AddrPort{}, fmt.Errorf("header of the PROXY protocol: %s and %s are of two families", from, to)
	}
	return from, to, nil
}
