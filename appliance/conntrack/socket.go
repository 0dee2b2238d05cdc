package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// Sizes of socket buffers, in bytes.
const (
	receiveBuffer  = 4 << 20 // errors about a whole datagram of deletions
	sendBuffer     = 1 << 20
	datagramBuffer = 1 << 16 // a dump comes in datagrams of up to 32 KiB
)

// errQuiet means that the kernel has nothing (more) to say.
var errQuiet = errors.New("no answer")

// socket is one netlink socket to ctnetlink. Everything on it is synchronous: when
// sendmsg returns, the kernel has done the work and queued its answers, and a dump is
// continued by reading. So reading never waits, and the runtime need not poll the socket:
// each answer would wake a thread that has nothing to do.
type socket struct {
	fd       int
	sequence uint32
	datagram []byte
}

// dial opens a socket in the network namespace of the file descriptor (0: the current
// one).
func dial(netns int) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	s := &socket{datagram: make([]byte, datagramBuffer)}
	_ = conn.SetOption(netlink.CapAcknowledge, true) // errors without the message they are about, kernel 4.2
	err = errors.Join(conn.SetReadBuffer(receiveBuffer), conn.SetWriteBuffer(sendBuffer))
	if err == nil {
		s.fd, err = unpolled(conn)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	return s, nil
}

// unpolled is the socket of a connection under a descriptor that the runtime does not know.
func unpolled(conn *netlink.Conn) (fd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	rawErr := raw.Control(func(polled uintptr) {
		fd, err = unix.FcntlInt(polled, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(rawErr, err)
}

func (s *socket) close() error { return unix.Close(s.fd) }

// take reserves sequence numbers and gives the first of them.
func (s *socket) take(n int) uint32 {
	first := s.sequence + 1
	s.sequence += uint32(n)
	return first
}

// send hands whole messages to the kernel.
func (s *socket) send(b []byte) error {
	return unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive gives the next datagram, errQuiet when there is none. It is valid until the
// next call.
func (s *socket) receive() ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.datagram, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil, errQuiet
		case err != nil:
			return nil, err
		case n > len(s.datagram):
			return nil, fmt.Errorf("a netlink datagram of %d bytes does not fit", n)
		}
		return s.datagram[:n], nil
	}
}

// count asks for the number of entries in this network namespace, those included that are
// not complete yet. Walking an empty table takes the kernel milliseconds, this does not.
func (s *socket) count() (entries uint32, err error) {
	var w writer
	sequence := s.take(1)
	w.begin(messageStats, 0, sequence, unix.AF_UNSPEC)
	w.end()
	if err := s.send(w.buf); err != nil {
		return 0, err
	}
	datagram, err := s.receive()
	if err != nil {
		return 0, err
	}
	for m := range messages(datagram) {
		switch {
		case m.sequence != sequence:
		case m.kind == unix.NLMSG_ERROR && m.errno() != 0:
			return 0, m.errno()
		case m.kind == messageStats && len(m.body) >= genHeaderLen:
			for kind, value := range attributes(m.body[genHeaderLen:]) {
				if kind == ctaStatsEntries && len(value) == 4 {
					return binary.BigEndian.Uint32(value), nil
				}
			}
		}
	}
	return 0, errors.New("the kernel does not tell how many entries there are")
}

// dump asks for the entries that match the query and hands each datagram of the answer
// to take.
func (s *socket) dump(q query, take func(datagram []byte, sequence uint32) error) error {
	var w writer
	sequence := s.take(1)
	w.begin(messageGet, unix.NLM_F_DUMP, sequence, familyNumber(q.family))
	w.filter(q)
	w.end()
	if err := s.send(w.buf); err != nil {
		return err
	}
	for {
		datagram, err := s.receive()
		if err != nil {
			return err // also when it is quiet: a dump has an end mark
		}
		for m := range messages(datagram) {
			if m.sequence == sequence && (m.kind == unix.NLMSG_DONE || m.kind == unix.NLMSG_ERROR) {
				if errno := m.errno(); errno != 0 {
					return errno
				}
				return take(datagram, sequence)
			}
		}
		if err := take(datagram, sequence); err != nil {
			return err
		}
	}
}

// filter has the kernel leave out what cannot match (since 5.8). It compares the ports
// of TCP and UDP alone, and asked for an address of IPv6 it gives the entries that have
// another one: so of IPv6 no address is asked for.
func (w *writer) filter(q query) {
	flags := uint32(filterProto)
	nobody := netip.IPv4Unspecified()
	if q.family == nft.IPv6 {
		nobody = netip.IPv6Unspecified()
	}
	to := nobody
	if q.addr.Is4() {
		flags, to = flags|filterIPDst, q.addr
	}
	if q.port != 0 {
		flags |= filterDstPort
	}
	if q.unanswered {
		w.uint32(ctaStatus, 0)
		w.uint32(ctaStatusMask, statusSeenReply)
	}
	w.tuple(ctaTupleOrig, q.protocol, netip.AddrPortFrom(nobody, 0), netip.AddrPortFrom(to, q.port))
	w.nest(ctaFilter, func() {
		w.attribute(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)...)
	})
}

func familyNumber(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
