package bgp

import "net/netip"

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
