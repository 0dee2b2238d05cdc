package bfd

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The ports of control packets (RFC 5881, RFC 5883).
const (
	SingleHopPort = 3784
	MultiHopPort  = 4784
)

var ports = [2]uint16{SingleHopPort, MultiHopPort}

const (
	maxTTL = 255
	// networkControl is the class that routing protocols are sent with (CS6, RFC 4594).
	networkControl = 0xc0
	// Source ports are to be of this range (RFC 5881, section 4).
	firstSource, lastSource = 49152, 65535
)

// Hub shares the sockets of several sessions: one on each port of each local address. All
// methods may be called concurrently.
type Hub struct {
	log *slog.Logger

	mu        sync.Mutex
	sessions  map[uint32]*Session // by our discriminator
	listeners map[netip.Addr]*listener
}

// NewHub returns a Hub without sockets. log may be nil.
func NewHub(log *slog.Logger) *Hub {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Hub{log: log, sessions: map[uint32]*Session{}, listeners: map[netip.Addr]*listener{}}
}

// listener receives the packets to one local address, on both ports.
type listener struct {
	hub   *Hub
	local netip.Addr
	users int
	conns [2]*net.UDPConn
	raws  [2]syscall.RawConn

	mu  sync.Mutex // held while packets are read and delivered
	buf [64]byte   // more than a packet has
	oob [128]byte
}

// open returns the listener of a local address, which close releases.
func (h *Hub) open(local netip.Addr) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.listeners[local]; l != nil {
		l.users++
		return l, nil
	}
	l := &listener{hub: h, local: local, users: 1}
	for i, port := range ports {
		conn, err := listen(netip.AddrPortFrom(local, port))
		if err == nil {
			l.conns[i] = conn
			l.raws[i], err = conn.SyscallConn()
		}
		if err != nil {
			l.shut()
			return nil, err
		}
	}
	for i, port := range ports {
		go func() {
			_ = l.raws[i].Read(func(fd uintptr) bool { // it ends with the socket
				l.drain(int(fd), port)
				return false
			})
		}()
	}
	h.listeners[local] = l
	return l, nil
}

// close does not hold h.mu while it closes the sockets: that waits for their readers, which wait for h.mu to find the
// session of a packet. A session that opens the address meanwhile finds the ports in use, and tries again.
func (h *Hub) close(l *listener) {
	h.mu.Lock()
	l.users--
	last := l.users == 0
	if last {
		delete(h.listeners, l.local)
	}
	h.mu.Unlock()
	if last {
		l.shut()
	}
}

func (l *listener) shut() {
	for _, c := range l.conns {
		if c != nil {
			_ = c.Close() // nothing is written to it
		}
	}
}

// listen opens a socket that receives the TTL of packets.
func listen(at netip.AddrPort) (*net.UDPConn, error) {
	return packetConn(at, func(fd int) error {
		if at.Addr().Is4() {
			return os.NewSyscallError("setsockopt IP_RECVTTL", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
		}
		return os.NewSyscallError("setsockopt IPV6_RECVHOPLIMIT", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	})
}

// sender opens a socket that sends with a TTL of 255, from a port that the RFC allows.
func sender(local netip.Addr) (*net.UDPConn, error) {
	const tries = 20
	for try := 1; ; try++ {
		conn, err := packetConn(netip.AddrPortFrom(local, uint16(firstSource+rand.IntN(lastSource-firstSource+1))), func(fd int) error {
			level, ttl, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
			if local.Is6() {
				level, ttl, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
			}
			return errors.Join(
				os.NewSyscallError("setsockopt TTL", unix.SetsockoptInt(fd, level, ttl, maxTTL)),
				os.NewSyscallError("setsockopt traffic class", unix.SetsockoptInt(fd, level, class, networkControl)))
		})
		if err == nil || try == tries || !errors.Is(err, syscall.EADDRINUSE) {
			return conn, err
		}
	}
}

func packetConn(at netip.AddrPort, prepare func(fd int) error) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = prepare(int(fd)) }); e != nil {
			return e
		}
		return err
	}}
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	conn, err := config.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// drain delivers the packets that have arrived.
func (l *listener) drain(fd int, port uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		n, oobn, _, from, err := unix.Recvmsg(fd, l.buf[:], l.oob[:], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // EAGAIN: all was read
		}
		l.hub.deliver(l.local, port, sourceOf(from, l.local.Zone()), ttlOf(l.oob[:oobn]), l.buf[:n])
	}
}

func sourceOf(from unix.Sockaddr, zone string) netip.Addr {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr)
	case *unix.SockaddrInet6:
		addr := netip.AddrFrom16(from.Addr)
		if addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(zone)
		}
		return addr
	}
	return netip.Addr{}
}

// ttlOf finds the TTL or hop limit in the control messages; -1 if it is not there.
func ttlOf(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		is := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if is && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

// deliver passes a packet to its session. A packet without one is dropped.
func (h *Hub) deliver(local netip.Addr, port uint16, from netip.Addr, ttl int, b []byte) {
	p, err := ParsePacket(b)
	s := h.find(local, from, p.Yours)
	if s == nil {
		return
	}
	if err == nil && ttl < s.minTTL(port) {
		err = fmt.Errorf("it came with TTL %d to port %d, and at least %d is wanted", ttl, port, s.minTTL(port))
	}
	if err != nil {
		s.dropped(err)
		return
	}
	s.receive(p, port, time.Now())
}

// find returns the session of a packet: by its discriminator, or by addresses if it has none. The
// neighbor must be the sender either way; nil: no session.
func (h *Hub) find(local, from netip.Addr, yours uint32) *Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[yours]; s != nil && s.config.Peer == from && s.config.Local == local {
		return s
	}
	for _, s := range h.sessions {
		if s.config.Peer == from && s.config.Local == local {
			return s
		}
	}
	return nil
}
