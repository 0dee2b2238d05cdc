package announcements

import (
	"net/netip"

	"svcctl.io/svcctl/nft"
)

// Why an address is withheld.
const (
	noEndpoint      = "no ready endpoint"
	noLocalEndpoint = "no endpoint on this box, and the policy is Local"
	hostAddress     = "an address of this host, which answers for it itself"
)

// Wanted are the addresses of a Service's ports that are to be announced, each with why it is not,
// "" if it is. An address is announced when clients from outside are served at any port of it.
func Wanted(ports []nft.ServicePort, inRanges func(netip.Addr) bool) map[netip.Addr]string {
	var all map[netip.Addr]string
	for i := range ports {
		p := &ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if !fe.Addr.IsValid() || fe.Kind == nft.ClusterIP || !inRanges(fe.Addr) {
				continue
			}
			if all == nil {
				all = map[netip.Addr]string{}
			}
			before, told := all[fe.Addr]
			if why := withheld(p, fe); !told || before != "" && (why == "" || before == noEndpoint) {
				all[fe.Addr] = why
			}
		}
	}
	return all
}

// withheld is why a frontend does not want its address announced.
func withheld(p *nft.ServicePort, fe *nft.Frontend) string {
	switch {
	case fe.HostOwned:
		return hostAddress
	case p.Takes(fe.Outside.Pool):
		return ""
	case p.Takes(nft.PoolCluster):
		return noLocalEndpoint
	}
	return noEndpoint
}
