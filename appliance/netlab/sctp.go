package netlab

import (
	"encoding/binary"
	"hash/crc32"
)

// SCTP as far as the first two packets of its handshake go (RFC 9260): kernels often
// come without it, but translate its addresses and ports all the same. The server's
// answer travels in the state cookie of INIT ACK.

const (
	sctpHeader       = 12 // ports, verification tag, checksum
	sctpChunkInit    = 1
	sctpChunkInitAck = 2
	sctpInitLength   = 20 // of the chunk, without parameters
	sctpStateCookie  = 7  // parameter type
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpInit is an INIT packet with the initiate tag tag.
func sctpInit(from, to uint16, tag uint32) []byte {
	return sctpPacket(from, to, 0, sctpChunkInit, tag, nil)
}

// sctpInitAckTo is the INIT ACK that answers the packet init, with a text in its
// cookie; nil when the packet is no INIT.
func sctpInitAckTo(init []byte, text string) []byte {
	if len(init) < sctpHeader+sctpInitLength || init[sctpHeader] != sctpChunkInit {
		return nil
	}
	cookie := make([]byte, 4, 4+len(text)+3)
	binary.BigEndian.PutUint16(cookie, sctpStateCookie)
	binary.BigEndian.PutUint16(cookie[2:], uint16(4+len(text)))
	cookie = append(cookie, text...)
	tag := binary.BigEndian.Uint32(init[sctpHeader+4:])
	return sctpPacket(sctpPort(init, 2), sctpPort(init, 0), tag, sctpChunkInitAck, ^tag|1, cookie)
}

// sctpInitAck is the text of the INIT ACK packet that answers an INIT.
func sctpInitAck(packet []byte, from, to uint16, tag uint32) (text string, ok bool) {
	const cookie = sctpHeader + sctpInitLength
	if len(packet) < cookie+4 || packet[sctpHeader] != sctpChunkInitAck ||
		sctpPort(packet, 0) != to || sctpPort(packet, 2) != from ||
		binary.BigEndian.Uint32(packet[4:]) != tag || sctpChecksum(packet) != binary.LittleEndian.Uint32(packet[8:]) {
		return "", false
	}
	end := cookie + int(binary.BigEndian.Uint16(packet[cookie+2:]))
	if end < cookie+4 || end > len(packet) {
		return "", false
	}
	return string(packet[cookie+4 : end]), true
}

func sctpPort(packet []byte, offset int) uint16 { return binary.BigEndian.Uint16(packet[offset:]) }

func sctpPacket(from, to uint16, verification uint32, chunk byte, tag uint32, params []byte) []byte {
	p := make([]byte, sctpHeader+sctpInitLength, sctpHeader+sctpInitLength+len(params)+3)
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.BigEndian.PutUint32(p[4:], verification)
	c := p[sctpHeader:]
	c[0] = chunk
	binary.BigEndian.PutUint16(c[2:], uint16(sctpInitLength+len(params)))
	binary.BigEndian.PutUint32(c[4:], tag)
	binary.BigEndian.PutUint32(c[8:], 65536) // receiver window, bytes
	binary.BigEndian.PutUint16(c[12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(c[14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(c[16:], 1)    // initial transmission sequence number
	p = append(p, params...)
	for len(p)%4 != 0 { // parameters are padded, their lengths do not count it
		p = append(p, 0)
	}
	binary.LittleEndian.PutUint32(p[8:], sctpChecksum(p))
	return p
}

// sctpChecksum is the CRC-32C of the packet with a checksum of zero (RFC 9260, 6.8).
func sctpChecksum(packet []byte) uint32 {
	var zero [4]byte
	sum := crc32.Update(0, castagnoli, packet[:8])
	sum = crc32.Update(sum, castagnoli, zero[:])
	return crc32.Update(sum, castagnoli, packet[sctpHeader:])
}
