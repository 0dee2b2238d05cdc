package store

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// value is an address or a port that a Service holds. A load balancer IP may be shared by several Services. kind is one of the values of Pool.Kind.
type value struct {
	kind string
	addr netip.Addr // the zero Addr for a port
	port alloc.Port
}

func clusterIP(addr netip.Addr) value      { return value{kind: PoolClusterIP, addr: addr} }
func nodePort(port alloc.Port) value       { return value{kind: PoolNodePort, port: port} }
func loadBalancerIP(addr netip.Addr) value { return value{kind: PoolLoadBalancer, addr: addr} }

// String returns the address, or a port such as "TCP 30080".
func (v value) String() string {
	if v.kind == PoolNodePort {
		return fmt.Sprintf("%s %d", v.port.Protocol, v.port.Number)
	}
	return v.addr.String()
}

var valueSeed = maphash.MakeSeed()

// hash returns a hash of the value and of its owner.
func (v value) hash(owner string) uint64 {
	return maphash.Comparable(valueSeed, v) * maphash.String(valueSeed, owner)
}

// values are the addresses and ports that one Service holds.
type values struct {
	clusterIPs []netip.Addr
	// ports are node ports, and the health-check node port, which is TCP.
	ports   []alloc.Port
	ingress []netip.Addr
}

// all yields all values.
func (v values) all(yield func(value) bool) {
	for _, addr := range v.clusterIPs {
		if !yield(clusterIP(addr)) {
			return
		}
	}
	for _, port := range v.ports {
		if !yield(nodePort(port)) {
			return
		}
	}
	for _, addr := range v.ingress {
		if !yield(loadBalancerIP(addr)) {
			return
		}
	}
}

// has reports whether a value is among v.
func (v values) has(one value) bool {
	for is := range v.all {
		if is == one {
			return true
		}
	}
	return false
}

// valuesOf returns the values in a Service: those that it holds, or before allocation those that it asks for.
func valuesOf(svc *object.Service) values {
	var v values
	if svc.NeedsClusterIP() && !svc.Headless() {
		v.clusterIPs = object.Addrs(svc.Spec.ClusterIPs)
	}
	for _, port := range svc.Spec.Ports {
		if port.NodePort != 0 {
			v.ports = append(v.ports, alloc.Port{Protocol: port.Protocol, Number: uint16(port.NodePort)})
		}
	}
	if number := svc.Spec.HealthCheckNodePort; number != 0 {
		v.ports = append(v.ports, alloc.Port{Protocol: object.ProtocolTCP, Number: uint16(number)})
	}
	if isOurLoadBalancer(svc) {
		v.ingress = object.Addrs(svc.IngressIPs())
	}
	return v
}

// isOurLoadBalancer reports whether a Service is a load balancer whose IPs this store allocates.
func isOurLoadBalancer(svc *object.Service) bool {
	return svc.Spec.Type == object.TypeLoadBalancer && isOurClass(svc)
}

func isOurClass(svc *object.Service) bool {
	class := svc.Spec.LoadBalancerClass
	return class == nil || *class == LoadBalancerClass
}

// requestOf returns the request of a load balancer for addresses of the pools.
func requestOf(svc *object.Service) alloc.Request {
	request := alloc.Request{
		Owner:      index.ServiceKey(svc),
		SharingKey: annotation.Sharing(svc.Metadata.Annotations),
		Internal:   annotation.InternalOf(svc).Key != "",
		Pool:       annotation.AddressPool(svc.Metadata.Annotations),
		Labels:     svc.Metadata.Labels,
		Ports:      portsOf(svc),
	}
	for _, asked := range askedIngress(svc) {
		if asked.addr.IsValid() {
			request.Requested = append(request.Requested, asked.addr)
		}
	}
	return request
}

// asked is a load balancer IP that a Service asks for, and the path of the field that has it.
// The zero Addr stands for a text that is not an address.
type asked struct {
	field string
	text  string
	addr  netip.Addr
}

// askedIngress returns the load balancer IPs that a Service asks for, without duplicates.
func askedIngress(svc *object.Service) []asked {
	if svc.Spec.Type != object.TypeLoadBalancer {
		return nil
	}
	var list []asked
	add := func(field, text string) {
		text = strings.TrimSpace(text)
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			addr = netip.Addr{}
		}
		addr = addr.Unmap()
		if text != "" && !(addr.IsValid() && slices.ContainsFunc(list, func(a asked) bool { return a.addr == addr })) {
			list = append(list, asked{field, text, addr})
		}
	}
	add("spec.loadBalancerIP", svc.Spec.LoadBalancerIP)
	for _, a := range annotation.Addresses(svc.Metadata.Annotations) {
		add(annotation.Field(a.Key), a.Text)
	}
	return list
}

func portsOf(svc *object.Service) []alloc.Port {
	ports := make([]alloc.Port, len(svc.Spec.Ports))
	for i, port := range svc.Spec.Ports {
		ports[i] = alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)}
	}
	return ports
}

// holdAll registers all values of a stored Service, or none of them.
func (l *allocator) holdAll(svc *object.Service) error {
	request, before := requestOf(svc), l.mark()
	for v := range valuesOf(svc).all {
		if err := l.hold(v, request); err != nil {
			l.back(before)
			switch v.kind {
			case PoolClusterIP:
				return fmt.Errorf("cluster IP %s: %w", v, err)
			case PoolNodePort:
				return fmt.Errorf("node %s: %w", v.port, err)
			}
			return fmt.Errorf("load balancer IP %s: %w", v, err)
		}
	}
	return nil
}

// keepOf reserves, under the name holder, the values that a Service had before a trial or a rollout and gave up in it. It leaves out values that
// another Service holds by now.
func (l *allocator) keepOf(holder string, svc *object.Service) {
	request := requestOf(svc)
	key := request.Owner
	request.Owner = holder
	for v := range valuesOf(svc).all {
		if _, held := l.requestOf(v, key); !held && l.hold(v, request) == nil {
			index.Put(l.kept, holder, v, key)
		}
	}
}

// reserves reports whether an owner is no Service, but holds reserved values: those recovered after a loss of data, or those kept for a trial or
// a rollout.
func (l *allocator) reserves(owner string) bool {
	_, keeps := l.kept[owner]
	return keeps || owner == reservedOwner
}

// unkeep releases all values that are reserved under a holder's name.
func (l *allocator) unkeep(holder string) {
	for v := range l.kept[holder] {
		l.release(v, holder)
	}
}

// ReasonUnpinned is the Reason of the problem that a Service does not name all of its addresses and ports, and the
// store allocates none (Config.Pinned).
const ReasonUnpinned = "Unpinned"

// unpinned returns an error for each value that would have to be allocated, because the Service does not specify it. Default and DefaultFamilies must
// have been called on the Service.
func (s *Store) unpinned(svc *object.Service) (errs object.Errors) {
	if !s.cfg.Pinned {
		return nil
	}
	missing := func(field, what string) {
		errs = append(errs, object.Error{Type: object.FieldValueRequired, Field: field, Detail: fmt.Sprintf(
			"this appliance gives no values (--allocate never), and the Service names no %s: write it, or have `svcctl admin pin` write it", what)})
	}
	spec := &svc.Spec
	if named := len(spec.ClusterIPs); svc.NeedsClusterIP() && !svc.Headless() && named < len(spec.IPFamilies) {
		field := "spec.clusterIP"
		if named > 0 {
			field = fmt.Sprintf("spec.clusterIPs[%d]", named)
		}
		missing(field, string(spec.IPFamilies[named])+" cluster IP")
	}
	if svc.AllocatesNodePorts() {
		for i := range spec.Ports {
			if spec.Ports[i].NodePort == 0 {
				missing(fmt.Sprintf("spec.ports[%d].nodePort", i), "node port")
			}
		}
	}
	if svc.NeedsHealthCheckNodePort() && spec.HealthCheckNodePort == 0 {
		missing("spec.healthCheckNodePort", "node port for health checks")
	}
	if !isOurLoadBalancer(svc) {
		return errs
	}
	request := requestOf(svc)
	for _, family := range spec.IPFamilies {
		if len(ofFamily(request.Requested, family)) == 0 && s.allocator.pools.Serves(family == object.IPv4, request.Internal) {
			missing("spec.loadBalancerIP", string(family)+" load balancer IP")
		}
	}
	return errs
}

// unpinnedDocument is unpinned for the document of a file: values that only the stored version has do not count.
func (s *Store) unpinnedDocument(document object.Object) object.Errors {
	original, isService := document.(*object.Service)
	if !isService || !s.cfg.Pinned {
		return nil
	}
	svc := object.DeepCopy(original)
	object.Default(svc)
	if errs := object.DefaultFamilies(svc, nil, s.cfg.families()); len(errs) > 0 {
		return nil // it is refused for that
	}
	return s.unpinned(svc)
}

// reservedOwner is the owner of reserved values in the allocator. No Service has that name.
const reservedOwner = "(unknown: in force in the kernel, see svcctl confirm --removals)"

// ReservedFrontend is an address and port that the kernel serves for a Service that the store has lost. If Addr is the zero Addr, Port is a node
// port.
type ReservedFrontend struct {
	Addr      netip.Addr
	Port      alloc.Port
	Endpoints []netip.Addr
}

// reserved has the ReservedFrontends, by address and by node port.
type reserved struct {
	addresses map[netip.Addr][]ReservedFrontend
	nodePorts map[alloc.Port][]ReservedFrontend
}

// reservedKey is an engine key whose presence records, across restarts, that values are reserved.
const reservedKey = "reserved"

// Blank reports whether the store has no Services, and no record that it ever had any: it is
// new, or its data was lost.
func (s *Store) Blank() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.table.served > 0 {
		return false
	}
	return !s.feed.journal.Concerns(object.KindService)
}

// HasUndeclared reports whether there are objects of files that none of the files read so far
// declares.
func (s *Store) HasUndeclared() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.declared.undeclared) > 0
}

// HasReserved reports whether values are reserved, or were before the last restart.
func (s *Store) HasReserved() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.reserves
}

// Reserve excludes the addresses and node ports of frontends from automatic allocation, until Unreserve is called. A Service that asks for a value
// explicitly gets it.
//
// A Service that seems to be the former owner also gets it. For that, the value must come before any free value in the order in which allocation
// tries values for this name, the Service must have the ports of the frontend, and they must have an endpoint in common. In a range with few reserved
// cluster IPs, the endpoints need not be present yet.
//
// The store records across restarts that values are reserved, but not which: the caller reads them from the kernel again. Even if Reserve returns an
// error, the values are reserved until the next restart.
func (s *Store) Reserve(frontends []ReservedFrontend) (err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.reserves {
		err = s.write(engine.Transaction{Puts: []engine.Pair{{Key: reservedKey, Value: []byte("1"), Revision: s.feed.revision}}}, s.feed.revision)
		if err != nil {
			err = fmt.Errorf("remember that the kernel serves unknown Services: %w", err)
		}
	}
	s.setReserves(true)
	r := &s.allocator.reserved
	*r = reserved{addresses: map[netip.Addr][]ReservedFrontend{}, nodePorts: map[alloc.Port][]ReservedFrontend{}}
	for _, f := range frontends {
		if f.Addr.IsValid() {
			r.addresses[f.Addr] = append(r.addresses[f.Addr], f)
		} else {
			r.nodePorts[f.Port] = append(r.nodePorts[f.Port], f)
		}
	}
	s.allocator.begin()
	for addr, all := range r.addresses {
		// An error means that a Service has the value, which is then no unknown one's.
		if in := s.allocator.addresses[addr.Is4()]; in != nil && in.Prefix().Contains(addr) {
			_ = s.allocator.hold(clusterIP(addr), alloc.Request{Owner: reservedOwner})
		} else if s.allocator.pools.Contains(addr) {
			request := alloc.Request{Owner: reservedOwner}
			for _, f := range all {
				request.Ports = append(request.Ports, f.Port)
			}
			_ = s.allocator.hold(loadBalancerIP(addr), request)
		}
	}
	for port := range r.nodePorts {
		_ = s.allocator.hold(nodePort(port), alloc.Request{Owner: reservedOwner})
	}
	s.allocator.begin()
	return err
}

// Unreserve releases all values that are still reserved. In a fleet, it does not wait until this is stored.
func (s *Store) Unreserve() error {
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	if !s.reserves {
		return nil
	}
	forget := engine.Transaction{Deletes: []string{reservedKey}}
	if s.storage.shared != nil {
		s.storage.shared.Keep(forget) // the loop, which calls this, does not wait for the disk of a replica
	} else if err := s.write(forget, s.feed.revision); err != nil {
		return fmt.Errorf("forget that the kernel serves unknown Services: %w", err)
	}
	s.allocator.begin()
	for addr := range s.allocator.reserved.addresses {
		s.allocator.release(clusterIP(addr), reservedOwner)
		s.allocator.release(loadBalancerIP(addr), reservedOwner)
	}
	for port := range s.allocator.reserved.nodePorts {
		s.allocator.release(nodePort(port), reservedOwner)
	}
	s.allocator.begin()
	s.allocator.reserved = reserved{}
	s.setReserves(false)
	return nil
}

func (s *Store) setReserves(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserves = is
}
