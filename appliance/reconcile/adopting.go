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
	of     map[string]map[netip.AddrPort]map[string]bool // by Service: its endpoints, with their frontends
	by     map[netip.AddrPort]map[string]bool            // by endpoint: the Services
	shared map[netip.AddrPort]bool                       // the endpoints with several frontends
}

// set takes the ports that a Service is about to get.
func (a *adopting) set(service string, ports []nft.ServicePort) {
	now := adoptedEndpoints(ports)
	before := a.of[service]
	if len(now)+len(before) == 0 {
		return // mostly
	}
	if a.of == nil {
		a.of, a.by, a.shared = map[string]map[netip.AddrPort]map[string]bool{}, map[netip.AddrPort]map[string]bool{}, map[netip.AddrPort]bool{}
	}
	a.of[service] = now
	for ap := range before {
		delete(a.by[ap], service)
	}
	for ap := range now {
		if a.by[ap] == nil {
			a.by[ap] = map[string]bool{}
		}
		a.by[ap][service] = true
	}
	for _, touched := range []map[netip.AddrPort]map[string]bool{before, now} {
		for ap := range touched {
			a.judge(ap)
		}
	}
	if len(now) == 0 {
		delete(a.of, service)
	}
}

func (a *adopting) judge(ap netip.AddrPort) {
	delete(a.shared, ap)
	if len(a.frontends(ap)) > 1 {
		a.shared[ap] = true
	}
	if len(a.by[ap]) == 0 {
		delete(a.by, ap)
	}
}

// frontends returns the frontends that an endpoint is to be adopted for, sorted.
func (a *adopting) frontends(ap netip.AddrPort) []string {
	all := map[string]bool{}
	for service := range a.by[ap] {
		maps.Copy(all, a.of[service][ap])
	}
	return slices.Sorted(maps.Keys(all))
}

func adoptedEndpoints(ports []nft.ServicePort) (of map[netip.AddrPort]map[string]bool) {
	for i := range ports {
		p := &ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if !fe.Adopt {
				continue
			}
			for _, ap := range p.Reachable(fe) {
				if of == nil {
					of = map[netip.AddrPort]map[string]bool{}
				}
				if of[ap] == nil {
					of[ap] = map[string]bool{}
				}
				of[ap][frontendText(*fe)] = true
			}
		}
	}
	return of
}

// problems are one of each Service that shares endpoints.
func (a *adopting) problems() (all []resolve.Problem) {
	shared := map[string][]netip.AddrPort{}
	for ap := range a.shared {
		for service := range a.by[ap] {
			shared[service] = append(shared[service], ap)
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
