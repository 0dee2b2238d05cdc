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
	vips     map[netip.Addr]map[string]struct{} // the Services that have an address
	backends map[netip.Addr]map[string]struct{} // the Services that have an endpoint there
	known    map[string]served
}

// served are the addresses of a Service and of its endpoints.
type served struct{ vips, backends []netip.Addr }

// set replaces what is known of a Service. It returns the other Services that gained or
// lost an endpoint by that.
func (l *loops) set(service string, ports []nft.ServicePort) (affected []string) {
	if l.known == nil {
		*l = loops{map[netip.Addr]map[string]struct{}{}, map[netip.Addr]map[string]struct{}{}, map[string]served{}}
	}
	before, now := l.known[service], servedBy(ports)
	changed := replace(l.vips, service, before.vips, now.vips)
	replace(l.backends, service, before.backends, now.backends)
	if len(now.vips)+len(now.backends) == 0 {
		delete(l.known, service)
	} else {
		l.known[service] = now
	}
	for _, addr := range changed {
		affected = slices.AppendSeq(affected, maps.Keys(l.backends[addr]))
	}
	return slices.DeleteFunc(affected, func(key string) bool { return key == service })
}

// replace updates an index by address, and gives the addresses that came or went.
func replace(index map[netip.Addr]map[string]struct{}, service string, before, now []netip.Addr) (changed []netip.Addr) {
	for _, addr := range before {
		if _, still := slices.BinarySearchFunc(now, addr, netip.Addr.Compare); still {
			continue
		}
		delete(index[addr], service)
		if len(index[addr]) == 0 {
			delete(index, addr)
		}
		changed = append(changed, addr)
	}
	for _, addr := range now {
		if _, known := index[addr][service]; known {
			continue
		}
		if index[addr] == nil {
			index[addr] = map[string]struct{}{}
		}
		index[addr][service] = struct{}{}
		changed = append(changed, addr)
	}
	return changed
}

func servedBy(ports []nft.ServicePort) served {
	var s served
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
	for _, addr := range l.known[ref.Key()].backends {
		if len(l.vips[addr]) > 0 {
			looping = append(looping, addr)
		}
	}
	if len(looping) == 0 {
		return ports, nil
	}
	var problems []Problem
	for _, addr := range looping {
		owner := slices.Min(slices.Collect(maps.Keys(l.vips[addr])))
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
