package bfd

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/task"
)

// Config has the addresses of a session and its parameters.
type Config struct {
	// Local and Peer are addresses of both ends, of one family; link-local ones have a zone.
	Local, Peer netip.Addr
	Timers      Timers
	// Passive is set to send nothing before the neighbor does.
	Passive bool
	// MultiHop allows a neighbor several hops away (RFC 5883).
	MultiHop bool
	// MinTTL is the lowest TTL accepted in packets of a multihop neighbor; 0 means 254. BIRD sends them with 64.
	MinTTL int
}

const (
	defaultMinTTL = 254
	// retry is the interval at which failed sockets are opened again.
	retry = 2 * time.Second
	// sendPatience is the longest time for which a send waits for room in the queue of its interface.
	sendPatience = 20 * time.Millisecond
)

// Check validates the addresses, the timers and the TTL, and returns all errors joined.
func (c Config) Check() error {
	var all []error
	if !c.Local.IsValid() || !c.Peer.IsValid() || c.Local.Is4() != c.Peer.Is4() || c.Local.IsUnspecified() {
		all = append(all, fmt.Errorf("addresses %s and %s are not both ends of one family", c.Local, c.Peer))
	}
	if c.MinTTL < 0 || c.MinTTL > maxTTL {
		all = append(all, fmt.Errorf("the minimum TTL %d is not from 0 to 255", c.MinTTL))
	}
	return errors.Join(append(all, c.Timers.Check())...)
}

// State describes a session at the time of the call.
type State struct {
	Phase      Phase
	Since      time.Time
	Diagnostic Diagnostic
	// RemotePhase is the phase in the neighbor's last packet.
	RemotePhase Phase
	// Detection is the time without a packet after which the neighbor counts as down; 0 before its first packet.
	Detection time.Duration
	// Port is the destination port of our packets: 4784 with MultiHop; otherwise the port to which the neighbor sent its last packet before the
	// session was Up, initially 3784.
	Port uint16
	// Failures counts how often an Up session went down.
	Failures uint64
	// Received and Dropped count packets; LastDropped is the reason why the last one was dropped.
	Received, Dropped uint64
	LastDropped       string
	// Problem is why the sockets could not be opened; opening is retried.
	Problem string
}

// Session is a BFD session with one neighbor. All methods may be called concurrently.
type Session struct {
	hub     *Hub
	config  Config
	changed func()
	mine    uint32
	kick    chan struct{} // capacity 1: the machine received a packet

	mu      sync.Mutex
	machine *Machine
	out     *net.UDPConn // nil while the sockets are not open
	port    uint16       // destination port of sent packets
	state   State
}

// Session returns a session with a neighbor; it sends nothing before its Run. changed is called after each change of its phase or Problem,
// and when the first packet was dropped; it must not block, and may be nil.
func (h *Hub) Session(c Config, changed func()) (*Session, error) {
	c.Local, c.Peer = c.Local.Unmap(), c.Peer.Unmap()
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("BFD with %s: %w", c.Peer, err)
	}
	c.MinTTL = cmp.Or(c.MinTTL, defaultMinTTL)
	if changed == nil {
		changed = func() {}
	}
	s := &Session{hub: h, config: c, changed: changed, kick: make(chan struct{}, 1), port: SingleHopPort}
	if c.MultiHop {
		s.port = MultiHopPort
	}
	h.mu.Lock()
	for s.mine == 0 || h.sessions[s.mine] != nil { // a discriminator that no other session has
		s.mine = rand.Uint32()
	}
	h.sessions[s.mine] = s
	h.mu.Unlock()
	s.machine = NewMachine(s.mine, c.Timers, c.Passive, time.Now(), rand.Float64)
	s.state = State{Phase: Down, Since: time.Now()}
	return s, nil
}

// minTTL returns the lowest TTL accepted in packets that arrive at port: Config.MinTTL on the multihop port of a multihop session,
// otherwise 255. A neighbor one hop away that sends to the multihop port, as FRR does with ttl-security, thus needs a TTL of 255.
func (s *Session) minTTL(port uint16) int {
	if port == MultiHopPort && s.config.MultiHop {
		return s.config.MinTTL
	}
	return maxTTL
}

// State returns the state now.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state
	st.Port = s.port
	if remote, heard := s.machine.Remote(); heard {
		st.RemotePhase, st.Detection = remote.Phase, s.machine.Detection()
	}
	return st
}

// Run opens the sockets and runs the session until ctx ends; then it sends AdminDown, which the neighbor does not take for a failure. It
// must be called once.
func (s *Session) Run(ctx context.Context) {
	defer func() {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		delete(s.hub.sessions, s.mine)
	}()
	for {
		l, out, err := s.open()
		s.problem(err)
		if err == nil {
			// The packets that are due are sent, and silence is detected, until ctx ends.
			task.Repeat(ctx, s.kick, func() time.Time { return s.step(l) })
			s.advance(func(now time.Time) { s.machine.TakeDown(now) })
			_ = out.Close()
			s.hub.close(l)
			return
		}
		if !task.Sleep(ctx, retry) {
			return
		}
	}
}

func (s *Session) open() (*listener, *net.UDPConn, error) {
	l, err := s.hub.open(s.config.Local)
	if err != nil {
		return nil, nil, err
	}
	out, err := sender(s.config.Local)
	if err != nil {
		s.hub.close(l)
		return nil, nil, err
	}
	s.mu.Lock()
	s.out = out
	s.mu.Unlock()
	return l, out, nil
}

func (s *Session) problem(err error) {
	words := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		words = fmt.Sprintf("another program has the BFD ports of %s: stop its BFD, or leave BFD to it", s.config.Local)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		words = fmt.Sprintf("this box does not have the address %s", s.config.Local)
	case err != nil:
		words = err.Error()
	}
	s.mu.Lock()
	changed := words != s.state.Problem
	s.state.Problem = words
	s.mu.Unlock()
	if changed {
		if words != "" {
			s.hub.log.Warn("BFD session waits for its sockets", "peer", s.config.Peer.String(), "reason", words)
		}
		s.changed()
	}
}

// step advances the machine, and returns the time at which to call step again. At the end of the detection time it first reads the packets
// queued in the sockets, because packets that arrived in time count even if they are read late.
func (s *Session) step(l *listener) (next time.Time) {
	s.mu.Lock()
	at := s.machine.Expires()
	s.mu.Unlock()
	if !at.IsZero() && !time.Now().Before(at) {
		for i, port := range ports {
			_ = l.raws[i].Control(func(fd uintptr) { l.drain(int(fd), port) }) // a closed socket has nothing
		}
	}
	return s.advance(nil)
}

// advance calls first, unless it is nil, then advances the machine, both under the lock, and sends the packet that is due. It returns the time of the
// next call.
func (s *Session) advance(first func(now time.Time)) (next time.Time) {
	s.mu.Lock()
	now := time.Now()
	if first != nil {
		first(now)
	}
	if p := s.machine.Advance(now); p != nil {
		s.send(*p)
	}
	changed := s.note(now)
	next = s.machine.Next()
	s.mu.Unlock()
	if changed {
		s.changed()
	}
	return next
}

// receive passes a valid packet to the machine.
func (s *Session) receive(p Packet, port uint16, now time.Time) {
	s.mu.Lock()
	s.state.Received++
	if s.state.Phase != Up && !s.config.MultiHop {
		s.port = port // where the neighbor speaks is where it listens
	}
	if answer := s.machine.Receive(p, now); answer != nil {
		s.send(*answer)
	}
	changed := s.note(now)
	s.mu.Unlock()
	if changed {
		s.changed()
	}
	task.Wake(s.kick)
}

func (s *Session) dropped(why error) {
	s.mu.Lock()
	s.state.Dropped++
	news := s.state.LastDropped == ""
	s.state.LastDropped = why.Error()
	s.mu.Unlock()
	if news {
		s.hub.log.Warn("BFD packet dropped", "peer", s.config.Peer.String(), "reason", why)
		s.changed()
	}
}

// send sends a packet to the neighbor. Errors are ignored: the neighbor detects the loss.
func (s *Session) send(p Packet) {
	if s.out != nil {
		_ = s.out.SetWriteDeadline(time.Now().Add(sendPatience)) // s.mu is held
		_, _ = s.out.WriteToUDPAddrPort(p.Bytes(), netip.AddrPortFrom(s.config.Peer, s.port))
	}
}

// note copies the phase of the machine to the State, and reports whether it changed.
func (s *Session) note(now time.Time) bool {
	phase, diagnostic := s.machine.Phase()
	was := s.state.Phase
	s.state.Diagnostic = diagnostic
	if phase == was {
		return false
	}
	s.state.Phase, s.state.Since = phase, now
	if was == Up && phase == Down {
		s.state.Failures++
	}
	s.hub.log.Info("BFD session changed", "peer", s.config.Peer.String(), "phase", phase.String(), "was", was.String(), "reason", diagnostic.String())
	return true
}

// Phase is the state of a session (RFC 5880, section 4.1).
type Phase uint8

// The values of Phase, as on the wire.
const (
	AdminDown Phase = iota
	Down
	Init
	Up
)

// String returns the name of the phase in RFC 5880.
func (p Phase) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[p&3]
}

// Diagnostic is the reason of the last change of a session's state (RFC 5880, section 4.1).
type Diagnostic uint8

// The diagnostics that this side sends, as on the wire.
const (
	NoDiagnostic     Diagnostic = 0
	Expired          Diagnostic = 1 // the detection time expired
	NeighborDown     Diagnostic = 3 // the neighbor signaled that the session is down
	AdministratorWas Diagnostic = 7 // this side is administratively down
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
	// Poll requests a packet with Final set, which confirms a change of intervals.
	Poll, Final  bool
	Multiplier   uint8
	Mine, Yours  uint32        // discriminators of the sender and of the receiver
	MinTx, MinRx time.Duration // in microseconds on the wire
	Demand       bool
}

const (
	packetLength = 24
	version      = 1

	flagPoll, flagFinal, flagAuthentication, flagDemand, flagMulti = 0x20, 0x10, 0x04, 0x02, 0x01
)

// Bytes returns the packet as on the wire.
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

// ParsePacket decodes a packet. It returns an error if RFC 5880, section 6.8.6, requires the packet to be discarded.
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
