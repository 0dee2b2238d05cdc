package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// Ranges of ports are claims of their own: an exact port within a range is no conflict, as the
// dataplane asks for exact ones first. Of two ranges with a port in common the older one is granted
// as a whole, and the other one not at all.

// rangePlace is an address, family and protocol in which ranges may overlap.
type rangePlace struct {
	addr   netip.Addr
	family nft.Family
	proto  nft.Protocol
}

// rangeClaim is a range that a Service asks for.
type rangeClaim struct {
	claimant
	first, last uint16
}

func (a rangeClaim) overlaps(b rangeClaim) bool { return a.first <= b.last && b.first <= a.last }

// rangeClaims has all ranges, by place, in the order of claimants.
type rangeClaims struct {
	at     map[rangePlace][]rangeClaim
	places map[string][]rangePlace // of a Service
}

func rangePlaceOf(p *nft.ServicePort, fe *nft.Frontend) rangePlace {
	return rangePlace{fe.Addr, p.Family, p.Protocol}
}

// winners are the claims of a place that are granted.
func (c *rangeClaims) winners(place rangePlace) (granted []rangeClaim) {
	for _, claim := range c.at[place] {
		taken := func(other rangeClaim) bool { return other.service != claim.service && other.overlaps(claim) }
		if !slices.ContainsFunc(granted, taken) {
			granted = append(granted, claim)
		}
	}
	return granted
}

// set replaces the ranges of a Service. It returns the other Services that gained or lost one.
func (c *rangeClaims) set(claim *Claim) (affected []string) {
	before := map[rangePlace][]rangeClaim{}
	keep := func(place rangePlace) {
		if _, kept := before[place]; !kept {
			before[place] = c.winners(place)
		}
	}
	for _, place := range c.places[claim.Service] {
		keep(place)
		c.at[place] = slices.DeleteFunc(c.at[place], func(r rangeClaim) bool { return r.service == claim.Service })
		if len(c.at[place]) == 0 {
			delete(c.at, place)
		}
	}
	delete(c.places, claim.Service)
	for i := range claim.Ports {
		p := &claim.Ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if !fe.IsRange() {
				continue
			}
			if c.at == nil {
				*c = rangeClaims{map[rangePlace][]rangeClaim{}, map[string][]rangePlace{}}
			}
			place := rangePlaceOf(p, fe)
			keep(place)
			var since uint64
			if claim.RangeSince != nil {
				since = claim.RangeSince(p.Protocol, netip.AddrPortFrom(fe.Addr, fe.Port), fe.Last)
			}
			c.at[place] = append(c.at[place], rangeClaim{claimant{service: claim.Service, since: since}, fe.Port, fe.Last})
			slices.SortStableFunc(c.at[place], func(a, b rangeClaim) int { return a.compare(b.claimant) })
			c.places[claim.Service] = append(c.places[claim.Service], place)
		}
	}
	for place, was := range before {
		now := c.winners(place)
		for _, list := range [][]rangeClaim{was, now} {
			for _, r := range list {
				if !slices.Contains(was, r) || !slices.Contains(now, r) {
					affected = append(affected, r.service)
				}
			}
		}
	}
	return affected
}

// refusal returns why a Service does not have a range; "" when it has.
func (c *rangeClaims) refusal(service string, p *nft.ServicePort, fe *nft.Frontend) string {
	asked := rangeClaim{claimant{service: service}, fe.Port, fe.Last}
	for _, other := range c.winners(rangePlaceOf(p, fe)) {
		if other.service != service && other.overlaps(asked) {
			return fmt.Sprintf("%s ports %s/%s are not served for this Service: they overlap %d-%d of Service %s, which asked for them first; choose another range, or another address",
				fe.Addr, fe.PortText(), p.Protocol, other.first, other.last, other.service)
		}
	}
	return ""
}

// claimantOf is the claim of a Service to a range.
func (c *rangeClaims) claimantOf(service string, p *nft.ServicePort, fe *nft.Frontend) (claimant, bool) {
	list := c.at[rangePlaceOf(p, fe)]
	at := slices.IndexFunc(list, func(r rangeClaim) bool { return r.service == service && r.first == fe.Port && r.last == fe.Last })
	if at < 0 {
		return claimant{}, false
	}
	return list[at].claimant, true
}
