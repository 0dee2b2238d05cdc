package nft

import "net/netip"

// Serves reports whether a ruleset has a frontend: an address and port, or, with the zero
// Addr, a node port.
func (rs Ruleset) Serves(f Family, proto Protocol, at netip.AddrPort) bool {
	if rs[f] == nil {
		return false
	}
	set := setNodePorts
	if at.Addr().IsValid() {
		set = setServices
	}
	content := rs[f].Sets[set]
	if content == nil {
		return false
	}
	_, ok := content.Elements[string(frontendKey(proto, at))]
	return ok
}

// HasVIP reports whether Services have an address as a whole.
func (rs Ruleset) HasVIP(addr netip.Addr) bool {
	table := rs[FamilyOf(addr)]
	if table == nil || table.Sets[setVIPs] == nil {
		return false
	}
	_, ok := table.Sets[setVIPs].Elements[AddrKey(addr)]
	return ok
}

// frontendKey is the key of a frontend in the dispatch maps: an address and port, or, with
// the zero Addr, a node port.
func frontendKey(proto Protocol, at netip.AddrPort) Key {
	k := make(Key, 0, 32)
	if at.Addr().IsValid() {
		k = k.Addr(at.Addr())
	}
	return k.Proto(proto).Port(at.Port())
}
