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

// begin makes the present state the one that rollback returns to.
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
	l.regain(owner, func(k *kept) string { return k.addresses[addr] }, func(holder string) { l.releaseAddress(addr, holder) })
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
	l.undo = append(l.undo, func() { l.restore(owner, func() error { return addresses.Hold(addr, owner) }) })
}

// takePort gives a port that was asked for. Errors: *alloc.RangeError, *alloc.HeldError.
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

// takeIngress gives a load balancer IP that was asked for, or replaces the owner's request
// on one that it has. Errors: *alloc.RangeError, *alloc.HeldError.
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
	l.undo = append(l.undo, func() { l.restore(owner, func() error { return l.pools.Hold(addr, before) }) })
}

// restore undoes a release: in reverse order it finds things as they were after the release, so hold cannot fail. What was
// reserved stays free if the reservations have ended meanwhile, see Store.send.
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

// explain adds to a refusal of a value that its holder is held.
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

// cedeAddress releases a reserved cluster IP for a Service that names it. The other two do so for a
// load balancer IP and a node port.
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

// regain gives a Service what it gave up in a trial or a rollout, if it asks for it: it releases a value that is kept for its owner,
// which nobody else has missed.
func (l *allocator) regain(owner string, gaveUp func(*kept) string, release func(holder string)) {
	for holder, k := range l.kept {
		if gaveUp(k) == owner {
			released := l.released
			release(holder)
			l.released = released
		}
	}
}
