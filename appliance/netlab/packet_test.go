package netlab

import (
	"net/netip"
	"testing"
)

func TestSCTPHandshake(t *testing.T) {
	init := sctpInit(4000, 80, 77)
	ack := sctpInitAckTo(init, "L1 10.0.0.1:80 10.0.0.2:4000")
	text, ok := sctpInitAck(ack, 4000, 80, 77)
	if !ok || text != "L1 10.0.0.1:80 10.0.0.2:4000" {
		t.Errorf("got %q, %t", text, ok)
	}
	for i := range ack {
		broken := append([]byte(nil), ack...)
		broken[i] ^= 0x10
		if text, ok := sctpInitAck(broken, 4000, 80, 77); ok {
			t.Errorf("taken with byte %d wrong: %q", i, text)
		}
	}
	if sctpInitAckTo(ack, "x") != nil {
		t.Error("an INIT ACK was answered")
	}
}

func TestSCTPChecksum(t *testing.T) {
	// The check value of CRC-32C, RFC 3720 appendix B.4: 32 bytes of zeros.
	packet := make([]byte, 32)
	if got := sctpChecksum(packet); got != 0x8a9136aa {
		t.Errorf("got %#x, want 0x8a9136aa", got)
	}
	packet[9] = 1 // the checksum's own place counts as zero
	if got := sctpChecksum(packet); got != 0x8a9136aa {
		t.Errorf("got %#x with a checksum in place, want 0x8a9136aa", got)
	}
}

func TestParseReply(t *testing.T) {
	want := Reply{"L1", netip.MustParseAddrPort("[fd00::1]:80"), netip.MustParseAddrPort("[fd00::2]:4000")}
	if got, err := parseReply(want.String()); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, line := range []string{"", "HTTP/1.1 400 Bad Request", "L1 a b", "L1 10.0.0.1:80"} {
		if got, err := parseReply(line); err == nil {
			t.Errorf("%q was read as %v", line, got)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x10, 0, 0, 53, 0, 8, 0, 0})
	f.Add(make([]byte, 60))
	f.Fuzz(func(t *testing.T, packet []byte) {
		source, about, ok := parsePacket(packet)
		if ok && (!source.IsValid() || !about.to.IsValid()) {
			t.Errorf("no addresses: %v %v", source, about)
		}
		sctpInitAck(packet, 1, 2, 3)
		sctpInitAckTo(packet, "x")
		eachAttribute(packet, func(_ uint16, value []byte) { countElements(value) })
	})
}
