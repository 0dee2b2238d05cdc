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
	Zone     string // the zone for topology hints; "" if the box has none
	// Balance is the load balancing algorithm of Services that do not specify one.
	Balance nft.Balance
	// Fleet is set when other boxes serve the same objects. It is then no problem if a Service has no endpoint on this box.
	Fleet bool
	// NodelessLocal makes endpoints without a nodeName count as local.
	NodelessLocal bool
	// MasqueradeAll masquerades the source address of all clients of cluster IPs.
	MasqueradeAll bool
	// SourceRangesApplyToAll applies loadBalancerSourceRanges to node ports and external IPs too, not only to load balancer IPs. An annotation of a
	// Service overrides it.
	SourceRangesApplyToAll bool
	// ConnectionLog is the log for ended connections: a file name or "journal"; "" means none.
	ConnectionLog string
	Networks
	// OwnPorts are the ports on which the appliance listens. They take precedence over all Services.
	OwnPorts []OwnPort
	// Relays holds the listeners of this box for relayed ports, by IP family. A family without an address of the box has no entry. A nil map means
	// that the addresses of the box have not been determined.
	Relays map[nft.Family][nft.NumPools]netip.AddrPort
	// NoTimeouts is set when the kernel has no conntrack timeout objects for nf_tables
	// (CONFIG_NF_CONNTRACK_TIMEOUT).
	NoTimeouts bool
	// NoRates is set when the kernel does not support rate limits, NoConnectionCounts when it does not support connection limits.
	NoRates, NoConnectionCounts bool
	// FastPath is the fast path setting of the box, and whether its kernel supports it.
	FastPath FastPath
}

// Networks has the addresses that Services may have, and those that they may not have.
type Networks struct {
	// ServiceRanges are the ranges of cluster IPs. No endpoint may be in one of them.
	ServiceRanges []netip.Prefix
	// ExternalIPRanges restricts the externalIPs that are served to these prefixes; empty means no restriction.
	ExternalIPRanges []netip.Prefix
	// NoExternalIPs rejects all externalIPs.
	NoExternalIPs bool
	// Pools are the address ranges of load balancer IPs.
	Pools []nft.Range
	// InternalPools are those ranges within Pools and ServiceRanges whose addresses are reachable only for internal clients.
	InternalPools []nft.Range
	// Host maps addresses of the host and its gateways to a description for messages ("an address of this host"). No Service may have such an
	// address: it would capture the box's management traffic.
	Host map[netip.Addr]string
	// Connected holds the connected networks of the host that overlap a service range. An address in one belongs to a host, so it cannot be a cluster
	// IP.
	Connected []netip.Prefix
	// Broadcast are the broadcast addresses of the host's networks.
	Broadcast map[netip.Addr]bool
	// EgressFrom holds the prefixes of hosts whose outgoing connections may use an address of a Service as their source. If there are any, Local
	// holds all addresses of this host.
	EgressFrom []netip.Prefix
	Local      map[netip.Addr]bool
}

// Input is one Service with its EndpointSlices and all else that its plan depends on. Endpoints objects are not part of it: package
// endpoints converts them to slices.
type Input struct {
	Service *object.Service
	Slices  []*object.EndpointSlice
	// Pods finds Pods for their readiness probes. If it is nil, the probes are ignored.
	Pods Pods
	// Observed holds the states of the Service's needs, as far as they were requested by Output.Demand.
	Observed Observed
	// Previous is the previous plan of the Service.
	Previous Previous
	// Demoted are the endpoints that Members treats as not ready, whatever their conditions.
	Demoted []Demoted
}

// Pods looks up Pods. A returned Pod must not be modified.
type Pods interface {
	// Pod returns the Pod "namespace/name"; nil if it does not exist.
	Pod(key string) *object.Pod
}

// Previous is the plan of a Service before a change. For a headless Service only Checked is set.
type Previous struct {
	Ports   []nft.ServicePort
	Checked []Checked
}

// Output is the result of resolving a Service.
type Output struct {
	Ports []nft.ServicePort
	// Unready are the addresses of endpoints that are currently in no pool.
	Unready  []netip.Addr
	Problems []Problem
	// InRange holds the endpoint addresses that are inside a service range. The key is the index in Problems of the problem about the address;
	// Claims.NameHolders completes its message.
	InRange map[int]netip.Addr
	// Unserved are problems about ports without an endpoint for their clients, if Problems does not already give the reason.
	Unserved []Problem
	// Needs lists all needs of the plan. The Service must be resolved again when one of them changes.
	Needs []Need
	// Demand lists the needs without a state in Input.Observed.
	Demand Demand
	// Probed is set when some endpoints are Pods with a readiness probe. The Service must be resolved again when one of these Pods changes, or one of
	// Pods: those are named in slices, but do not exist or do not match the selector.
	Probed bool
	Pods   []string
	Settings
	Health
}

// Settings are those settings of a Service that are not part of the ruleset.
type Settings struct {
	// LocalEndpoints is the response of the Service's health-check node port; nil if it has none.
	LocalEndpoints *LocalEndpoints
	// RetryAfter is the time after which a SYN without a response is sent to another endpoint; 0 means never.
	RetryAfter time.Duration
	// Logged is set when the connections of the Service are logged.
	Logged bool
	// EndpointConnections is the maximum number of open connections to an endpoint; 0 means no limit.
	EndpointConnections uint32
	// Drain is the policy for connections to a removed endpoint.
	Drain Drain
	// SlowStart is the time in which the weight of a new endpoint rises to its full value; 0 means at once.
	SlowStart time.Duration
	// Relay holds the settings of relayed ports, nil if there are none.
	Relay *Relay
}

// Health holds the health states of endpoints that were used to resolve a Service.
type Health struct {
	// Checked are the endpoints with a health check. Demoted are the endpoints that are not used because of a health check, an exclusion
	// (svcctl.io/out) or an ejection.
	Checked []Checked
	Demoted []Demoted
	// Dead are the endpoints without a health check that accept no connections. Eject is set when they are excluded (svcctl.io/eject).
	Dead  []Dead
	Eject bool
	// FailingOpen is the number of ports that also use unhealthy endpoints because too few are healthy. A port counts once for each IP family.
	FailingOpen int
	// Waiting is set when endpoints that are down are used until the first check results of other endpoints arrive.
	Waiting bool
	// ResetDown is set when TCP connections to an endpoint are reset when it goes down.
	ResetDown bool
}

// LocalEndpoints is the response of a health-check node port (Kubernetes ServiceSpec.healthCheckNodePort). A load balancer in front of the boxes uses
// it to find the boxes with local endpoints.
type LocalEndpoints struct {
	Port  uint16
	Count int // number of local endpoint addresses that are ready and up; several ports of an address count once
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
	// plan has the health checks, nil if there are none; taken has the addresses that svcctl.io/out excludes; byName maps named ports in slices to
	// their numbers.
	plan *health.Plan
	// verdicts maps targets to their index in Observed.Verdicts. It is built, from nil, when a target is first not found at nextVerdict.
	verdicts    map[health.Target]int
	nextVerdict int
	taken       map[netip.Addr]bool
	byName      map[portName]uint16
	shares
	probes probes
	// noLocal is how connections are refused where a traffic policy Local leaves no endpoint.
	noLocal nft.Refusal
	asks
	clients clients
}

// state returns the state of a need. It adds the need to Output.Needs, and to Output.Demand if Observed does not have its state. A host port is added
// to Needs only while another program uses it: programs that listen there later do not affect the Service.
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

// The ways to serve a Service, as returned by read.
const (
	named    = iota // an ExternalName Service: its DNS name is an alias
	headless        // a headless Service: its DNS name resolves to its endpoints
	balanced
)

// read reads the Service object and reports all problems that do not depend on endpoints. Few of these depend on the box (see Rules). read returns
// how the Service is served.
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

// portID returns the nft.ServicePort.ID of a Service port: "namespace/name/port", or "namespace/name" for an unnamed port.
func (r *resolver) portID(port *object.ServicePort) string {
	return PortID(r.ref.Key(), port.Name)
}

// PortID returns the nft.ServicePort.ID of a port. service is "namespace/name", port the port name, "" for an unnamed port.
func PortID(service, port string) string {
	if port == "" {
		return service
	}
	return service + "/" + port
}

// frontends returns the frontends of a port, each with its endpoint pools and source NAT mode.
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
	// ReasonPortInUse is the problem reason for a port on which a program of the box listens.
	ReasonPortInUse = "PortInUse"
	// ReasonPortConflict is the problem reason for a port that another Service uses.
	ReasonPortConflict = "PortConflict"
)

// OwnPort is a port of the host on which the appliance itself or its announcer listens.
type OwnPort struct {
	Protocol string // object.ProtocolTCP or object.ProtocolUDP
	// At is the address and port. The zero Addr stands for all addresses of the host.
	At   netip.AddrPort
	What string // the use, for messages: "the API of svcctl (--listen) listens there"
}

// Own returns a description of the appliance's use of a port at an address, "" if it does not use the port. The zero Addr stands for any address of
// the host.
func (f *Facts) Own(protocol string, at netip.AddrPort) string {
	for _, own := range f.OwnPorts {
		everywhere := !own.At.Addr().IsValid() || !at.Addr().IsValid()
		if own.Protocol == protocol && own.At.Port() == at.Port() && (everywhere || own.At.Addr() == at.Addr()) {
			return own.What
		}
	}
	return ""
}

// free removes the frontends that would take a port of the host from a program: node ports, and ports at addresses of the host, on which the
// appliance or another program listens. It reports a problem for each.
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

// Try returns a copy of c for trial changes. The copy shares the memory of c, so c must not be used until Undo of the copy has reverted them.
func (c *Claims) Try() Claims {
	tried := *c
	tried.undo = &undo{}
	return tried
}

// Undo reverts all changes since Try.
func (c *Claims) Undo() {
	for _, back := range slices.Backward(*c.undo) {
		back()
	}
}

// undo is a list of functions that revert changes, called last to first. A nil *undo records nothing.
type undo []func()

// keep records the value of a key in u before the key is set or deleted. The value itself must not be modified in place.
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
