package vrrp

import (
	"net/netip"
	"time"
)

// State is the role of a box in the election.
type State uint8

const (
	Backup  State = iota // another box is active, or will be
	Active               // it answers and advertises
	Leaving              // it answers until it hears its successor
	Out                  // it does not take part
)

// String is the state in lower case.
func (s State) String() string { return [...]string{"backup", "active", "leaving", "out"}[s] }

// Answers reports whether a box in the state answers.
func (s State) Answers() bool { return s == Active || s == Leaving }

// unwell is the priority of a box that any other should take over from.
const unwell = 1

// Config are the settings of a virtual router.
type Config struct {
	VRID     uint8         // 1 to 255
	Priority uint8         // 1 to 254, of which the highest wins
	Interval time.Duration // between adverts; whole centiseconds, up to MaxInterval
	Preempt  bool          // the highest priority wins over who is active, too
}

// Machine is one virtual router on this box. It is told the time, and is not safe for concurrent use.
type Machine struct {
	cfg      Config
	priority uint8
	state    State
	since    time.Time
	next     time.Time // of the next advert when active, of becoming active when not; zero: never
	// master is the active box, and interval the one that it advertises.
	master   netip.Addr
	interval time.Duration
	deadline time.Time // when leaving: until then a successor is waited for
}

// New begins as Backup, and becomes active when it receives no adverts.
func New(now time.Time, cfg Config) *Machine {
	m := &Machine{cfg: cfg, priority: cfg.Priority, since: now}
	m.Join(now)
	return m
}

// State is the role of the box, and since when it has it.
func (m *Machine) State() (State, time.Time) { return m.state, m.since }

// Master is the active box as far as heard; not valid: this one, or unknown.
func (m *Machine) Master() netip.Addr { return m.master }

// Priority returns the priority that the box advertises as master: 1 while others should take over.
func (m *Machine) Priority() uint8 { return m.priority }

// Next returns the time at which Tick is due; the zero Time: never.
func (m *Machine) Next() time.Time { return m.next }

// skew returns Skew_Time: the box with the highest priority is first (RFC 9568, section 6.1).
func (m *Machine) skew() time.Duration {
	return time.Duration(256-int(m.priority)) * m.interval / 256
}

// down is Active_Down_Interval.
func (m *Machine) down() time.Duration { return 3*m.interval + m.skew() }

func (m *Machine) become(now time.Time, s State) {
	if m.state != s {
		m.state, m.since = s, now
	}
}

// SetPriority changes the priority for now: unwell reports that others should take over.
func (m *Machine) SetPriority(unhealthy bool) {
	m.priority = m.cfg.Priority
	if unhealthy {
		m.priority = unwell
	}
}

// Tick does what is due. It gives the adverts to send, by their priorities.
func (m *Machine) Tick(now time.Time) (adverts []uint8) {
	if m.next.IsZero() || now.Before(m.next) {
		return nil
	}
	switch m.state {
	case Out:
		m.next = time.Time{}
	case Backup:
		m.become(now, Active)
		m.master, m.interval = netip.Addr{}, m.cfg.Interval
		fallthrough
	case Active:
		m.next = now.Add(m.cfg.Interval)
		return []uint8{m.priority}
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

// Receive takes the advert of another box. own is the address that ours are sent from where it came in.
// assert reports that this box stays active against another one that was: it should announce itself anew.
func (m *Machine) Receive(now time.Time, a *Advert, own netip.Addr) (adverts []uint8, assert bool) {
	if a.VRID != m.cfg.VRID {
		return nil, false
	}
	switch m.state {
	case Backup:
		m.hear(now, a)
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
			m.next = now.Add(m.cfg.Interval)
			return []uint8{m.priority}, false
		case a.Priority > m.priority || a.Priority == m.priority && own.Less(a.Source):
			m.become(now, Backup)
			m.hear(now, a)
		default:
			m.next = now.Add(m.cfg.Interval)
			return []uint8{m.priority}, true
		}
	}
	return nil, false
}

// hear is Receive in state Backup.
func (m *Machine) hear(now time.Time, a *Advert) {
	takes := a.Priority < m.priority && (m.cfg.Preempt || a.Priority == unwell)
	switch {
	case a.Priority == 0:
		m.next = now.Add(m.skew())
	case !takes:
		m.master, m.interval = a.Source, a.Interval
		m.next = now.Add(m.down())
	}
}

// Leave hands over: the box goes on until it hears its successor, at most for patience. A backup is out at once.
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

// Join begins anew, as New does, with the priority that SetPriority gave: what was heard before counts for nothing.
func (m *Machine) Join(now time.Time) {
	m.become(now, Backup)
	m.master, m.interval = netip.Addr{}, m.cfg.Interval
	m.next = now.Add(m.down())
}
