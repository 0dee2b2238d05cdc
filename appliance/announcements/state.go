package announcements

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Conflict is an address that another host has.
type Conflict struct {
	Address  netip.Addr
	Services []string
	wire.Place
}

// Conflicts are the addresses that other hosts have.
func (b *Book) Conflicts() (all []Conflict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.announcer.conflicts {
		item, is := b.published[a]
		if !is || item.Withheld != "" {
			continue
		}
		for _, p := range b.announcer.places[a] {
			if p.State == conflict {
				all = append(all, Conflict{a, item.Services, p})
			}
		}
	}
	slices.SortFunc(all, func(a, b Conflict) int { return a.Address.Compare(b.Address) })
	return all
}

// Of are the addresses of a Service, in their order.
func (b *Book) Of(service string) (all []wire.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(b.of[service]), netip.Addr.Compare) {
		if _, is := b.published[a]; is {
			all = append(all, b.told(a))
		}
	}
	return all
}

// places returns where an address is announced; none while no announcer is connected, which may have stopped.
func (b *Book) places(a netip.Addr) []wire.Place {
	if !b.announcer.isHere() {
		return nil
	}
	return b.announcer.places[a]
}

// told returns the announcement of an address, with the places where it is announced or why there is none.
func (b *Book) told(a netip.Addr) wire.Announcement {
	item := b.published[a]
	item.Places = b.places(a)
	switch {
	case item.Withheld != "" || len(item.Places) > 0:
	case !b.announcer.isHere():
		item.Nowhere = "no announcer is connected"
	case b.drained:
		item.Nowhere = "this box is drained"
	case len(b.announcer.last.Segments) == 0:
		item.Nowhere = "the announcer has no interface whose network it lies in, and no BGP peer"
	default:
		item.Nowhere = "it lies in no network of " + strings.Join(b.announcer.last.Segments, " and ")
	}
	return item
}

// IsSeenTo reports whether the announcer sees to it that neighbors on an interface get answers for an address, from this box or
// another one, or knows why they get none: there is nothing to be done but what its state says.
func (b *Book) IsSeenTo(a netip.Addr, ifname string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.announcer.isHere() {
		return false
	}
	return b.drained || b.published[a].Withheld != "" || slices.ContainsFunc(b.places(a), func(p wire.Place) bool { return p.By == "l2 "+ifname })
}

// Problems returns the problems that the announcer reported last, nil while it is not connected.
func (b *Book) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.announcer.isHere() {
		return nil
	}
	return b.announcer.last.Problems
}

// PeersDown are the peers of the announcer without a session.
func (b *Book) PeersDown() (all []wire.Peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.announcer.isHere() {
		return nil
	}
	for _, p := range b.announcer.last.Peers {
		if isDown(p) {
			all = append(all, p)
		}
	}
	return all
}

// Difference returns how the addresses of the box that answers differ from those of this one; nil: they do
// not, or it is not known.
func (b *Book) Difference() *wire.Group {
	b.mu.Lock()
	defer b.mu.Unlock()
	group := b.announcer.last.Group
	if !b.announcer.isHere() || group == nil || group.Differs == nil {
		return nil
	}
	return group
}

// Missing is since when no announcer is connected, if one was, and there is something to announce.
func (b *Book) Missing() (since time.Time, missing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.announcer.since.IsZero() || b.announcer.isHere() || len(b.published) == 0 {
		return time.Time{}, false
	}
	return b.announcer.since, true
}

// Counts are numbers for metrics.
type Counts struct {
	Places    map[[2]string]int // addresses by place and state
	Withheld  int
	Announcer bool // one is connected
	Reported  wire.AnnouncerCounters
	Peers     []wire.Peer // none without an announcer
	Group     *wire.Group // nil: no election
	Drained   bool
}

// Counts returns the numbers of addresses that are announced, by place, and that are withheld.
func (b *Book) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := Counts{Places: map[[2]string]int{}, Announcer: b.announcer.isHere(), Reported: b.announcer.last.Counters, Drained: b.drained}
	if c.Announcer {
		c.Peers, c.Group = b.announcer.last.Peers, b.announcer.last.Group
	}
	for a := range b.announcer.places {
		for _, p := range b.places(a) {
			c.Places[[2]string{p.By, p.State}]++
		}
	}
	for _, item := range b.published {
		if item.Withheld != "" {
			c.Withheld++
		}
	}
	return c
}
