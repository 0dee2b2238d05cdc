package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFailure(t *testing.T) {
	attribute := func(kind uint16, value string) []byte {
		w := Writer{}
		w.Raw(kind, value)
		return w.Buf
	}
	body := func(errno int32, echoed int) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(errno))
		b = binary.NativeEndian.AppendUint32(b, uint32(HeaderLen+echoed))
		return append(b, make([]byte, HeaderLen-4+echoed)...)
	}
	offset := attribute(unix.NLMSGERR_ATTR_OFFS, string(binary.NativeEndian.AppendUint32(nil, 40)))
	hint := attribute(unix.NLMSGERR_ATTR_MSG, "no\x00")
	for _, test := range []struct {
		name string
		m    Message
		want Failure
	}{
		{"acknowledgement", Message{Flags: unix.NLM_F_CAPPED, Body: body(0, 0)}, Failure{}},
		{"bare", Message{Flags: unix.NLM_F_CAPPED, Body: body(-17, 0)}, Failure{Errno: unix.EEXIST}},
		{"capped", Message{Flags: unix.NLM_F_CAPPED | unix.NLM_F_ACK_TLVS, Body: bytes.Join([][]byte{body(-2, 0), hint, offset}, nil)},
			Failure{Errno: unix.ENOENT, Offset: 40, Hint: "no"}},
		{"whole", Message{Flags: unix.NLM_F_ACK_TLVS, Body: bytes.Join([][]byte{body(-2, 24), offset}, nil)},
			Failure{Errno: unix.ENOENT, Offset: 40}},
		{"cut off", Message{Body: []byte{1, 2}}, Failure{Errno: unix.EBADMSG}},
	} {
		if got := test.m.Failure(); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// What a Writer writes is read again, and what is cut off ends the walk without a crash.
func TestMessages(t *testing.T) {
	var w Writer
	w.Begin(7, unix.NLM_F_ACK, 41, unix.NFPROTO_IPV6, 3)
	w.Text(1, "name")
	outer := w.Nest(2)
	w.Uint16(1, 80)
	w.Uint32(2, 1<<20)
	w.Uint64(3, 1<<40)
	w.Bytes(4, []byte{9})
	if !w.EndNest(outer) {
		t.Error("a short attribute does not fit")
	}
	w.End()
	w.Begin(8, 0, 42, 0, 0)
	w.End()
	var kinds []uint16
	for m := range Messages(w.Buf) {
		kinds = append(kinds, m.Kind)
		if m.Kind != 7 {
			continue
		}
		if m.Flags != unix.NLM_F_REQUEST|unix.NLM_F_ACK || m.Sequence != 41 || m.Family() != unix.NFPROTO_IPV6 {
			t.Errorf("read %+v", m)
		}
		for kind, value := range m.Attributes() {
			if kind == 1 && Text(value) != "name" {
				t.Errorf("text %q", Text(value))
			}
			if kind != 2 {
				continue
			}
			var numbers []uint64
			for _, value := range Attributes(value) {
				numbers = append(numbers, Number(value))
			}
			if !slices.Equal(numbers, []uint64{80, 1 << 20, 1 << 40, 9}) {
				t.Errorf("numbers %v", numbers)
			}
		}
	}
	if !slices.Equal(kinds, []uint16{7, 8}) {
		t.Errorf("messages %v", kinds)
	}
	for n := range w.Buf {
		for m := range Messages(w.Buf[:n]) {
			m.Failure()
			for _, value := range m.Attributes() {
				Number(value)
			}
		}
	}
	if w.Nest(1); w.EndNest(len(w.Buf)-4) != true {
		t.Error("an empty attribute does not fit")
	}
	long := w.Nest(1)
	w.Buf = append(w.Buf, make([]byte, MaxAttr)...)
	if w.EndNest(long) {
		t.Error("an attribute that is too long fits")
	}
}
