package vrrp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// State is the role of a box in the VRRP election.
type State uint8

const (
	Backup  State = iota // another box is active, or none is yet
	Active               // this box answers and sends adverts
	Leaving              // this box answers until it receives an advert of its successor
	Out                  // this box does not take part
)

// String returns the state in lower case.
func (s State) String() string { return [...]string{"backup", "active", "leaving", "out"}[s] }

// Answers reports whether a box in this state answers for the addresses.
func (s State) Answers() bool { return s == Active || s == Leaving }

// unwell is the priority that a box advertises while it is unhealthy. Any other box then takes over from it.
const unwell = 1

// Config has the settings of a virtual router.
type Config struct {
	VRID     uint8         // 1 to 255
	Priority uint8         // 1 to 254; the highest wins
	Interval time.Duration // between adverts; whole centiseconds, up to MaxInterval
	Preempt  bool          // a box with a higher priority takes over from an active box
}

// Machine is the VRRP state machine of one virtual router on this box. It has no clock: calls pass the time. It is not safe for concurrent
// use.
type Machine struct {
	cfg      Config
	priority uint8
	state    State
	since    time.Time
	next     time.Time // next advert if active, otherwise the takeover; zero if none is scheduled
	// master is the active box, and interval its advertised interval, limited to mostInterval.
	master   netip.Addr
	interval time.Duration
	asked    time.Duration // the interval in the last advert of the master, which may exceed mostInterval
	deadline time.Time     // when leaving: how long to wait for a successor

	sent    time.Time     // when active: time of the last advert
	late    time.Duration // when active: the recent lateness of adverts
	excused bool          // when backup: become active at next even if Tick is called late
}

// Limits of the lateness of adverts. Boxes share no clock.
const (
	// mostLate limits the lateness that is taken into account, in configured intervals. The advertised interval is thus at most five times the
	// configured one.
	mostLate = 4
	// forget controls the decay of the lateness: each timely advert subtracts 1/forget of it, so that it halves after 177 adverts.
	forget = 256
	// centisecond is the unit of intervals in adverts on the wire.
	centisecond = 10 * time.Millisecond
)

// New returns a Machine in state Backup. It becomes active if no advert arrives for Active_Down_Interval, a little more than three
// intervals.
func New(now time.Time, cfg Config) *Machine {
	m := &Machine{cfg: cfg, priority: cfg.Priority, since: now}
	m.Join(now)
	return m
}

// State returns the role of the box, and the time of the last change.
func (m *Machine) State() (State, time.Time) { return m.state, m.since }

// Master returns the address of the active box, from its adverts. It is invalid if this box is active or the active box is unknown.
func (m *Machine) Master() netip.Addr { return m.master }

// Priority returns the priority in adverts of this box: the configured one, or 1 while the box is unwell.
func (m *Machine) Priority() uint8 { return m.priority }

// Next returns the time at which Tick is due; zero means never.
func (m *Machine) Next() time.Time { return m.next }

// Interval returns the interval in adverts of this box, in whole centiseconds: the configured one plus the recent lateness of adverts, so
// that others wait longer for the next one.
func (m *Machine) Interval() time.Duration {
	return min((m.cfg.Interval + m.late).Truncate(centisecond), MaxInterval)
}

// Silent reports whether this box is active but has sent no advert for three intervals, because the process or the machine was suspended.
// Another box may have taken over meanwhile, so the caller should first process the queued adverts.
func (m *Machine) Silent(now time.Time) bool {
	return m.state == Active && now.Sub(m.sent) >= 3*m.Interval()
}

// mostInterval returns the longest master interval that this box respects: the one that a busy box with the same settings would advertise.
// Without a limit one forged advert, which any host on the link can send, could keep the boxes passive for three times MaxInterval.
func (m *Machine) mostInterval() time.Duration { return (1 + mostLate) * m.cfg.Interval }

// Longer returns the interval that the master advertises, and the longest interval that this box respects, if the master's is longer;
// otherwise 0 and 0.
func (m *Machine) Longer() (asked, most time.Duration) {
	if most = m.mostInterval(); m.state != Backup || !m.master.IsValid() || m.asked <= most {
		return 0, 0
	}
	return m.asked, most
}

// skew returns Skew_Time (RFC 9568, section 6.1), by which a box with a higher priority becomes active earlier.
func (m *Machine) skew() time.Duration {
	return time.Duration(256-int(m.priority)) * m.interval / 256
}

// down returns Active_Down_Interval (RFC 9568, section 6.1).
func (m *Machine) down() time.Duration { return 3*m.interval + m.skew() }

func (m *Machine) become(now time.Time, s State) {
	if m.state != s {
		m.state, m.since = s, now
	}
}

// SetPriority(true) sets the priority to 1, so that any other box takes over. SetPriority(false) restores the configured priority.
func (m *Machine) SetPriority(unhealthy bool) {
	m.priority = m.cfg.Priority
	if unhealthy {
		m.priority = unwell
	}
}

// Tick performs the transitions and adverts that are due at now. It returns the priorities of the adverts to send.
func (m *Machine) Tick(now time.Time) (adverts []uint8) {
	if m.next.IsZero() || now.Before(m.next) {
		return nil
	}
	switch m.state {
	case Out:
		m.next = time.Time{}
	case Backup:
		if now.Sub(m.next) >= m.cfg.Interval && !m.excused {
			// This box did not run. If the whole machine did not, what was sent to it meanwhile is lost.
			m.excused, m.next = true, now.Add(m.down())
			return nil
		}
		// What makes one box of a pair late makes the other one late, too: it begins with the interval of its predecessor.
		m.late = max(m.late, m.interval-m.cfg.Interval)
		m.become(now, Active)
		m.master, m.interval = netip.Addr{}, m.cfg.Interval
		return m.advertise(now)
	case Active:
		m.late = min(max(now.Sub(m.next), m.late-m.late/forget), mostLate*m.cfg.Interval)
		due := m.next
		adverts = m.advertise(now)
		if due = due.Add(m.cfg.Interval); due.After(now) {
			m.next = due // one that is late makes no other one late
		}
		return adverts
	case Leaving:
		if now.Before(m.deadline) {
			m.next = now.Add(m.cfg.Interval)
			return []uint8{0}
		}
		m.become(now, Out)
		m.next = time.Time{}
	}
	return nil
}

// advertise returns the priority of the advert to send, and schedules the next one.
func (m *Machine) advertise(now time.Time) []uint8 {
	m.sent, m.next = now, now.Add(m.cfg.Interval)
	return []uint8{m.priority}
}

// Receive processes the advert of another box. own is the source address of this box's adverts on the receiving link. It returns the
// priorities of adverts to send in response. assert is set if both boxes were active and this one stays active: it should announce its
// addresses again.
func (m *Machine) Receive(now time.Time, a *Advert, own netip.Addr) (adverts []uint8, assert bool) {
	if a.VRID != m.cfg.VRID {
		return nil, false
	}
	switch m.state {
	case Backup:
		m.hold(now, a)
	case Leaving:
		if a.Priority > 0 {
			m.become(now, Out)
			m.master, m.next = a.Source, time.Time{}
		}
	case Out:
		m.master = a.Source
	case Active:
		switch {
		case a.Priority == 0:
			return m.advertise(now), false
		case a.Priority > m.priority || a.Priority == m.priority && own.Less(a.Source):
			// Two answered, as after a split. The one that stays may never have received an advert of this one: it gets one,
			// and announces its addresses to the clients of this one.
			m.become(now, Backup)
			m.hold(now, a)
			return []uint8{m.priority}, false
		case m.Silent(now) && !m.takes(a): // this one was away, and is replaced
			m.become(now, Backup)
			m.hold(now, a)
		default:
			return m.advertise(now), true
		}
	}
	return nil, false
}

// hold processes an advert in state Backup. Priority 0 means that the sender stops: this box then becomes active after Skew_Time, unless another box
// does. An advert of a box that this box does not take over from postpones the takeover.
func (m *Machine) hold(now time.Time, a *Advert) {
	switch {
	case a.Priority == 0:
		m.excused, m.next = true, now.Add(m.skew())
	case !m.takes(a):
		m.master, m.excused = a.Source, false
		m.asked, m.interval = a.Interval, min(a.Interval, m.mostInterval())
		m.next = now.Add(m.down())
	}
}

// takes reports whether this box takes over from the sender of an advert, by priority and preemption.
func (m *Machine) takes(a *Advert) bool {
	return a.Priority < m.priority && (m.cfg.Preempt || a.Priority == unwell)
}

// Leave starts to hand over: the box answers until it receives an advert of its successor, at most for the duration patience. A backup
// becomes Out at once. Leave returns the priorities of adverts to send.
func (m *Machine) Leave(now time.Time, patience time.Duration) (adverts []uint8) {
	switch m.state {
	case Active:
		m.become(now, Leaving)
		m.deadline, m.next = now.Add(patience), now.Add(m.cfg.Interval)
		return []uint8{0}
	case Backup:
		m.become(now, Out)
		m.next = time.Time{}
	}
	return nil
}

// Join restarts in state Backup, as New does, and ignores adverts received before. It keeps the priority set by SetPriority.
func (m *Machine) Join(now time.Time) {
	m.become(now, Backup)
	m.master, m.interval, m.excused = netip.Addr{}, m.cfg.Interval, false
	m.next = now.Add(m.down())
}

// Protocol is the IP protocol number of VRRP. HopLimit is the TTL or hop limit of its packets, which proves that no router forwarded them.
const (
	Protocol = 112
	HopLimit = 255
)

// The multicast groups that adverts are sent to (RFC 9568, sections 5.1.1.2 and 5.1.2.2).
var (
	Group4 = netip.AddrFrom4([4]byte{224, 0, 0, 18})
	Group6 = netip.MustParseAddr("ff02::12")
)

// The limits of fields in an advert: 12 bits of centiseconds for the interval, and 8 bits for the number of addresses.
const (
	MaxInterval  = 4095 * 10 * time.Millisecond
	maxAddresses = 255
	headerLen    = 8
)

// Advert is a VRRP advertisement.
type Advert struct {
	VRID     uint8
	Priority uint8 // 0 means that the sender leaves the election
	Interval time.Duration
	// Addresses are at most 255, all of the address family of the packet.
	Addresses []netip.Addr
	// Source and Destination are the addresses in the IP header.
	Source, Destination netip.Addr
}

// Marshal returns the advert as the payload of an IP packet, with its checksum.
func (a *Advert) Marshal() []byte {
	addrs := a.Addresses
	if len(addrs) > maxAddresses {
		addrs = addrs[:maxAddresses]
	}
	b := make([]byte, headerLen, headerLen+len(addrs)*16)
	b[0], b[1], b[2], b[3] = 3<<4|1, a.VRID, a.Priority, byte(len(addrs))
	binary.BigEndian.PutUint16(b[4:], uint16(a.Interval/(10*time.Millisecond)))
	for _, addr := range addrs {
		b = append(b, addr.AsSlice()...)
	}
	binary.BigEndian.PutUint16(b[6:], Checksum(a.Source, a.Destination, b))
	return b
}

// The errors of Parse.
var (
	errShort    = errors.New("it is too short")
	errVersion  = errors.New("it is no advertisement of VRRP version 3")
	errChecksum = errors.New("its checksum is wrong")
	errInterval = errors.New("its interval is 0")
)

// Parse decodes an advert from the payload of an IP packet. In IPv4 the checksum may include the pseudo-header (RFC 5798) or not.
func Parse(source, destination netip.Addr, b []byte) (a Advert, err error) {
	if len(b) < headerLen {
		return a, errShort
	}
	if b[0] != 3<<4|1 {
		return a, errVersion
	}
	size, count := source.BitLen()/8, int(b[3])
	if len(b) < headerLen+count*size {
		return a, errShort
	}
	b = b[:headerLen+count*size]
	if Checksum(source, destination, b) != 0 && (source.Is6() || Checksum(netip.Addr{}, netip.Addr{}, b) != 0) {
		return a, errChecksum
	}
	a = Advert{
		VRID: b[1], Priority: b[2], Interval: time.Duration(binary.BigEndian.Uint16(b[4:])&0xfff) * 10 * time.Millisecond,
		Source: source, Destination: destination,
	}
	if a.Interval == 0 {
		return a, errInterval
	}
	for rest := b[headerLen:]; len(rest) > 0; rest = rest[size:] {
		addr, _ := netip.AddrFromSlice(rest[:size])
		a.Addresses = append(a.Addresses, addr)
	}
	return a, nil
}

// Checksum returns the checksum of the VRRP packet b (RFC 9568, section 5.2.8), which must have an even length. If the addresses are invalid, it
// leaves out the pseudo-header. The result is then the checksum of RFC 1071, as in IPv4 headers.
func Checksum(source, destination netip.Addr, b []byte) uint16 {
	var sum uint32
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
	}
	if source.IsValid() {
		add(source.AsSlice())
		add(destination.AsSlice())
		sum += uint32(len(b)) + Protocol
	}
	add(b)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
