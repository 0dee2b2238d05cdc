package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Attributes of a route beside those that every route has. They are shared and compared by
// pointer and by content, and must not change once a Speaker has them.
type Attributes struct {
	// LocalPref is sent to internal peers only; 0 is 100.
	LocalPref uint32
	// MED is sent when it is not 0.
	MED uint32
	// Prepend is the number of additional copies of our AS in the path to external peers.
	Prepend int
	// Communities has communities of RFC 1997, Large those of RFC 8092.
	Communities []uint32
	Large       []LargeCommunity
}

// LargeCommunity is global administrator, and two parts of local data.
type LargeCommunity [3]uint32

const (
	defaultLocalPref = 100
	// gracefulShutdown asks others to prefer other paths (RFC 8326).
	gracefulShutdown uint32 = 65535 << 16
)

// plain are the Attributes of a route without any.
var plain = &Attributes{}

// maxCommunities bounds the attributes, so that a message has room for routes beside them:
// bytes of all communities of a route.
const maxCommunities = 2048

// Check validates the attributes: the range of Prepend, and the size of all communities.
func (a *Attributes) Check() error {
	if a.Prepend < 0 || a.Prepend > 100 {
		return fmt.Errorf("prepend %d is not from 0 to 100", a.Prepend)
	}
	if size := 4*len(a.Communities) + 12*len(a.Large); size > maxCommunities {
		return fmt.Errorf("%d communities and %d large ones are too many for a message", len(a.Communities), len(a.Large))
	}
	return nil
}

// key is equal for Attributes of equal content.
func (a *Attributes) key() string {
	b := make([]byte, 0, 16+4*len(a.Communities)+12*len(a.Large))
	for _, v := range []uint32{a.LocalPref, a.MED, uint32(a.Prepend), uint32(len(a.Communities))} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, c := range a.Communities {
		b = binary.BigEndian.AppendUint32(b, c)
	}
	for _, c := range a.Large {
		for _, v := range c {
			b = binary.BigEndian.AppendUint32(b, v)
		}
	}
	return string(b)
}

func (a *Attributes) equal(b *Attributes) bool {
	return a == b || a.LocalPref == b.LocalPref && a.MED == b.MED && a.Prepend == b.Prepend &&
		slices.Equal(a.Communities, b.Communities) && slices.Equal(a.Large, b.Large)
}

// Leaving are the same routes by a speaker that is about to leave: their Attributes ask routers to
// prefer any other path (RFC 8326). What routes share, they share still.
func Leaving(routes map[netip.Prefix]*Attributes) map[netip.Prefix]*Attributes {
	leaving, of := map[netip.Prefix]*Attributes{}, map[*Attributes]*Attributes{}
	for prefix, a := range routes {
		if of[a] == nil {
			b := *a
			b.Communities = append(slices.Clone(a.Communities), gracefulShutdown)
			of[a] = &b
		}
		leaving[prefix] = of[a]
	}
	return leaving
}

// group is routes of one family that one UPDATE can announce together.
type group struct {
	attributes *Attributes
	ipv6       bool
	prefixes   []netip.Prefix
}

// grouped sorts routes into groups, in an order that depends on nothing but the routes.
func grouped(routes map[netip.Prefix]*Attributes) []group {
	type id struct {
		key  string
		ipv6 bool
	}
	keys := map[*Attributes]string{}
	index := map[id]int{}
	var all []group
	for prefix, a := range routes {
		key, known := keys[a]
		if !known {
			key = a.key()
			keys[a] = key
		}
		ipv6 := prefix.Addr().Is6()
		at, known := index[id{key, ipv6}]
		if !known {
			at = len(all)
			index[id{key, ipv6}] = at
			all = append(all, group{attributes: a, ipv6: ipv6})
		}
		all[at].prefixes = append(all[at].prefixes, prefix)
	}
	for _, g := range all {
		slices.SortFunc(g.prefixes, netip.Prefix.Compare)
	}
	slices.SortFunc(all, func(a, b group) int { return a.prefixes[0].Compare(b.prefixes[0]) })
	return all
}

// rib has the routes of a peer, and which of them changed since the last take. It is not safe for
// concurrent use.
type rib struct {
	wanted map[netip.Prefix]*Attributes
	dirty  map[netip.Prefix]struct{}
}

// normal is a prefix as it is sent: an IPv4 one as such, without host bits.
func normal(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return netip.PrefixFrom(p.Addr().WithZone(""), p.Bits()).Masked()
}

// set replaces all routes.
func (r *rib) set(routes map[netip.Prefix]*Attributes) {
	wanted := make(map[netip.Prefix]*Attributes, len(routes))
	for prefix, a := range routes {
		if prefix = normal(prefix); prefix.IsValid() {
			wanted[prefix] = orPlain(a)
		}
	}
	for prefix := range r.wanted {
		if _, still := wanted[prefix]; !still {
			r.dirty[prefix] = struct{}{}
		}
	}
	for prefix, a := range wanted {
		if old, had := r.wanted[prefix]; !had || !old.equal(a) {
			r.dirty[prefix] = struct{}{}
		}
	}
	r.wanted = wanted
}

// update adds, changes and removes routes.
func (r *rib) update(announce map[netip.Prefix]*Attributes, withdraw []netip.Prefix) {
	for _, prefix := range withdraw {
		prefix = normal(prefix)
		if _, had := r.wanted[prefix]; had {
			delete(r.wanted, prefix)
			r.dirty[prefix] = struct{}{}
		}
	}
	for prefix, a := range announce {
		prefix, a = normal(prefix), orPlain(a)
		if !prefix.IsValid() {
			continue
		}
		if old, had := r.wanted[prefix]; !had || !old.equal(a) {
			r.wanted[prefix] = a
			r.dirty[prefix] = struct{}{}
		}
	}
}

func orPlain(a *Attributes) *Attributes {
	if a == nil {
		return plain
	}
	return a
}

// take returns the changes since the last take: nil for removed routes.
func (r *rib) take() map[netip.Prefix]*Attributes {
	changes := make(map[netip.Prefix]*Attributes, len(r.dirty))
	for prefix := range r.dirty {
		changes[prefix] = r.wanted[prefix]
	}
	clear(r.dirty)
	return changes
}
