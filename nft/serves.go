package nft

import "net/netip"

// Serves tells whether a ruleset has a frontend: an address and port, or, with the zero
// Addr, a node port.
func (rs Ruleset) Serves(f Family, proto Protocol, at netip.AddrPort) bool {
	if rs[f] == nil {
		return false
	}
	set, key := setNodePorts, Key(nil)
	if at.Addr().IsValid() {
		set, key = setServices, key.Addr(at.Addr())
	}
	content := rs[f].Sets[set]
	if content == nil {
		return false
	}
	_, ok := content.Elements[string(key.Proto(proto).Port(at.Port()))]
	return ok
}
