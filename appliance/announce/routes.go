package announce

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce/bgp"
)

// byFlags is the name of the advertisement that the flags are. Those of objects are "namespace/name".
const byFlags = ""

// table is the routes to all addresses. Several addresses may be behind one route, and an address may be
// announced by several advertisements.
type table struct {
	advertisements map[string]*wire.Advertisement
	of             map[netip.Addr][]string // by which advertisements an address is announced
	routes         map[netip.Prefix]*route
	attributes     map[string]*bgp.Attributes // made so far, by advertisements
}

// route is a prefix with its addresses.
type route struct {
	by        map[string]int // how many addresses, by advertisement
	announced bool
	since     time.Time
}

func newTable() *table {
	return &table{
		advertisements: map[string]*wire.Advertisement{}, of: map[netip.Addr][]string{},
		routes: map[netip.Prefix]*route{}, attributes: map[string]*bgp.Attributes{},
	}
}

// prefix is the route to an address by an advertisement.
func prefix(a *wire.Advertisement, addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(addr, a.Length4).Masked()
	}
	return netip.PrefixFrom(addr, a.Length6).Masked()
}

// set has an address announced by some advertisements, of which those that are not known count for nothing. It
// notes the routes that this touches.
func (t *table) set(addr netip.Addr, names []string, touched map[netip.Prefix]struct{}) {
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
			touched[p] = struct{}{}
		}
	}
	count(t.of[addr], -1)
	count(names, 1)
	if t.of[addr] = names; len(names) == 0 {
		delete(t.of, addr)
	}
}

// replace has other advertisements; those of flags stay. It notes all routes.
func (t *table) replace(all []wire.Advertisement, touched map[netip.Prefix]struct{}) {
	of := t.of
	for addr := range of {
		t.set(addr, nil, touched)
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

// names are the advertisements of a route, in their order, that are for a peer.
func (t *table) names(r *route, peer string) (names []string) {
	for name := range r.by {
		if slices.Contains(t.advertisements[name].Peers, peer) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// attributesFor returns the path attributes of a route for a peer: the communities of all its advertisements, and
// the numbers of the first one that has them. nil: the route is not announced to the peer.
func (t *table) attributesFor(r *route, peer string) *bgp.Attributes {
	names := t.names(r, peer)
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
		if a.LocalPref == 0 {
			a.LocalPref = from.LocalPref
		}
		if a.MED == 0 {
			a.MED = from.MED
		}
		if a.Prepend == 0 {
			a.Prepend = from.Prepend
		}
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

// routeTo is the longest route to an address that a peer is told of; nil: none.
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

// behind are the addresses that some routes lead to.
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

// toPeer are the announced routes that a peer is to have.
func (t *table) toPeer(peer string) map[netip.Prefix]*bgp.Attributes {
	routes := map[netip.Prefix]*bgp.Attributes{}
	for p, r := range t.routes {
		if a := t.attributesFor(r, peer); a != nil && r.announced {
			routes[p] = a
		}
	}
	return routes
}

// ad names the places where an address is announced.
type ad struct {
	// Flags is set when the flags of the announcer decide.
	Flags bool `json:"flags,omitempty"`
	// L2 and Via are those of wire.Announcement.
	L2  []string `json:"l2,omitempty"`
	Via []string `json:"via,omitempty"`
}

func adOf(item *wire.Announcement) ad { return ad{item.Flags, item.L2, item.Via} }

func (a ad) equal(b ad) bool {
	return a.Flags == b.Flags && slices.Equal(a.L2, b.L2) && slices.Equal(a.Via, b.Via)
}

// advertisements are the names of those that have routes to the address.
func (a ad) advertisements() []string {
	if a.Flags {
		return append([]string{byFlags}, a.Via...)
	}
	return a.Via
}

// everywhere stands for all interfaces, in ad.L2.
const everywhere = "*"

// on reports whether the address is announced on an interface; l2 are those of flags.
func (a ad) on(ifname string, l2 []string) bool {
	return a.Flags && (slices.Contains(l2, ifname) || slices.Contains(l2, Auto)) || slices.Contains(a.L2, everywhere) || slices.Contains(a.L2, ifname)
}
