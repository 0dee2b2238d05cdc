package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Phase is the state of a session (RFC 5880, section 4.1).
type Phase uint8

// The phases.
const (
	AdminDown Phase = iota
	Down
	Init
	Up
)

// String is the name of RFC 5880.
func (p Phase) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[p&3]
}

// Diagnostic is the reason of the last change of a session's state (RFC 5880, section 4.1).
type Diagnostic uint8

// The diagnostics that are sent.
const (
	NoDiagnostic     Diagnostic = 0
	Expired          Diagnostic = 1 // the detection time
	NeighborDown     Diagnostic = 3 // the neighbor signaled that the session is down
	AdministratorWas Diagnostic = 7 // administratively down
)

// String returns the diagnostic in words.
func (d Diagnostic) String() string {
	names := []string{
		"no diagnostic", "the detection time expired", "the echo function failed", "the neighbor signaled that the session is down",
		"the forwarding plane was reset", "the path is down", "a concatenated path is down", "administratively down",
		"a reverse concatenated path is down",
	}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// Packet is a BFD control packet without authentication.
type Packet struct {
	Diagnostic Diagnostic
	Phase      Phase
	// Poll asks for a packet with Final, which ends a change of intervals.
	Poll, Final  bool
	Multiplier   uint8
	Mine, Yours  uint32        // discriminators
	MinTx, MinRx time.Duration // in microseconds on the wire
	Demand       bool
}

const (
	packetLength = 24
	version      = 1

	flagPoll, flagFinal, flagAuthentication, flagDemand, flagMulti = 0x20, 0x10, 0x04, 0x02, 0x01
)

// Bytes encodes a packet.
func (p Packet) Bytes() []byte {
	b := make([]byte, packetLength)
	b[0] = version<<5 | byte(p.Diagnostic)&0x1f
	b[1] = byte(p.Phase) << 6
	for _, f := range []struct {
		is   bool
		flag byte
	}{{p.Poll, flagPoll}, {p.Final, flagFinal}, {p.Demand, flagDemand}} {
		if f.is {
			b[1] |= f.flag
		}
	}
	b[2], b[3] = p.Multiplier, packetLength
	binary.BigEndian.PutUint32(b[4:], p.Mine)
	binary.BigEndian.PutUint32(b[8:], p.Yours)
	binary.BigEndian.PutUint32(b[12:], uint32(p.MinTx/time.Microsecond))
	binary.BigEndian.PutUint32(b[16:], uint32(p.MinRx/time.Microsecond))
	return b
}

// ParsePacket decodes a packet, and refuses those that RFC 5880, section 6.8.6, has discarded.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < packetLength {
		return Packet{}, errors.New("shorter than a control packet")
	}
	flags := b[1]
	p := Packet{
		Diagnostic: Diagnostic(b[0] & 0x1f), Phase: Phase(flags >> 6), Multiplier: b[2],
		Poll: flags&flagPoll != 0, Final: flags&flagFinal != 0, Demand: flags&flagDemand != 0,
		Mine: binary.BigEndian.Uint32(b[4:]), Yours: binary.BigEndian.Uint32(b[8:]),
		MinTx: time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Microsecond,
		MinRx: time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Microsecond,
	}
	switch {
	case b[0]>>5 != version:
		return Packet{}, fmt.Errorf("version %d", b[0]>>5)
	case b[3] < packetLength || int(b[3]) > len(b):
		return Packet{}, fmt.Errorf("length %d in %d bytes", b[3], len(b))
	case flags&flagAuthentication != 0:
		return Packet{}, errors.New("with authentication, which is not configured")
	case flags&flagMulti != 0:
		return Packet{}, errors.New("the multipoint bit is set")
	case p.Multiplier == 0:
		return Packet{}, errors.New("the detection multiplier is 0")
	case p.Mine == 0:
		return Packet{}, errors.New("the sender has no discriminator")
	case p.Yours == 0 && p.Phase != Down && p.Phase != AdminDown:
		return Packet{}, errors.New("the receiver has no discriminator, and the session is not down")
	}
	return p, nil
}
