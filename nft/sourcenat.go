package nft

// sourceNAT is the frontend's verdict in postrouting: note newcomers first, if the
// port is sticky, then masquerade it or not. What the rules for cluster IPs do anyway
// needs none.
func (p *compiledPort) sourceNAT(f *fragment, box *Box, fe *Frontend) (string, bool) {
	if !p.serves(fe) {
		return "", false
	}
	if p.Affinity > 0 {
		return GotoChain(p.newcomer(fe)).String(), true
	}
	chain := p.masquerade(fe.SNAT, box)
	byRange := chainMasqOutside // what becomes of a client where there is no element
	if !box.hasInternalSources(p.Family) || !box.inServiceRange(fe.Addr) {
		byRange = ""
	}
	timeout, idle := p.idle()
	if chain == byRange && !idle {
		return "", false
	}
	if chain == "" {
		chain = chainSameInterf
	} else {
		f.shared = append(f.shared, chain)
	}
	if idle {
		chain = idleChain(timeout, chain)
		f.shared = append(f.shared, chain)
	}
	return GotoChain(chain).String(), true
}
