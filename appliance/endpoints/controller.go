package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Facts has the properties of the box that endpoints depend on.
type Facts struct {
	NodeName string // Pods of this node are in the box's zone
	Zone     string // "" when the box has none
	// ServiceRanges has the ranges of cluster IPs: no endpoint may lie in them.
	ServiceRanges []netip.Prefix
}

// Holder is the kind of writer that an object belongs to.
type Holder int

// The values of Holder.
const (
	Nobody Holder = iota // there is no such object
	Ours                 // one of the controllers of this package made it
	Others               // it belongs to a file or a client of the API
)

// Objects reads the objects that the controllers depend on. Returned objects are immutable.
type Objects interface {
	// Service returns a Service, nil when there is none, with its EndpointSlices, sorted by name, and the Endpoints object of the same name.
	Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints)
	// Pod returns a Pod, nil when there is none.
	Pod(key string) *object.Pod
	// Selected returns the Pods that a selector matches, sorted by name.
	Selected(namespace string, selector map[string]string) []*object.Pod
	// Selecting returns the keys of the Services whose selector matches these labels, sorted.
	Selecting(namespace string, labels map[string]string) []string
	// ZoneOf returns the zone of a node of a fleet, in which one box writes the endpoints for all boxes. The second result is false outside of a
	// fleet. The zone is read when endpoints are written: a later change does not update them.
	ZoneOf(node string) (zone string, known bool)
	// Holder returns the owner of an object.
	Holder(ref object.Ref) Holder
}

// Changes has the keys ("namespace/name") of objects that may have changed.
type Changes struct {
	// Services has the Services that changed, or whose EndpointSlices or Endpoints did.
	Services []string
	Pods     []string
}

// Batch holds the writes of one Update, for one commit.
type Batch struct {
	Puts    []object.Object // sorted by kind, namespace and name
	Deletes []object.Ref    // sorted by kind, namespace and name

	services []string // the Services that the writes are for
}

// Empty reports whether there is nothing to write or delete.
func (b *Batch) Empty() bool { return len(b.Puts)+len(b.Deletes) == 0 }

// Problem is a reason why an object does not work as written.
type Problem = object.Problem

// Controller generates EndpointSlices and Endpoints for all Services with a selector, and mirrors of Endpoints. It is not safe for
// concurrent use.
type Controller struct {
	Facts
	services map[string]*service // Services with generated objects; in a Fork only those examined since
	pods     map[string]pod      // all Pods
	vips     addressIndex        // VIPs, by Service
	hosts    addressIndex        // addresses of Pods, by Pod
	mirrored addressIndex        // addresses of mirrored Endpoints, by Service
	redo     map[string]struct{} // Services of Batches that were passed to Forget
	problems map[string]Problem
}

// pod is a Pod as of the last Update.
type pod struct {
	object   *object.Pod
	services []string // Services that have the Pod as an endpoint; never modified in place
}

// New returns an empty Controller. Its first Update needs the keys of all Services and Pods.
func New(facts Facts) *Controller {
	return &Controller{
		Facts:    facts,
		services: map[string]*service{},
		pods:     map[string]pod{},
		vips:     addressIndex{},
		hosts:    addressIndex{},
		mirrored: addressIndex{},
		redo:     map[string]struct{}{},
		problems: map[string]Problem{},
	}
}

// Aside returns a Controller that generates objects from other versions of some Services. It starts with the addresses of all Services and Pods of c,
// but without generated objects.
func (c *Controller) Aside() *Controller {
	a := New(c.Facts)
	a.vips, a.hosts = c.vips.clone(), c.hosts.clone()
	return a
}

// Fork returns a Controller for a copy of the objects, as of the last Update of c. Its Problems are only those that it finds itself.
func (c *Controller) Fork() *Controller {
	f := c.Aside()
	f.mirrored, f.pods, f.redo = c.mirrored.clone(), maps.Clone(c.pods), maps.Clone(c.redo)
	return f
}

// Update computes the writes for all objects that depend on the changed ones. The caller must store the Batch, or pass it to Forget, before the next
// call.
func (c *Controller) Update(objs Objects, changes Changes) Batch {
	w := work{objs: objs, whole: map[string]bool{}, pods: map[string][]string{}}
	for key := range c.redo {
		w.whole[key] = true
	}
	clear(c.redo)
	var moved []string // Pods at addresses that became or ceased to be VIPs
	for _, key := range changes.Services {
		w.whole[key] = true
		svc, _, _ := objs.Service(key)
		for _, addr := range c.vips.set(key, vipsOf(svc)) {
			moved = append(moved, c.hosts.keys(addr)...)
			for _, mirror := range c.mirrored.keys(addr) {
				delete(c.services, mirror)
				w.whole[mirror] = true
			}
		}
	}
	for _, key := range slices.Concat(changes.Pods, moved) {
		c.seePod(&w, key)
	}
	var batch Batch
	for _, key := range w.services() {
		if w.whole[key] || c.services[key] == nil {
			c.examine(&w, key, &batch)
		} else {
			c.updatePods(&w, key, &batch)
		}
	}
	batch.sort()
	return batch
}

// Forget is called for a Batch that could not be stored: the next Update computes its Services again.
func (c *Controller) Forget(batch Batch) {
	for _, key := range batch.services {
		delete(c.services, key)
		c.redo[key] = struct{}{}
	}
}

// Known returns the keys of all Services and Pods that the controller has seen, for an update of everything.
func (c *Controller) Known() Changes {
	known := Changes{Services: slices.Collect(maps.Keys(c.vips.byKey))}
	known.Services = slices.AppendSeq(known.Services, maps.Keys(c.services))
	known.Pods = slices.AppendSeq(known.Pods, maps.Keys(c.pods))
	return known
}

// Problems returns all problems, sorted by object.
func (c *Controller) Problems() []Problem {
	all := slices.AppendSeq(c.shared(), maps.Values(c.problems))
	slices.SortFunc(all, func(a, b Problem) int {
		return strings.Compare(a.Object.String()+a.Field+a.Message, b.Object.String()+b.Field+b.Message)
	})
	return slices.Compact(all)
}

// note records the problem under a key; nil removes it.
func (c *Controller) note(key string, problem *Problem) {
	if problem == nil {
		delete(c.problems, key)
		return
	}
	c.problems[key] = *problem
}

// work has the Services and Pods that one Update examines.
type work struct {
	objs  Objects
	whole map[string]bool     // Services to examine as a whole
	pods  map[string][]string // names of the Pods to examine, by Service
}

// services returns the keys of the Services to examine, sorted.
func (w *work) services() []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(w.whole)), maps.Keys(w.pods))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// seePod records the new version of a Pod, and adds the Services that select it, or have it as an endpoint, to the work.
func (c *Controller) seePod(w *work, key string) {
	now, before := w.objs.Pod(key), c.pods[key]
	c.setPod(key, pod{now, before.services})
	services := slices.Clone(before.services)
	if now == nil {
		c.hosts.set(key, nil)
	} else {
		c.hosts.set(key, addressesOf(now))
		services = append(services, w.objs.Selecting(now.Metadata.Namespace, now.Metadata.Labels)...)
	}
	_, name := cutKey(key)
	slices.Sort(services)
	for _, service := range slices.Compact(services) {
		w.pods[service] = append(w.pods[service], name)
	}
}

// member records that a Pod is an endpoint of a Service or, if `is` is false, that it is none.
func (c *Controller) member(podKey, service string, is bool) {
	p := c.pods[podKey]
	switch at := slices.Index(p.services, service); {
	case is && at < 0:
		p.services = append(slices.Clip(p.services), service)
	case !is && at >= 0:
		p.services = slices.Delete(slices.Clone(p.services), at, at+1)
	}
	c.setPod(podKey, p)
}

// setPod records a Pod. It drops a deleted Pod that is not the endpoint of any Service.
func (c *Controller) setPod(key string, p pod) {
	if c.pods[key] = p; p.object == nil && len(p.services) == 0 {
		delete(c.pods, key)
	}
}

func cutKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

func (b *Batch) sort() {
	slices.SortFunc(b.Puts, func(x, y object.Object) int { return compareRefs(object.RefOf(x), object.RefOf(y)) })
	slices.SortFunc(b.Deletes, compareRefs)
}

func compareRefs(a, b object.Ref) int { return strings.Compare(a.String(), b.String()) }

// labelZone is the label with the zone of a Pod. Kubernetes copies it from the node (since 1.35); an operator may set it on a Pod that
// stands for a server.
const labelZone = "topology.kubernetes.io/zone"

// group has the properties that all endpoints of a slice share.
type group struct {
	family string
	ports  string // the result of textOfPorts
	// weight and priority are the values of AnnotationWeight and AnnotationPriority; "" without the annotation.
	weight, priority string
}

// shareOf returns g with the weight and priority in the annotations of an object.
func (g group) shareOf(meta *object.ObjectMeta) group {
	g.weight, g.priority = meta.Annotations[object.AnnotationWeight], meta.Annotations[object.AnnotationPriority]
	return g
}

// placed is an endpoint with the group of its slice.
type placed struct {
	group    group
	ports    []object.EndpointPort
	endpoint object.Endpoint
}

// textOfPorts returns a text that is equal for equal sets of ports. The ports must be sorted by name.
func textOfPorts(ports []object.EndpointPort) string {
	var b strings.Builder
	for i := range ports {
		p := &ports[i]
		fmt.Fprintf(&b, "%s/%s/%d", object.Deref(p.Name), object.Deref(p.Protocol), object.Deref(p.Port))
		if p.AppProtocol != nil {
			b.WriteString("/" + *p.AppProtocol)
		}
		b.WriteByte(' ')
	}
	return b.String()
}

func sortPorts(ports []object.EndpointPort) {
	slices.SortFunc(ports, func(a, b object.EndpointPort) int { return cmp.Compare(object.Deref(a.Name), object.Deref(b.Name)) })
}

// portsOf returns the ports of a Service with their numbers on a Pod, sorted by name, and the named target ports that the Pod lacks.
func portsOf(svc *object.Service, pod *object.Pod) (ports []object.EndpointPort, lacking []string) {
	ports = make([]object.EndpointPort, 0, len(svc.Spec.Ports))
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		number, found := pod.TargetPort(p)
		if !found {
			lacking = append(lacking, p.TargetPort.Name+"/"+p.Protocol)
			continue
		}
		ports = append(ports, object.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &number, AppProtocol: p.AppProtocol})
	}
	sortPorts(ports)
	return ports, lacking
}

// endpointOf returns the endpoint for a Pod in the slices of a Service, without its addresses.
func (c *Controller) endpointOf(objs Objects, svc *object.Service, pod *object.Pod) object.Endpoint {
	serving, terminating := pod.Ready(), pod.Terminating()
	ready := svc.Spec.PublishNotReadyAddresses || serving && !terminating
	meta := &pod.Metadata
	endpoint := object.Endpoint{
		Conditions: object.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef:  &object.ObjectReference{Kind: object.KindPod, Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID},
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == svc.Metadata.Name {
		endpoint.Hostname = &pod.Spec.Hostname
	}
	if pod.Spec.NodeName != "" {
		endpoint.NodeName = &pod.Spec.NodeName
	}
	zone := meta.Labels[labelZone]
	if zone == "" && pod.Spec.NodeName != "" {
		var known bool
		if zone, known = objs.ZoneOf(pod.Spec.NodeName); !known && pod.Spec.NodeName == c.NodeName {
			zone = c.Zone
		}
	}
	if zone != "" {
		endpoint.Zone = &zone
	}
	if ready {
		endpoint.Hints = hintsOf(object.Deref(svc.Spec.TrafficDistribution), &endpoint)
	}
	return endpoint
}

// hintsOf returns the topology hints of an endpoint: for its own zone, and with PreferSameNode for its own node as well.
func hintsOf(distribution string, endpoint *object.Endpoint) *object.EndpointHints {
	var hints object.EndpointHints
	switch distribution {
	case object.PreferSameNode:
		if endpoint.NodeName != nil {
			hints.ForNodes = []object.ForNode{{Name: *endpoint.NodeName}}
		}
	case object.PreferSameZone, object.PreferClose:
	default:
		return nil
	}
	if endpoint.Zone != nil {
		hints.ForZones = []object.ForZone{{Name: *endpoint.Zone}}
	}
	if len(hints.ForNodes)+len(hints.ForZones) == 0 {
		return nil
	}
	return &hints
}

// placesOf returns, by family, the endpoint of a Pod for a Service, with the group of its slice. lacking has the names of target ports that the Pod
// lacks. problem is the reason why one of the Pod's addresses is left out.
func (c *Controller) placesOf(objs Objects, svc *object.Service, pod *object.Pod) (places [len(families)]*placed, lacking []string, problem *Problem) {
	var ports []object.EndpointPort
	ports, lacking = portsOf(svc, pod)
	text := textOfPorts(ports)
	endpoint := c.endpointOf(objs, svc, pod)
	for i, family := range families {
		if !slices.Contains(svc.Spec.IPFamilies, family) {
			continue
		}
		addr := pod.Addr(family)
		if !addr.IsValid() {
			continue
		}
		if why := c.refusal(addr); why != "" {
			problem = &Problem{
				Object: object.RefOf(pod), Field: "status.podIP", Reason: "BadEndpointAddress",
				Message: fmt.Sprintf("endpoint %s is left out: %s", addr, why), Warning: true,
			}
			continue
		}
		place := &placed{group: group{family: family, ports: text}.shareOf(&pod.Metadata), ports: ports, endpoint: endpoint}
		place.endpoint.Addresses = []string{addr.String()}
		places[i] = place
	}
	return places, lacking, problem
}

// noteService records the problems of a Service as a whole, such as a selector that matches no Pod.
func (c *Controller) noteService(s *service) {
	var nobody, unused, lacking *Problem
	if s.managedBy == managedBySelector {
		ref := object.RefOf(s.object)
		if len(s.layout.places) == 0 && !s.others {
			nobody = &Problem{Object: ref, Field: "spec.selector", Reason: "NoEndpoints",
				Message: "no Pod with an address matches the selector, and no EndpointSlice names endpoints: the Service has none"}
			if n := len(s.strangers); n > 0 {
				nobody.Message = fmt.Sprintf("no Pod that the selector matches has an address of its family, %s; %d of them have one of the other family: set spec.ipFamilyPolicy to PreferDualStack",
					s.object.Spec.IPFamilies[0], n)
			}
		}
		if s.foreign != nil {
			unused = &Problem{Object: object.RefOf(s.foreign), Reason: "ServiceHasSelector", Warning: true,
				Message: "Endpoints are only used for a Service without a selector; remove spec.selector, or name the endpoints in an EndpointSlice"}
		}
		if len(s.lacking) > 0 {
			first := slices.Min(slices.Collect(maps.Keys(s.lacking)))
			lacking = &Problem{Object: ref, Field: "spec.ports", Reason: "NoSuchPort", Warning: true,
				Message: fmt.Sprintf("%d of its Pods have no container port for a targetPort, and get no connections to it; the first is %s, which lacks %s",
					len(s.lacking), first, strings.Join(s.lacking[first], ", "))}
		}
	}
	c.note("nobody/"+s.key, nobody)
	c.note("unused/"+s.key, unused)
	c.note("lacking/"+s.key, lacking)
	if s.managedBy != managedByMirror {
		c.note("mirror/"+s.key, nil)
	}
}

// addressIndex maps addresses to the keys of the objects that have them, and back.
type addressIndex struct {
	byAddr map[netip.Addr][]string // keys by address, nearly always one; slices are never modified in place
	byKey  map[string][]netip.Addr
	shared map[netip.Addr]struct{} // addresses with more than one key
}

// set replaces the addresses of a key, and returns those that were added or removed.
func (x *addressIndex) set(key string, addrs []netip.Addr) (changed []netip.Addr) {
	if x.byAddr == nil {
		x.byAddr, x.byKey, x.shared = map[netip.Addr][]string{}, map[string][]netip.Addr{}, map[netip.Addr]struct{}{}
	}
	before := x.byKey[key]
	for _, addr := range before {
		if !slices.Contains(addrs, addr) {
			x.byAddr[addr] = slices.DeleteFunc(slices.Clone(x.byAddr[addr]), func(other string) bool { return other == key })
			changed = append(changed, addr)
		}
	}
	for _, addr := range addrs {
		if slices.Contains(before, addr) {
			continue
		}
		x.byAddr[addr] = append(slices.Clip(x.byAddr[addr]), key)
		changed = append(changed, addr)
	}
	for _, addr := range changed {
		delete(x.shared, addr)
		switch n := len(x.byAddr[addr]); {
		case n == 0:
			delete(x.byAddr, addr)
		case n > 1:
			x.shared[addr] = struct{}{}
		}
	}
	if x.byKey[key] = addrs; len(addrs) == 0 {
		delete(x.byKey, key)
	}
	return changed
}

// keys returns the keys of the objects that have an address, sorted.
func (x *addressIndex) keys(addr netip.Addr) []string {
	return slices.Sorted(slices.Values(x.byAddr[addr]))
}

// annotationHostAddress is the annotation that allows a Service to have an address of the host itself; see package resolve.
const annotationHostAddress = "svcctl.io/allow-host-address"

// vipsOf returns the addresses at which clients reach a Service. With annotationHostAddress only cluster IPs count, since Pods may share a
// host's other addresses.
func vipsOf(svc *object.Service) []netip.Addr {
	if svc == nil || svc.Spec.Type == object.TypeExternalName || svc.Headless() {
		return nil
	}
	texts := svc.Spec.ClusterIPs
	if svc.Metadata.Annotations[annotationHostAddress] != "true" {
		texts = slices.Concat(texts, svc.Spec.ExternalIPs, svc.IngressIPs())
	}
	var addrs []netip.Addr
	for _, addr := range object.Addrs(texts) {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// families has the address families in the order of all arrays by family in this package.
var families = [2]string{object.IPv4, object.IPv6}

func addressesOf(p *object.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, family := range families {
		if addr := p.Addr(family); addr.IsValid() {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// refusal returns the reason why an address cannot be an endpoint, for example because packets to it would loop on the box or reach many hosts. It
// returns "" if the address can be one.
func (c *Controller) refusal(addr netip.Addr) string {
	if addr.Is4In6() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return "it may not be loopback, link-local, multicast, unspecified or IPv4-mapped"
	}
	for _, prefix := range c.ServiceRanges {
		if prefix.Contains(addr) {
			return fmt.Sprintf("it lies in the service range %s, and a cluster IP cannot be an endpoint", prefix)
		}
	}
	if owners := c.vips.keys(addr); len(owners) > 0 {
		return fmt.Sprintf("it is an address of Service %s, and connections would come back to the box", owners[0])
	}
	return ""
}

// shared returns a problem for each address that several Pods have, about the second of them. Pods in the host's network are excluded,
// since they share its address.
func (c *Controller) shared() []Problem {
	var all []Problem
	for addr := range c.hosts.shared {
		var keys []string
		for _, key := range c.hosts.keys(addr) {
			if pod := c.pods[key].object; pod != nil && !pod.Spec.HostNetwork && !pod.Terminal() && !pod.Terminating() {
				keys = append(keys, key)
			}
		}
		if len(keys) < 2 {
			continue
		}
		namespace, name := cutKey(keys[1])
		message := fmt.Sprintf("Pod %s has the address %s too: correct one of them, or set spec.hostNetwork where they share a host", keys[0], addr)
		if more := len(keys) - 2; more > 0 {
			message = fmt.Sprintf("Pod %s and %d more have the address %s too: correct them, or set spec.hostNetwork where they share a host", keys[0], more, addr)
		}
		all = append(all, Problem{
			Object: object.Ref{Kind: object.KindPod, Namespace: namespace, Name: name},
			Field:  "status.podIP", Reason: "SharedAddress", Message: message, Warning: true,
		})
	}
	return all
}

// clone returns a copy.
func (x *addressIndex) clone() addressIndex {
	return addressIndex{maps.Clone(x.byAddr), maps.Clone(x.byKey), maps.Clone(x.shared)}
}
