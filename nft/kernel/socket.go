package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Sizes of socket buffers. The kernel answers a batch before sendmsg returns, so the
// receive buffer must hold every answer at once: one acknowledgement, or an error for
// each refused message (about 1 KiB of accounted memory each).
const (
	receiveBuffer  = 4 << 20
	datagramBuffer = 1 << 17 // a dump comes in datagrams of up to 32 KiB
)

// errQuiet means that the kernel has nothing (more) to say.
var errQuiet = errors.New("no answer")

// socket is one netlink socket to nfnetlink. Everything on it is synchronous: when
// sendmsg returns, the kernel has done the work and queued its answers, and a dump is
// continued by reading. So reading never waits, and the runtime need not poll the socket:
// each answer would wake a thread that has nothing to do.
type socket struct {
	fd       int
	port     uint32 // which notifications of our own changes carry
	sequence uint32
	sendRoom int
	datagram []byte
	spare    []byte // the buffer of the last transaction
}

// mostSpare is the size of the largest buffer that is kept for the next transaction.
const mostSpare = 1 << 20

// dial opens a socket in the network namespace of the file descriptor (0: the current
// one). port is the netlink port to bind, 0 for any.
func dial(netns int, port uint32) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns, PID: port})
	if err != nil {
		return nil, err
	}
	s := &socket{port: conn.PID(), datagram: make([]byte, datagramBuffer)}
	// Without these an error would carry the whole message back, and not say
	// which attribute of it is wrong. Kernels before 4.12 lack the latter.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	if err = conn.SetReadBuffer(receiveBuffer); err == nil {
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

func (s *socket) nextSequence() uint32 {
	s.sequence++
	return s.sequence
}

// send hands whole messages to the kernel. When it fails the kernel has not seen them.
func (s *socket) send(b []byte) error {
	if len(b) > s.sendRoom {
		const overhead = 1 << 12 // what netlink_sendmsg keeps back, generously
		if err := s.setSendBuffer(len(b) + overhead); err != nil {
			return err
		}
		s.sendRoom = len(b)
	}
	err := unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%w (%d bytes)", ErrTooBig, len(b))
	}
	return err
}

// setSendBuffer sets the size of the send buffer: beyond the limit of the host
// (net.core.wmem_max), which takes CAP_NET_ADMIN in the first user namespace, else within it.
func (s *socket) setSendBuffer(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
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
			return nil, fmt.Errorf("netlink: a datagram of %d bytes does not fit", n)
		}
		return s.datagram[:n], nil
	}
}

// failure is the content of an NLMSG_ERROR message.
type failure struct {
	errno  syscall.Errno // 0: an acknowledgement
	offset int           // of the attribute that is wrong, in the message; 0: not told
	hint   string        // the kernel's own words
}

func (m *message) failure() failure {
	if len(m.body) < unix.SizeofNlMsgerr {
		return failure{errno: unix.EBADMSG}
	}
	f := failure{errno: syscall.Errno(-int32(binary.NativeEndian.Uint32(m.body)))}
	details := unix.SizeofNlMsgerr
	if m.flags&unix.NLM_F_CAPPED == 0 && f.errno != 0 { // the whole message is in between
		original := int(binary.NativeEndian.Uint32(m.body[4:]))
		details += max(0, align(original)-headerLen)
	}
	if m.flags&unix.NLM_F_ACK_TLVS == 0 || details > len(m.body) {
		return f
	}
	for kind, value := range attributes(m.body[details:]) {
		switch kind {
		case unix.NLMSGERR_ATTR_MSG:
			f.hint = text(value)
		case unix.NLMSGERR_ATTR_OFFS:
			if len(value) == 4 {
				f.offset = int(binary.NativeEndian.Uint32(value))
			}
		}
	}
	return f
}

// request sends one message that asks for something and hands every message of the
// answer to each. A refusal is returned as a syscall.Errno.
func (s *socket) request(kind, flags uint16, family uint8, attributes func(*writer), each func(message)) error {
	var w writer
	sequence := s.nextSequence()
	w.begin(nftMessage(kind), flags, sequence, family, 0)
	if attributes != nil {
		attributes(&w)
	}
	w.end()
	if err := s.send(w.buf); err != nil {
		return err
	}
	interrupted, result := false, errQuiet
	if flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		result = nil // a single answer has no end mark
	}
	for {
		datagram, err := s.receive()
		if errors.Is(err, errQuiet) {
			return result
		}
		if err != nil {
			return err
		}
		for m := range messages(datagram) {
			if m.sequence != sequence {
				continue // the end of an answer that was given up
			}
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			switch m.kind {
			case unix.NLMSG_DONE:
				result = m.end(interrupted)
			case unix.NLMSG_ERROR:
				if f := m.failure(); f.errno != 0 {
					result = f.errno
				}
			default:
				each(m)
			}
		}
	}
}

// end is how a dump ended, from its NLMSG_DONE message.
func (m *message) end(interrupted bool) error {
	if len(m.body) >= 4 {
		if errno := -int32(binary.NativeEndian.Uint32(m.body)); errno != 0 {
			return syscall.Errno(errno)
		}
	}
	if interrupted {
		return ErrChanging
	}
	return nil
}

// dump is request for a list. ErrChanging means that it may be incomplete.
func (s *socket) dump(kind uint16, family uint8, attributes func(*writer), each func(message)) error {
	return s.request(kind, unix.NLM_F_DUMP, family, attributes, each)
}
