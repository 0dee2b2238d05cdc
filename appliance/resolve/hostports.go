package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Node ports answer on addresses of the host, so a frontend at one of them has the same place as a node port of
// its number, though the two are different keys of Claims. Two things follow: of the two the older one is granted, and an
// endpoint there of a relayed port, where the frontend is relayed too, would send the relay its own connections.

// hostPorts indexes the claims at addresses of the host.
type hostPorts struct {
	nodePorts map[netip.Addr]bool             // the addresses that node ports answer on
	owned     map[claimed]map[netip.Addr]bool // the addresses of the host that a port is asked for at, by node port
}

// asNodePort is the node port that has the place of a frontend.
func (c claimed) asNodePort() claimed {
	c.addr = netip.Addr{}
	return c
}

// PlaceAt sets the addresses that node ports answer on. It returns the Services that may gain or lose a frontend or an
// endpoint by that.
func (c *Claims) PlaceAt(addrs []netip.Addr) (affected []string) {
	before := c.host.nodePorts
	c.host.nodePorts = make(map[netip.Addr]bool, len(addrs))
	for _, addr := range addrs {
		c.host.nodePorts[addr] = true
	}
	moved := map[netip.Addr]bool{}
	for _, pair := range [][2]map[netip.Addr]bool{{before, c.host.nodePorts}, {c.host.nodePorts, before}} {
		for addr := range pair[0] {
			if !pair[1][addr] {
				moved[addr] = true
				affected = append(affected, c.relayedTo(addr)...)
			}
		}
	}
	for key, at := range c.host.owned {
		for addr := range at {
			if key.addr = addr; moved[addr] {
				affected = append(affected, c.rivals(key)...)
				affected = append(affected, c.rivals(key.asNodePort())...)
			}
		}
	}
	slices.Sort(affected)
	return slices.Compact(affected)
}

// own notes whether a frontend at an address of the host is asked for.
func (c *Claims) own(key claimed) {
	place := key.asNodePort()
	if slices.ContainsFunc(c.byFrontend[key], func(w claimant) bool { return w.host }) {
		if c.host.owned == nil {
			c.host.owned = map[claimed]map[netip.Addr]bool{}
		}
		if c.host.owned[place] == nil {
			c.host.owned[place] = map[netip.Addr]bool{}
		}
		c.host.owned[place][key.addr] = true
		return
	}
	delete(c.host.owned[place], key.addr)
	if len(c.host.owned[place]) == 0 {
		delete(c.host.owned, place)
	}
}

// setHost notes the claims of a Service at addresses of the host and of node ports, of which keys are those that it has now. It
// returns the Services that may gain or lose a frontend or an endpoint by what changed.
func (c *Claims) setHost(service string, had map[claimed]claimant, keys []claimed) (affected []string) {
	for _, key := range keys {
		list := c.byFrontend[key]
		now := list[slices.IndexFunc(list, func(w claimant) bool { return w.service == service })]
		was, is := had[key]
		delete(had, key)
		if !is || was != now {
			affected = append(affected, c.changed(key, was, now)...)
		}
	}
	for key, was := range had {
		affected = append(affected, c.changed(key, was, claimant{})...)
	}
	return affected
}

// changed notes that a Service claims a frontend in another way than before; the zero claimant: not at all.
func (c *Claims) changed(key claimed, was, now claimant) (affected []string) {
	nodePort := !key.addr.IsValid()
	if !nodePort && !was.host && !now.host {
		return nil
	}
	if !nodePort {
		c.own(key)
	}
	affected = c.rivals(key)
	switch {
	case !was.relayed && !now.relayed:
	case nodePort:
		for addr := range c.host.nodePorts {
			affected = append(affected, c.relayedTo(addr)...)
		}
	default:
		affected = append(affected, c.relayedTo(key.addr)...)
	}
	return affected
}

// relayedTo returns the Services with a relayed port that have an endpoint at an address.
func (c *Claims) relayedTo(addr netip.Addr) []string {
	return slices.DeleteFunc(c.loops.backends.of(addr), func(service string) bool {
		return !slices.ContainsFunc(c.loops.known[service].ports, func(p nft.ServicePort) bool { return p.Relayed() })
	})
}

// rivals are the Services that ask for what excludes a frontend: the node port of its number, or the same port at an address
// of the host.
func (c *Claims) rivals(key claimed) (services []string) {
	add := func(list []claimant) {
		for _, w := range list {
			services = append(services, w.service)
		}
	}
	if key.addr.IsValid() {
		add(c.byFrontend[key.asNodePort()])
		return services
	}
	for addr := range c.host.owned[key] {
		key.addr = addr
		add(c.byFrontend[key])
	}
	return services
}

// rival returns the Service that asked for the place of a frontend before this Service did, and its frontend in words; "":
// there is none.
func (c *Claims) rival(service string, key claimed) (owner, what string) {
	list := c.byFrontend[key]
	at := slices.IndexFunc(list, func(w claimant) bool { return w.service == service })
	if at < 0 {
		return "", ""
	}
	asked := list[at]
	older := func(key claimed) bool {
		other := c.byFrontend[key]
		return len(other) > 0 && other[0].service != service && other[0].compare(asked) < 0
	}
	if key.addr.IsValid() {
		place := key.asNodePort()
		if asked.host && c.host.nodePorts[key.addr] && older(place) {
			return c.holder(place), fmt.Sprintf("node port %d/%s", key.port, key.proto)
		}
		return "", ""
	}
	for _, addr := range slices.SortedFunc(maps.Keys(c.host.owned[key]), netip.Addr.Compare) {
		key.addr = addr
		if c.host.nodePorts[addr] && c.byFrontend[key][0].host && older(key) {
			return c.holder(key), fmt.Sprintf("%s port %d/%s", addr, key.port, key.proto)
		}
	}
	return "", ""
}

// ReasonRelayLoop is the Reason of a Problem about an endpoint of a relayed port that leads to a relay.
const ReasonRelayLoop = "RelayLoop"

// relayedAt returns the Service whose relayed frontend is at an endpoint, and that frontend in words; "": there is none.
func (c *Claims) relayedAt(p *nft.ServicePort, endpoint netip.AddrPort) (owner, what string) {
	key := claimed{endpoint.Addr(), p.Family, p.Protocol, endpoint.Port()}
	if list := c.byFrontend[key]; len(list) > 0 && list[0].host && list[0].relayed {
		return list[0].service, "a port"
	}
	list := c.byFrontend[key.asNodePort()]
	if len(list) > 0 && list[0].relayed && c.host.nodePorts[endpoint.Addr()] {
		return list[0].service, "the node port"
	}
	return "", ""
}

// cutRelayed gives a Service's ports without the endpoints by which the relay would connect to itself, and a problem for
// each. The ports given are not changed.
func (c *Claims) cutRelayed(ref object.Ref, ports []nft.ServicePort) ([]nft.ServicePort, []Problem) {
	var problems []Problem
	cut := ports
	for i := range ports {
		p := &ports[i]
		if !p.Relayed() {
			continue
		}
		looping := false
		for _, endpoints := range endpointsOf(p) {
			for _, endpoint := range endpoints {
				owner, what := c.relayedAt(p, endpoint)
				if owner == "" {
					continue
				}
				looping = true
				problem := Problem{Object: ref, Reason: ReasonRelayLoop, Message: fmt.Sprintf("endpoint %s/%s is left out: it is %s of Service %s, which this box relays, so what is sent there would come back to the relay; "+
					"write the address and port of the server itself", endpoint, p.Protocol, what, owner)}
				if !slices.Contains(problems, problem) {
					problems = append(problems, problem)
				}
			}
		}
		if !looping {
			continue
		}
		if &cut[0] == &ports[0] {
			cut = slices.Clone(ports)
		}
		loops := func(endpoint netip.AddrPort) bool { owner, _ := c.relayedAt(p, endpoint); return owner != "" }
		without := func(list []netip.AddrPort) []netip.AddrPort { return slices.DeleteFunc(slices.Clone(list), loops) }
		for pool := range p.Pools {
			cut[i].Pools[pool] = without(p.Pools[pool])
		}
		cut[i].Serving = without(p.Serving)
	}
	return cut, problems
}
