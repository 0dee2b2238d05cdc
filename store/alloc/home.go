package alloc

import "net/netip"

// A home is the value that a seed gets when nothing is held. Where the record of who holds
// what is lost, it is the best guess of what an owner had.

// Home returns the address that Next gives an owner when nothing is held.
func (a *Addresses) Home(owner string) (netip.Addr, bool) {
	n, ok := pick(union{}, 1, a.band, a.last, owner)
	return plus(a.prefix.Addr(), n), ok
}

// Size returns the number of addresses that can be allocated.
func (a *Addresses) Size() uint64 { return a.last }

// Home returns the port that Next gives for a seed when nothing is held.
func (p *Ports) Home(seed string) (uint16, bool) {
	n, ok := pick(union{}, p.first, p.band, p.last, seed)
	return uint16(n), ok
}

// Home returns the address that Next gives an owner without a sharing key when nothing is held.
func (p *Pools) Home(ipv4, internal bool, owner string) (netip.Addr, bool) {
	for _, pool := range p.pools {
		if pool.First.Is4() == ipv4 && pool.Internal == internal && !pool.OnRequest {
			n, ok := pick(union{}, 0, 0, pool.offset(pool.Last), owner)
			return plus(pool.First, n), ok
		}
	}
	return netip.Addr{}, false
}
