package announcements

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Move is an address that is announced at a place from now on, or no more.
type Move struct {
	Address   netip.Addr
	Services  []string
	By        string // as in wire.Place
	Announced bool
}

// mostMoves bounds those that wait to be taken.
const mostMoves = 1000

// SetDrained says whether nothing is to be announced, whatever is published.
func (b *Book) SetDrained(drained bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drained == drained {
		return
	}
	b.drained = drained
	for w := range b.watchers {
		w.signal()
	}
	b.signal()
}

// Moves takes what the announcer reported since the last call: the first of many.
func (b *Book) Moves() []Move {
	b.mu.Lock()
	defer b.mu.Unlock()
	moved := b.moved
	b.moved = nil
	return moved
}

// Report takes what the announcer says of its addresses.
func (b *Book) Report(r wire.AnnouncerReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reported = r.Counters
	r.Peers = distinct(r.Peers)
	changed := !slices.Equal(b.problems, r.Problems) || !slices.EqualFunc(b.peers, r.Peers, alike) || !sameDifference(b.group, r.Group)
	b.problems, b.peers, b.group, b.segments = r.Problems, r.Peers, r.Group, r.Segments
	before, conflicts := map[netip.Addr][]wire.Place{}, len(b.conflicts)
	if r.All {
		before, b.places = b.places, map[netip.Addr][]wire.Place{}
		clear(b.conflicts)
	}
	for _, item := range r.Items {
		a, err := netip.ParseAddr(item.Address)
		if err != nil || !b.inRanges(a) {
			continue
		}
		if !r.All {
			before[a] = b.places[a]
		}
		_, had := b.conflicts[a]
		has := slices.ContainsFunc(item.Places, func(p wire.Place) bool { return p.State == conflict })
		changed = changed || had || has
		delete(b.conflicts, a)
		delete(b.places, a)
		if has {
			b.conflicts[a] = struct{}{}
		}
		if len(item.Places) > 0 {
			b.places[a] = item.Places
		}
	}
	changed = changed || r.All && conflicts > 0
	for a, places := range before {
		b.moves(a, places, b.places[a])
	}
	for _, item := range r.Items {
		if a, err := netip.ParseAddr(item.Address); err == nil {
			if _, compared := before[a]; !compared {
				b.moves(a, nil, b.places[a])
			}
		}
	}
	if changed || len(b.moved) > 0 {
		b.signal()
	}
}

// The states of places that are read here.
const (
	conflict       = "conflict"
	announcedState = "announced"
)

// moves notes where an address is announced that it was not before, and the other way round. What was
// announced before this process began was told by the one before.
func (b *Book) moves(a netip.Addr, before, now []wire.Place) {
	note := func(places, others []wire.Place, announced bool) {
		for _, p := range places {
			same := func(o wire.Place) bool { return o.By == p.By && o.State == announcedState }
			if p.State != announcedState || slices.ContainsFunc(others, same) || announced && p.Since.Before(b.began) || len(b.moved) >= mostMoves {
				continue
			}
			b.moved = append(b.moved, Move{a, b.published[a].Services, p.By, announced})
		}
	}
	note(before, now, false)
	note(now, before, true)
}

// distinct are the peers with a name that none before them has: names are labels of metrics.
func distinct(all []wire.Peer) (peers []wire.Peer) {
	names := map[string]bool{}
	for _, p := range all {
		if !names[p.Name] {
			names[p.Name] = true
			peers = append(peers, p)
		}
	}
	return peers
}

// alike reports whether two states of a peer make the same problem, or none.
func alike(a, b wire.Peer) bool {
	return a.Name == b.Name && a.At == b.At && isDown(a) == isDown(b) && (!isDown(a) || a.LastDown == b.LastDown)
}

// isDown reports whether a peer has no session, and it is known why. One that is tried for the first time
// is not down.
func isDown(p wire.Peer) bool { return p.State != wire.Established && p.LastDown != "" }

// sameDifference reports whether two states of an election make the same problem, or none.
func sameDifference(a, b *wire.Group) bool {
	of := func(g *wire.Group) (with string, since time.Time) {
		if g == nil || g.Differs == nil {
			return "", time.Time{}
		}
		return g.Differs.With, g.Differs.Since
	}
	withA, sinceA := of(a)
	withB, sinceB := of(b)
	return withA == withB && sinceA.Equal(sinceB)
}
