package announcements

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// List returns all published announcements, sorted by address.
func (r *Registry) List() wire.Announcements {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list(true)
}

func (r *Registry) list(places bool) wire.Announcements {
	all := wire.Announcements{Drained: r.drained, Ranges: make([]string, len(r.ranges)), Items: make([]wire.Announcement, 0, len(r.addrs))}
	for i, of := range r.ranges {
		all.Ranges[i] = of.First.String() + "-" + of.Last.String()
	}
	for _, a := range slices.SortedFunc(maps.Keys(r.addrs), netip.Addr.Compare) {
		switch e := r.addrs[a]; {
		case e.published == nil:
		case places:
			all.Items = append(all.Items, r.reported(e))
		default:
			all.Items = append(all.Items, *e.published)
		}
	}
	if r.announcer.isConnected() {
		all.Announcer = &wire.Announcer{Since: r.announcer.since}
		all.Peers, all.Group = r.announcer.last.Peers, r.announcer.last.Group
	}
	return all
}

// reported returns the published announcement of an address, with the places where it is announced or why there is none.
func (r *Registry) reported(e *address) wire.Announcement {
	item := *e.published
	item.Places = r.places(e)
	switch {
	case item.Withheld != "" || len(item.Places) > 0:
	case !r.announcer.isConnected():
		item.Nowhere = "no announcer is connected"
	case r.drained:
		item.Nowhere = "this box is drained"
	case len(r.announcer.last.Segments) == 0:
		item.Nowhere = "the announcer has no interface whose network it lies in, and no BGP peer"
	default:
		item.Nowhere = "it lies in no network of " + strings.Join(r.announcer.last.Segments, " and ")
	}
	return item
}

// places returns where an address is announced; none while no announcer is connected, which may have stopped.
func (r *Registry) places(e *address) []wire.Place {
	if e == nil || !r.announcer.isConnected() {
		return nil
	}
	return e.places
}

// Of returns the announcements of a Service, sorted by address.
func (r *Registry) Of(name string) (all []wire.Announcement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(r.services[name].addrs), netip.Addr.Compare) {
		if e := r.addrs[a]; e.published != nil {
			all = append(all, r.reported(e))
		}
	}
	return all
}

// Conflict is an address that another host has.
type Conflict struct {
	Address  netip.Addr
	Services []string
	wire.Place
}

// Conflicts returns the announced addresses that other hosts have, sorted.
func (r *Registry) Conflicts() (all []Conflict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conflicts == 0 {
		return nil
	}
	for a, e := range r.addrs {
		if e.published == nil || e.published.Withheld != "" {
			continue
		}
		for _, p := range e.places {
			if p.State == conflict {
				all = append(all, Conflict{a, e.published.Services, p})
			}
		}
	}
	slices.SortFunc(all, func(a, b Conflict) int { return a.Address.Compare(b.Address) })
	return all
}

// HasAnnouncer reports whether the announcer handles an address on an interface: this box or another one answers there, or
// the state of the address has the reason why none does.
func (r *Registry) HasAnnouncer(a netip.Addr, ifname string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.announcer.isConnected() {
		return false
	}
	e := r.addrs[a]
	return r.drained || e != nil && e.published != nil && e.published.Withheld != "" ||
		slices.ContainsFunc(r.places(e), func(p wire.Place) bool { return p.By == "l2 "+ifname })
}

// last returns the last report of the announcer; the zero report while it is not connected.
func (r *Registry) last() wire.AnnouncerReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.announcer.isConnected() {
		return wire.AnnouncerReport{}
	}
	return r.announcer.last
}

// Problems returns the problems that the announcer reported last, nil while it is not connected.
func (r *Registry) Problems() []string { return r.last().Problems }

// PeersDown returns the peers of the announcer without a session.
func (r *Registry) PeersDown() []wire.Peer {
	return slices.DeleteFunc(slices.Clone(r.last().Peers), func(p wire.Peer) bool { return !isDown(p) })
}

// Drift returns the election if the active box has other addresses than this one; nil: it does not, or that is unknown.
func (r *Registry) Drift() *wire.Group {
	if group := r.last().Group; group != nil && group.Differs != nil {
		return group
	}
	return nil
}

// Missing returns the time since which no announcer is connected, if one was, and there is something to announce.
func (r *Registry) Missing() (since time.Time, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.announcer.since.IsZero() || r.announcer.isConnected() || len(r.addrs) == 0 {
		return time.Time{}, false
	}
	return r.announcer.since, true
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
func (r *Registry) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Counts{Places: map[[2]string]int{}, Announcer: r.announcer.isConnected(), Reported: r.announcer.last.Counters, Drained: r.drained}
	if c.Announcer {
		c.Peers, c.Group = r.announcer.last.Peers, r.announcer.last.Group
	}
	for _, e := range r.addrs {
		for _, p := range r.places(e) {
			c.Places[[2]string{p.By, p.State}]++
		}
		if e.published != nil && e.published.Withheld != "" {
			c.Withheld++
		}
	}
	return c
}
