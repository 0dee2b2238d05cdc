package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

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
