package alloc

import "net/netip"

// A home is the value that a seed gets when only the values are held that taken reports. Where the record of who holds
// what is lost, it is the best guess of what an owner had.

// Home returns the address that Next gives an owner.
func (a *Addresses) Home(owner string, taken func(netip.Addr) bool) (netip.Addr, bool) {
	n, ok := pickFree(newNumberSet(a.last), a.prefix.Addr(), 1, a.band, a.last, owner, taken)
	return plus(a.prefix.Addr(), n), ok
}

// Size returns the number of addresses that can be allocated.
func (a *Addresses) Size() uint64 { return a.last }

// Home returns the port that Next gives for a seed.
func (p *Ports) Home(seed string, taken func(uint16) bool) (uint16, bool) {
	passed := newNumberSet(p.last)
	for {
		n, ok := pick(union{passed}, p.first, p.band, p.last, seed)
		if !ok || !taken(uint16(n)) {
			return uint16(n), ok
		}
		passed.add(n)
	}
}

// Home returns the address that Next gives for a request without a sharing key.
func (p *Pools) Home(ipv4 bool, request *Request, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for _, pool := range p.pools {
		if pool.First.Is4() != ipv4 || pool.Internal != request.Internal || !pool.isOffered(request) {
			continue
		}
		used, last := newNumberSet(pool.offset(pool.Last)), pool.offset(pool.Last)
		avoid := func(addr netip.Addr) bool { return pool.AvoidEnds && pool.endsAvoided(addr) || taken(addr) }
		if n, ok := pickFree(used, pool.First, 0, 0, last, request.Owner, avoid); ok {
			return plus(pool.First, n), true
		}
	}
	return netip.Addr{}, false
}
