package announcements

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/task"
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

// reported returns the published announcement of an address, with the places where it is announced. If there are none, Nowhere is the
// reason.
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

// places returns where an address is announced. It returns nil while no announcer is connected, since it may have stopped.
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

// Conflict is an announced address that another host has as well.
type Conflict struct {
	Address  netip.Addr
	Services []string
	wire.Place
}

// Conflicts returns the announced addresses that other hosts have as well, sorted.
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

// HasAnnouncer reports whether the announcer handles an address on an interface: this box or another one answers there, or the box is
// drained, or the announcement is withheld for a reason.
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

// last returns the last report of the announcer, or an empty report while it is not connected.
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

// PeersDown returns the peers that have no session, by the announcer's last report.
func (r *Registry) PeersDown() []wire.Peer {
	return slices.DeleteFunc(slices.Clone(r.last().Peers), func(p wire.Peer) bool { return !isDown(p) })
}

// Drift returns the election if the active box advertises other addresses than this box has; nil if they are equal or unknown.
func (r *Registry) Drift() *wire.Group {
	if group := r.last().Group; group != nil && group.Differs != nil {
		return group
	}
	return nil
}

// Missing returns the time since which no announcer is connected. missing is false if an announcer is connected, if none ever was, or if
// there is nothing to announce.
func (r *Registry) Missing() (since time.Time, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.announcer.since.IsZero() || r.announcer.isConnected() || len(r.addrs) == 0 {
		return time.Time{}, false
	}
	return r.announcer.since, true
}

// Counts are the numbers of a Registry for metrics.
type Counts struct {
	Places    map[[2]string]int // number of addresses by place and state
	Withheld  int
	Announcer bool // an announcer is connected
	Reported  wire.AnnouncerCounters
	Peers     []wire.Peer // nil without an announcer
	Group     *wire.Group // nil without an election or an announcer
	Drained   bool
}

// Counts returns the current numbers for metrics.
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

// Takeover records that this box began or ceased to announce an address at a place.
type Takeover struct {
	Address   netip.Addr
	Services  []string
	By        string // the place, as in wire.Place.By
	Announced bool
}

// announcer is the state of the process svcctl announce, connected or not, with its last report.
type announcer struct {
	since     time.Time            // last connect or disconnect; zero if it never connected
	watches   int                  // number of its open watches
	last      wire.AnnouncerReport // without Items
	began     time.Time            // when this process (serve) started
	takeovers []Takeover           // for the next call of Takeovers
}

// mostTakeovers is the largest number of takeovers that are kept until Takeovers is called.
const mostTakeovers = 1000

func newAnnouncer() announcer { return announcer{began: time.Now()} }

func (n *announcer) isConnected() bool { return n.watches > 0 }

// count adds `by` (1 or -1) to the number of the announcer's open watches, and reports whether the announcer thereby connected or disconnected.
func (n *announcer) count(by int) (changed bool) {
	before := n.isConnected()
	n.watches += by
	if changed = before != n.isConnected(); changed {
		n.since = time.Now()
	}
	return changed
}

// Takeovers returns the takeovers reported since the last call, at most mostTakeovers. Later ones are dropped.
func (r *Registry) Takeovers() []Takeover {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.announcer.takeovers
	r.announcer.takeovers = nil
	return all
}

// Report processes a report of the announcer. Addresses without a Service are ignored.
func (r *Registry) Report(report wire.AnnouncerReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.announcer
	reported := map[netip.Addr][]wire.Place{}
	for _, item := range report.Items {
		if a, err := netip.ParseAddr(item.Address); err == nil {
			reported[a] = item.Places
		}
	}
	if report.All {
		for a := range r.addrs {
			if _, is := reported[a]; !is {
				reported[a] = nil // announced nowhere
			}
		}
	}
	report.Items, report.Peers = nil, distinct(report.Peers)
	changed := !slices.Equal(n.last.Problems, report.Problems) || !slices.EqualFunc(n.last.Peers, report.Peers, func(a, b wire.Peer) bool { // with the same problem, or none
		return a.Name == b.Name && a.At == b.At && isDown(a) == isDown(b) && (!isDown(a) || a.LastDown == b.LastDown)
	}) || !sameDrift(n.last.Group, report.Group)
	n.last = report
	for a, places := range reported {
		e := r.addrs[a]
		if e == nil {
			continue
		}
		had, has := hasConflict(e.places), hasConflict(places)
		changed = changed || had || has
		if had {
			r.conflicts--
		}
		if has {
			r.conflicts++
		}
		r.addTakeovers(a, e.places, places, false)
		r.addTakeovers(a, places, e.places, true)
		e.places = places
		r.tidy(a)
	}
	if changed || len(n.takeovers) > 0 {
		task.Wake(r.changed)
	}
}

// Values of wire.Place.State that this package compares.
const (
	conflict  = "conflict"
	announced = "announced"
)

func hasConflict(places []wire.Place) bool {
	return slices.ContainsFunc(places, func(p wire.Place) bool { return p.State == conflict })
}

// addTakeovers adds a Takeover for each place that announces the address in places, but not in others. gained is set if the places began to announce
// it, and unset if they ceased. Announcements that began before this process started are left out, because the previous process already reported
// them.
func (r *Registry) addTakeovers(a netip.Addr, places, others []wire.Place, gained bool) {
	n := &r.announcer
	for _, p := range places {
		same := func(o wire.Place) bool { return o.By == p.By && o.State == announced }
		if p.State != announced || slices.ContainsFunc(others, same) || gained && p.Since.Before(n.began) || len(n.takeovers) >= mostTakeovers {
			continue
		}
		t := Takeover{Address: a, By: p.By, Announced: gained}
		if item := r.addrs[a].published; item != nil {
			t.Services = item.Services
		}
		n.takeovers = append(n.takeovers, t)
	}
}

// distinct returns the first peer of each name, since names are labels of metrics and must be unique.
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

// isDown reports whether a peer has no session after a failure that was reported. A peer is not down during the first connection attempt.
func isDown(p wire.Peer) bool { return p.State != wire.Established && p.LastDown != "" }

// sameDrift reports whether a and b have the same difference between address lists, or both have none.
func sameDrift(a, b *wire.Group) bool {
	var of [2]wire.GroupDifference
	for i, g := range []*wire.Group{a, b} {
		if g != nil && g.Differs != nil {
			of[i] = *g.Differs
		}
	}
	return of[0].With == of[1].With && of[0].Since.Equal(of[1].Since)
}
