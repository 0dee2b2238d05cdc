package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// endpoint is one address and port behind a Service port. It is merged from all objects that name it.
type endpoint struct {
	addr  netip.AddrPort
	state state
	// said is the state before health checks, which can only lower it: the state from the conditions, or unfit if out is set. out is set if
	// svcctl.io/out excludes the endpoint. notUp is set if its health check has not found it up, or if it is dead and ejected.
	said     state
	out      bool
	notUp    bool
	local    bool
	node     string
	zone     string
	pod      string // name of the Pod behind the endpoint, "" if there is none
	forZones []string
	forNodes []string
	weight   uint16 // 0 permits only open connections, not new ones
	backend  string // backend of its EndpointSlice; "" if that has no share of the connections
	priority uint8  // tier; the lowest one with a usable endpoint gets all new connections
}

// state is how usable an endpoint is, in ascending order. If two objects specify different states for an endpoint, the higher one applies.
type state uint8

const (
	unfit    state = iota // neither ready nor serving while terminating; never used
	failed                // a health check has not found it up; used only if no endpoint is up
	draining              // serving while terminating; used only if no endpoint is ready
	ready
)

// portKey identifies the Service port that endpoints belong to.
type portKey struct {
	name   string
	proto  nft.Protocol
	family nft.Family
}

// visitor is called for the address of an endpoint in an EndpointSlice, with the endpoint's host name and the ports of the slice.
type visitor func(addr netip.Addr, ep endpoint, hostname string, ports []object.EndpointPort)

// visit calls f for the usable addresses of all slices.
func (r *resolver) visit(f visitor) {
	for _, s := range r.Slices {
		r.visitSlice(s, f)
	}
}

// collect merges the endpoints of all EndpointSlices by Service port. Each list is sorted by backend and address.
func (r *resolver) collect() map[portKey][]endpoint {
	r.readShares()
	most := 0 // of a port
	for _, s := range r.Slices {
		most += len(s.Endpoints)
	}
	found := map[portKey][]endpoint{}
	r.visit(func(addr netip.Addr, ep endpoint, _ string, ports []object.EndpointPort) {
		r.egress.add(addr)
		for i := range ports {
			name, proto, ok := matches(&ports[i])
			if !ok {
				continue
			}
			key := portKey{name, proto, nft.FamilyOf(addr)}
			if found[key] == nil {
				found[key] = make([]endpoint, 0, most)
			}
			ep.addr = netip.AddrPortFrom(addr, uint16(*ports[i].Port))
			found[key] = append(found[key], ep)
			if slices.ContainsFunc(r.backends[key], func(b backend) bool { return b.name == ep.backend && b.share == 0 }) {
				found[key][len(found[key])-1].weight = 0 // of this port alone
			}
		}
	})
	for key, list := range found {
		slices.SortStableFunc(list, func(a, b endpoint) int { return cmp.Or(cmp.Compare(a.backend, b.backend), a.addr.Compare(b.addr)) })
		merged := list[:0]
		for i := range list {
			if last := len(merged) - 1; last >= 0 && merged[last].addr == list[i].addr && merged[last].backend == list[i].backend {
				merged[last] = merged[last].and(list[i])
			} else {
				merged = append(merged, list[i])
			}
		}
		for i := range merged {
			merged[i].said = merged[i].state
		}
		found[key] = merged
	}
	return found
}

func (r *resolver) visitSlice(s *object.EndpointSlice, f visitor) {
	ref := object.RefOf(s)
	var family nft.Family
	switch s.AddressType {
	case "IPv4":
		family = nft.IPv4
	case "IPv6":
		family = nft.IPv6
	default:
		r.warn(ref, "addressType", "NotServed", "endpoints of type %s cannot be load balanced and are left out", s.AddressType)
		return
	}
	backend := ""
	if r.backends != nil {
		backend = s.Metadata.ShareOf().Backend
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		// discovery/v1 Endpoint.addresses: consumers use the first one only.
		addr, ok := r.endpointAddr(ref, e.Addresses[0], family)
		if !ok {
			continue
		}
		ep := endpoint{state: stateOf(e.Conditions), local: r.isLocal(e.NodeName), node: object.Deref(e.NodeName), zone: object.Deref(e.Zone), backend: backend}
		ep.weight, ep.priority = r.weight(addr, s), s.Metadata.PriorityOf()
		if t := e.TargetRef; t != nil && t.Kind == object.KindPod && (t.Namespace == "" || t.Namespace == s.Metadata.Namespace) {
			ep.pod = t.Name
		}
		if h := e.Hints; h != nil {
			for _, z := range h.ForZones {
				ep.forZones = append(ep.forZones, z.Name)
			}
			for _, n := range h.ForNodes {
				ep.forNodes = append(ep.forNodes, n.Name)
			}
		}
		f(addr, ep, object.Deref(e.Hostname), s.Ports)
	}
}

// matches returns the name and protocol that identify the Service ports served by an endpoint port. ok is false if the protocol is unsupported, or
// the port has no valid number.
func matches(port *object.EndpointPort) (name string, proto nft.Protocol, ok bool) {
	proto, ok = nft.TCP, true
	if port.Protocol != nil {
		proto, ok = nft.ProtocolNamed(*port.Protocol)
	}
	if !ok || port.Port == nil || *port.Port <= 0 || *port.Port > 65535 {
		return "", 0, false // a slice port without a number means "all ports", which has no meaning here
	}
	return object.Deref(port.Name), proto, true
}

// and merges ep with later, an endpoint with the same address and port from a later EndpointSlice.
func (ep endpoint) and(later endpoint) endpoint {
	one, pod := later, cmp.Or(later.pod, ep.pod)
	if ep.isBetter(&later) {
		one, pod = ep, cmp.Or(ep.pod, later.pod)
	}
	one.local, one.pod = ep.local || later.local, pod
	return one
}

// endpointAddr parses the address s of an endpoint. It returns false, with a problem in most cases, for an address to which no packets may be sent.
// Validation rejects these too, but an object may be older than a validation rule or the service range.
func (r *resolver) endpointAddr(ref object.Ref, s string, family nft.Family) (netip.Addr, bool) {
	addr, ok := parseAddr(s)
	if !ok || nft.FamilyOf(addr) != family {
		return addr, false
	}
	switch {
	case addr.Is4In6(), addr.IsLoopback(), addr.IsLinkLocalUnicast(), addr.IsMulticast(), addr.IsUnspecified():
		r.warn(ref, "", "BadEndpointAddress", "endpoint %s is left out: it may not be loopback, link-local, multicast, unspecified or IPv4-mapped", addr)
		return addr, false
	case r.facts.isNoHost(addr):
		r.warn(ref, "", "BadEndpointAddress", "endpoint %s is left out: it is a broadcast or reserved address, which no single host has", addr)
		return addr, false
	case slices.ContainsFunc(r.facts.Connected, func(p netip.Prefix) bool { return p.Contains(addr) }):
		return addr, true // a neighbor of the box, whatever the service range covers
	}
	for _, p := range r.facts.ServiceRanges {
		if p.Contains(addr) {
			if r.out.InRange == nil {
				r.out.InRange = map[int]netip.Addr{}
			}
			r.out.InRange[len(r.out.Problems)] = addr
			r.out.Problems = append(r.out.Problems, Problem{Object: ref, Reason: "BadEndpointAddress", Message: fmt.Sprintf(
				"endpoint %s is left out: it lies in the service range %s, where only cluster IPs are; give --service-cluster-ip-range a range that no host is in", addr, p)})
			r.out.Unready = append(r.out.Unready, addr) // the Service is affected when another one gets the address
			return addr, false
		}
	}
	return addr, true
}

// stateOf returns the state for the conditions of an endpoint. If absent, ready and serving count as true, and terminating as false (discovery/v1
// EndpointConditions).
func stateOf(c object.EndpointConditions) state {
	switch {
	case c.Ready == nil || *c.Ready:
		return ready
	case (c.Serving == nil || *c.Serving) && object.Deref(c.Terminating):
		return draining
	}
	return unfit
}

func (r *resolver) isLocal(node *string) bool {
	if node == nil || *node == "" {
		return r.facts.NodelessLocal
	}
	return *node == r.facts.NodeName
}

// selection holds the endpoints of a Service port that are in use.
type selection struct {
	pools [nft.NumPools][]netip.AddrPort
	// serving holds all endpoints that keep their open connections.
	serving []netip.AddrPort
	// noLocal is the reply to a connection under traffic policy Local if there is no local endpoint. It is the reply that the Service specifies if
	// other endpoints serve, and otherwise a refusal.
	noLocal nft.Refusal
}

// selectEndpoints selects the endpoints of each pool, from the lowest tier that has usable ones: the ready endpoints or, if there are none, those
// that still serve while terminating. Endpoints of weight 0 are never selected. Each pool falls back independently.
func (r *resolver) selectEndpoints(all []endpoint) selection {
	var sel selection
	cluster := r.everywhere(all)
	local := onBox(all)
	serving := pick(all, func(e *endpoint) bool { return e.state >= draining })
	// Mostly they are the same, and then not held twice.
	if len(local) == len(serving) {
		local = serving
	}
	if len(cluster) == len(serving) {
		cluster = serving
	}
	sel.pools[nft.PoolCluster], sel.pools[nft.PoolLocal], sel.serving = cluster, local, serving
	if slices.ContainsFunc(all, func(e endpoint) bool { return e.state >= draining && e.weight > 0 }) {
		sel.noLocal = r.noLocal
	}
	return sel
}

// annotationNoLocal selects the reply to a connection under traffic policy Local if all endpoints are on other nodes: "drop" or "reject". The default
// is "drop", as in Kubernetes: a load balancer in front, or the client itself, then tries another box.
const annotationNoLocal = "svcctl.io/no-local-endpoints"

// answerWithoutLocal returns the reply that annotationNoLocal selects.
func (r *resolver) answerWithoutLocal() nft.Refusal {
	switch answer, given := r.Service.Metadata.Annotations[annotationNoLocal]; {
	case answer == "reject":
		return nft.Refuse
	case given && answer != "drop":
		r.warnValue(annotationNoLocal, reasonUnknownValue,
			"%q is no answer, so clients get none: write \"drop\" for no answer, or \"reject\"", answer)
	}
	return nft.Blackhole
}

// localEndpoints returns the health-check node port and the number of local endpoints that are up. It returns nil for a Service without such a port.
func (r *resolver) localEndpoints(endpoints map[portKey][]endpoint) *LocalEndpoints {
	spec := &r.Service.Spec
	if spec.HealthCheckNodePort == 0 || spec.Type != "LoadBalancer" || spec.ExternalTrafficPolicy != "Local" {
		return nil
	}
	addrs := map[netip.Addr]bool{}
	for _, list := range endpoints {
		for _, e := range list {
			if e.local && e.state == ready && !e.notUp && e.weight > 0 {
				addrs[e.addr.Addr()] = true
			}
		}
	}
	return &LocalEndpoints{Port: uint16(spec.HealthCheckNodePort), Count: len(addrs)}
}

// unready returns the addresses of endpoints that are neither ready nor draining, sorted and without duplicates.
func unready(endpoints map[portKey][]endpoint) []netip.Addr {
	var addrs []netip.Addr
	for _, list := range endpoints {
		for i := range list {
			if list[i].state < draining {
				addrs = append(addrs, list[i].addr.Addr())
			}
		}
	}
	return sortedOnce(addrs)
}

func pick(all []endpoint, use func(*endpoint) bool) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range all {
		if !use(&all[i]) {
			continue
		}
		if out == nil {
			out = make([]netip.AddrPort, 0, len(all)-i)
		}
		out = append(out, all[i].addr)
	}
	return slices.Clip(out)
}

// topology returns a function that reports whether an endpoint is near this box. all are the endpoints of one tier. Node hints are tried first, then
// zone hints. A kind of hint applies only if every ready endpoint has such a hint (whether its check has found it up or not), and one that is up has
// the hint for this box. If no endpoint has hints, the Service's trafficDistribution makes each endpoint's own zone, or zone and node, its hint, as
// the EndpointSlice controller does. Without trafficDistribution, an annotation can make the zone the hint. If no hint applies, all endpoints are
// near.
func (r *resolver) topology(all []endpoint) func(*endpoint) bool {
	anywhere := func(*endpoint) bool { return true }
	hints := written
	if !slices.ContainsFunc(all, func(e endpoint) bool { return e.said == ready && len(e.forZones)+len(e.forNodes) > 0 }) {
		switch object.Deref(r.Service.Spec.TrafficDistribution) {
		case "PreferClose", "PreferSameZone":
			hints = ownZone
		case "PreferSameNode":
			hints = ownZoneAndNode
		default:
			if !r.prefersZone {
				return anywhere
			}
			hints = ownZone
		}
	}
	for _, nodes := range []bool{true, false} {
		me := r.facts.Zone
		if nodes {
			me = r.facts.NodeName
		}
		if me == "" {
			continue
		}
		hinted := func(e *endpoint) []string {
			forZones, forNodes := hints(e)
			if nodes {
				return forNodes
			}
			return forZones
		}
		complete, mine := true, false
		for i := range all {
			e := &all[i]
			complete = complete && (e.said != ready || len(hinted(e)) > 0)
			mine = mine || e.state == ready && slices.Contains(hinted(e), me)
		}
		if complete && mine {
			return func(e *endpoint) bool { return slices.Contains(hinted(e), me) }
		}
	}
	return anywhere
}

// Sources of topology hints: functions that return the zones and nodes whose clients an endpoint should serve (discovery/v1 EndpointHints).
func written(e *endpoint) (zones, nodes []string) { return e.forZones, e.forNodes }

func ownZone(e *endpoint) (zones, nodes []string) { return one(e.zone), nil }

func ownZoneAndNode(e *endpoint) (zones, nodes []string) { return one(e.zone), one(e.node) }

func one(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// Member is an address of an endpoint with its host name, for the DNS records of a headless Service.
type Member struct {
	Addr     netip.Addr
	Hostname string // "" if the endpoint has none
	// Ready is set if the address is to be in DNS records. A Service that publishes all addresses (core/v1 ServiceSpec.publishNotReadyAddresses)
	// ignores it.
	Ready bool
	// Ports are the endpoint's ports that serve named ports of the Service.
	Ports []MemberPort
}

// MemberPort is the port of a Member that serves a named port of the Service.
type MemberPort struct {
	Name     string
	Protocol string // as in manifests, such as "TCP"
	Port     uint16
}

// Members returns the addresses of a Service's endpoints, merged from all EndpointSlices and sorted by address and host name. It omits the same
// addresses as the function Service, and determines in the same way whether an endpoint is ready. Unlike Service it includes endpoints without a
// port. An endpoint that is demoted on all its ports is not ready.
func Members(in Input, facts *Facts) []Member {
	r := &resolver{Input: in, facts: facts, ref: object.RefOf(in.Service)}
	type key struct {
		addr     netip.Addr
		hostname string
	}
	found := map[key]*Member{}
	taken, _ := health.Out(in.Service)
	r.visit(func(addr netip.Addr, ep endpoint, hostname string, ports []object.EndpointPort) {
		if taken[addr] {
			return
		}
		m := found[key{addr, hostname}]
		if m == nil {
			m = &Member{Addr: addr, Hostname: hostname}
			found[key{addr, hostname}] = m
		}
		usable := r.usablePorts(addr, ports)
		m.Ready = m.Ready || ep.state == ready && (len(usable) > 0 || len(ports) == 0)
		for i := range usable {
			if p, ok := r.memberPort(&usable[i]); ok && !slices.Contains(m.Ports, p) {
				m.Ports = append(m.Ports, p)
			}
		}
	})
	members := make([]Member, 0, len(found))
	for _, m := range found {
		slices.SortFunc(m.Ports, func(a, b MemberPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		members = append(members, *m)
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Hostname, b.Hostname))
	})
	return members
}

// usablePorts returns the ports of an address without those on which it is demoted.
func (r *resolver) usablePorts(addr netip.Addr, ports []object.EndpointPort) []object.EndpointPort {
	if len(r.Demoted) == 0 {
		return ports
	}
	return slices.DeleteFunc(slices.Clone(ports), func(p object.EndpointPort) bool {
		name, proto, ok := matches(&p)
		return ok && slices.ContainsFunc(r.Demoted, func(d Demoted) bool {
			return d.Port == name && d.Protocol == proto.Name() && d.Addr == netip.AddrPortFrom(addr, uint16(*p.Port))
		})
	})
}

// memberPort returns the MemberPort for an endpoint's port. It returns false if the port serves no named port of the Service.
func (r *resolver) memberPort(port *object.EndpointPort) (MemberPort, bool) {
	name, proto, ok := matches(port)
	if !ok || name == "" {
		return MemberPort{}, false
	}
	for i := range r.Service.Spec.Ports {
		if p := &r.Service.Spec.Ports[i]; p.Name == name && p.Protocol == proto.Name() {
			return MemberPort{Name: name, Protocol: p.Protocol, Port: uint16(*port.Port)}, true
		}
	}
	return MemberPort{}, false
}
