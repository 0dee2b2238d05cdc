package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// attrTypeMask masks the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER out of an attribute type.
const attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// A Message is a netlink message that was received.
type Message struct {
	Kind, Flags    uint16
	Sequence, Port uint32
	Body           []byte // payload after the netlink header
}

// Messages walks the messages of a datagram.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= HeaderLen {
			n := int(binary.NativeEndian.Uint32(b))
			if n < HeaderLen || n > len(b) {
				return
			}
			m := Message{
				Kind:     binary.NativeEndian.Uint16(b[4:]),
				Flags:    binary.NativeEndian.Uint16(b[6:]),
				Sequence: binary.NativeEndian.Uint32(b[8:]),
				Port:     binary.NativeEndian.Uint32(b[12:]),
				Body:     b[HeaderLen:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(Align(n), len(b)):]
		}
	}
}

// Attributes walks the attributes in b and stops at the first one that is cut off.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrLen {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrLen || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[attrLen:n]) {
				return
			}
			b = b[min(Align(n), len(b)):]
		}
	}
}

// Align rounds a length up to a multiple of 4, the alignment of attributes and messages.
func Align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// Attributes walks the attributes of a message, which follow its nfgenmsg.
func (m *Message) Attributes() iter.Seq2[uint16, []byte] {
	return Attributes(m.Body[min(GenHeaderLen, len(m.Body)):])
}

// Attribute returns the first attribute of a kind in b, nil if there is none.
func Attribute(b []byte, kind uint16) []byte {
	for k, value := range Attributes(b) {
		if k == kind {
			return value
		}
	}
	return nil
}

// Attribute returns the first attribute of a kind in a message, nil if there is none.
func (m *Message) Attribute(kind uint16) []byte {
	return Attribute(m.Body[min(GenHeaderLen, len(m.Body)):], kind)
}

// Family returns the family in the nfgenmsg header (NFPROTO_*).
func (m *Message) Family() uint8 {
	if len(m.Body) == 0 {
		return unix.NFPROTO_UNSPEC
	}
	return m.Body[0]
}

// Errno returns the error that an NLMSG_ERROR or NLMSG_DONE message carries, 0 for none.
func (m *Message) Errno() syscall.Errno {
	if len(m.Body) < 4 {
		return 0
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Body)))
}

// A Failure is the content of an NLMSG_ERROR message.
type Failure struct {
	Errno  syscall.Errno // 0 for an acknowledgement
	Offset int           // offset of the invalid attribute in the message; 0 if the kernel did not report it
	Hint   string        // the kernel's error message
}

// Failure reads an NLMSG_ERROR message.
func (m *Message) Failure() Failure {
	if len(m.Body) < unix.SizeofNlMsgerr {
		return Failure{Errno: unix.EBADMSG}
	}
	f := Failure{Errno: m.Errno()}
	details := unix.SizeofNlMsgerr
	if m.Flags&unix.NLM_F_CAPPED == 0 && f.Errno != 0 { // the whole message is in between
		details += max(0, Align(int(binary.NativeEndian.Uint32(m.Body[4:])))-HeaderLen)
	}
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 || details > len(m.Body) {
		return f
	}
	for kind, value := range Attributes(m.Body[details:]) {
		switch kind {
		case unix.NLMSGERR_ATTR_MSG:
			f.Hint = Text(value)
		case unix.NLMSGERR_ATTR_OFFS:
			if len(value) == 4 {
				f.Offset = int(binary.NativeEndian.Uint32(value))
			}
		}
	}
	return f
}

// Number reads an attribute of up to 8 bytes in network byte order.
func Number(b []byte) (n uint64) {
	for _, c := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}

// Text reads a string without the NUL that ends it.
func Text(b []byte) string { return unix.ByteSliceToString(b) }

// Lengths of headers in bytes.
const (
	HeaderLen    = unix.SizeofNlMsghdr // struct nlmsghdr
	GenHeaderLen = 4                   // struct nfgenmsg, which follows struct nlmsghdr
	attrLen      = unix.SizeofNlAttr   // struct nlattr
)

// MaxAttr is the longest attribute in bytes, its header included.
const MaxAttr = 1<<16 - 1

// A Writer appends messages and attributes to a buffer. Numbers in attributes are in
// network byte order.
type Writer struct {
	Buf     []byte
	message int // offset in Buf of the message being written
}

// Begin starts a message; End completes it. family and resource are the fields of its nfgenmsg header.
func (w *Writer) Begin(kind, flags uint16, sequence uint32, family uint8, resource uint16) {
	w.message = len(w.Buf)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0)
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, kind)
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, unix.NLM_F_REQUEST|flags)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, sequence)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf, 0) // the kernel fills in our port
	w.Buf = append(w.Buf, family, unix.NFNETLINK_V0)
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, resource)
}

// End completes the message that was begun last.
func (w *Writer) End() {
	binary.NativeEndian.PutUint32(w.Buf[w.message:], uint32(len(w.Buf)-w.message))
}

func (w *Writer) header(kind uint16, n int) {
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, uint16(attrLen+n))
	w.Buf = binary.NativeEndian.AppendUint16(w.Buf, kind)
}

func (w *Writer) pad() {
	for len(w.Buf)%unix.NLA_ALIGNTO != 0 {
		w.Buf = append(w.Buf, 0)
	}
}

// Bytes writes an attribute with the given value.
func (w *Writer) Bytes(kind uint16, b []byte) {
	w.header(kind, len(b))
	w.Buf = append(w.Buf, b...)
	w.pad()
}

// Raw writes an attribute with the bytes of a string.
func (w *Writer) Raw(kind uint16, s string) {
	w.header(kind, len(s))
	w.Buf = append(w.Buf, s...)
	w.pad()
}

// Text writes an attribute with a string and a terminating NUL.
func (w *Writer) Text(kind uint16, s string) {
	w.header(kind, len(s)+1)
	w.Buf = append(append(w.Buf, s...), 0)
	w.pad()
}

// Uint16 writes an attribute with a 2-byte number.
func (w *Writer) Uint16(kind, v uint16) {
	w.header(kind, 2)
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, v)
	w.pad()
}

// Uint32 writes an attribute with a 4-byte number.
func (w *Writer) Uint32(kind uint16, v uint32) {
	w.header(kind, 4)
	w.Buf = binary.BigEndian.AppendUint32(w.Buf, v)
}

// Uint64 writes an attribute with an 8-byte number.
func (w *Writer) Uint64(kind uint16, v uint64) {
	w.header(kind, 8)
	w.Buf = binary.BigEndian.AppendUint64(w.Buf, v)
}

// Nest starts an attribute that holds others; EndNest completes it.
func (w *Writer) Nest(kind uint16) (start int) {
	start = len(w.Buf)
	w.header(unix.NLA_F_NESTED|kind, 0)
	return start
}

// EndNest completes the attribute that Nest started. It reports whether the attribute is short enough for its 16-bit length.
func (w *Writer) EndNest(start int) (fits bool) {
	n := len(w.Buf) - start
	binary.NativeEndian.PutUint16(w.Buf[start:], uint16(n))
	return n <= MaxAttr
}

// streamBuffer is the size of the buffer for one datagram of a multicast group, in bytes. The kernel makes none of more than 8 KiB (NLMSG_GOODSIZE).
const streamBuffer = 1 << 14

// Stream receives messages of multicast groups, a datagram at a time.
type Stream struct {
	file     *os.File
	raw      syscall.RawConn
	datagram []byte
	closed   atomic.Bool
}

// OpenStream opens a Stream of the given groups in the network namespace of o. buffer is the size of the receive buffer in bytes. The kernel leaves
// out the messages that filter drops; a nil filter drops none.
func OpenStream(o Options, filter []bpf.RawInstruction, buffer int, groups ...uint32) (*Stream, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.NetNS})
	if err != nil {
		return nil, err
	}
	if filter != nil {
		err = conn.SetBPF(filter)
	}
	err = errors.Join(err, conn.SetReadBuffer(buffer))
	for _, group := range groups {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	var fd int
	if err == nil {
		fd, err = dupBlocking(conn)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	s := &Stream{file: os.NewFile(uintptr(fd), "netlink"), datagram: make([]byte, streamBuffer)}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// Join adds a multicast group to the Stream.
func (s *Stream) Join(group uint32) error { return s.member(unix.NETLINK_ADD_MEMBERSHIP, group) }

// Leave removes a multicast group from the Stream.
func (s *Stream) Leave(group uint32) error { return s.member(unix.NETLINK_DROP_MEMBERSHIP, group) }

func (s *Stream) member(option int, group uint32) (err error) {
	outer := s.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, int(group))
	})
	return errors.Join(outer, err)
}

// Wait blocks until Receive would return a datagram or an error. It returns os.ErrClosed when the Stream is closed.
func (s *Stream) Wait() error {
	err := s.raw.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return ready > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil && s.closed.Load() {
		return os.ErrClosed // the poller has an error of its own for it
	}
	return err
}

// Next waits for the next datagram and returns it as Receive does. It returns an error when the Stream is closed.
func (s *Stream) Next() (datagram []byte, err error) {
	for {
		if err := s.Wait(); err != nil {
			return nil, err
		}
		if datagram, err = s.Receive(); !errors.Is(err, ErrNoMessage) {
			return datagram, err
		}
	}
}

// Receive returns the next datagram, which is valid until the next call. It returns ErrNoMessage if none is queued, and ENOBUFS once after messages
// were lost.
func (s *Stream) Receive() (datagram []byte, err error) {
	var n int
	if outer := s.raw.Control(func(fd uintptr) {
		for {
			if n, err = unix.Read(int(fd), s.datagram); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}); outer != nil {
		return nil, outer
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, ErrNoMessage
	}
	if err != nil {
		return nil, err
	}
	return s.datagram[:n], nil
}

// meminfoDrops is the index of sk_drops in the array that SO_MEMINFO returns (linux/sock_diag.h SK_MEMINFO_DROPS); meminfoVars is the length of the
// array (SK_MEMINFO_VARS).
const (
	meminfoDrops = 8
	meminfoVars  = 9
)

// Drops returns the number of messages that were lost because the receive buffer was full, since the Stream was opened (SO_MEMINFO, kernel 4.12).
func (s *Stream) Drops() (drops uint32, err error) {
	var info [meminfoVars]uint32
	size := uint32(unsafe.Sizeof(info))
	outer := s.raw.Control(func(fd uintptr) {
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			err = errno
		}
	})
	return info[meminfoDrops], errors.Join(outer, err)
}

// Close closes the Stream. A pending Wait returns os.ErrClosed.
func (s *Stream) Close() error {
	s.closed.Store(true)
	return s.file.Close()
}

// receiveBuffer is the size of the receive buffer in bytes. The kernel answers all messages of a datagram before sendmsg returns, so the buffer
// must hold all answers at once: an error takes about 1 KiB of accounted memory.
const receiveBuffer = 4 << 20

// datagramBuffer holds the longest datagram, in bytes. The kernel sends a dump in datagrams of up to 32 KiB.
const datagramBuffer = 1 << 17

// ErrNoMessage means that no (further) message of the kernel is queued.
var ErrNoMessage = errors.New("no answer")

// Socket is a netlink socket to nfnetlink. All operations are synchronous: when sendmsg returns, the kernel has executed the request and queued its
// answers, and reading continues a dump. So reading never waits, and the runtime does not poll the socket; polling would wake a thread for each
// answer without need.
type Socket struct {
	fd       int
	port     uint32
	sequence uint32
	sendRoom int
	datagram []byte
}

// Options selects the network namespace and the netlink port of a Socket.
type Options struct {
	NetNS int    // file descriptor of the network namespace; 0 means the current one
	Port  uint32 // netlink port to bind; 0 lets the kernel choose one
}

// Dial opens a Socket.
func Dial(o Options) (*Socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.NetNS, PID: o.Port})
	if err != nil {
		return nil, err
	}
	s := &Socket{port: conn.PID(), datagram: make([]byte, datagramBuffer)}
	// Without these an error would carry the whole message back, and not say
	// which attribute of it is wrong. Kernels before 4.12 lack the latter.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	if err = conn.SetReadBuffer(receiveBuffer); err == nil {
		s.fd, err = dupBlocking(conn)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	return s, nil
}

// dupBlocking duplicates the file descriptor of a connection. The runtime does not poll the duplicate.
func dupBlocking(conn *netlink.Conn) (fd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	rawErr := raw.Control(func(polled uintptr) {
		fd, err = unix.FcntlInt(polled, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(rawErr, err)
}

// Close closes the socket. Objects in the kernel that it owns are deleted with it.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// FD returns the file descriptor.
func (s *Socket) FD() int { return s.fd }

// Port returns the netlink port of the socket. Notifications of changes made through the socket contain it.
func (s *Socket) Port() uint32 { return s.port }

// Sequence reserves n sequence numbers and returns the first of them. If n is 0, it returns the next number without reserving it.
func (s *Socket) Sequence(n int) uint32 {
	first := s.sequence + 1
	s.sequence += uint32(n)
	return first
}

// Send sends whole messages to the kernel. If it fails, the kernel has not processed them; EMSGSIZE means that they are too long for one datagram.
func (s *Socket) Send(b []byte) error {
	if len(b) > s.sendRoom {
		const overhead = 1 << 12 // what netlink_sendmsg keeps back, generously
		if err := s.setSendBuffer(len(b) + overhead); err != nil {
			return err
		}
		s.sendRoom = len(b)
	}
	return unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// setSendBuffer sets the size of the send buffer. With CAP_NET_ADMIN in the initial user namespace it may exceed the limit of the host
// (net.core.wmem_max); otherwise the kernel reduces it to the limit.
func (s *Socket) setSendBuffer(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}

// ErrInterrupted means that a list in an answer may be incomplete, because it changed while the kernel listed it.
var ErrInterrupted = errors.New("the list changed while it was read")

// Ask sends one message that asks for an answer, and calls take for each datagram of the answer, with its messages other than errors and the end mark
// of a dump. It stops at an error of take. A refusal is returned as a syscall.Errno, and ErrNoMessage means that a dump has no end mark.
func (s *Socket) Ask(message []byte, take func(iter.Seq[Message]) error) error {
	if err := s.Send(message); err != nil {
		return err
	}
	sequence := binary.NativeEndian.Uint32(message[8:])
	interrupted, result := false, ErrNoMessage
	if binary.NativeEndian.Uint16(message[6:])&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		result = nil // a single answer has no end mark
	}
	for {
		datagram, err := s.Receive()
		if errors.Is(err, ErrNoMessage) {
			return result
		}
		if err != nil {
			return err
		}
		err = take(func(yield func(Message) bool) {
			for m := range Messages(datagram) {
				if m.Sequence != sequence {
					continue // the end of an answer that was given up
				}
				interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
				switch errno := m.Errno(); {
				case m.Kind == unix.NLMSG_DONE && errno == 0 && interrupted:
					result = ErrInterrupted
				case m.Kind == unix.NLMSG_DONE && errno == 0:
					result = nil
				case m.Kind == unix.NLMSG_DONE, m.Kind == unix.NLMSG_ERROR && errno != 0:
					result = errno
				case m.Kind != unix.NLMSG_ERROR && !yield(m):
					return
				}
			}
		})
		if err != nil {
			return err
		}
	}
}

// Receive returns the next datagram, which is valid until the next call, or ErrNoMessage if none is queued.
func (s *Socket) Receive() ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.datagram, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil, ErrNoMessage
		case err != nil:
			return nil, err
		case n > len(s.datagram):
			return nil, fmt.Errorf("a netlink datagram of %d bytes does not fit", n)
		}
		return s.datagram[:n], nil
	}
}
