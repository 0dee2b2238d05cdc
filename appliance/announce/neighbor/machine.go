package neighbor

import (
	"container/heap"
	"net/netip"
	"time"
)

// A new address is probed probeCount times, at probeInterval. RFC 5227 (section 1.1) and RFC 4862 require a second or more between probes,
// for lossy networks and booting hosts. The interval here is shorter because a Service waits for the address. A host that replies later is
// detected from its response to the announcements.
const (
	probeCount    = 3
	probeInterval = 200 * time.Millisecond
	// repeat is the interval of announcements of an address. It is shorter than the 5 min after which bridges drop the port of a MAC address.
	repeat = 60 * time.Second
	// reprobe is the interval at which an address in use by another host is probed again.
	reprobe = 10 * time.Second
	// contend is the delay before an address is probed again if another host probed it at the same time. A random time of up to twice contend
	// is added, so that one of the hosts is first.
	contend = time.Second
	// defend is the time after a conflict in which a second conflict makes this box give up the address (RFC 5227, section 2.4).
	defend = 10 * time.Second
	// defense is the minimum time between two announcements of an address that this box answers for by election.
	defense = time.Second
	// contested is the time for which another host must claim an address that this box answers for by election, before the address counts as
	// contested. Both boxes claim it for a moment during a takeover, and for longer if they do not receive each other's adverts.
	contested = 3 * time.Second
	// undisputed is the time without a claim by another host after which the next claim begins a new contest.
	undisputed = 2 * repeat
	// unanswered is the time without a claim after which a contest is over. It is long enough for three probes without a reply.
	unanswered = 3*reprobe + reprobe/2
)

// bursts holds the times of the repeated announcements of a new address, counted from the first announcement, in case frames are lost.
var bursts = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}

// State is the state of an address on an interface.
type State uint8

const (
	Probing   State = iota // checking whether another host has the address
	Announced              // this box answers for the address and announces it
	Conflict               // another host has the address
	Standby                // another box of the election answers for the address
)

// String returns the state as `svcctl announce status` prints it.
func (s State) String() string { return [...]string{"probing", "announced", "conflict", "standby"}[s] }

// Status is the state of one address on an interface, with its details.
type Status struct {
	Addr  netip.Addr
	State State
	// Rival is the MAC address of the other host that has Addr, in state Conflict or while Contested is set.
	Rival MAC
	// Contested is set when this box answers for Addr by election, but Rival claims it as well.
	Contested bool
	// Unanswered is set in state Standby when no other box answers for Addr.
	Unanswered bool
	Since      time.Time
}

// Counters counts replies sent, announcements sent and conflicts.
type Counters struct{ Answers, Announcements, Conflicts uint64 }

// machine is the state machine of all addresses on one interface. Its methods return the frames to send. It reads no clock: calls pass the time. All
// randomness comes from the function random.
type machine struct {
	own     MAC
	mine    map[MAC]bool // the MAC addresses of this box: their frames are no conflict
	random  func(time.Duration) time.Duration
	passive bool // another box of the election answers for all addresses
	elected bool // an election decides which box answers, instead of which host was first

	entries map[netip.Addr]*entry
	queue   queue
	changed map[netip.Addr]struct{}
	Counters
}

// entry is one address and its timers.
type entry struct {
	Status
	sent     int       // probes sent, or announcements sent since gained
	gained   time.Time // when the announcements began
	defended time.Time
	// announced is the time of the last announcement. In an election it includes answers to the claims of other hosts.
	announced time.Time
	verified  bool // in state Standby: probes check whether another box answers
	// times of the first and the last claim of another host in the current contest of an election
	claimed, heard time.Time
	next           time.Time // when tick handles the address next
	index          int       // position in the queue
}

func newMachine(own MAC, random func(time.Duration) time.Duration) *machine {
	return &machine{own: own, random: random, mine: map[MAC]bool{own: true}, entries: map[netip.Addr]*entry{}, changed: map[netip.Addr]struct{}{}}
}

// add starts to probe an address, and announces it if no other host has it. If known is set, this box announced the address a moment ago,
// and it is announced without probes.
func (m *machine) add(now time.Time, a netip.Addr, known bool) {
	if m.entries[a] != nil {
		return
	}
	e := &entry{Status: Status{Addr: a, State: Probing, Since: now}, next: now}
	m.entries[a] = e
	heap.Push(&m.queue, e)
	switch {
	case m.passive:
		m.set(now, e, Standby)
	case known || m.elected:
		m.gain(now, e)
	}
	m.changed[a] = struct{}{}
}

// remove stops answering for an address. ARP and NDP have no message that withdraws it.
func (m *machine) remove(a netip.Addr) {
	if e := m.entries[a]; e != nil {
		heap.Remove(&m.queue, e.index)
		delete(m.entries, a)
		m.changed[a] = struct{}{}
	}
}

// refresh announces all announced addresses again, for example after the link came up, and probes those in conflict. In an election it leaves out
// contested addresses, and announces each of the others at intervals of at least `defense`.
func (m *machine) refresh(now time.Time) {
	for _, e := range m.entries {
		switch e.State {
		case Announced:
			if !m.elected {
				m.gain(now, e)
				continue
			}
			// Each advert of a box that does not receive ours asks for this: once a second is enough. In a contest each claim
			// is answered.
			if e.Contested {
				continue
			}
			e.sent, e.gained = 0, now
			if earliest := e.announced.Add(defense); earliest.After(now) {
				e.gained = earliest
			}
			m.at(e, e.gained)
		case Conflict:
			m.probe(now, e)
		}
	}
}

// setPassive leaves all addresses to another box if passive is set, and takes them over otherwise. The first call sets elected: from then on an
// election decides which box answers, rather than which host was first.
func (m *machine) setPassive(now time.Time, passive bool) {
	m.elected = true
	if m.passive == passive {
		return
	}
	m.passive = passive
	for _, e := range m.entries {
		if passive {
			m.set(now, e, Standby)
		} else {
			m.gain(now, e)
		}
	}
}

// verify starts probes of the lowest address in state Standby, to check that the active box answers. If no host replies, Status.Unanswered
// is set.
func (m *machine) verify(now time.Time) {
	var lowest *entry
	for _, e := range m.entries {
		if e.State == Standby && (lowest == nil || e.Addr.Less(lowest.Addr)) {
			lowest = e
		}
	}
	if lowest != nil && !lowest.verified {
		lowest.verified, lowest.sent = true, 0
		m.at(lowest, now.Add(contend))
	}
}

func (m *machine) set(now time.Time, e *entry, s State) {
	if e.State != s {
		e.State, e.Since, e.Contested, e.Unanswered, e.verified = s, now, false, false, false
		m.changed[e.Addr] = struct{}{}
	}
}

// endContest clears the claims of other hosts to an address.
func (m *machine) endContest(e *entry) {
	if e.claimed, e.heard = (time.Time{}), (time.Time{}); e.Contested {
		e.Contested = false
		m.changed[e.Addr] = struct{}{}
	}
}

// contest records a claim by another host to an address that this box answers for by election. It sets Status.Contested when such claims have
// continued for the time `contested`.
func (m *machine) contest(now time.Time, e *entry, rival MAC) {
	if now.Sub(e.heard) >= undisputed {
		e.claimed = now
	}
	e.heard = now
	if is := now.Sub(e.claimed) >= contested; is && (!e.Contested || e.Rival != rival) {
		if !e.Contested {
			m.at(e, now.Add(reprobe))
		}
		e.Contested, e.Rival = true, rival
		m.Conflicts++
		m.changed[e.Addr] = struct{}{}
	}
}

// at sets the time at which tick handles an address next.
func (m *machine) at(e *entry, when time.Time) {
	e.next = when
	heap.Fix(&m.queue, e.index)
}

func (m *machine) gain(now time.Time, e *entry) {
	m.set(now, e, Announced)
	m.endContest(e)
	e.sent, e.gained = 0, now
	m.at(e, now)
}

func (m *machine) probe(now time.Time, e *entry) {
	m.set(now, e, Probing)
	e.sent = 0
	m.at(e, now)
}

// yield leaves an address to another host (state Conflict), and schedules new probes. `later` is the delay before the first one.
func (m *machine) yield(now time.Time, e *entry, rival MAC, later time.Duration) {
	if e.State != Conflict || e.Rival != rival {
		m.changed[e.Addr] = struct{}{}
	}
	if e.State != Conflict {
		m.Conflicts++
	}
	e.Rival = rival
	m.set(now, e, Conflict)
	m.at(e, now.Add(later))
}

// tick returns the frames that are due, and the time of the next call; the zero Time if none is needed.
func (m *machine) tick(now time.Time) (frames [][]byte, next time.Time) {
	for len(m.queue) > 0 {
		e := m.queue[0]
		if e.next.After(now) {
			return frames, e.next
		}
		switch e.State {
		case Standby:
			if !e.verified {
				m.at(e, now.Add(time.Hour))
				continue
			}
			wait := contend
			if e.sent >= probeCount {
				wait = reprobe + m.random(reprobe/10)
				if !e.Unanswered {
					e.Unanswered = true
					m.changed[e.Addr] = struct{}{}
				}
			}
			frames = append(frames, probe(m.own, e.Addr))
			e.sent++
			m.at(e, now.Add(wait))
		case Conflict:
			m.probe(now, e)
		case Probing:
			if e.sent == probeCount {
				m.gain(now, e)
				continue
			}
			frames = append(frames, probe(m.own, e.Addr))
			e.sent++
			m.at(e, now.Add(probeInterval))
		case Announced:
			if quiet := now.Sub(e.heard); quiet >= undisputed || e.Contested && quiet >= unanswered {
				m.endContest(e)
			}
			if e.Contested { // the rival answers, or is gone
				frames = append(frames, probe(m.own, e.Addr))
				m.at(e, now.Add(reprobe+m.random(reprobe/10)))
				continue
			}
			frames = append(frames, announcements(m.own, e.Addr)...)
			m.Announcements++
			e.announced = now
			if e.sent < len(bursts) {
				m.at(e, e.gained.Add(bursts[e.sent]))
			} else {
				m.at(e, now.Add(repeat+m.random(repeat/10)))
			}
			e.sent++
		}
	}
	return frames, time.Time{}
}

// receive processes a frame that the interface received, and returns the frames to send in response.
func (m *machine) receive(now time.Time, frame []byte) [][]byte {
	msg, ok := parse(frame)
	if !ok || m.mine[msg.by] {
		return nil
	}
	var out [][]byte
	if e := m.entries[msg.claims]; e != nil {
		out = m.claimed(now, e, msg.by)
	}
	switch e := m.entries[msg.asks]; {
	case e == nil:
	case e.State == Announced:
		m.Answers++
		out = append(out, answer(m.own, msg))
	case e.State == Probing && !msg.from.IsValid():
		m.yield(now, e, msg.by, contend+m.random(2*contend)) // another one wants it, too
	}
	return out
}

// claimed processes the claim of another host to an address, by a reply, an announcement or a probe, and returns the frames to send.
func (m *machine) claimed(now time.Time, e *entry, rival MAC) [][]byte {
	switch {
	case e.State == Standby:
		if e.Unanswered {
			m.changed[e.Addr] = struct{}{}
		}
		e.verified, e.Unanswered = false, false
	case e.State == Probing, e.State == Conflict:
		m.yield(now, e, rival, reprobe+m.random(reprobe/10))
	case e.State == Announced && m.elected:
		m.contest(now, e, rival)
		if now.Sub(e.announced) >= defense {
			e.announced = now
			m.Announcements++
			return announcements(m.own, e.Addr)[:1] // RFC 5227, section 2.4: one
		}
	case e.State == Announced && !e.defended.IsZero() && now.Sub(e.defended) < defend:
		m.yield(now, e, rival, reprobe+m.random(reprobe/10))
	case e.State == Announced:
		e.defended = now
		m.Announcements++
		return announcements(m.own, e.Addr)
	}
	return nil
}

// queue is a heap of addresses by entry.next.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
