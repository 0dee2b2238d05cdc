package parts

import (
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// names are the Services that clients of other Services are passed on to by server name.
type names struct {
	// naming are the Services that name others; by has them by the Services that they name.
	naming map[string]reconcile.Service
	by     map[string]map[string]bool
	// targets has the Services that are named, as they were planned; one that does not exist has no
	// ports.
	targets map[string]reconcile.Service
	unknown map[string]bool // those that are named and were not planned yet
}

func newNames() names {
	return names{naming: map[string]reconcile.Service{}, by: map[string]map[string]bool{}, targets: map[string]reconcile.Service{}, unknown: map[string]bool{}}
}

// plan notes what was planned. again are Services whose ports lead elsewhere by that, though they were not planned, and
// unknown those that have to be planned before clients can be passed on to them.
func (n *names) plan(services []reconcile.Service) (again []reconcile.Service, unknown []string) {
	planned := map[string]bool{}
	var left []string
	for i := range services {
		svc := &services[i]
		planned[svc.Key] = true
		left = append(left, n.setNaming(svc)...)
	}
	for _, target := range left { // now, as another one of them may name it
		if len(n.by[target]) == 0 {
			delete(n.by, target)
			delete(n.targets, target)
			delete(n.unknown, target)
		}
	}
	others := map[string]bool{}
	for i := range services {
		svc := &services[i]
		if n.by[svc.Key] == nil {
			continue
		}
		n.targets[svc.Key] = *svc
		delete(n.unknown, svc.Key)
		for key := range n.by[svc.Key] {
			if !planned[key] {
				others[key] = true
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(others)) {
		again = append(again, n.naming[key])
	}
	return again, slices.Sorted(maps.Keys(n.unknown))
}

// setNaming notes which Services one names, and returns those that it named before, which it does not forget.
func (n *names) setNaming(svc *reconcile.Service) (before []string) {
	last, was := n.naming[svc.Key]
	targets := targetsOf(svc)
	if !was && len(targets) == 0 {
		return nil
	}
	before = targetsOf(&last)
	for _, target := range before {
		delete(n.by[target], svc.Key)
	}
	for _, target := range targets {
		if n.by[target] == nil {
			n.by[target] = map[string]bool{}
		}
		n.by[target][svc.Key] = true
		if _, known := n.targets[target]; !known {
			n.unknown[target] = true
		}
	}
	if n.naming[svc.Key] = *svc; len(targets) == 0 {
		delete(n.naming, svc.Key)
	}
	return before
}

// targetsOf are the Services that one names.
func targetsOf(svc *reconcile.Service) (targets []string) {
	if svc.Relay == nil {
		return nil
	}
	for _, front := range svc.Relay.Fronts {
		for _, s := range front.Services {
			targets = append(targets, s.Service)
		}
	}
	return targets
}

// portOf is the port of a named Service that clients of a port go to: the one of that number, or the only
// one over TCP; nil: there is none.
func portOf(target *reconcile.Service, p *nft.ServicePort) *nft.ServicePort {
	var ports []*nft.ServicePort
	for i := range target.Ports {
		t := &target.Ports[i]
		if t.Family != p.Family || t.Protocol != nft.TCP {
			continue
		}
		if number(t) == number(p) {
			return t
		}
		ports = append(ports, t)
	}
	if len(ports) != 1 {
		return nil
	}
	return ports[0]
}

// number is the number of a port at its addresses.
func number(p *nft.ServicePort) uint16 {
	i := slices.IndexFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Addr.IsValid() })
	if i < 0 {
		return 0
	}
	return p.Frontends[i].Port
}

// named returns the destinations of a port's clients by the server name that they ask for.
func (r *Relay) named(svc *reconcile.Service, p *nft.ServicePort, pool nft.Pool) (list []relay.Named) {
	if svc.Relay == nil || svc.Relay.Fronts[p.ID] == nil {
		return nil
	}
	for _, n := range svc.Relay.Fronts[p.ID].Services {
		port := relay.Port{ID: n.Service, Protocol: relay.TCP} // without endpoints: clients are reset
		if target, known := r.names.targets[n.Service]; known {
			if to := portOf(&target, p); to != nil {
				port = r.relayedPort(&target, to, pool)
				if how := svc.Relay; target.Relay == nil {
					port.Pick.Affinity = to.Affinity
					port.Connect.Timeout, port.Connect.Retries, port.IdleTimeout = how.ConnectTimeout, how.ConnectRetries, how.IdleTimeout
				}
			}
		}
		list = append(list, relay.Named{ServerName: n.ServerName, Port: port})
	}
	return list
}

// problems are names that lead nowhere.
func (n *names) problems() (list []resolve.Problem) {
	for _, key := range slices.Sorted(maps.Keys(n.naming)) {
		svc := n.naming[key]
		ref := object.ServiceRef(key)
		told := map[string]bool{}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			front := svc.Relay.Fronts[p.ID]
			if front == nil {
				continue
			}
			for _, s := range front.Services {
				target := n.targets[s.Service]
				if portOf(&target, p) != nil || told[s.ServerName] {
					continue
				}
				told[s.ServerName] = true
				list = append(list, resolve.Problem{Object: ref, Field: annotation.Field(front.Key), Reason: reasonNamesNothing, Message: fmt.Sprintf(
					"clients that ask for %s are reset: Service %s has no TCP port %d over %s, nor a single other one; give it one, or leave the name out", s.ServerName, s.Service, number(p), p.Family.Name())})
			}
		}
	}
	return list
}

// reasonNamesNothing: a server name leads to a Service without a port for its clients.
const reasonNamesNothing = "NamesNothing"
