package dns

import (
	"net/netip"

	"github.com/miekg/dns"
)

// Resolvers are the name servers in a file of the form of resolv.conf(5); none when it cannot be
// read.
func Resolvers(path string) []netip.Addr {
	conf, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, server := range conf.Servers {
		if addr, err := netip.ParseAddr(server); err == nil {
			addrs = append(addrs, addr.WithZone(""))
		}
	}
	return addrs
}
