package parts

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// Bridged reports endpoints behind bridges whose packets pass the rules for routed packets (bridge-nf-call-iptables). Connections of such an endpoint
// to its own Service get no answer (see checkup.ExamineBridges). All of these endpoints are reported, since the box cannot predict which ones make
// such connections.
type Bridged struct {
	reconcile.NopPart
	grants *reconcile.Grants // is notified of Services before this Part

	mu       sync.Mutex
	facts    *node.Facts       // nil until the first plan, and while no bridge has an address
	services map[string]string // the bridge of the first endpoint behind a bridge, by Service
	settings []string          // the bridge-nf-call settings with value 1, such as net.bridge.bridge-nf-call-iptables
}

// NewBridged returns a Bridged without Services. It must come after grants in the list of Parts.
func NewBridged(grants *reconcile.Grants) *Bridged {
	return &Bridged{grants: grants, services: map[string]string{}}
}

// Name implements reconcile.Part.
func (b *Bridged) Name() string { return "bridged endpoints" }

// Settings sets the names of the bridge-nf-call settings of the host that are 1 (checkup.Facts.BridgeCalls).
func (b *Bridged) Settings(on []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(on, b.settings) {
		return
	}
	b.settings = slices.Clone(on)
	b.renew()
	b.Changed()
}

// Planned implements reconcile.Part.
func (b *Bridged) Planned(host *reconcile.Host, services []reconcile.Service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if host != nil {
		b.facts = host.Facts
		if b.facts != nil && len(b.facts.Bridges()) == 0 {
			b.facts = nil
		}
		b.renew()
		return
	}
	for i := range services {
		b.note(services[i].Key, services[i].Ports)
	}
}

// renew calls note for all Services. It follows a change of the host's facts or settings.
func (b *Bridged) renew() {
	clear(b.services)
	if b.facts == nil || len(b.settings) == 0 {
		return
	}
	all, _ := b.grants.Served()
	for key, ports := range all {
		b.note(key, ports)
	}
}

// note records whether a Service has endpoints behind a bridge.
func (b *Bridged) note(key string, ports []nft.ServicePort) {
	delete(b.services, key)
	if strings.HasPrefix(key, "?") { // what the kernel serves and no object declares has no name
		return
	}
	if found := b.of(ports); len(found) > 0 {
		b.services[key] = found[0].Bridge
	}
}

// of returns the endpoints of Service ports that are behind bridges.
func (b *Bridged) of(ports []nft.ServicePort) (list []wire.BridgedEndpoint) {
	if b.facts == nil || len(b.settings) == 0 {
		return nil
	}
	seen := map[netip.Addr]bool{}
	for i := range ports {
		setting := "net.bridge.bridge-nf-call-iptables"
		if ports[i].Family == nft.IPv6 {
			setting = "net.bridge.bridge-nf-call-ip6tables"
		}
		if !slices.Contains(b.settings, setting) || ports[i].Relayed() { // the relay answers from the box itself
			continue
		}
		for _, ap := range ports[i].Pools[nft.PoolCluster] {
			if seen[ap.Addr()] {
				continue
			}
			seen[ap.Addr()] = true
			if bridge := b.facts.BridgeOf(ap.Addr()); bridge != "" {
				list = append(list, wire.BridgedEndpoint{Address: ap.Addr().String(), Bridge: bridge, Setting: setting})
			}
		}
	}
	return list
}

// Of returns the endpoints of a Service, "namespace/name", that are behind bridges.
func (b *Bridged) Of(service string) []wire.BridgedEndpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(b.grants.Of(service))
}

// bridgedNamed is the largest number of Services that the text of the problem names.
const bridgedNamed = 3

// Problems implements reconcile.Part.
func (b *Bridged) Problems() []resolve.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.services) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(b.services))
	bridges := slices.Compact(slices.Sorted(maps.Values(b.services)))
	names := resolve.First(keys, bridgedNamed)
	is := " is 1"
	if len(b.settings) > 1 {
		is = " are 1"
	}
	return []resolve.Problem{{
		Reason: "BridgedEndpoints",
		Message: fmt.Sprintf("an endpoint behind %s that is a client of its own Service gets no answer when it is balanced to itself, because %s%s; this is so for %s: "+
			"if they are such clients, set %s=0; `svcctl doctor` has the command",
			strings.Join(bridges, " or "), strings.Join(b.settings, " and "), is, names, strings.Join(b.settings, "=0 ")),
		Warning: true,
	}}
}
