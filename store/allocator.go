package store

import (
	"errors"
	"fmt"
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
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
	kept      map[string]*kept        // by pending.Kind.Holder

	undo []func()
	// released reports whether anything became free since begin.
	released bool
}

// begin begins a transaction: rollback returns to the allocations of this moment.
func (l *allocator) begin() {
	clear(l.undo) // what they hold goes
	if cap(l.undo) > keptUndo {
		l.undo = nil // of a start
	}
	l.undo, l.released = l.undo[:0], false
}

// keptUndo is the greatest capacity of the undo list, in steps, that is kept for the next transaction.
const keptUndo = 1_000

// mark is a state of the allocator within a transaction; the zero mark is its beginning.
type mark struct {
	undone   int
	released bool
}

func (l *allocator) mark() mark { return mark{len(l.undo), l.released} }

// back undoes all allocations and releases since a mark.
func (l *allocator) back(to mark) {
	for i := len(l.undo) - 1; i >= to.undone; i-- {
		l.undo[i]()
	}
	l.undo, l.released = l.undo[:to.undone], to.released
}

func (l *allocator) rollback() { l.back(mark{}) }

// takeAddress registers a cluster IP that a Service asks for. Errors:
// *alloc.RangeError, *alloc.HeldError.
func (l *allocator) takeAddress(addr netip.Addr, owner string) error {
	addresses := l.addresses[addr.Is4()]
	if addresses == nil {
		return &alloc.RangeError{Value: addr.String(), Range: l.addresses[!addr.Is4()].Prefix().String()}
	}
	l.cedeAddress(addr)
	l.regain(owner, func(k *kept) string { return k.addresses[addr] }, func(holder string) { l.releaseAddress(addr, holder) })
	return l.address(addresses, (*alloc.Addresses).Take, addr, owner)
}

// holdAddress registers a cluster IP that a stored Service has. If there is no range of its
// family, nothing is registered: no other Service can get the address.
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

// owner returns the "namespace/name" of the Service that holds a cluster IP.
func (l *allocator) owner(addr netip.Addr) (owner string, held bool) {
	if in := l.addresses[addr.Is4()]; in != nil {
		return in.Owner(addr)
	}
	return "", false
}

// nextAddress allocates a free cluster IP of a family, skipping those for which avoid returns true.
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
	l.undo = append(l.undo, func() { l.restore(owner, func() error { return addresses.Hold(addr, owner) }) })
}

// takePort registers a port that a Service asks for. Errors: *alloc.RangeError, *alloc.HeldError.
func (l *allocator) takePort(port alloc.Port, owner string) error {
	l.cedePort(port)
	l.regain(owner, func(k *kept) string { return k.ports[port] }, func(holder string) { l.releasePort(port, holder) })
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
	l.undo = append(l.undo, func() { l.restore(owner, func() error { return l.ports.Hold(port, owner) }) })
}

// takeIngress registers a load balancer IP that a Service asks for, or replaces the Service's
// request on one that it has. Errors: *alloc.RangeError, *alloc.HeldError, *alloc.PoolError.
func (l *allocator) takeIngress(addr netip.Addr, request alloc.Request) error {
	l.cedeIngress(addr)
	l.regain(request.Owner, func(k *kept) string { return k.ingress[addr] }, func(holder string) { l.releaseIngress(addr, holder) })
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
			l.restore(request.Owner, func() error { return l.pools.Hold(addr, before) })
		}
	})
	// A request that changed may leave room for others on the same address.
	l.released = l.released || had && !before.Equal(request)
	return nil
}

// nextIngress allocates a load balancer IP, skipping those for which avoid returns true.
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
	l.undo = append(l.undo, func() { l.restore(owner, func() error { return l.pools.Hold(addr, before) }) })
}

// restore undoes the release of a value by calling hold. Undo steps run in reverse order, so hold cannot fail: an error
// panics. A reserved value is not restored if the reservations have ended meanwhile (see Store.send).
func (l *allocator) restore(owner string, hold func() error) {
	if owner == reservedOwner && l.reserved.addresses == nil {
		return
	}
	if err := hold(); err != nil {
		panic("store: rollback of a release: " + err.Error())
	}
}

// newAllocator checks the ranges and returns an allocator without allocations. The error
// names all that is wrong.
func (c *Config) newAllocator() (*allocator, error) {
	l := &allocator{families: c.families(), addresses: map[bool]*alloc.Addresses{}}
	var errs []error
	if len(c.ClusterIPRanges) == 0 {
		errs = append(errs, errors.New("no range of cluster IPs: give one for each family that Services shall have"))
	}
	for _, prefix := range c.ClusterIPRanges {
		addresses, err := alloc.NewAddresses(prefix)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ipv4 := addresses.Prefix().Addr().Is4()
		if other := l.addresses[ipv4]; other != nil {
			errs = append(errs, fmt.Errorf("two ranges of cluster IPs in one family, %s and %s: give at most one for each", other.Prefix(), prefix))
		}
		l.addresses[ipv4] = addresses
	}
	var err error
	if l.ports, err = alloc.NewPorts(c.NodePorts.First, c.NodePorts.Last, c.NodePortSpace); err != nil {
		errs = append(errs, err)
	}
	if l.pools, err = alloc.NewPools(c.Pools); err != nil {
		errs = append(errs, err)
	}
	return l, errors.Join(errs...)
}

// families returns the families of ClusterIPRanges, in their order.
func (c *Config) families() []string {
	return object.Texts(c.ClusterIPRanges, func(p netip.Prefix) string { return object.FamilyOf(p.Addr()) })
}

// explain wraps a *alloc.HeldError whose holder is a Service that is only held, because its removal waits for confirmation.
func (l *allocator) explain(err error) error {
	held, is := errors.AsType[*alloc.HeldError](err)
	if !is {
		return err
	}
	for ref := range l.vanished {
		if ref.Kind == object.KindService && ref.Key() == held.Owner {
			return vanishedError{err}
		}
	}
	return err
}

// cedeAddress releases a reserved cluster IP for a Service that names it. cedeIngress and cedePort do
// so for a load balancer IP and a node port.
func (l *allocator) cedeAddress(addr netip.Addr) {
	if len(l.reserved.addresses) > 0 {
		released := l.released
		l.releaseAddress(addr, reservedOwner)
		l.released = released // no object waits for it
	}
}

func (l *allocator) cedeIngress(addr netip.Addr) {
	if len(l.reserved.addresses) > 0 {
		released := l.released
		l.releaseIngress(addr, reservedOwner)
		l.released = released
	}
}

func (l *allocator) cedePort(port alloc.Port) {
	if len(l.reserved.nodePorts) > 0 {
		released := l.released
		l.releasePort(port, reservedOwner)
		l.released = released
	}
}

// regain releases the values that are kept for the Service owner after it lost them in a trial or a rollout, so that it can take them
// again. gaveUp returns the Service that lost the value, and release releases it from a holder.
func (l *allocator) regain(owner string, gaveUp func(*kept) string, release func(holder string)) {
	for holder, k := range l.kept {
		if gaveUp(k) == owner {
			released := l.released
			release(holder)
			l.released = released
		}
	}
}
