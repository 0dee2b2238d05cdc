package conntrack

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Messages of ctnetlink and their attributes (linux/netfilter/nfnetlink_conntrack.h).
const (
	subsystem     = unix.NFNL_SUBSYS_CTNETLINK << 8
	messageNew    = subsystem | 0
	messageGet    = subsystem | 1
	messageDelete = subsystem | 2
	messageStats  = subsystem | 5 // kernel 3.6

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaID         = 12
	ctaNATDst     = 13
	ctaZone       = 18
	ctaFilter     = 25 // kernel 5.8; older ones pass over it
	ctaStatusMask = 26 // younger than the filter; older kernels pass over it

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP     = 1
	ctaTCPState         = 1
	ctaTCPFlagsOriginal = 4
	ctaTCPFlagsReply    = 5

	ctaNATIPv4Min = 1
	ctaNATIPv4Max = 2
	ctaNATProto   = 3
	ctaNATIPv6Min = 4
	ctaNATIPv6Max = 5
	ctaNATPortMin = 1
	ctaNATPortMax = 2

	ctaFilterOrigFlags = 1

	ctaStatsEntries = 1
)

// Bits of an entry's status (linux/netfilter/nf_conntrack_common.h).
const (
	statusSeenReply = 1 << 1
	statusConfirmed = 1 << 3
)

// Which parts of the original tuple a dump is filtered by (the kernel's
// net/netfilter/nf_internals.h).
const (
	filterIPDst   = 1 << 1
	filterProto   = 1 << 3
	filterDstPort = 1 << 5
)

// Sizes of headers, and the bits of an attribute's type that are its number.
const (
	headerLen    = unix.SizeofNlMsghdr
	genHeaderLen = 4 // struct nfgenmsg
	attrLen      = unix.SizeofNlAttr
	attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// writer builds messages one behind the other.
type writer struct {
	buf   []byte
	start int // of the message being written
}

// begin starts a message; end completes it.
func (w *writer) begin(kind, flags uint16, sequence uint32, family uint8) {
	w.start = len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, unix.NLM_F_REQUEST|flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, sequence)
	w.buf = append(w.buf, 0, 0, 0, 0) // the port: the kernel knows it
	w.buf = append(w.buf, family, unix.NFNETLINK_V0, 0, 0)
}

func (w *writer) end() {
	binary.NativeEndian.PutUint32(w.buf[w.start:], uint32(len(w.buf)-w.start))
}

// attribute writes one attribute. What it holds is padded to 4 bytes.
func (w *writer) attribute(kind uint16, value ...byte) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+len(value)))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = append(w.buf, value...)
	for len(w.buf)%unix.NLA_ALIGNTO != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *writer) uint16(kind, v uint16) { w.attribute(kind, byte(v>>8), byte(v)) }

func (w *writer) uint32(kind uint16, v uint32) {
	w.attribute(kind, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

func (w *writer) addr(kind4, kind6 uint16, a netip.Addr) {
	kind := kind6
	if a.Is4() {
		kind = kind4
	}
	w.attribute(kind, a.AsSlice()...)
}

// nest writes an attribute that holds others.
func (w *writer) nest(kind uint16, inner func()) {
	start := len(w.buf)
	w.attribute(unix.NLA_F_NESTED | kind)
	inner()
	binary.NativeEndian.PutUint16(w.buf[start:], uint16(len(w.buf)-start))
}

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
	kind     uint16
	sequence uint32
	body     []byte // what follows the netlink header
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
				sequence: binary.NativeEndian.Uint32(b[8:]),
				body:     b[headerLen:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// errno is the error that an NLMSG_ERROR or NLMSG_DONE message carries, 0 for none.
func (m *message) errno() unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}
