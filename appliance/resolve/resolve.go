package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Facts describes the box: its settings, its addresses, and which features its kernel lacks.
type Facts struct {
	NodeName string // endpoints with this nodeName are local
	Zone     string // for topology hints; "" when the box has none
	// Balance is the algorithm of Services that name none.
	Balance nft.Balance
	// Fleet is set when other boxes serve the same objects. It is then no problem if a Service has no endpoint on this box.
	Fleet bool
	// NodelessLocal makes endpoints without a nodeName local ones.
	NodelessLocal bool
	// MasqueradeAll masquerades every client of a cluster IP.
	MasqueradeAll bool
	// SourceRangesApplyToAll makes loadBalancerSourceRanges hold for node ports and
	// external IPs too, not only for load balancer IPs, unless a Service has an annotation.
	SourceRangesApplyToAll bool
	// ConnectionLog is the file, or "journal", that gets the ends of connections; "": none.
	ConnectionLog string
	Networks
	// OwnPorts are the ports of the appliance. No Service gets one of them, even if it asked for it first.
	OwnPorts []OwnPort
	// Relays are the listeners of this box that relayed ports are sent to, by family; a family of which the box has no address has none.
	// Nil: the addresses of the box are unknown.
	Relays map[nft.Family][nft.NumPools]netip.AddrPort
	// NoTimeouts is set when the kernel has no conntrack timeout objects for nf_tables
	// (CONFIG_NF_CONNTRACK_TIMEOUT).
	NoTimeouts bool
	// NoRates is set when the kernel has no rate limits, NoConnectionCounts when it does not count connections.
	NoRates, NoConnectionCounts bool
	// FastPath is the setting of the box, and whether its kernel has the fast path.
	FastPath FastPath
}

// Networks has the addresses that Services may have, and those that they may not have.
type Networks struct {
	// ServiceRanges has the ranges of cluster IPs: no endpoint may lie in them.
	ServiceRanges []netip.Prefix
	// ExternalIPRanges, if any, restricts the externalIPs that are served.
	ExternalIPRanges []netip.Prefix
	// NoExternalIPs refuses all externalIPs.
	NoExternalIPs bool
	// Pools has the ranges of load balancer IPs.
	Pools []nft.Range
	// InternalPools has the ranges, of Pools and of ServiceRanges, whose addresses only clients inside reach.
	InternalPools []nft.Range
	// Host holds the addresses that must stay the host's and its gateways', each with a description for messages: "an
	// address of this host". A Service with such an address would capture the box's management traffic.
	Host map[netip.Addr]string
	// Connected are networks of the host that overlap a service range: an address in one is no
	// cluster IP but a host.
	Connected []netip.Prefix
	// Broadcast are the broadcast addresses of the host's networks.
	Broadcast map[netip.Addr]bool
	// EgressFrom has the prefixes of the hosts that may leave with an address of a Service, and Local all addresses of this host, if
	// EgressFrom has any prefix.
	EgressFrom []netip.Prefix
	Local      map[netip.Addr]bool
}

// Input is one Service with its EndpointSlices and all else that its plan depends on. Endpoints objects are not part of it: package
// endpoints converts them to slices.
type Input struct {
	Service *object.Service
	Slices  []*object.EndpointSlice
	// Pods has the Pods, for their readiness probes, nil if they are left out of account.
	Pods Pods
	// Observed has the states of what the Service needs, as far as they were asked for (Output.Demand).
	Observed Observed
	// Previous is the last plan of the Service.
	Previous Previous
	// Demoted are endpoints that Members takes for not ready, whatever their conditions.
	Demoted []Demoted
}

// Pods finds Pods, which are never changed afterwards.
type Pods interface {
	// Pod returns the Pod of a "namespace/name", nil when there is none.
	Pod(key string) *object.Pod
}

// Previous is the plan of a Service before a change. That of a headless Service has only Checked.
type Previous struct {
	Ports   []nft.ServicePort
	Checked []Checked
}

// Output is the result of resolving a Service.
type Output struct {
	Ports []nft.ServicePort
	// Unready are the addresses of endpoints that no pool has for now.
	Unready  []netip.Addr
	Problems []Problem
	// InRange has the endpoints that lie in a service range, by the index of their problem in Problems: see Claims.NameHolders.
	InRange map[int]netip.Addr
	// Unserved are problems with ports whose clients have no endpoint, for no other reason among Problems.
	Unserved []Problem
	// Needs has all that the plan depends on: the Service is to be resolved again when one of them changes.
	Needs []Need
	// Demand has the needs that Input.Observed lacks.
	Demand Demand
	// Probed is set when Pods with a readiness probe are among the endpoints: the Service must be resolved again when one of them changes.
	// Pods has the names of other Pods with this effect: slices name them, but they do not exist or the selector does not match them.
	Probed bool
	Pods   []string
	Settings
	Health
}

// Settings are those settings of a Service that are not part of the ruleset.
type Settings struct {
	// LocalEndpoints is the answer of its health-check node port; nil when it has none.
	LocalEndpoints *LocalEndpoints
	// RetryAfter is the time after which a SYN without an answer is sent to another endpoint; 0:
	// never.
	RetryAfter time.Duration
	// Logged is set when its connections are logged.
	Logged bool
	// EndpointConnections bounds the open connections of an endpoint; 0: no limit.
	EndpointConnections uint32
	// Drain is the policy for connections to an endpoint that is gone.
	Drain Drain
	// SlowStart is the time until a new endpoint has its whole weight, 0 if it has it at once.
	SlowStart time.Duration
	// Relay has the listeners of relayed ports, nil if there are none.
	Relay *Relay
}

// Health has the states of a Service's endpoints with which it was resolved.
type Health struct {
	// Checked are the endpoints with a check. Demoted are those that are not used, by a check, an exclusion or an ejection.
	Checked []Checked
	Demoted []Demoted
	// Dead are the endpoints without a check that accept no connection, and Eject is set when they are taken out.
	Dead  []Dead
	Eject bool
	// FailingOpen counts the ports, once for each family, that use endpoints which are not up,
	// because too few are.
	FailingOpen int
	// Waiting is set when endpoints that are down are used until it is known whether others are up.
	Waiting bool
	// ResetDown ends TCP connections to an endpoint that is down.
	ResetDown bool
}

// LocalEndpoints is the result of a health-check node port (Kubernetes ServiceSpec.healthCheckNodePort), by which a load balancer in front
// of the boxes finds those with local endpoints.
type LocalEndpoints struct {
	Port  uint16
	Count int // ready ones that are up, by address: several ports do not count twice
}

// PortOf returns the health-check node port, 0 if there is none.
func (e *LocalEndpoints) PortOf() uint16 {
	if e == nil {
		return 0
	}
	return e.Port
}

// Problem is the reason why an object does not work as written.
type Problem = object.Problem

// Service resolves one Service to its ports. The same input gives the same output, in the same order.
func Service(in Input, facts *Facts) Output {
	r := &resolver{Input: in, facts: facts, ref: object.RefOf(in.Service), vips: addresses{}}
	switch r.read() {
	case named:
	case headless:
		endpoints := r.collect()
		r.checkOut(endpoints)
		r.judge(endpoints) // names lead to the endpoints, see Members
		r.reportUnserved(endpoints, "")
	case balanced:
		r.resolve()
	}
	if len(r.out.Pods) > 0 { // each once, though it may have several ports
		slices.Sort(r.out.Pods)
		r.out.Pods = slices.Compact(r.out.Pods)
	}
	return r.out
}

type resolver struct {
	Input
	facts *Facts
	ref   object.Ref
	out   Output
	vips  addresses
	// plan has the health checks, nil if there are none; taken has the addresses that svcctl.io/out excludes; byName has the numbers of
	// named ports in slices.
	plan *health.Plan
	// verdicts has the index of each target in Observed.Verdicts. It is nil until a target is not at nextVerdict.
	verdicts    map[health.Target]int
	nextVerdict int
	taken       map[netip.Addr]bool
	byName      map[portName]uint16
	shares
	probes probes
	// noLocal is the answer of the Service where policy Local leaves no endpoint.
	noLocal nft.Refusal
	asks
	clients clients
}

// state returns the state of a need, and adds it to Output.Demand if Observed does not have it. A port of the host is a need only while
// another program has it: programs that listen there later do not affect the Service.
func (r *resolver) state(n Need) State {
	s, observed := r.Observed.States[n]
	if !observed {
		r.out.Demand.Needs = append(r.out.Demand.Needs, n)
	}
	if (n.Kind != NeedHostPort || s.Wrong != "") && !slices.Contains(r.out.Needs, n) {
		r.out.Needs = append(r.out.Needs, n)
	}
	return s
}

func (r *resolver) warn(ref object.Ref, field, reason, format string, args ...any) {
	r.out.Problems = append(r.out.Problems, Problem{Object: ref, Field: field, Reason: reason, Message: fmt.Sprintf(format, args...), Warning: true})
}

func (r *resolver) refuse(field, reason, format string, args ...any) {
	r.out.Problems = append(r.out.Problems, Problem{Object: r.ref, Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

func (r *resolver) refuseExternalIPs(why string) {
	if len(r.Service.Spec.ExternalIPs) > 0 {
		r.refuse("spec.externalIPs", "NotServed", "%s", why)
	}
}

// The ways to serve a Service, the results of read.
const (
	named    = iota // a name leads to another one
	headless        // its name leads to its endpoints
	balanced
)

// read reads the Service itself, and reports all problems that depend on no endpoints and hardly on the box (see Rules). It returns how the
// Service is served.
func (r *resolver) read() (way int) {
	svc := r.Service
	switch {
	case svc.Spec.Type == object.TypeExternalName:
		r.refuseExternalIPs("an ExternalName Service has no address to balance, and its externalIPs are not served: use type ClusterIP and svcctl.io/endpoints-from: dns:NAME")
		r.warnUnbalanced("an ExternalName Service has no address to balance (use type ClusterIP and svcctl.io/endpoints-from: dns:NAME)", health.AnnotationCheck, health.AnnotationOut)
		r.relaysNothing("an ExternalName Service")
		return named
	case svc.Headless():
		r.refuseExternalIPs("a headless Service is not load balanced: externalIPs are not served")
		r.warnUnbalanced("a headless Service is not load balanced")
		r.relaysNothing("a headless Service")
		r.prepareChecks()
		return headless
	}
	r.readAnnotations()
	r.noLocal = r.answerWithoutLocal()
	r.clients = r.readClients()
	r.idle, r.options = r.idleTimeout(), r.affinityOptions()
	r.algorithm = r.readBalance()
	r.out.EndpointConnections = r.connections(object.AnnotationEndpointConnections, "connections of an endpoint are not limited")
	if r.out.EndpointConnections > 0 && r.relayed.Asked() {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonNoEffect, "%s has no effect on connections that are relayed: they are the relay's own", object.AnnotationEndpointConnections)
	}
	r.out.RetryAfter, r.out.SlowStart = r.retryAfter(r.algorithm), r.slowStart(r.algorithm)
	r.limits = r.readLimits()
	r.ranges = r.readPortRanges(r.algorithm, r.idle > 0)
	r.adopted = r.readAdopt(r.algorithm, r.idle > 0)
	r.readEgress()
	r.readDrain()
	r.prepareChecks()
	r.checkRelayed()
	r.encrypted = make([]bool, len(svc.Spec.Ports))
	for i := range r.encrypted {
		r.encrypted[i] = r.refuseMode(i) || r.refuseFront(i) || r.asksTLS(i)
	}
	r.unkeyed = r.checkFronts()
	r.readFastPath()
	return balanced
}

func (r *resolver) resolve() {
	idle, balance := r.idle, r.algorithm
	r.vips = r.addresses()
	endpoints := r.collect()
	unwanted := r.otherFamily()
	r.checkWeights(balance, endpoints)
	r.checkOut(endpoints)
	r.leaveOutFull(endpoints)
	r.judge(endpoints)
	shared := r.shareFamilies(endpoints)
	r.out.LocalEndpoints = r.localEndpoints(endpoints)
	r.out.Unready = append(r.out.Unready, unready(endpoints)...)
	for _, family := range nft.Families {
		vips := r.vips.of(family)
		if !vips.cluster.IsValid() {
			continue
		}
		for i := range r.Service.Spec.Ports {
			port := &r.Service.Spec.Ports[i]
			proto, ok := nft.ProtocolNamed(port.Protocol)
			if !ok || r.encrypted[i] {
				continue // refused by validation, or here
			}
			p := nft.ServicePort{
				ID:              r.portID(port),
				Family:          family,
				Protocol:        proto,
				Affinity:        r.affinity(),
				AffinityOptions: r.options[family],
				Idle:            idle,
				Limits:          r.limits[family],
				Fast:            r.slow == "" && proto != nft.SCTP,
				Slow:            r.slow,
			}
			key := portKey{port.Name, proto, family}
			all, backends := endpoints[key], r.backends[key]
			var sel selection
			if len(backends) > 0 {
				sel = r.selectShares(backends, all)
			} else {
				sel = r.selectEndpoints(all)
			}
			p.Pools, p.Serving = sel.pools, sel.serving
			r.balance(i, &p, balance, all, backends)
			p.Frontends = r.free(i, &p, r.frontends(port, vips, sel))
			ranged := r.portRanges(i, &p, shared[key])
			if r.adopted {
				adopt(&p)
			}
			r.relay(i, &p, shared[key])
			r.reportShares(i, &p, backends)
			r.out.Ports = append(append(r.out.Ports, p), ranged...)
		}
	}
	r.leaveWith()
	r.reportUnserved(endpoints, unwanted)
}

// portID returns the ID of a Service port: "namespace/name/port", or "namespace/name" for the only, unnamed one.
func (r *resolver) portID(port *object.ServicePort) string {
	return PortID(r.ref.Key(), port.Name)
}

// PortID returns the nft.ServicePort.ID of a port by its name, "" for the only, unnamed one.
func PortID(service, port string) string {
	if port == "" {
		return service
	}
	return service + "/" + port
}

// frontends returns the frontends of a port, with the pool and source NAT of their clients.
func (r *resolver) frontends(port *object.ServicePort, v *vips, sel selection) []nft.Frontend {
	inside := nft.Route{Pool: nft.PoolCluster}
	if p := r.Service.Spec.InternalTrafficPolicy; p != nil && *p == "Local" {
		inside = nft.Route{Pool: nft.PoolLocal, Fallback: sel.noLocal}
	}
	clusterIP := nft.Frontend{Addr: v.cluster, Port: uint16(port.Port), Internal: inside, External: inside, SNAT: nft.SNATOutside}
	if r.facts.MasqueradeAll {
		clusterIP.SNAT = nft.SNATAlways
	}
	var list []nft.Frontend
	if !v.withoutClusterIP {
		clusterIP.InsideOnly = r.facts.isInternal(v.cluster)
		_, clusterIP.HostOwned = r.facts.Host[v.cluster]
		list = append(list, clusterIP)
	}

	// With externalTrafficPolicy Local, internal sources and the box itself still get
	// every endpoint: the policy is not about them.
	external := nft.Frontend{Port: uint16(port.Port), SNAT: nft.SNATAlways}
	if r.Service.Spec.ExternalTrafficPolicy == "Local" {
		external.External = nft.Route{Pool: nft.PoolLocal, Fallback: sel.noLocal}
		external.SNAT = nft.SNATSelf
	}
	family := nft.FamilyOf(v.cluster)
	for _, a := range v.balancer {
		fe := external
		fe.Addr, fe.Kind, fe.InsideOnly = a, nft.LoadBalancerIP, r.facts.isInternal(a)
		fe.Sources, fe.Sets = r.clients.of(family)
		_, fe.HostOwned = r.facts.Host[a]
		list = append(list, fe)
	}
	if r.clients.everywhere {
		external.Sources, external.Sets = r.clients.of(family)
	}
	for _, a := range v.external {
		fe := external
		fe.Addr, fe.Kind, fe.NamedPortsOnly, fe.InsideOnly = a, nft.ExternalIP, !r.facts.isSetAside(a), r.facts.isInternal(a)
		_, fe.HostOwned = r.facts.Host[a]
		list = append(list, fe)
	}
	if port.NodePort != 0 {
		fe := external
		fe.Port, fe.Kind, fe.InsideOnly = uint16(port.NodePort), nft.NodePort, r.internal.Key != ""
		list = append(list, fe)
	}
	return list
}

const (
	// ReasonPortInUse is the reason of a problem about a port that a program of the box uses.
	ReasonPortInUse = "PortInUse"
	// ReasonPortConflict is the reason of a problem about a port that another Service uses.
	ReasonPortConflict = "PortConflict"
)

// OwnPort is a port of the host on which the appliance itself or its announcer listens.
type OwnPort struct {
	Protocol string // object.ProtocolTCP or object.ProtocolUDP
	// At has the zero Addr where it listens on all addresses.
	At   netip.AddrPort
	What string // as "the API of svcctl (--listen) listens there"
}

// Own returns how the appliance uses a port at an address, or, with the zero Addr, at any address of the host; "" if it does not.
func (f *Facts) Own(protocol string, at netip.AddrPort) string {
	for _, own := range f.OwnPorts {
		everywhere := !own.At.Addr().IsValid() || !at.Addr().IsValid()
		if own.Protocol == protocol && own.At.Port() == at.Port() && (everywhere || own.At.Addr() == at.Addr()) {
			return own.What
		}
	}
	return ""
}

// free removes the frontends at node ports, and at ports of the box's own addresses, on which the appliance or another program of the box
// listens: that program would get no clients any more. It reports a problem for each.
func (r *resolver) free(port int, p *nft.ServicePort, frontends []nft.Frontend) []nft.Frontend {
	return slices.DeleteFunc(frontends, func(fe nft.Frontend) bool {
		if fe.Addr.IsValid() && !fe.HostOwned {
			return false
		}
		at := netip.AddrPortFrom(fe.Addr, fe.Port)
		what, advice := fmt.Sprintf("node port %d/%s", fe.Port, p.Protocol), "give the Service another node port"
		field := fmt.Sprintf("spec.ports[%d].nodePort", port)
		if fe.Addr.IsValid() {
			what, advice = fmt.Sprintf("%s port %d/%s", fe.Addr, fe.Port, p.Protocol), "choose another port"
			field = fmt.Sprintf("spec.ports[%d].port", port)
		}
		if own := r.facts.Own(p.Protocol.Name(), at); own != "" {
			r.refuse(field, ReasonPortInUse, "%s is not served: %s; %s", what, own, advice)
			return true
		}
		by := r.state(Need{Kind: NeedHostPort, Family: p.Family, Protocol: p.Protocol, At: at}).Wrong
		if by != "" {
			r.refuse(field, ReasonPortInUse, "%s is not served: %s; stop that program, or %s", what, by, advice)
		}
		return by != ""
	})
}

// Try returns claims that decide as c does. They share the memory of c, which must not be used until Undo takes back their changes.
func (c *Claims) Try() Claims {
	tried := *c
	tried.undo = &undo{}
	return tried
}

// Undo takes back all changes since Try.
func (c *Claims) Undo() {
	for _, back := range slices.Backward(*c.undo) {
		back()
	}
}

// undo takes changes back, the last one first; nil: they stay.
type undo []func()

// keep records the value of a key that is set or deleted next. The value may not be changed in place.
func keep[K comparable, V any](u *undo, m map[K]V, key K) {
	if u == nil {
		return
	}
	old, had := m[key]
	*u = append(*u, func() {
		if delete(m, key); had {
			m[key] = old
		}
	})
}
