package announce

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// byFlags is the name of the advertisement that the flags of svcctl announce configure. Advertisements from objects are named
// "namespace/name".
const byFlags = ""

// table has the BGP routes to all addresses. Several addresses can share a route, and several advertisements can announce an address.
type table struct {
	advertisements map[string]*wire.Advertisement
	of             map[netip.Addr][]string // names of advertisements, by address
	routes         map[netip.Prefix]*route
	attributes     map[string]*bgp.Attributes // cache, by the joined names of the advertisements
}

// route is the state of one announced prefix.
type route struct {
	by        map[string]int // number of addresses behind the route, by advertisement
	announced bool
	since     time.Time
}

func newTable() *table {
	return &table{
		advertisements: map[string]*wire.Advertisement{}, of: map[netip.Addr][]string{},
		routes: map[netip.Prefix]*route{}, attributes: map[string]*bgp.Attributes{},
	}
}

// prefix returns the prefix by which an advertisement announces an address.
func prefix(a *wire.Advertisement, addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(addr, a.Length4).Masked()
	}
	return netip.PrefixFrom(addr, a.Length6).Masked()
}

// set replaces the advertisements that announce an address; unknown names are ignored. It adds the prefixes of affected routes to changed.
func (t *table) set(addr netip.Addr, names []string, changed map[netip.Prefix]struct{}) {
	count := func(names []string, by int) {
		for _, name := range names {
			a := t.advertisements[name]
			if a == nil {
				continue
			}
			p := prefix(a, addr)
			if t.routes[p] == nil {
				t.routes[p] = &route{by: map[string]int{}}
			}
			if t.routes[p].by[name] += by; t.routes[p].by[name] == 0 {
				delete(t.routes[p].by, name)
			}
			changed[p] = struct{}{}
		}
	}
	count(t.of[addr], -1)
	count(names, 1)
	if t.of[addr] = names; len(names) == 0 {
		delete(t.of, addr)
	}
}

// replace replaces all advertisements except byFlags, and removes all addresses, which the caller must set again. It adds the prefixes of
// all routes to changed.
func (t *table) replace(all []wire.Advertisement, changed map[netip.Prefix]struct{}) {
	for addr := range t.of {
		t.set(addr, nil, changed)
	}
	flags := t.advertisements[byFlags]
	clear(t.advertisements)
	clear(t.attributes)
	if flags != nil {
		t.advertisements[byFlags] = flags
	}
	for i := range all {
		t.advertisements[all[i].Name] = &all[i]
	}
}

// attributesFor returns the path attributes of a route for a peer: the communities of all its advertisements, and for each number (such as
// the local preference) the first nonzero value in order of advertisement name. It returns nil if the route is not announced to the peer.
func (t *table) attributesFor(r *route, peer string) *bgp.Attributes {
	var names []string
	for name := range r.by {
		if slices.Contains(t.advertisements[name].Peers, peer) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil
	}
	key := strings.Join(names, "\n")
	if a := t.attributes[key]; a != nil {
		return a
	}
	a := &bgp.Attributes{}
	for _, name := range names {
		from := t.advertisements[name]
		a.LocalPref = cmp.Or(a.LocalPref, from.LocalPref)
		a.MED = cmp.Or(a.MED, from.MED)
		a.Prepend = cmp.Or(a.Prepend, from.Prepend)
		for _, c := range from.Communities {
			if !slices.Contains(a.Communities, c) {
				a.Communities = append(a.Communities, c)
			}
		}
		for _, c := range from.Large {
			if !slices.Contains(a.Large, bgp.LargeCommunity(c)) {
				a.Large = append(a.Large, c)
			}
		}
	}
	t.attributes[key] = a
	return a
}

// routeTo returns the most specific route to an address that is announced to a peer; to is nil if there is none.
func (t *table) routeTo(addr netip.Addr, peer string) (longest netip.Prefix, to *route) {
	for _, name := range t.of[addr] {
		a := t.advertisements[name]
		if a == nil || !slices.Contains(a.Peers, peer) {
			continue
		}
		if p := prefix(a, addr); to == nil || p.Bits() > longest.Bits() {
			longest, to = p, t.routes[p]
		}
	}
	return longest, to
}

// behind returns the addresses that the given routes announce.
func (t *table) behind(routes map[netip.Prefix]struct{}) (addrs []netip.Addr) {
	for addr, names := range t.of {
		if slices.ContainsFunc(names, func(name string) bool {
			a := t.advertisements[name]
			if a == nil {
				return false
			}
			_, is := routes[prefix(a, addr)]
			return is
		}) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// toPeer returns all announced routes for a peer with their attributes.
func (t *table) toPeer(peer string) map[netip.Prefix]*bgp.Attributes {
	routes := map[netip.Prefix]*bgp.Attributes{}
	for p, r := range t.routes {
		if a := t.attributesFor(r, peer); a != nil && r.announced {
			routes[p] = a
		}
	}
	return routes
}

// ad is where an address is announced: interfaces, and advertisements for BGP.
type ad struct {
	// Flags is set when the flags of svcctl announce determine where the address is announced.
	Flags bool `json:"flags,omitempty"`
	// L2 and Via are copied from wire.Announcement.
	L2  []string `json:"l2,omitempty"`
	Via []string `json:"via,omitempty"`
}

func adOf(item *wire.Announcement) ad { return ad{item.Flags, item.L2, item.Via} }

func (a ad) equal(b ad) bool {
	return a.Flags == b.Flags && slices.Equal(a.L2, b.L2) && slices.Equal(a.Via, b.Via)
}

// advertisements returns the names of the BGP advertisements that announce the address.
func (a ad) advertisements() []string {
	if a.Flags {
		return append([]string{byFlags}, a.Via...)
	}
	return a.Via
}

// everywhere in ad.L2 stands for all interfaces.
const everywhere = "*"

// on reports whether the address is announced on an interface. l2 holds the interfaces that the flags name.
func (a ad) on(ifname string, l2 []string) bool {
	return a.Flags && (slices.Contains(l2, ifname) || slices.Contains(l2, Auto)) || slices.Contains(a.L2, everywhere) || slices.Contains(a.L2, ifname)
}

// A withdrawn route is announced again after firstPause at the earliest. Each further withdrawal doubles the pause, up to lastPause. After
// the time calm without a withdrawal the pause is firstPause again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	calm       = time.Minute
)

// damper computes when a withdrawn route may be announced again, so that a flapping endpoint does not burden all routers. It has no clock:
// callers pass the time.
type damper struct {
	flaps   map[netip.Prefix]flap
	sweepAt int // number of flaps at which expired ones are removed
}

// flap records the last withdrawal of a route.
type flap struct {
	pause time.Duration
	back  time.Time // the earliest time of the next announcement
}

func newDamper() damper { return damper{map[netip.Prefix]flap{}, 64} }

// withdrawn records the withdrawal of a route, and doubles its pause.
func (d *damper) withdrawn(route netip.Prefix, now time.Time) {
	f := d.flaps[route]
	if f.pause = min(2*f.pause, lastPause); f.pause == 0 || f.isOver(now) {
		f.pause = firstPause
	}
	f.back = now.Add(f.pause)
	d.flaps[route] = f
	if len(d.flaps) < d.sweepAt {
		return
	}
	maps.DeleteFunc(d.flaps, func(_ netip.Prefix, f flap) bool { return f.isOver(now) })
	d.sweepAt = 2*len(d.flaps) + 64
}

// isOver reports whether the last withdrawal is so long ago that the next pause is firstPause again.
func (f flap) isOver(now time.Time) bool { return now.Sub(f.back) > calm }

// notBefore returns the earliest time at which a route may be announced; the zero time for a route without a recent withdrawal.
func (d *damper) notBefore(route netip.Prefix) time.Time { return d.flaps[route].back }
