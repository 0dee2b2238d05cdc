package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// labelSkipMirror keeps an Endpoints object from being mirrored (behavior 116).
const labelSkipMirror = "endpointslice.kubernetes.io/skip-mirror"

// backend is one endpoint of a Service port.
type backend struct {
	address netip.AddrPort
	ready   bool
	// said reports that its document calls it ready, whatever its check says.
	said bool
	// draining is serving and terminating, and not ready.
	draining           bool
	local              bool
	forNodes, forZones []string
	nodeName, zone     string
	// weight 0 gets no new connections (behavior 225), priority is its tier (behavior 226).
	weight, priority int
	group            string // behavior 950
}

// annotationMode has the ports of a Service relayed (behavior 907).
const annotationMode = "svcctl.io/proxy-mode"

// The annotations about weights (behaviors 220 to 230).
const (
	annotationBalance  = "svcctl.io/balance"
	annotationWeight   = "svcctl.io/weight"
	annotationWeights  = "svcctl.io/weights"
	annotationPriority = "svcctl.io/priority"
)

// shareOf reads the weight and priority of an endpoint: the Service names addresses, and of
// the rest the object that names the endpoint says it.
func (b backend) shareOf(f frontend, annotations map[string]string) backend {
	b.weight = 1
	if text, given := annotations[annotationWeight]; given {
		b.weight, _ = strconv.Atoi(text)
	}
	b.priority, _ = strconv.Atoi(annotations[annotationPriority])
	for entry := range strings.SplitSeq(f.service.Metadata.Annotations[annotationWeights], ",") {
		if addr, weight, ok := strings.Cut(strings.TrimSpace(entry), "="); ok && addr == b.address.Addr().String() {
			b.weight, _ = strconv.Atoi(weight)
		}
	}
	return b
}

// lowestTier keeps those that get new connections: of a weight, and of the lowest tier.
func lowestTier(all []backend) []backend {
	all = keep(all, func(b backend) bool { return b.weight > 0 })
	lowest := 0
	for i, b := range all {
		if i == 0 || b.priority < lowest {
			lowest = b.priority
		}
	}
	return keep(all, func(b backend) bool { return b.priority == lowest })
}

// backendsOf returns all backends of a frontend, usable or not, each address and port
// once in a group (behavior 101), as their checks let them be used.
func (w *World) backendsOf(f frontend) []backend {
	f = w.borrows(f)
	var judged []backend
	for all := w.candidates(f); len(all) > 0; {
		group := all[0].group
		judged = append(judged, w.judge(f, keep(all, func(b backend) bool { return b.group == group }))...)
		all = keep(all, func(b backend) bool { return b.group != group })
	}
	return judged
}

// borrows returns a frontend in the family of its backends: a relayed port without one of its own family uses those of the other
// (behavior 907). Ranges are not relayed.
func (w *World) borrows(f frontend) frontend {
	if f.service.Metadata.Annotations[annotationMode] == "userspace" && f.port.Protocol != object.ProtocolSCTP && !f.isRange() && len(w.candidates(f)) == 0 {
		f.family = families[1-slices.Index(families, f.family)]
	}
	return f
}

// candidates returns the backends of a frontend's own family before their checks.
func (w *World) candidates(f frontend) (all []backend) {
	shares := w.sharesIn(f)
	for _, candidate := range append(w.fromSlices(f), w.fromEndpoints(f)...) {
		// Behavior 108: an endpoint that is the cluster IP of a Service is not used. ("The endpoint
		// IP addresses cannot be the cluster IPs of other Kubernetes Services", Service page.)
		// The manual says so of the whole service range: nothing else can be there.
		if addr := candidate.address.Addr(); w.isClusterIP(addr) || anyContains(w.Box.ServiceRanges, addr) {
			continue
		}
		if share, has := shares[candidate.group]; has && share == 0 {
			candidate.weight = 0
		}
		i := slices.IndexFunc(all, func(b backend) bool { return b.address == candidate.address && b.group == candidate.group })
		switch {
		case i < 0:
			all = append(all, candidate)
		case better(candidate, all[i]):
			// While an endpoint moves between slices there is no moment without it (behavior
			// 101): the copy that can be used counts.
			all[i] = candidate
		}
	}
	return all
}

// Of two copies in the same state the one of the lower tier counts, then the one of the larger
// weight.
func better(a, b backend) bool {
	switch {
	case a.ready != b.ready:
		return a.ready
	case a.draining != b.draining:
		return a.draining
	case a.priority != b.priority:
		return a.priority < b.priority
	}
	return a.weight > b.weight
}

func (w *World) fromSlices(f frontend) []backend {
	var all []backend
	grouped := w.hasShares(f.service)
	for _, slice := range w.Slices {
		// The label ties a slice to the Service of its namespace (EndpointSlice page); a slice
		// without it has no effect (behavior 106).
		if slice.Metadata.Namespace != f.service.Metadata.Namespace ||
			slice.Metadata.Labels[object.LabelServiceName] != f.service.Metadata.Name {
			continue
		}
		// Behavior 104: a slice feeds VIPs of its own family; FQDN is ignored.
		if slice.AddressType != f.family {
			continue
		}
		for _, port := range slice.Ports {
			number, matches := matchPort(port, f)
			if !matches {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				b := w.fromEndpoint(f, endpoint, number).shareOf(f, slice.Metadata.Annotations)
				if grouped {
					b.group, _ = groupOf(slice)
				}
				all = append(all, b)
			}
		}
	}
	return all
}

// matchPort reports whether a port of a slice or of Endpoints is the frontend's: the same
// name, absent being "", and protocol. A port without a number is ignored (behavior 105).
func matchPort(port object.EndpointPort, f frontend) (uint16, bool) {
	name, protocol := "", object.ProtocolTCP
	if port.Name != nil {
		name = *port.Name
	}
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	if port.Port == nil || *port.Port == 0 {
		return 0, false
	}
	return uint16(*port.Port), name == f.port.Name && protocol == f.port.Protocol
}

func (w *World) fromEndpoint(f frontend, endpoint object.Endpoint, port uint16) backend {
	// Section 5: absent ready and serving are true, absent terminating is false.
	isTrue := func(p *bool, absent bool) bool {
		if p == nil {
			return absent
		}
		return *p
	}
	conditions := endpoint.Conditions
	b := backend{
		// Only the first address is used (behavior 105).
		address: netip.AddrPortFrom(netip.MustParseAddr(endpoint.Addresses[0]), port),
		ready:   isTrue(conditions.Ready, true),
	}
	b.draining = !b.ready && isTrue(conditions.Serving, true) && isTrue(conditions.Terminating, false)
	if endpoint.NodeName != nil {
		b.nodeName = *endpoint.NodeName
	}
	if endpoint.Zone != nil {
		b.zone = *endpoint.Zone
	}
	b.local = w.isLocalNode(b.nodeName)
	if endpoint.Hints != nil {
		for _, node := range endpoint.Hints.ForNodes {
			b.forNodes = append(b.forNodes, node.Name)
		}
		for _, zone := range endpoint.Hints.ForZones {
			b.forZones = append(b.forZones, zone.Name)
		}
	}
	return b
}

// distribute adds the hints of trafficDistribution, an endpoint's own zone, and with PreferSameNode its own node too (behavior 75),
// to backends of which none has hints. Those that are written are taken literally, as kube-proxy does: it derives none.
func distribute(f frontend, all []backend) []backend {
	distribution := f.service.Spec.TrafficDistribution
	if distribution == nil && prefersZone(f.service) {
		sameZone := object.PreferSameZone
		distribution = &sameZone
	}
	if distribution == nil {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		if b := &all[i]; b.zone != "" {
			b.forZones = []string{b.zone}
		}
		if b := &all[i]; *distribution == object.PreferSameNode && b.nodeName != "" {
			b.forNodes = []string{b.nodeName}
		}
	}
	return all
}

// isLocalNode reports whether an endpoint with that nodeName is on the host;
// --nodeless-endpoints decides about one without (behavior 59).
func (w *World) isLocalNode(nodeName string) bool {
	if nodeName == "" {
		return !w.Box.NodelessRemote
	}
	return nodeName == w.Box.NodeName
}

// fromEndpoints mirrors the Endpoints object of the Service if the Service has no
// selector (behavior 116).
func (w *World) fromEndpoints(f frontend) []backend {
	var all []backend
	for _, endpoints := range w.Endpoints {
		if len(f.service.Spec.Selector) > 0 ||
			endpoints.Metadata.Namespace != f.service.Metadata.Namespace ||
			endpoints.Metadata.Name != f.service.Metadata.Name ||
			endpoints.Metadata.Labels[labelSkipMirror] == "true" {
			continue
		}
		for _, subset := range endpoints.Subsets {
			for _, port := range subset.Ports {
				number, matches := matchPort(port, f)
				if !matches {
					continue
				}
				for _, address := range subset.Addresses {
					all = append(all, w.fromAddress(f, endpoints, address, number, true)...)
				}
				for _, address := range subset.NotReadyAddresses {
					all = append(all, w.fromAddress(f, endpoints, address, number, false)...)
				}
			}
		}
	}
	return all
}

func (w *World) fromAddress(f frontend, of *object.Endpoints, address object.EndpointAddress, port uint16, ready bool) []backend {
	addr := netip.MustParseAddr(address.IP)
	if familyOf(addr) != f.family {
		return nil
	}
	b := backend{address: netip.AddrPortFrom(addr, port), ready: ready}
	if address.NodeName != nil {
		b.nodeName = *address.NodeName
	}
	b.local = w.isLocalNode(b.nodeName)
	return []backend{b.shareOf(f, of.Metadata.Annotations)}
}

func (w *World) isClusterIP(addr netip.Addr) bool {
	for _, service := range w.Services {
		for _, text := range service.Spec.ClusterIPs {
			if text == addr.String() {
				return true
			}
		}
	}
	return false
}

// everywhere returns the backends for traffic policy Cluster: the ready ones, limited by
// hints; if none is ready, the draining ones (behavior 65). Others are never used
// (behavior 66). Each group is by itself.
func (w *World) everywhere(f frontend, all []backend) []backend {
	return byGroup(all, func(group []backend) []backend { return w.everywhereIn(f, group) })
}

func (w *World) everywhereIn(f frontend, all []backend) []backend {
	ready := lowestTier(keep(all, func(b backend) bool { return b.ready }))
	if len(ready) == 0 {
		return lowestTier(keep(all, func(b backend) bool { return b.draining }))
	}
	// Behavior 73: all ready ones have node hints, and one is for this node. Those that do not answer
	// their check count here: who is near does not change when a server dies (docs, health).
	said := keep(all, func(b backend) bool { return b.said && b.weight > 0 && b.priority == ready[0].priority })
	if !slices.ContainsFunc(said, func(b backend) bool { return len(b.forZones)+len(b.forNodes) > 0 }) {
		said, ready = distribute(f, said), distribute(f, ready)
	}
	forNode := keep(ready, func(b backend) bool { return slices.Contains(b.forNodes, w.Box.NodeName) })
	if !slices.ContainsFunc(said, func(b backend) bool { return len(b.forNodes) == 0 }) && len(forNode) > 0 {
		return forNode
	}
	// Behaviors 70 and 72: the same for the zone, of a box that has one.
	forZone := keep(ready, func(b backend) bool { return w.Box.Zone != "" && slices.Contains(b.forZones, w.Box.Zone) })
	if !slices.ContainsFunc(said, func(b backend) bool { return len(b.forZones) == 0 }) && len(forZone) > 0 {
		return forZone
	}
	return ready
}

// onBox returns the backends for traffic policy Local: the ready ones of the host, else
// its draining ones (behavior 61). Hints do not matter. Each group is by itself.
func onBox(all []backend) []backend { return byGroup(all, onBoxIn) }

func onBoxIn(all []backend) []backend {
	local := keep(all, func(b backend) bool { return b.local })
	if ready := lowestTier(keep(local, func(b backend) bool { return b.ready })); len(ready) > 0 {
		return ready
	}
	return lowestTier(keep(local, func(b backend) bool { return b.draining }))
}

func keep(all []backend, want func(backend) bool) []backend {
	var kept []backend
	for _, b := range all {
		if want(b) {
			kept = append(kept, b)
		}
	}
	return kept
}
