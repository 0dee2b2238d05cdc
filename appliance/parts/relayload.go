package parts

import (
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/nft"
)

// Load counts the connections of a relayed port of a Service, at both listeners of its family, for reconcile.Grants.
func (r *Relay) Load(service string, p *nft.ServicePort) *wire.RelayLoad {
	load := &wire.RelayLoad{Open: map[string]int{}}
	for _, l := range r.relay.Load(service) {
		if l.ID != p.ID || l.Protocol != p.Protocol.String() || nft.FamilyOf(l.Listen.Addr()) != p.Family {
			continue
		}
		load.Taken += l.Taken
		load.FailedConnects += l.FailedConnects
		for endpoint, n := range l.Open {
			load.Open[endpoint.String()] += n
		}
	}
	return load
}

// Loads returns the loads of all relayed ports.
func (r *Relay) Loads() []relay.PortLoad { return r.relay.Load("") }

// Passages returns the passages of all relayed ports.
func (r *Relay) Passages() []relay.Passage { return r.relay.Passages() }

// PortOf splits the ID of a port of a Service; port is "" for a port without a name.
func PortOf(id string) (namespace, name, port string) {
	service, port := nft.SplitID(id)
	namespace, name, _ = strings.Cut(service, "/")
	return namespace, name, port
}
