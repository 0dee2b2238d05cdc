package store

import (
	"errors"
	"fmt"
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// allocator holds the allocated values of all Services, and an undo list for the current transaction.
type allocator struct {
	families  []string                  // IP families of the cluster IP ranges, primary first
	addresses map[bool]*alloc.Addresses // allocators of cluster IPs; the key is true for IPv4, false for IPv6
	ports     *alloc.Ports
	pools     *alloc.Pools
	reserved  reserved                // frontends that were recovered after a loss of data; reservedOwner holds their values
	vanished  map[object.Ref]Decision // objects with a removal that waits for confirmation in this transaction, see Store.held
	// kept holds the values that Services gave up during a trial or a rollout and that stay reserved for them, with the owner of each. The outer key
	// is pending.Kind.Holder.
	kept map[string]map[value]string

	undo []func()
	// released reports whether a value became available since begin.
	released bool
}

// begin starts a transaction. A later rollback restores the current allocations.
func (l *allocator) begin() {
	clear(l.undo) // what they hold goes
	if cap(l.undo) > keptUndo {
		l.undo = nil // of a start
	}
	l.undo, l.released = l.undo[:0], false
}

// keptUndo is the maximum capacity of an undo list that is reused for the next transaction.
const keptUndo = 1_000

// mark is a savepoint within a transaction; the zero mark is the start of the transaction.
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

// take allocates a value that a Service requests. For a load balancer IP that the Service already holds, it replaces the request. Errors:
// *alloc.RangeError, *alloc.HeldError, *alloc.PoolError.
func (l *allocator) take(v value, request alloc.Request) error {
	l.cede(v, reservedOwner)
	for holder, of := range l.kept {
		if of[v] == request.Owner {
			l.cede(v, holder)
		}
	}
	return l.register(v, request, true)
}

// hold records a value that a stored Service already has, even outside of the ranges.
func (l *allocator) hold(v value, request alloc.Request) error { return l.register(v, request, false) }

func (l *allocator) register(v value, request alloc.Request, asked bool) error {
	before, had := l.requestOf(v, request.Owner)
	if had && v.kind != PoolLoadBalancer {
		return nil
	}
	if err := l.claim(v, request, asked); err != nil {
		return l.explain(err)
	}
	undo := func() { l.free(v, request.Owner) }
	if had {
		undo = func() { l.free(v, request.Owner); l.restore(v, before) }
		// A request that changed may leave room for others on the same address.
		l.released = l.released || !before.Equal(request)
	}
	l.undo = append(l.undo, undo)
	return nil
}

// release releases a value that the owner holds; otherwise it does nothing.
func (l *allocator) release(v value, owner string) {
	before, had := l.requestOf(v, owner)
	if !had {
		return
	}
	l.free(v, owner)
	l.released = true
	l.undo = append(l.undo, func() { l.restore(v, before) })
}

// cede is like release but does not set released, for values that no Service waits for: reserved values, values that a Service gave up in a trial or
// a rollout and takes back, and values that a Service got before its allocation failed.
func (l *allocator) cede(v value, owner string) {
	released := l.released
	l.release(v, owner)
	l.released = released
}

// restore undoes the release of a value. Undo steps run in reverse order, so no other owner can hold it; restore panics if one does. A reserved value
// is not restored if the reservations have ended meanwhile (see Store.send).
func (l *allocator) restore(v value, request alloc.Request) {
	if request.Owner == reservedOwner && l.reserved.addresses == nil {
		return
	}
	if err := l.claim(v, request, false); err != nil {
		panic("store: rollback of a release: " + err.Error())
	}
}

// requestOf returns the request with which an owner holds a value; false if it does not hold it. For a cluster IP or a port the request has only the
// owner.
func (l *allocator) requestOf(v value, owner string) (request alloc.Request, had bool) {
	var holder string
	switch v.kind {
	case PoolClusterIP:
		holder, had = l.owner(v.addr)
	case PoolNodePort:
		holder, had = l.ports.Owner(v.port)
	default:
		return l.pools.RequestOf(v.addr, owner)
	}
	return alloc.Request{Owner: owner}, had && holder == owner
}

// claim records a value in the allocator of its kind. If asked is set, it returns an error for a value outside of the range. If asked is not set, it
// accepts such a value, but does not record a cluster IP of a family that has no range, because no other Service can get that address.
func (l *allocator) claim(v value, request alloc.Request, asked bool) error {
	addresses := l.addresses[v.addr.Is4()]
	switch {
	case v.kind == PoolNodePort && asked:
		return l.ports.Take(v.port, request.Owner)
	case v.kind == PoolNodePort:
		return l.ports.Hold(v.port, request.Owner)
	case v.kind == PoolLoadBalancer && asked:
		return l.pools.Take(v.addr, request)
	case v.kind == PoolLoadBalancer:
		return l.pools.Hold(v.addr, request)
	case addresses == nil && asked:
		return &alloc.RangeError{Value: v.String(), Range: l.addresses[!v.addr.Is4()].Prefix().String()}
	case addresses == nil:
		return nil
	case asked:
		return addresses.Take(v.addr, request.Owner)
	}
	return addresses.Hold(v.addr, request.Owner)
}

// free removes a value of an owner from the allocation of its kind.
func (l *allocator) free(v value, owner string) {
	switch v.kind {
	case PoolNodePort:
		l.ports.Release(v.port, owner)
	case PoolLoadBalancer:
		l.pools.Release(v.addr, owner)
	default:
		if in := l.addresses[v.addr.Is4()]; in != nil {
			in.Release(v.addr, owner)
		}
	}
}

// all yields all values with their owners.
func (l *allocator) all(yield func(v value, owner string) bool) {
	for _, in := range l.addresses {
		if in == nil {
			continue
		}
		for addr, owner := range in.Holders() {
			if !yield(clusterIP(addr), owner) {
				return
			}
		}
	}
	for port, owner := range l.ports.Holders() {
		if !yield(nodePort(port), owner) {
			return
		}
	}
	for addr, owners := range l.pools.Holders() {
		for _, owner := range owners {
			if !yield(loadBalancerIP(addr), owner) {
				return
			}
		}
	}
}

// owner returns the "namespace/name" of the Service that holds a cluster IP; false if none does.
func (l *allocator) owner(addr netip.Addr) (owner string, held bool) {
	if in := l.addresses[addr.Is4()]; in != nil {
		return in.Owner(addr)
	}
	return "", false
}

// nextAddress allocates a free cluster IP of a family (IPv4 if ipv4 is set, otherwise IPv6), skipping those for which avoid returns true.
func (l *allocator) nextAddress(ipv4 bool, owner string, avoid func(netip.Addr) bool) (netip.Addr, error) {
	addresses := l.addresses[ipv4]
	if addresses == nil {
		return netip.Addr{}, alloc.ErrFull
	}
	addr, err := addresses.Next(owner, avoid)
	if err == nil {
		l.undo = append(l.undo, func() { l.free(clusterIP(addr), owner) })
	}
	return addr, err
}

func (l *allocator) nextPort(protocols []string, owner, seed string) (uint16, error) {
	number, err := l.ports.Next(protocols, owner, seed)
	if err != nil {
		return 0, err
	}
	l.undo = append(l.undo, func() {
		for _, protocol := range protocols {
			l.free(nodePort(alloc.Port{Protocol: protocol, Number: number}), owner)
		}
	})
	return number, nil
}

// nextIngress allocates a load balancer IP of a family (IPv4 if ipv4 is set, otherwise IPv6), skipping those for which avoid returns true.
func (l *allocator) nextIngress(ipv4 bool, request alloc.Request, avoid func(netip.Addr) bool) (netip.Addr, error) {
	addr, err := l.pools.Next(ipv4, request, avoid)
	if err == nil {
		l.undo = append(l.undo, func() { l.free(loadBalancerIP(addr), request.Owner) })
	}
	return addr, err
}

// newAllocator checks the ranges and returns an allocator without allocations. The error
// names all that is wrong.
func (c *Config) newAllocator() (*allocator, error) {
	l := &allocator{families: c.families(), addresses: map[bool]*alloc.Addresses{}, kept: map[string]map[value]string{}}
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

// explain wraps a *alloc.HeldError in a vanishedError if the holder is a Service whose removal waits for confirmation. It returns all other errors
// unchanged.
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
