package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// loops finds endpoints that are an address of a Service: what is sent there comes back
// to the box, again and again where a router sends it. Addresses of the host are no such
// ones: what is sent to them stays.
type loops struct {
	vips     addressIndex // the Services that have an address
	backends addressIndex // the Services that have an endpoint there
	known    map[string][]nft.ServicePort
}

// addressIndex finds Services by address, in the form that takes the least room: there is
// an entry for each endpoint. An IPv4 address is the same as the IPv6 one it is mapped to.
type addressIndex map[[16]byte]*holders

// holders are the Services that have an address: nearly always one, and in the worst case
// all of them. The one is shared by all addresses that it has.
type holders struct {
	one  string
	more map[string]struct{} // not nil: all of them are here, and one is empty
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

// of are the Services that have an address, sorted.
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

// set replaces what is known of a Service. It returns the other Services that gained or
// lost an endpoint by that.
func (l *loops) set(service string, ports []nft.ServicePort) (affected []string) {
	if l.known == nil {
		*l = loops{addressIndex{}, addressIndex{}, map[string][]nft.ServicePort{}}
	}
	before, now := servedBy(l.known[service]), servedBy(ports)
	changed := l.vips.replace(service, before.vips, now.vips)
	l.backends.replace(service, before.backends, now.backends)
	if len(ports) == 0 {
		delete(l.known, service)
	} else {
		l.known[service] = ports
	}
	for _, addr := range changed {
		affected = append(affected, l.backends.of(addr)...)
	}
	return slices.DeleteFunc(affected, func(key string) bool { return key == service })
}

// replace gives a Service other addresses, both sorted, and tells which came or went.
func (x addressIndex) replace(service string, before, now []netip.Addr) (changed []netip.Addr) {
	for _, addr := range without(before, now) {
		if rest := x[addr.As16()].without(service); rest == nil {
			delete(x, addr.As16())
		} else {
			x[addr.As16()] = rest
		}
		changed = append(changed, addr)
	}
	one := &holders{one: service}
	for _, addr := range without(now, before) {
		x[addr.As16()] = x[addr.As16()].with(one)
		changed = append(changed, addr)
	}
	return changed
}

// without are the addresses of one sorted list that are not in another.
func without(list, other []netip.Addr) (rest []netip.Addr) {
	for _, addr := range list {
		if _, in := slices.BinarySearchFunc(other, addr, netip.Addr.Compare); !in {
			rest = append(rest, addr)
		}
	}
	return rest
}

// served are the addresses of a Service and of its endpoints.
type served struct{ vips, backends []netip.Addr }

func servedBy(ports []nft.ServicePort) served {
	vips, backends := 0, 0
	for i := range ports {
		vips += len(ports[i].Frontends)
		for _, pool := range ports[i].Pools {
			backends += len(pool)
		}
	}
	s := served{make([]netip.Addr, 0, vips), make([]netip.Addr, 0, backends)}
	for i := range ports {
		for j := range ports[i].Frontends {
			if fe := &ports[i].Frontends[j]; fe.Addr.IsValid() && !fe.HostOwned {
				s.vips = append(s.vips, fe.Addr)
			}
		}
		for _, pool := range ports[i].Pools {
			for _, endpoint := range pool {
				s.backends = append(s.backends, endpoint.Addr())
			}
		}
	}
	return served{sortedOnce(s.vips), sortedOnce(s.backends)}
}

func sortedOnce(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// cut gives a Service's ports without the endpoints that lead back to the box, and a
// problem for each of those addresses. The ports given are not changed.
func (l *loops) cut(ref object.Ref, ports []nft.ServicePort) ([]nft.ServicePort, []Problem) {
	var looping []netip.Addr
	for i := range ports {
		for _, pool := range ports[i].Pools {
			for _, endpoint := range pool {
				if l.vips[endpoint.Addr().As16()] != nil {
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
		problems = append(problems, Problem{ref, "", "BadEndpointAddress",
			fmt.Sprintf("endpoint %s is left out: it is an address of Service %s, and connections would come back to the box", addr, owner), true})
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
