package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// loops finds endpoint addresses that are also frontend addresses of a Service. Packets to such an endpoint would come back to the box and could
// circulate between the box and a router. Addresses of the host are excluded: packets to them are not forwarded. The earlier use of an address wins,
// but an endpoint never wins against a cluster IP.
type loops struct {
	vips     addressIndex // the Services by frontend address
	backends addressIndex // the Services by endpoint address
	// hosts holds the addresses in both indexes that were endpoint addresses first: no Service may have a frontend there.
	hosts map[[16]byte]bool
	known map[string]askedFor // the requested ports and unready endpoints of each Service ("namespace/name")
}

// addressIndex maps an address to the Services that use it. It has an entry for each endpoint, so values are kept small. An IPv4 address and its
// IPv4-mapped IPv6 address have the same key.
type addressIndex map[[16]byte]*holders

// holders is the set of Services that use an address: nearly always one, at most all. A one-Service value is shared by all addresses that only that
// Service uses.
type holders struct {
	one  string
	more map[string]struct{} // if not nil, the whole set; one is then ""
}

func (h *holders) with(service *holders) *holders {
	switch {
	case h == nil:
		return service
	case h.more == nil:
		return &holders{more: map[string]struct{}{h.one: {}, service.one: {}}}
	}
	h.more[service.one] = struct{}{}
	return h
}

func (h *holders) without(service string) *holders {
	if h == nil || h.more == nil {
		return nil
	}
	delete(h.more, service)
	if len(h.more) == 0 {
		return nil
	}
	return h
}

// of returns the Services of an address, sorted.
func (x addressIndex) of(addr netip.Addr) []string {
	switch h := x[addr.As16()]; {
	case h == nil:
		return nil
	case h.more == nil:
		return []string{h.one}
	default:
		return slices.Sorted(maps.Keys(h.more))
	}
}

// set replaces the ports and unready endpoints of the Services in claims. It returns the Services that may gain or lose an endpoint or a frontend
// because an address begins or ceases to be both. The list may contain Services of claims, unchanged Services and duplicates.
func (l *loops) set(u *undo, inForce func(f nft.Family, proto nft.Protocol, at netip.AddrPort) bool, claims []Claim) (affected []string) {
	var touched []netip.Addr
	if l.known == nil {
		endpoints := 0
		for i := range claims {
			for j := range claims[i].Ports {
				endpoints += len(claims[i].Ports[j].Serving)
			}
		}
		*l = loops{make(addressIndex, len(claims)), make(addressIndex, endpoints), map[[16]byte]bool{}, make(map[string]askedFor, len(claims))}
		touched = make([]netip.Addr, 0, len(claims)+endpoints)
	}
	was := make(map[[16]byte]bool, len(claims)) // whether an address was a Service's, of those that were touched
	for i := range claims {
		service := claims[i].Service
		asked := askedFor{claims[i].Ports, claims[i].Unready}
		before, now := l.known[service].addresses(), asked.addresses()
		for _, addr := range slices.Concat(without(before.vips, now.vips), without(now.vips, before.vips)) {
			if _, seen := was[addr.As16()]; !seen {
				was[addr.As16()] = l.vips[addr.As16()] != nil
			}
		}
		touched = l.vips.replace(u, touched, service, before.vips, now.vips)
		touched = l.backends.replace(u, touched, service, before.backends, now.backends)
		keep(u, l.known, service)
		if l.known[service] = asked; len(claims[i].Ports)+len(claims[i].Unready) == 0 {
			delete(l.known, service)
		}
	}
	for _, addr := range sortedOnce(touched) {
		key := addr.As16()
		hasVIP := l.vips[key] != nil
		both := hasVIP && l.backends[key] != nil
		keep(u, l.hosts, key)
		hadVIP, changed := was[key]
		if !changed {
			hadVIP = hasVIP
		}
		switch {
		case l.hosts[key] && !both:
			delete(l.hosts, key)
			affected = append(affected, l.vips.of(addr)...)
		case l.hosts[key]:
		case both && !hadVIP && !l.isClusterIP(addr) && !(inForce != nil && l.isInForce(addr, claims, inForce)):
			l.hosts[key] = true
			affected = append(affected, l.vips.of(addr)...)
		case hasVIP || hadVIP:
			affected = append(affected, l.backends.of(addr)...)
		}
	}
	return affected
}

// isClusterIP reports whether a Service has an address as its cluster IP.
func (l *loops) isClusterIP(addr netip.Addr) bool {
	return slices.ContainsFunc(l.vips.of(addr), func(service string) bool { return slices.Contains(l.known[service].of(nft.ClusterIP), addr) })
}

// isInForce reports whether the kernel already has a frontend of one of the Services in claims at an address.
func (l *loops) isInForce(addr netip.Addr, claims []Claim, inForce func(f nft.Family, proto nft.Protocol, at netip.AddrPort) bool) bool {
	holders := l.vips.of(addr)
	for i := range claims {
		if !slices.Contains(holders, claims[i].Service) {
			continue
		}
		for j := range claims[i].Ports {
			if p := &claims[i].Ports[j]; slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool {
				return fe.Addr == addr && inForce(p.Family, p.Protocol, netip.AddrPortFrom(addr, fe.Port))
			}) {
				return true
			}
		}
	}
	return false
}

// endpointOf returns a Service with an endpoint at addr, if that endpoint excludes frontends of Services there; "" if frontends are allowed.
func (l *loops) endpointOf(addr netip.Addr) string {
	if !l.hosts[addr.As16()] {
		return ""
	}
	return l.backends.of(addr)[0]
}

// replace updates the index after the addresses of a Service have changed. before and now are its previous and its present addresses, both sorted.
// replace appends the added and removed addresses to changed and returns the result.
func (x addressIndex) replace(u *undo, changed []netip.Addr, service string, before, now []netip.Addr) []netip.Addr {
	for _, addr := range without(before, now) {
		if rest := x.own(u, addr).without(service); rest == nil {
			delete(x, addr.As16())
		} else {
			x[addr.As16()] = rest
		}
		changed = append(changed, addr)
	}
	one := &holders{one: service}
	for _, addr := range without(now, before) {
		x[addr.As16()] = x.own(u, addr).with(one)
		changed = append(changed, addr)
	}
	return changed
}

// own returns the holders of an address for modification: a copy if the change can be undone (u is not nil). It records the old value in u.
func (x addressIndex) own(u *undo, addr netip.Addr) *holders {
	h := x[addr.As16()]
	if keep(u, x, addr.As16()); u != nil && h != nil {
		return &holders{h.one, maps.Clone(h.more)}
	}
	return h
}

// without returns the addresses of one sorted list that are not in another.
func without(list, other []netip.Addr) []netip.Addr {
	if len(other) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(addr netip.Addr) bool {
		_, in := slices.BinarySearchFunc(other, addr, netip.Addr.Compare)
		return in
	})
}

// askedFor holds the ports that a Service requests and the addresses of its unready endpoints.
type askedFor struct {
	ports   []nft.ServicePort
	unready []netip.Addr
}

// of returns the frontend addresses of one kind, sorted.
func (a askedFor) of(kind nft.FrontendKind) []netip.Addr {
	var addrs []netip.Addr
	for i := range a.ports {
		for j := range a.ports[i].Frontends {
			if fe := &a.ports[i].Frontends[j]; fe.Kind == kind && fe.Addr.IsValid() {
				addrs = append(addrs, fe.Addr)
			}
		}
	}
	return sortedOnce(addrs)
}

// served has the frontend addresses and the endpoint addresses of a Service, sorted.
type served struct{ vips, backends []netip.Addr }

func (a askedFor) addresses() served {
	vips, backends := 0, len(a.unready)
	for i := range a.ports {
		vips += len(a.ports[i].Frontends)
		for _, pool := range endpointsOf(&a.ports[i]) {
			backends += len(pool)
		}
	}
	s := served{make([]netip.Addr, 0, vips), make([]netip.Addr, 0, backends)}
	for i := range a.ports {
		for j := range a.ports[i].Frontends {
			if fe := &a.ports[i].Frontends[j]; fe.Addr.IsValid() && !fe.HostOwned {
				s.vips = append(s.vips, fe.Addr)
			}
		}
		for _, pool := range endpointsOf(&a.ports[i]) {
			for _, endpoint := range pool {
				s.backends = append(s.backends, endpoint.Addr())
			}
		}
	}
	s.backends = append(s.backends, a.unready...)
	return served{sortedOnce(s.vips), sortedOnce(s.backends)}
}

// endpointsOf returns the endpoint lists of a port: Serving and each nonempty pool that is not the same slice as Serving.
func endpointsOf(p *nft.ServicePort) [][]netip.AddrPort {
	lists := [][]netip.AddrPort{p.Serving}
	for _, pool := range p.Pools {
		if len(pool) > 0 && (len(pool) != len(p.Serving) || &pool[0] != &p.Serving[0]) {
			lists = append(lists, pool)
		}
	}
	return lists
}

func sortedOnce(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// cut returns a Service's ports without endpoints whose address is a frontend address, and a warning for each such address. It does not modify ports.
func (l *loops) cut(ref object.Ref, ports []nft.ServicePort) ([]nft.ServicePort, []Problem) {
	var looping []netip.Addr
	for i := range ports {
		for _, pool := range ports[i].Pools {
			for _, endpoint := range pool {
				if key := endpoint.Addr().As16(); l.vips[key] != nil && !l.hosts[key] {
					looping = append(looping, endpoint.Addr())
				}
			}
		}
	}
	if len(looping) == 0 {
		return ports, nil
	}
	var problems []Problem
	for _, addr := range sortedOnce(looping) {
		owner := l.vips.of(addr)[0]
		problems = append(problems, Problem{Object: ref, Reason: "BadEndpointAddress", Warning: true,
			Message: vipAsEndpoint(addr, "an address", owner, ref.Key())})
	}
	ports = slices.Clone(ports)
	for i := range ports {
		for pool, endpoints := range ports[i].Pools {
			kept := make([]netip.AddrPort, 0, len(endpoints))
			for _, endpoint := range endpoints {
				if !slices.Contains(looping, endpoint.Addr()) {
					kept = append(kept, endpoint)
				}
			}
			ports[i].Pools[pool] = kept
		}
	}
	return ports, problems
}

// vipAsEndpoint returns the problem message for an endpoint that is left out because it is an address of a Service. kind describes the address ("the
// cluster IP"), and owner is the Service that has it. The last argument is the Service with the endpoint.
func vipAsEndpoint(addr netip.Addr, kind, owner, of string) string {
	if owner == of {
		return fmt.Sprintf("endpoint %s is left out: it is %s of its own Service, and connections would come back to the box: name the addresses of the servers", addr, kind)
	}
	return fmt.Sprintf("endpoint %s is left out: it is %s of Service %s, and connections would come back to the box: name the endpoints of that Service, or make this one an ExternalName", addr, kind, owner)
}

// Node ports answer on addresses of the host, so a frontend at one of them has the same place as a node port of
// its number, though the two are different keys of Claims. Two things follow: of the two the older one is granted, and an
// endpoint there of a relayed port, where the frontend is relayed too, would send the relay its own connections.

// hostPorts indexes Service frontends at addresses of the host, which conflict with node ports of the same port number.
type hostPorts struct {
	nodePorts map[netip.Addr]bool             // the addresses of the host at which node ports are served
	owned     map[claimed]map[netip.Addr]bool // the addresses of the host with a frontend, by family, protocol and port (key with the zero address)
}

// asNodePort returns the key of the node port with the same family, protocol and port number.
func (c claimed) asNodePort() claimed {
	c.addr = netip.Addr{}
	return c
}

// PlaceAt sets the addresses at which node ports are served. It returns the Services that may gain or lose a frontend or an endpoint as a result.
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

// own adds the frontend key to c.host.owned if a claim to it is at an address of the host, and removes it otherwise.
func (c *Claims) own(key claimed) {
	place := key.asNodePort()
	keep(c.undo, c.host.owned, place)
	at := maps.Clone(c.host.owned[place])
	if slices.ContainsFunc(c.byFrontend[key], func(w claimant) bool { return w.host }) {
		if c.host.owned == nil {
			c.host.owned = map[claimed]map[netip.Addr]bool{}
		}
		if at == nil {
			at = map[netip.Addr]bool{}
		}
		at[key.addr] = true
	} else if delete(at, key.addr); len(at) == 0 {
		delete(c.host.owned, place)
		return
	}
	c.host.owned[place] = at
}

// setHost updates the indexes after the claims of a Service have changed. had holds its previous claims, and keys the frontends that it claims now.
// setHost returns the Services that may gain or lose a frontend or an endpoint at an address of the host as a result. It modifies had.
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

// changed updates the indexes after a Service's claim to the frontend key has changed. was and now are the claim before and after the change; the
// zero claimant means no claim. changed returns the Services that may gain or lose a frontend or an endpoint as a result.
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

// rivals returns the Services with a claim that conflicts with a frontend: for a frontend at an address, a claim to the node port with the same
// number; for a node port, claims to that port at addresses of the host.
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

// rival returns the Service with an earlier claim that conflicts with the claim of service to a frontend, and a description of the earlier claim,
// such as "node port 80/tcp"; "" if there is none.
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
		if place := key.asNodePort(); asked.host && c.host.nodePorts[key.addr] && older(place) {
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

// ReasonRelayLoop is the problem reason for an endpoint of a relayed port at which the relay itself listens.
const ReasonRelayLoop = "RelayLoop"

// relayedAt returns the Service that has a relayed frontend at the address and port of an endpoint, and a description of that frontend; "" if there
// is none.
func (c *Claims) relayedAt(p *nft.ServicePort, endpoint netip.AddrPort) (owner, what string) {
	key := claimed{endpoint.Addr(), p.Family, p.Protocol, endpoint.Port()}
	if list := c.byFrontend[key]; len(list) > 0 && list[0].host && list[0].relayed {
		return list[0].service, "a port"
	}
	if list := c.byFrontend[key.asNodePort()]; len(list) > 0 && list[0].relayed && c.host.nodePorts[endpoint.Addr()] {
		return list[0].service, "the node port"
	}
	return "", ""
}

// cutRelayed returns a Service's ports without endpoints through which the relay would connect to itself, and a problem for each such endpoint. It
// does not modify ports.
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
