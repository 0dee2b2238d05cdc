package store

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// The values of Pool.Kind.
const (
	PoolClusterIP    = "clusterIP"
	PoolNodePort     = "nodePort"
	PoolLoadBalancer = "loadBalancer"
)

// Pool is a range from which Services get cluster IPs, node ports or load balancer IPs.
type Pool struct {
	Kind   string
	Family string // IPv4, IPv6, or "" for ports
	Range  string
	// Internal marks load balancer IPs that only inside clients reach.
	Internal bool
	// Name names the IPAddressPool, "namespace/name"; "" for a range of flags.
	Name string
	// Size is the number of values that can be allocated, and Used the number of those that are allocated.
	Size, Used uint64
	// Held counts the values that Services hold, outside of the range too; Holders has the first of them.
	Held    int
	Holders []Holder
}

// Holder is a value with the Services that hold it, as "namespace/name", sorted.
type Holder struct {
	Value    string
	Services []string
	Outside  bool // the value is outside of the range
}

// Pools returns all ranges, each with its first holders, sorted by value. most is the maximum number of holders for each range. A value in no range
// is listed with a range of the same kind and family, if there is one.
func (s *Store) Pools(most int) []Pool {
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	l := s.allocator
	var pools []Pool
	for _, prefix := range s.cfg.ClusterIPRanges {
		pools = append(pools, clusterPool(l.addresses[prefix.Addr().Is4()], most))
	}
	pools = append(pools, portPool(l.ports, s.cfg, most))
	return append(pools, ingressPools(l.pools, s.cfg.Pools, most)...)
}

// IngressPools returns the ranges of load balancer IPs, without their holders. The cost is proportional to the number of addresses in use.
func (s *Store) IngressPools() []Pool {
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	return ingressPools(s.allocator.pools, s.cfg.Pools, 0)
}

func clusterPool(a *alloc.Addresses, most int) Pool {
	prefix := a.Prefix()
	p := Pool{Kind: PoolClusterIP, Family: object.FamilyOf(prefix.Addr()), Range: prefix.String(), Size: a.Size()}
	holders := a.Holders()
	for _, addr := range slices.SortedFunc(maps.Keys(holders), netip.Addr.Compare) {
		p.add(most, addr, a.Contains(addr), holders[addr])
	}
	return p
}

func portPool(ports *alloc.Ports, cfg Config, most int) Pool {
	p := Pool{Kind: PoolNodePort, Range: ports.Range()}
	p.Size = uint64(cfg.NodePorts.Last-cfg.NodePorts.First) + 1
	holders := ports.Holders()
	byNumber := func(a, b alloc.Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(a.Protocol, b.Protocol))
	}
	before := uint16(0)
	for _, port := range slices.SortedFunc(maps.Keys(holders), byNumber) {
		p.add(most, nodePort(port), ports.Contains(port.Number), holders[port])
		if port.Number == before && ports.Contains(port.Number) {
			p.Used-- // a number counts once, on however many protocols
		}
		before = port.Number
	}
	return p
}

func ingressPools(pools *alloc.Pools, ranges []alloc.Pool, most int) []Pool {
	all := make([]Pool, len(ranges))
	for i, r := range ranges {
		all[i] = Pool{Kind: PoolLoadBalancer, Family: object.FamilyOf(r.First), Range: r.String(), Name: r.Name, Internal: r.Internal, Size: r.Size()}
	}
	holders := pools.Holders()
	for _, addr := range slices.SortedFunc(maps.Keys(holders), netip.Addr.Compare) {
		if i := slices.IndexFunc(ranges, func(r alloc.Pool) bool { return r.Contains(addr) }); i >= 0 {
			all[i].add(most, addr, true, holders[addr]...)
		} else if i = slices.IndexFunc(ranges, func(r alloc.Pool) bool { return r.First.Is4() == addr.Is4() }); i >= 0 {
			all[i].add(most, addr, false, holders[addr]...)
		}
	}
	return all
}

// add counts a value that is held, and adds it to p.Holders unless that has most entries already. inside reports whether the value lies in the range.
func (p *Pool) add(most int, value fmt.Stringer, inside bool, services ...string) {
	if p.Held++; p.Held <= most {
		p.Holders = append(p.Holders, Holder{value.String(), services, !inside})
	}
	if inside {
		p.Used++
	}
}

// Disagreement is a value that a Service has and that the allocator does not assign to it, or that the allocator assigns and the Service does not
// have.
type Disagreement struct {
	Kind, Value string
	Service     string // "namespace/name"
	Problem     string
	Repaired    bool
}

// CheckPools compares the allocator with the values in Services. With repair it corrects the allocator: it
// releases values that no Service has, and assigns values to the Services that have them, unless another
// Service holds them. A Service that waits because an older one has its value (ReasonConflict) correctly
// holds nothing.
func (s *Store) CheckPools(repair bool) []Disagreement {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !repair && s.allocator.sum() == s.table.values {
		return nil
	}
	c := &poolCheck{allocator: s.allocator, repair: repair, services: map[string]*object.Service{}}
	list, _, _ := s.List(object.KindService, "", 0) // the newest revision is always there
	for _, o := range list {
		if ref := object.RefOf(o); !s.table.records[ref].Withheld {
			c.services[ref.Key()] = o.(*object.Service)
		}
	}
	c.allocator.begin()
	c.leaks() // first: what a repair releases may be held again
	c.unheld()
	c.allocator.begin() // what was done stays
	slices.SortFunc(c.found, func(a, b Disagreement) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Value, b.Value), strings.Compare(a.Service, b.Service))
	})
	return c.found
}

// poolCheck is one run of CheckPools.
type poolCheck struct {
	allocator *allocator
	repair    bool
	services  map[string]*object.Service
	found     []Disagreement
}

// of returns the values in a Service; none if it does not exist.
func (c *poolCheck) of(owner string) (v values) {
	if svc := c.services[owner]; svc != nil {
		v = valuesOf(svc)
	}
	return v
}

// leaks finds the values that the allocator assigns to Services that do not have them.
func (c *poolCheck) leaks() {
	for v, owner := range c.allocator.all {
		if c.allocator.reserves(owner) || c.of(owner).has(v) {
			continue
		}
		d := Disagreement{Kind: v.kind, Value: v.String(), Service: owner, Problem: "it is held, and the Service does not have it", Repaired: c.repair}
		if c.services[owner] == nil {
			d.Problem = "it is held by a Service that does not exist"
		}
		if c.repair {
			c.allocator.release(v, owner)
		}
		c.found = append(c.found, d)
	}
}

// sum returns the sum of the hashes of the values that Services hold.
func (l *allocator) sum() (sum uint64) {
	for v, owner := range l.all {
		if !l.reserves(owner) {
			sum += v.hash(owner)
		}
	}
	return sum
}

// unheld finds the values of Services that the allocator does not assign to them.
func (c *poolCheck) unheld() {
	l := c.allocator
	for owner, svc := range c.services {
		for v := range valuesOf(svc).all {
			if _, has := l.requestOf(v, owner); has || v.kind == PoolClusterIP && l.addresses[v.addr.Is4()] == nil {
				continue
			}
			d := Disagreement{Kind: v.kind, Value: v.String(), Service: owner, Problem: "the Service has it, and does not hold it"}
			if c.repair {
				if err := l.hold(v, requestOf(svc)); err != nil {
					d.Problem += ": " + err.Error()
				} else {
					d.Repaired = true
				}
			}
			c.found = append(c.found, d)
		}
	}
}

// SetPools replaces the pools of load balancer IPs, and allocates addresses to Services that wait for one. Allocated addresses stay, even if they are
// in no pool any more. changed is false if the pools are the same as before. Errors are those of alloc.NewPools and of the commit; after the latter
// the call has to be repeated.
func (s *Store) SetPools(pools []alloc.Pool) (changed bool, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if slices.EqualFunc(s.cfg.Pools, pools, func(a, b alloc.Pool) bool { return reflect.DeepEqual(a, b) }) {
		return false, nil
	}
	before := s.cfg.Pools
	if err := s.allocator.pools.Replace(pools); err != nil {
		return false, fmt.Errorf("set the pools: %w", err)
	}
	s.cfg.Pools = pools
	err = s.decide(s.examined(func() []object.Ref { return s.concerned(before, pools) }))
	if err != nil {
		s.cfg.Pools = before // so that the next call gives the addresses
		return true, fmt.Errorf("give addresses of new pools: %w", err)
	}
	return true, nil
}

// GiveFreed allocates again for Services that wait for an address which the host or an endpoint used, if that use has ended. No transaction notices
// the end of such a use.
func (s *Store) GiveFreed() error {
	end := s.look()
	free := s.freed()
	if end(); len(free) == 0 {
		return nil
	}
	return s.change(s.examined(s.freed))
}

// examined returns a function, for Store.change, that processes some objects again in a transaction.
func (s *Store) examined(refs func() []object.Ref) func() error {
	return func() error {
		t := s.begin()
		t.examine(refs()...)
		_, err := t.run()
		return err
	}
}

// freed returns the Services that wait for an address because of another use of it, if that use has ended or changed. The caller holds writer.state.
func (s *Store) freed() (refs []object.Ref) {
	t := &transaction{s: s, host: s.hostNow()}
	for ref := range s.outcomes.waiting {
		for _, n := range s.outcomes.notes[ref] {
			if r := s.table.get(ref); r != nil && n.asked.IsValid() && t.otherUse(r.Object.(*object.Service), n.asked, requestOf(r.Object.(*object.Service))) != n.use {
				refs = append(refs, ref)
			}
		}
	}
	return slices.Compact(refs)
}

// concerned returns the Services that a change of the pools may affect: those that wait, those with an address that lies in another pool
// than before, in one of the other kind (Internal) or in none, and those without an address of one of their families.
func (s *Store) concerned(before, now []alloc.Pool) []object.Ref {
	poolIn := func(pools []alloc.Pool, addr netip.Addr) (pool alloc.Pool, found bool) {
		if i := slices.IndexFunc(pools, func(p alloc.Pool) bool { return p.Contains(addr) }); i >= 0 {
			return pools[i], true
		}
		return pool, false
	}
	refs := map[object.Ref]struct{}{}
	maps.Copy(refs, s.outcomes.waiting)
	for addr, owners := range s.allocator.pools.Holders() {
		was, wasIn := poolIn(before, addr)
		is, isIn := poolIn(now, addr)
		moved := was.Name != is.Name || was.Internal != is.Internal || wasIn != isIn || !isIn // the message of one that lies in none has the pools
		for _, owner := range owners {
			ref := object.ServiceRef(owner)
			if r := s.table.get(ref); r != nil && (moved || s.lacksIngress(r.Object.(*object.Service))) {
				refs[ref] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(refs))
}
