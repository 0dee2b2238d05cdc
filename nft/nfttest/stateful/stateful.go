package stateful

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
)

// Host is a host that remembers packets. It is not safe for concurrent use.
type Host struct {
	sim.Host

	learnt  map[sim.ElementID]memory
	clock   time.Time // of the last Send
	buckets map[sim.LimitID]bucket
	open    map[sim.LimitID]uint32 // connections, none of which is closed
}

// memory is an element of a dynamic set that a packet added, with its expiry.
type memory struct {
	data    string
	expires time.Time // zero: never
}

func (m memory) live(now time.Time) bool { return m.expires.IsZero() || now.Before(m.expires) }

// bucket is the token bucket of a limit, in units of time as in the kernel (nft_limit.c): a new connection takes the period of the rate
// divided by its count.
type bucket struct {
	left time.Duration
	at   time.Time
}

// Send runs a packet through the ruleset at the given time, which must not precede that
// of an earlier Send. Elements that the packet adds to dynamic sets stay, and what it uses of
// limits; its connection stays open.
func (h *Host) Send(p sim.Packet, now time.Time, random sim.Random) sim.Result {
	h.clock, h.Memory = now, h
	r, trail := h.Run(p, random)
	h.Remember(trail)
	if r.Kind == sim.Delivered {
		for _, id := range trail.Opens {
			if h.open == nil {
				h.open = map[sim.LimitID]uint32{}
			}
			h.open[id]++
		}
	}
	return r
}

// Answer runs the first answer of the endpoint to which Send delivered a packet through the
// ruleset, at the time of the last Send. What it makes the ruleset learn stays.
func (h *Host) Answer(p sim.Packet, r sim.Result) {
	h.Memory = h
	h.Remember(h.RunAnswer(p, r))
}

// Outcomes returns all possible results of a packet under every limit, at the time of the last Send. It changes nothing.
func (h *Host) Outcomes(p sim.Packet) []sim.Result {
	h.Memory = h
	return h.Host.Outcomes(p)
}

// Remember applies what a packet has left in dynamic sets.
func (h *Host) Remember(t sim.Trail) {
	if h.learnt == nil {
		h.learnt = map[sim.ElementID]memory{}
	}
	for e, l := range t.Lessons {
		m := memory{data: l.Data}
		if l.Timeout > 0 {
			m.expires = h.clock.Add(l.Timeout)
		}
		h.learnt[e] = m
		if l.Removed {
			delete(h.learnt, e)
		}
	}
}

// Recall implements sim.Memory.
func (h *Host) Recall(e sim.ElementID) (data string, has bool) {
	m, has := h.learnt[e]
	return m.data, has && m.live(h.clock)
}

// Len implements sim.Memory.
func (h *Host) Len(set sim.SetID) int { return len(h.Learnt(set.Family, set.Name)) }

// Learnt returns the elements that packets have added to a set and that have not expired
// at the time of the last Send.
func (h *Host) Learnt(family nft.Family, set string) nft.Elements {
	elements := make(nft.Elements)
	for e, m := range h.learnt {
		if e.Set == (sim.SetID{Family: family, Name: set}) && m.live(h.clock) {
			elements[e.Key] = m.data
		}
	}
	return elements
}

// Forget applies the operation to the elements that packets have added.
func (h *Host) Forget(op nft.ForgetData) {
	for e, m := range h.learnt {
		if e.Set == (sim.SetID{Family: op.Family, Name: op.Set.Name}) && slices.Contains(op.Data, m.data) {
			delete(h.learnt, e)
		}
	}
}

// OverRate implements sim.Memory.
func (h *Host) OverRate(id sim.LimitID, r nft.Rate) bool {
	each := r.Per / time.Duration(r.Count)
	full := each * time.Duration(r.Burst())
	b, used := h.buckets[id]
	if !used {
		b = bucket{full, h.clock}
	}
	b.left, b.at = min(full, b.left+h.clock.Sub(b.at)), h.clock
	over := b.left < each
	if !over {
		b.left -= each
	}
	if h.buckets == nil {
		h.buckets = map[sim.LimitID]bucket{}
	}
	h.buckets[id] = b
	return over
}

// Open implements sim.Memory.
func (h *Host) Open(id sim.LimitID) uint32 { return h.open[id] }

// Text returns a result on one line, without its trace.
func Text(r sim.Result) string {
	switch r.Kind {
	case sim.Delivered:
		return fmt.Sprintf("delivered %s -> %s", r.Src, r.Dst)
	case sim.Rejected:
		with := map[nft.RejectWith]string{nft.RejectTCPReset: "TCP reset", nft.RejectPortUnreachable: "port unreachable", nft.RejectHostUnreachable: "host unreachable"}
		return "rejected with " + with[r.RejectWith]
	}
	return "dropped"
}

// After returns a copy of the host that also has what a packet has left in dynamic sets.
func (h *Host) After(t sim.Trail) *Host {
	next := *h
	next.learnt = maps.Clone(h.learnt)
	next.Remember(t)
	return &next
}

// Remembers reports whether a host remembers the same as another one.
func (h *Host) Remembers(o *Host) bool { return maps.Equal(h.learnt, o.learnt) }
