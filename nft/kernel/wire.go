package kernel

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// Lengths of the headers before the attributes of a message.
const (
	headerLen    = unix.SizeofNlMsghdr // struct nlmsghdr
	genHeaderLen = 4                   // struct nfgenmsg
	attrLen      = unix.SizeofNlAttr   // struct nlattr
)

// attrTypeMask leaves out NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// nftMessage is the type of an nf_tables message in a netlink header.
func nftMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// protocolFamily is NFPROTO_IPV4 or NFPROTO_IPV6.
func protocolFamily(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// writer appends netlink messages and attributes to a buffer. Numbers in attributes
// are in network byte order, as nf_tables wants them.
type writer struct {
	buf     []byte
	message int // where the message being written starts
}

// begin starts a message. end completes it.
func (w *writer) begin(kind, flags uint16, sequence uint32, family uint8, resource uint16) {
	w.message = len(w.buf)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, unix.NLM_F_REQUEST|flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, sequence)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0) // the kernel fills in our port
	w.buf = append(w.buf, family, unix.NFNETLINK_V0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, resource)
}

func (w *writer) end() {
	binary.NativeEndian.PutUint32(w.buf[w.message:], uint32(len(w.buf)-w.message))
}

func (w *writer) header(kind uint16, n int) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+n))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
}

func (w *writer) pad() {
	for len(w.buf)%unix.NLA_ALIGNTO != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *writer) bytes(kind uint16, b []byte) {
	w.header(kind, len(b))
	w.buf = append(w.buf, b...)
	w.pad()
}

// raw is bytes for a value that is held as a string.
func (w *writer) raw(kind uint16, s string) {
	w.header(kind, len(s))
	w.buf = append(w.buf, s...)
	w.pad()
}

// text writes a string with the NUL that ends it.
func (w *writer) text(kind uint16, s string) {
	w.header(kind, len(s)+1)
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}

func (w *writer) uint32(kind uint16, v uint32) {
	w.header(kind, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

func (w *writer) uint64(kind uint16, v uint64) {
	w.header(kind, 8)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
}

// nest starts an attribute that holds others; endNest completes it.
func (w *writer) nest(kind uint16) (start int) {
	start = len(w.buf)
	w.header(unix.NLA_F_NESTED|kind, 0)
	return start
}

// endNest tells whether the attribute is short enough for its 16-bit length.
func (w *writer) endNest(start int) (fits bool) {
	n := len(w.buf) - start
	binary.NativeEndian.PutUint16(w.buf[start:], uint16(n))
	return n <= maxAttr
}

// maxAttr is the longest attribute, its header included.
const maxAttr = 1<<16 - 1

// attributes walks the attributes in b and stops at the first one that is cut off.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrLen {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrLen || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[attrLen:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// message is a netlink message that was received.
type message struct {
	kind, flags    uint16
	sequence, port uint32
	body           []byte // what follows the netlink header
}

// messages walks the messages of a datagram.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= headerLen {
			n := int(binary.NativeEndian.Uint32(b))
			if n < headerLen || n > len(b) {
				return
			}
			m := message{
				kind:     binary.NativeEndian.Uint16(b[4:]),
				flags:    binary.NativeEndian.Uint16(b[6:]),
				sequence: binary.NativeEndian.Uint32(b[8:]),
				port:     binary.NativeEndian.Uint32(b[12:]),
				body:     b[headerLen:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// attributes of an nf_tables message, behind its nfgenmsg.
func (m *message) attributes() iter.Seq2[uint16, []byte] {
	return attributes(m.body[min(genHeaderLen, len(m.body)):])
}

// family of an nf_tables message.
func (m *message) family() uint8 {
	if len(m.body) == 0 {
		return unix.NFPROTO_UNSPEC
	}
	return m.body[0]
}

// number reads an attribute of up to 8 bytes in network byte order.
func number(b []byte) (n uint64) {
	for _, c := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}

// text reads a string without the NUL that ends it.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
