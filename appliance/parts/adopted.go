package parts

import (
	"net/netip"
	"sync"

	"svcctl.io/svcctl/nft"
)

// adopted gives the Service ports that the kernel served before this process, by frontend. A range of ports is left
// out: it has the endpoints of an exact port, and may begin with the number of another one.
type adopted func() map[frontend]*nft.ServicePort

// adopt reads a ruleset at the first call of its result, which is rare.
func adopt(have nft.Ruleset) adopted {
	return sync.OnceValue(func() map[frontend]*nft.ServicePort {
		served := map[frontend]*nft.ServicePort{}
		ports := nft.Recover(have, &nft.Box{})
		for i := range ports {
			p := &ports[i]
			for j := range p.Frontends {
				if !p.Frontends[j].IsRange() {
					served[frontendOf(p, j)] = p
				}
			}
		}
		return served
	})
}

// nothingAdopted is before Adopt.
func nothingAdopted() map[frontend]*nft.ServicePort { return nil }

func frontendOf(p *nft.ServicePort, i int) frontend {
	return frontend{p.Family, p.Protocol, netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)}
}
