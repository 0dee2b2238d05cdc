package nfnetlink

import (
	"encoding/binary"
	"iter"
	"syscall"

	"golang.org/x/sys/unix"
)

// attrTypeMask leaves out NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// A Message was received.
type Message struct {
	Kind, Flags    uint16
	Sequence, Port uint32
	Body           []byte // what follows the netlink header
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

// Align is the next place where an attribute or message may begin.
func Align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// Attributes of a message, behind its nfgenmsg.
func (m *Message) Attributes() iter.Seq2[uint16, []byte] {
	return Attributes(m.Body[min(GenHeaderLen, len(m.Body)):])
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
	Errno  syscall.Errno // 0: an acknowledgement
	Offset int           // of the attribute that is wrong, in the message; 0: unknown
	Hint   string        // the kernel's own words
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
func Text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Lengths of headers in bytes.
const (
	HeaderLen    = unix.SizeofNlMsghdr // struct nlmsghdr
	GenHeaderLen = 4                   // struct nfgenmsg, which is behind it
	attrLen      = unix.SizeofNlAttr   // struct nlattr
)

// MaxAttr is the longest attribute in bytes, its header included.
const MaxAttr = 1<<16 - 1

// A Writer appends messages and attributes to a buffer. Numbers in attributes are in
// network byte order.
type Writer struct {
	Buf     []byte
	message int // where the message being written starts
}

// Begin starts a message; End completes it. family and resource are those of its
// nfgenmsg.
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

// Bytes writes an attribute.
func (w *Writer) Bytes(kind uint16, b []byte) {
	w.header(kind, len(b))
	w.Buf = append(w.Buf, b...)
	w.pad()
}

// Raw is Bytes for a value that is held as a string.
func (w *Writer) Raw(kind uint16, s string) {
	w.header(kind, len(s))
	w.Buf = append(w.Buf, s...)
	w.pad()
}

// Text writes a string with the NUL that ends it.
func (w *Writer) Text(kind uint16, s string) {
	w.header(kind, len(s)+1)
	w.Buf = append(append(w.Buf, s...), 0)
	w.pad()
}

// Uint16 writes a number of two bytes.
func (w *Writer) Uint16(kind, v uint16) {
	w.header(kind, 2)
	w.Buf = binary.BigEndian.AppendUint16(w.Buf, v)
	w.pad()
}

// Uint32 writes a number of four bytes.
func (w *Writer) Uint32(kind uint16, v uint32) {
	w.header(kind, 4)
	w.Buf = binary.BigEndian.AppendUint32(w.Buf, v)
}

// Uint64 writes a number of eight bytes.
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

// EndNest reports whether the attribute is short enough for its 16-bit length.
func (w *Writer) EndNest(start int) (fits bool) {
	n := len(w.Buf) - start
	binary.NativeEndian.PutUint16(w.Buf[start:], uint16(n))
	return n <= MaxAttr
}
