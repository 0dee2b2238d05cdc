package bfd

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/listen"
)

// The ports of control packets (RFC 5881, RFC 5883).
const (
	SingleHopPort = 3784
	MultiHopPort  = 4784
)

var ports = [2]uint16{SingleHopPort, MultiHopPort}

const (
	maxTTL = 255
	// networkControl is the traffic class of routing protocols in the TOS byte (CS6, RFC 4594).
	networkControl = 0xc0
	// firstSource and lastSource bound the source ports of control packets (RFC 5881, section 4).
	firstSource, lastSource = 49152, 65535
)

// Hub shares UDP sockets between sessions: one for each local address and port. All methods may be called concurrently.
type Hub struct {
	log *slog.Logger

	mu        sync.Mutex
	sessions  map[uint32]*Session // by local discriminator
	listeners map[netip.Addr]*listener
}

// NewHub returns a Hub without sockets. log may be nil.
func NewHub(log *slog.Logger) *Hub {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Hub{log: log, sessions: map[uint32]*Session{}, listeners: map[netip.Addr]*listener{}}
}

// listener receives the control packets to one local address, on the single-hop and the multihop port.
type listener struct {
	hub   *Hub
	local netip.Addr
	users int
	conns [2]*net.UDPConn
	raws  [2]syscall.RawConn

	mu  sync.Mutex // held while packets are read and delivered
	buf [64]byte   // larger than any control packet
	oob [128]byte
}

// open returns the listener of a local address, and opens its sockets if no session uses it yet. Each open needs a close.
func (h *Hub) open(local netip.Addr) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.listeners[local]; l != nil {
		l.users++
		return l, nil
	}
	l := &listener{hub: h, local: local, users: 1}
	for i, port := range ports {
		conn, err := receiver(netip.AddrPortFrom(local, port))
		if err == nil {
			l.conns[i] = conn
			l.raws[i], err = conn.SyscallConn()
		}
		if err != nil {
			l.shut()
			return nil, err
		}
	}
	for i, port := range ports {
		go func() {
			_ = l.raws[i].Read(func(fd uintptr) bool { // it ends with the socket
				l.drain(int(fd), port)
				return false
			})
		}()
	}
	h.listeners[local] = l
	return l, nil
}

// close releases a listener, and closes its sockets after the last user. It does not hold h.mu meanwhile: closing waits for the readers,
// which wait for h.mu to find the session of a packet. A session that opens the address meanwhile finds the ports in use, and tries again.
func (h *Hub) close(l *listener) {
	h.mu.Lock()
	l.users--
	last := l.users == 0
	if last {
		delete(h.listeners, l.local)
	}
	h.mu.Unlock()
	if last {
		l.shut()
	}
}

func (l *listener) shut() {
	for _, c := range l.conns {
		if c != nil {
			_ = c.Close() // nothing is written to it
		}
	}
}

// receiver returns a UDP socket bound to at that receives the TTL or hop limit of each packet.
func receiver(at netip.AddrPort) (*net.UDPConn, error) {
	return packetConn(at, func(fd int) error {
		if at.Addr().Is4() {
			return os.NewSyscallError("setsockopt IP_RECVTTL", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
		}
		return os.NewSyscallError("setsockopt IPV6_RECVHOPLIMIT", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	})
}

// sender returns a UDP socket that sends with a TTL of 255, from a random port of the range that RFC 5881 allows.
func sender(local netip.Addr) (*net.UDPConn, error) {
	const tries = 20
	for try := 1; ; try++ {
		conn, err := packetConn(netip.AddrPortFrom(local, uint16(firstSource+rand.IntN(lastSource-firstSource+1))), func(fd int) error {
			level, ttl, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
			if local.Is6() {
				level, ttl, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
			}
			return errors.Join(
				os.NewSyscallError("setsockopt TTL", unix.SetsockoptInt(fd, level, ttl, maxTTL)),
				os.NewSyscallError("setsockopt traffic class", unix.SetsockoptInt(fd, level, class, networkControl)))
		})
		if err == nil || try == tries || !errors.Is(err, syscall.EADDRINUSE) {
			return conn, err
		}
	}
}

func packetConn(at netip.AddrPort, prepare func(fd int) error) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return listen.Control(c, prepare) }}
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	conn, err := config.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// drain reads all packets that wait in a socket and delivers them to their sessions. port is the socket's local port.
func (l *listener) drain(fd int, port uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		n, oobn, _, from, err := unix.Recvmsg(fd, l.buf[:], l.oob[:], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // EAGAIN: all was read
		}
		l.hub.deliver(l.local, port, sourceOf(from, l.local.Zone()), ttlOf(l.oob[:oobn]), l.buf[:n])
	}
}

func sourceOf(from unix.Sockaddr, zone string) netip.Addr {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr)
	case *unix.SockaddrInet6:
		addr := netip.AddrFrom16(from.Addr)
		if addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(zone)
		}
		return addr
	}
	return netip.Addr{}
}

// ttlOf returns the TTL or hop limit from the control messages of a packet; -1 if it is not there.
func ttlOf(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		is := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if is && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

// deliver decodes a packet and passes it to its session. It drops one that has no session, is invalid, or came with too low a TTL.
func (h *Hub) deliver(local netip.Addr, port uint16, from netip.Addr, ttl int, b []byte) {
	p, err := ParsePacket(b)
	s := h.find(local, from, p.Yours)
	if s == nil {
		return
	}
	if err == nil && ttl < s.minTTL(port) {
		err = fmt.Errorf("it came with TTL %d to port %d, and at least %d is wanted", ttl, port, s.minTTL(port))
	}
	if err != nil {
		s.dropped(err)
		return
	}
	s.receive(p, port, time.Now())
}

// find returns the session of a packet: the one with the discriminator yours, else the one with the packet's addresses. It returns nil if
// no session has both addresses.
func (h *Hub) find(local, from netip.Addr, yours uint32) *Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[yours]; s != nil && s.config.Peer == from && s.config.Local == local {
		return s
	}
	for _, s := range h.sessions {
		if s.config.Peer == from && s.config.Local == local {
			return s
		}
	}
	return nil
}

// Timers are the intervals of a session. Fields that are 0 have defaults: 300 ms, 300 ms, 3.
type Timers struct {
	// Transmit is our desired transmit interval, and Receive our required receive interval,
	// from 50 ms to a minute. Packets are sent at the larger one of the sender's transmit and
	// the receiver's receive interval.
	Transmit, Receive time.Duration
	// Multiplier is the detection multiplier: the session fails after this many intervals without a packet.
	Multiplier int
}

const (
	defaultInterval   = 300 * time.Millisecond
	defaultMultiplier = 3
	minInterval       = 50 * time.Millisecond
	maxInterval       = time.Minute
	// slow is the shortest transmit interval of a session that is not Up (RFC 5880, section 6.8.3).
	slow = time.Second
)

func (t Timers) withDefaults() Timers {
	return Timers{cmp.Or(t.Transmit, defaultInterval), cmp.Or(t.Receive, defaultInterval), cmp.Or(t.Multiplier, defaultMultiplier)}
}

// Check validates the intervals and the multiplier, and returns all errors joined.
func (t Timers) Check() error {
	t = t.withDefaults()
	var all []error
	for name, d := range map[string]time.Duration{"transmit": t.Transmit, "receive": t.Receive} {
		if d < minInterval || d > maxInterval {
			all = append(all, fmt.Errorf("the %s interval %s is not from 50 ms to a minute", name, d))
		}
	}
	if t.Multiplier < 1 || t.Multiplier > 255 {
		all = append(all, fmt.Errorf("the detection multiplier %d is not from 1 to 255", t.Multiplier))
	}
	return errors.Join(all...)
}

// Machine is one session of RFC 5880. It has no clock: every call passes the time, and Next
// returns when to call Advance. It is not safe for concurrent use. It has more than 15 fields: the state
// variables of the RFC (6.8.1), which every packet reads and changes together.
type Machine struct {
	timers  Timers
	passive bool
	mine    uint32
	jitter  func() float64 // returns a random number from 0 to 1
	admin   bool           // TakeDown has taken the session down

	phase      Phase
	diagnostic Diagnostic
	yours      uint32
	remote     Packet // the last accepted packet of the neighbor
	heard      bool   // remote is set: no detection time has expired since it arrived

	// minTx is the transmit interval in force: at least slow unless the phase is Up.
	// polling is set from the change to Up until the neighbor answers the poll.
	minTx   time.Duration
	polling bool

	sendAt time.Time
	expire time.Time // end of the detection time; zero if it is not running
	spared bool      // expire was postponed once because of a late wake-up
}

// NewMachine returns a session that is down. mine is its discriminator, and must not be 0. If passive is set, it sends nothing before the
// neighbor does. jitter returns random numbers from 0 to 1.
func NewMachine(mine uint32, t Timers, passive bool, now time.Time, jitter func() float64) *Machine {
	t = t.withDefaults()
	return &Machine{
		timers: t, passive: passive, mine: mine, jitter: jitter, phase: Down, minTx: max(t.Transmit, slow), sendAt: now,
	}
}

// Phase returns the phase of the session, and the diagnostic of its last change.
func (m *Machine) Phase() (Phase, Diagnostic) { return m.phase, m.diagnostic }

// Remote returns the last packet of the neighbor; false if none came since the start or the last detected failure.
func (m *Machine) Remote() (Packet, bool) { return m.remote, m.heard }

// Detection returns the detection time: the neighbor counts as down after this time without a packet.
func (m *Machine) Detection() time.Duration {
	return time.Duration(m.remote.Multiplier) * max(m.timers.Receive, m.remote.MinTx)
}

// Receive processes a packet of the neighbor. It returns the reply to send at once if p has the Poll bit; else nil.
func (m *Machine) Receive(p Packet, now time.Time) (answer *Packet) {
	if p.Yours != 0 && p.Yours != m.mine {
		return nil
	}
	before := m.interval()
	m.remote, m.yours, m.heard = p, p.Mine, true
	m.polling = m.polling && !p.Final
	if !m.admin {
		m.follow(p, now)
	}
	m.expire, m.spared = now.Add(m.Detection()), false
	if interval := m.interval(); interval < before || m.sendAt.IsZero() {
		// A shorter interval holds at once.
		if next := now.Add(m.jittered(interval)); m.sendAt.IsZero() || next.Before(m.sendAt) {
			m.sendAt = next
		}
	}
	if p.Poll {
		final := m.packet()
		final.Poll, final.Final = false, true
		return &final
	}
	return nil
}

// follow changes the phase according to the phase in the neighbor's packet (RFC 5880, section 6.8.6).
func (m *Machine) follow(p Packet, now time.Time) {
	switch {
	case p.Phase == AdminDown:
		if m.phase != Down {
			m.enter(Down, NeighborDown, now)
		}
	case m.phase == Down && p.Phase == Down:
		m.enter(Init, NoDiagnostic, now)
	case m.phase == Down && p.Phase == Init, m.phase == Init && (p.Phase == Init || p.Phase == Up):
		m.enter(Up, NoDiagnostic, now)
	case m.phase == Up && p.Phase == Down:
		m.enter(Down, NeighborDown, now)
	}
}

// enter changes the phase, and schedules a packet to the neighbor at once.
func (m *Machine) enter(p Phase, d Diagnostic, now time.Time) {
	was := m.phase
	m.phase, m.diagnostic, m.sendAt = p, d, now
	switch {
	case p == Up:
		// From the slow interval to a shorter one, which holds at once and is announced by a poll.
		m.minTx, m.polling = m.timers.Transmit, true
	case was == Up:
		m.minTx, m.polling = max(m.timers.Transmit, slow), false
	}
}

// TakeDown takes the session down administratively (AdminDown), for good.
func (m *Machine) TakeDown(now time.Time) {
	if !m.admin {
		m.admin = true
		m.enter(AdminDown, AdministratorWas, now)
	}
}

// interval returns the interval at which packets are sent, without jitter.
func (m *Machine) interval() time.Duration { return max(m.minTx, m.remote.MinRx) }

// jittered returns d reduced by a random 0 to 25 %, or 10 to 25 % with a multiplier of 1 (RFC 5880, section 6.8.7).
func (m *Machine) jittered(d time.Duration) time.Duration {
	from, to := 0.75, 1.0
	if m.timers.Multiplier == 1 {
		to = 0.9
	}
	return time.Duration(float64(d) * (from + (to-from)*m.jitter()))
}

// silent reports whether nothing is sent now: the neighbor wants no packets, or this side is passive and waits for its first one.
func (m *Machine) silent() bool {
	if m.passive && m.yours == 0 {
		return true
	}
	return m.heard && (m.remote.MinRx == 0 || m.remote.Demand && m.remote.Phase == Up && m.phase == Up && !m.polling)
}

// Next returns the time at which Advance is due; the zero time when only a packet of the neighbor changes the state.
func (m *Machine) Next() time.Time {
	var next time.Time
	if !m.silent() {
		next = m.sendAt
	}
	if !m.expire.IsZero() && (next.IsZero() || m.expire.Before(next)) {
		next = m.expire
	}
	return next
}

// Expires returns the end of the detection time, at which the session goes down unless a packet arrives. It is zero if the detection time
// is not running.
func (m *Machine) Expires() time.Time { return m.expire }

// Advance takes the session down if the detection time is over. It returns the packet that is due, or nil. Packets that arrived before now
// must be passed to Receive first.
func (m *Machine) Advance(now time.Time) *Packet {
	if !m.expire.IsZero() && !now.Before(m.expire) {
		m.expired(now)
	}
	if m.silent() || m.sendAt.IsZero() || now.Before(m.sendAt) {
		return nil
	}
	p := m.packet()
	m.sendAt = now.Add(m.jittered(m.interval()))
	return &p
}

// expired takes the session down, unless this call comes late by more than half the detection time: then packets of the neighbor may still
// be unread, and the session gets one more detection time.
func (m *Machine) expired(now time.Time) {
	late := now.Sub(m.expire)
	if detection := m.Detection(); late > detection/2 && !m.spared && m.phase == Up {
		m.expire, m.spared = now.Add(detection), true
		return
	}
	m.expire, m.spared, m.heard = time.Time{}, false, false
	m.yours, m.remote = 0, Packet{}
	if m.phase == Init || m.phase == Up {
		m.enter(Down, Expired, now)
	}
}

// packet returns the control packet that describes the state now.
func (m *Machine) packet() Packet {
	p := Packet{
		Diagnostic: m.diagnostic, Phase: m.phase, Poll: m.polling, Multiplier: uint8(m.timers.Multiplier),
		Mine: m.mine, Yours: m.yours, MinTx: m.timers.Transmit, MinRx: m.timers.Receive,
	}
	if m.phase != Up {
		p.MinTx = max(p.MinTx, slow)
	}
	return p
}
