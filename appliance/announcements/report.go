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

// announcer is the process that announces, or did, and its reports.
type announcer struct {
	since     time.Time                   // when it came, or went; zero: none was here
	here      int                         // its watches
	last      wire.AnnouncerReport        // without Items
	places    map[netip.Addr][]wire.Place // of all reports
	conflicts map[netip.Addr]struct{}     // those of places with a conflict
	began     time.Time                   // when this process did
	moved     []Move                      // not taken yet
}

func newAnnouncer() announcer {
	return announcer{places: map[netip.Addr][]wire.Place{}, conflicts: map[netip.Addr]struct{}{}, began: time.Now()}
}

func (n *announcer) isHere() bool { return n.here > 0 }

// came counts watches, and reports whether the announcer came or went by that.
func (n *announcer) came(by int) (changed bool) {
	before := n.isHere()
	n.here += by
	if changed = before != n.isHere(); changed {
		n.since = time.Now()
	}
	return changed
}

// mostMoves bounds those that wait to be taken.
const mostMoves = 1000

// SetDrained sets whether nothing is to be announced, whatever is published.
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
	moved := b.announcer.moved
	b.announcer.moved = nil
	return moved
}

// Report takes what the announcer says of its addresses.
func (b *Book) Report(r wire.AnnouncerReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := &b.announcer
	items := r.Items
	r.Items, r.Peers = nil, distinct(r.Peers)
	changed := !slices.Equal(n.last.Problems, r.Problems) || !slices.EqualFunc(n.last.Peers, r.Peers, alike) || !sameDifference(n.last.Group, r.Group)
	n.last = r
	before := map[netip.Addr][]wire.Place{}
	if r.All {
		changed = changed || len(n.conflicts) > 0
		before, n.places = n.places, map[netip.Addr][]wire.Place{}
		clear(n.conflicts)
	}
	for _, item := range items {
		a, err := netip.ParseAddr(item.Address)
		if err != nil || !b.inRanges(a) {
			continue
		}
		if _, compared := before[a]; !compared {
			before[a] = n.places[a] // none after All: it was announced nowhere
		}
		_, had := n.conflicts[a]
		has := slices.ContainsFunc(item.Places, func(p wire.Place) bool { return p.State == conflict })
		changed = changed || had || has
		delete(n.conflicts, a)
		delete(n.places, a)
		if has {
			n.conflicts[a] = struct{}{}
		}
		if len(item.Places) > 0 {
			n.places[a] = item.Places
		}
	}
	for a, places := range before {
		b.moves(a, places, n.places[a])
	}
	if changed || len(n.moved) > 0 {
		b.signal()
	}
}

// The states of places that are read here.
const (
	conflict  = "conflict"
	announced = "announced"
)

// moves notes where an address is announced that it was not before, and the other way round. What was
// announced before this process began was told by the one before.
func (b *Book) moves(a netip.Addr, before, now []wire.Place) {
	n := &b.announcer
	note := func(places, others []wire.Place, came bool) {
		for _, p := range places {
			same := func(o wire.Place) bool { return o.By == p.By && o.State == announced }
			if p.State != announced || slices.ContainsFunc(others, same) || came && p.Since.Before(n.began) || len(n.moved) >= mostMoves {
				continue
			}
			n.moved = append(n.moved, Move{a, b.published[a].Services, p.By, came})
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
