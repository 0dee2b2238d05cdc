package reconcile

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// claimEgress removes the egress source addresses that a declared Service has from the orphans.
func (o *Orphans) claimEgress(e *nft.Egress) {
	if len(e.Sources) == 0 {
		return // mostly
	}
	for key, p := range o.ports {
		kept := slices.DeleteFunc(slices.Clone(p.Egress.Sources), func(a netip.Addr) bool { return slices.Contains(e.Sources, a) })
		if len(kept) < len(p.Egress.Sources) {
			p.Egress.Sources, o.changed[key] = kept, true
			o.ports[key] = p
		}
	}
}
