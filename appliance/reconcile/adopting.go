package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// adopting finds endpoints that are to be adopted for several frontends. An answer of such an endpoint does not say by
// which of them the client came, so it is adopted for none (nft.Frontend.Adopt). The zero value is ready to use.
type adopting struct {
	of     map[string]map[adoptedBy]struct{} // by Service
	by     map[netip.AddrPort]map[adoptedBy]struct{}
	shared map[netip.AddrPort]bool // the endpoints with several frontends
}

// adoptedBy is an endpoint with a frontend of a Service that it is to be adopted for.
type adoptedBy struct {
	endpoint          netip.AddrPort
	service, frontend string
}

// set takes the ports that a Service is about to get.
func (a *adopting) set(service string, ports []nft.ServicePort) {
	var now map[adoptedBy]struct{}
	for i := range ports {
		for j := range ports[i].Frontends {
			fe := &ports[i].Frontends[j]
			if !fe.Adopt {
				continue
			}
			for _, ap := range ports[i].Reachable(fe) {
				if now == nil {
					now = map[adoptedBy]struct{}{}
				}
				now[adoptedBy{ap, service, fe.Text()}] = struct{}{}
			}
		}
	}
	before := a.of[service]
	if len(now)+len(before) == 0 {
		return // mostly
	}
	if a.of == nil {
		a.of, a.by, a.shared = map[string]map[adoptedBy]struct{}{}, map[netip.AddrPort]map[adoptedBy]struct{}{}, map[netip.AddrPort]bool{}
	}
	for use := range before {
		delete(a.by[use.endpoint], use)
	}
	for use := range now {
		if a.by[use.endpoint] == nil {
			a.by[use.endpoint] = map[adoptedBy]struct{}{}
		}
		a.by[use.endpoint][use] = struct{}{}
	}
	for _, touched := range []map[adoptedBy]struct{}{before, now} {
		for use := range touched {
			if a.shared[use.endpoint] = len(a.frontends(use.endpoint)) > 1; len(a.by[use.endpoint]) == 0 {
				delete(a.by, use.endpoint)
			}
			if !a.shared[use.endpoint] {
				delete(a.shared, use.endpoint)
			}
		}
	}
	if a.of[service] = now; len(now) == 0 {
		delete(a.of, service)
	}
}

// frontends returns the frontends that an endpoint is to be adopted for, sorted.
func (a *adopting) frontends(ap netip.AddrPort) (list []string) {
	for use := range a.by[ap] {
		list = append(list, use.frontend)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// problems are one of each Service that shares endpoints.
func (a *adopting) problems() (all []resolve.Problem) {
	shared := map[string][]netip.AddrPort{}
	for ap := range a.shared {
		for use := range a.by[ap] {
			if !slices.Contains(shared[use.service], ap) {
				shared[use.service] = append(shared[use.service], ap)
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(shared)) {
		endpoints := shared[service]
		slices.SortFunc(endpoints, netip.AddrPort.Compare)
		more := ""
		switch n := len(endpoints) - 1; {
		case n == 1:
			more = ", and 1 more endpoint is shared"
		case n > 1:
			more = fmt.Sprintf(", and %d more endpoints are shared", n)
		}
		all = append(all, resolve.Problem{
			Object: object.ServiceRef(service), Field: "metadata.annotations[" + object.AnnotationAdopt + "]", Reason: "SharedEndpoint", Warning: true,
			Message: fmt.Sprintf("the endpoint %s is behind %s, and its packets do not show which of them its client used: a connection on which it sends first after a takeover ends%s; give each address its own port or endpoints",
				endpoints[0], strings.Join(a.frontends(endpoints[0]), " and "), more),
		})
	}
	return all
}
