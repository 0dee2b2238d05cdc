package store

import (
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// allocator has the allocations of all Services, with savepoints to undo those of a transaction.
type allocator struct {
	families  []string                  // those that have cluster IPs, the primary one first
	addresses map[bool]*alloc.Addresses // by whether they are IPv4
	ports     *alloc.Ports
	pools     *alloc.Pools
	reserved  reserved                // by reservedOwner
	vanished  map[object.Ref]Decision // Store.held, as of the transaction under way
	kept      map[string]*kept        // by trialOwner and rolloutOwner

	undo []func()
	// released reports whether anything became free since begin.
	released bool
}

// begin makes what is held now the state that rollback goes back to.
func (l *allocator) begin() {
	clear(l.undo) // what they hold goes
	if cap(l.undo) > keptUndo {
		l.undo = nil // of a start
	}
	l.undo, l.released = l.undo[:0], false
}

// keptUndo is for how many steps back there is room from one transaction to the next.
const keptUndo = 1_000

// mark is a state of the allocator within a transaction; the zero mark is its beginning.
type mark struct {
	undone   int
	released bool
}

func (l *allocator) mark() mark { return mark{len(l.undo), l.released} }

// back makes what was held at a mark held again.
func (l *allocator) back(to mark) {
	for i := len(l.undo) - 1; i >= to.undone; i-- {
		l.undo[i]()
	}
	l.undo, l.released = l.undo[:to.undone], to.released
}

func (l *allocator) rollback() { l.back(mark{}) }

// takeAddress gives an address that was asked for. Errors: *alloc.RangeError,
// *alloc.HeldError.
func (l *allocator) takeAddress(addr netip.Addr, owner string) error {
	addresses := l.addresses[addr.Is4()]
	if addresses == nil {
		return &alloc.RangeError{Value: addr.String(), Range: l.addresses[!addr.Is4()].Prefix().String()}
	}
	l.cedeAddress(addr)
	l.regainAddress(addr, owner)
	return l.address(addresses, (*alloc.Addresses).Take, addr, owner)
}

// holdAddress registers an address that a stored Service has. Without a range of the family no
// other Service can have it either.
func (l *allocator) holdAddress(addr netip.Addr, owner string) error {
	addresses := l.addresses[addr.Is4()]
	if addresses == nil {
		return nil
	}
	return l.address(addresses, (*alloc.Addresses).Hold, addr, owner)
}

func (l *allocator) address(in *alloc.Addresses, take func(*alloc.Addresses, netip.Addr, string) error, addr netip.Addr, owner string) error {
	if holder, held := in.Owner(addr); held && holder == owner {
		return nil
	}
	if err := take(in, addr, owner); err != nil {
		return l.explain(err)
	}
	l.undo = append(l.undo, func() { in.Release(addr, owner) })
	return nil
}

// owner is the Service that holds a cluster IP.
func (l *allocator) owner(addr netip.Addr) (owner string, held bool) {
	if in := l.addresses[addr.Is4()]; in != nil {
		return in.Owner(addr)
	}
	return "", false
}

// nextAddress gives a free address, but none that avoid reports.
func (l *allocator) nextAddress(ipv4 bool, owner string, avoid func(netip.Addr) bool) (netip.Addr, error) {
	addresses := l.addresses[ipv4]
	if addresses == nil {
		return netip.Addr{}, alloc.ErrFull
	}
	addr, err := addresses.Next(owner, avoid)
	if err == nil {
		l.undo = append(l.undo, func() { addresses.Release(addr, owner) })
	}
	return addr, err
}

func (l *allocator) releaseAddress(addr netip.Addr, owner string) {
	addresses := l.addresses[addr.Is4()]
	if addresses == nil {
		return
	}
	if holder, held := addresses.Owner(addr); !held || holder != owner {
		return
	}
	addresses.Release(addr, owner)
	l.released = true
	l.undo = append(l.undo, func() { restored(addresses.Hold(addr, owner)) })
}

// takePort gives a port that was asked for. Errors: *alloc.RangeError, *alloc.HeldError.
func (l *allocator) takePort(port alloc.Port, owner string) error {
	l.cedePort(port)
	l.regainPort(port, owner)
	return l.port((*alloc.Ports).Take, port, owner)
}

// holdPort registers a port that a stored Service has.
func (l *allocator) holdPort(port alloc.Port, owner string) error {
	return l.port((*alloc.Ports).Hold, port, owner)
}

func (l *allocator) port(take func(*alloc.Ports, alloc.Port, string) error, port alloc.Port, owner string) error {
	if holder, held := l.ports.Owner(port); held && holder == owner {
		return nil
	}
	if err := take(l.ports, port, owner); err != nil {
		return l.explain(err)
	}
	l.undo = append(l.undo, func() { l.ports.Release(port, owner) })
	return nil
}

func (l *allocator) nextPort(protocols []string, owner, seed string) (uint16, error) {
	number, err := l.ports.Next(protocols, owner, seed)
	if err != nil {
		return 0, err
	}
	l.undo = append(l.undo, func() {
		for _, protocol := range protocols {
			l.ports.Release(alloc.Port{Protocol: protocol, Number: number}, owner)
		}
	})
	return number, nil
}

func (l *allocator) releasePort(port alloc.Port, owner string) {
	if holder, held := l.ports.Owner(port); !held || holder != owner {
		return
	}
	l.ports.Release(port, owner)
	l.released = true
	l.undo = append(l.undo, func() { restored(l.ports.Hold(port, owner)) })
}

// takeIngress gives a load balancer IP that was asked for, or replaces the owner's request
// on one that it has. Errors: *alloc.RangeError, *alloc.HeldError.
func (l *allocator) takeIngress(addr netip.Addr, request alloc.Request) error {
	l.cedeIngress(addr)
	l.regainIngress(addr, request.Owner)
	return l.requestIngress((*alloc.Pools).Take, addr, request)
}

// holdIngress registers a load balancer IP that a stored Service has.
func (l *allocator) holdIngress(addr netip.Addr, request alloc.Request) error {
	return l.requestIngress((*alloc.Pools).Hold, addr, request)
}

func (l *allocator) requestIngress(take func(*alloc.Pools, netip.Addr, alloc.Request) error, addr netip.Addr, request alloc.Request) error {
	before, had := l.pools.RequestOf(addr, request.Owner)
	if err := take(l.pools, addr, request); err != nil {
		return l.explain(err)
	}
	l.undo = append(l.undo, func() {
		l.pools.Release(addr, request.Owner)
		if had {
			restored(l.pools.Hold(addr, before))
		}
	})
	// A request that changed may leave room for others on the same address.
	l.released = l.released || had && !before.Equal(request)
	return nil
}

// nextIngress gives a free load balancer IP, but none that avoid reports.
func (l *allocator) nextIngress(ipv4 bool, request alloc.Request, avoid func(netip.Addr) bool) (netip.Addr, error) {
	addr, err := l.pools.Next(ipv4, request, avoid)
	if err == nil {
		l.undo = append(l.undo, func() { l.pools.Release(addr, request.Owner) })
	}
	return addr, err
}

func (l *allocator) releaseIngress(addr netip.Addr, owner string) {
	before, had := l.pools.RequestOf(addr, owner)
	if !had {
		return
	}
	l.pools.Release(addr, owner)
	l.released = true
	l.undo = append(l.undo, func() { restored(l.pools.Hold(addr, before)) })
}

// restored is for what undoes a release: in reverse order it finds things as they were
// after the release, so it cannot fail.
func restored(err error) {
	if err != nil {
		panic("store: rollback of a release: " + err.Error())
	}
}

// values are the addresses and ports that one Service holds.
type values struct {
	clusterIPs []netip.Addr
	// ports are node ports, and the health-check node port, which is TCP.
	ports   []alloc.Port
	ingress []netip.Addr
}

// valuesOf reads off a Service what it holds, or before allocation what it asks for.
func valuesOf(svc *object.Service) values {
	var v values
	if svc.NeedsClusterIP() && !svc.Headless() {
		for _, text := range svc.Spec.ClusterIPs {
			if addr, err := netip.ParseAddr(text); err == nil {
				v.clusterIPs = append(v.clusterIPs, addr)
			}
		}
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
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(ingress.IP); err == nil {
				v.ingress = append(v.ingress, addr)
			}
		}
	}
	return v
}

// isOurLoadBalancer reports whether load balancer IPs of the Service are for us to give.
func isOurLoadBalancer(svc *object.Service) bool {
	class := svc.Spec.LoadBalancerClass
	return svc.Spec.Type == object.TypeLoadBalancer && (class == nil || *class == LoadBalancerClass)
}

// requestOf returns the request of a load balancer on the pools.
func requestOf(svc *object.Service) alloc.Request {
	request := alloc.Request{
		Owner:      index.ServiceKey(svc),
		SharingKey: annotation.Sharing(svc.Metadata.Annotations),
		Internal:   annotation.InternalOf(svc).Key != "",
		Pool:       annotation.AddressPool(svc.Metadata.Annotations),
		Labels:     svc.Metadata.Labels,
	}
	for _, asked := range askedIngress(svc) {
		if asked.addr.IsValid() {
			request.Requested = append(request.Requested, asked.addr)
		}
	}
	for _, port := range svc.Spec.Ports {
		request.Ports = append(request.Ports, alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)})
	}
	return request
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return object.IPv4
	}
	return object.IPv6
}
