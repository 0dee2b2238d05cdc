package announcements

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Takeover is an address that is announced at a place from now on, or no more.
type Takeover struct {
	Address   netip.Addr
	Services  []string
	By        string // as in wire.Place
	Announced bool
}

// announcer is the announcing process, connected or not, and its reports.
type announcer struct {
	since     time.Time            // of its last connect or disconnect; zero: it never connected
	watches   int                  // its open watches
	last      wire.AnnouncerReport // without Items
	began     time.Time            // the start of this process
	takeovers []Takeover           // for the next call of Takeovers
}

// mostTakeovers bounds the takeovers that are kept for Takeovers.
const mostTakeovers = 1000

func newAnnouncer() announcer { return announcer{began: time.Now()} }

func (n *announcer) isConnected() bool { return n.watches > 0 }

// count counts watches, and reports whether the announcer connected or disconnected by that.
func (n *announcer) count(by int) (changed bool) {
	before := n.isConnected()
	n.watches += by
	if changed = before != n.isConnected(); changed {
		n.since = time.Now()
	}
	return changed
}

// Takeovers returns what the announcer reported since the last call: the first of many.
func (r *Registry) Takeovers() []Takeover {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.announcer.takeovers
	r.announcer.takeovers = nil
	return all
}

// Report takes a report of the announcer. Addresses without a Service are ignored.
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
		signal(r.changed)
	}
}

// The states of places that are read here.
const (
	conflict  = "conflict"
	announced = "announced"
)

func hasConflict(places []wire.Place) bool {
	return slices.ContainsFunc(places, func(p wire.Place) bool { return p.State == conflict })
}

// addTakeovers adds the places of an address that announce it while the same place of others does not. Those from before
// this process began were reported to the one before it.
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

// distinct returns the first peer of each name: names are labels of metrics.
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

// isDown reports whether a peer has no session for a known reason. One that is dialed for the first time is not down.
func isDown(p wire.Peer) bool { return p.State != wire.Established && p.LastDown != "" }

// sameDrift reports whether two states of an election make the same problem, or none.
func sameDrift(a, b *wire.Group) bool {
	var of [2]wire.GroupDifference
	for i, g := range []*wire.Group{a, b} {
		if g != nil && g.Differs != nil {
			of[i] = *g.Differs
		}
	}
	return of[0].With == of[1].With && of[0].Since.Equal(of[1].Since)
}
