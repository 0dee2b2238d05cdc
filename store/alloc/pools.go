package alloc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Pool is an inclusive range of load balancer IPs of one family. Several ranges may belong to one named pool.
type Pool struct {
	First, Last netip.Addr
	// Name is the name of the pool that the range belongs to, such as "metallb-system/lan"; "" for a range from command-line flags.
	Name string
	// OnRequest reserves the addresses for requests that name the pool or the address.
	OnRequest bool
	// AvoidEnds skips IPv4 addresses that end in .0 or .255, unless a request asks for that address.
	AvoidEnds bool
	// For restricts the pool to some Services; nil means all Services.
	For *Audience
	// Internal marks addresses that only inside clients can reach. They are allocated to internal requests, and to requests that ask for a specific
	// address.
	Internal bool
}

// An Audience selects the Services that may get addresses of a pool without asking for it by name (serviceAllocation of a MetalLB
// IPAddressPool).
type Audience struct {
	// Namespaces lists the namespaces of the Services; nil means all. An empty list that is not nil selects none.
	Namespaces []string
	// Selectors select Services by labels: at least one of them must match. An empty list matches any labels.
	Selectors []object.LabelSelector
	// Priority orders the pools for a request: the lowest number comes first, but 0 comes last.
	Priority int
}

// Includes reports whether the Service of a request is one of those that the Audience selects. A nil Audience selects every Service.
func (a *Audience) Includes(c *Request) bool {
	if a == nil {
		return true
	}
	namespace, _, _ := strings.Cut(c.Owner, "/")
	return (a.Namespaces == nil || slices.Contains(a.Namespaces, namespace)) && object.MatchesAny(a.Selectors, c.Labels)
}

// Contains reports whether an address lies in the pool.
func (p Pool) Contains(addr netip.Addr) bool {
	return addr.BitLen() == p.First.BitLen() && !addr.Less(p.First) && !p.Last.Less(addr)
}

// String returns the first and the last address, as in "198.51.100.4-198.51.100.9".
func (p Pool) String() string { return p.First.String() + "-" + p.Last.String() }

// validate returns an error unless First and Last are addresses of the same family, without a zone and not IPv4-mapped, and First is not greater than
// Last. It also returns an error for an IPv6 range of more than 2^64 addresses.
func (p Pool) validate() error {
	switch {
	case !p.First.IsValid() || p.First.BitLen() != p.Last.BitLen() || p.Last.Less(p.First):
		return fmt.Errorf("load balancer pool %s is not a range from an address to a higher one of the same family", p)
	case p.First.Is4In6() || p.Last.Is4In6() || p.First.Zone() != "" || p.Last.Zone() != "":
		return fmt.Errorf("load balancer pool %s: write plain IPv4 or IPv6 addresses without a zone", p)
	case p.tooLarge():
		return fmt.Errorf("load balancer pool %s is too large: an IPv6 pool has at most 2^64 addresses (a /64)", p)
	}
	return nil
}

func (p Pool) tooLarge() bool {
	if p.First.Is4() {
		return false
	}
	a, b := p.First.As16(), p.Last.As16()
	high := binary.BigEndian.Uint64(b[:8]) - binary.BigEndian.Uint64(a[:8])
	return high > 1 || high == 1 && low64(p.Last) >= low64(p.First)
}

// Request describes the load balancer IPs that a Service asks for, and the conditions for sharing one with other Services.
type Request struct {
	// Owner is the "namespace/name" of the Service.
	Owner string
	// Requested are the specific addresses that the Service asks for.
	Requested []netip.Addr
	// SharingKey allows Services with equal, non-empty keys to share an address.
	SharingKey string
	// Internal restricts the request to internal addresses.
	Internal bool
	// Pool is the name of the pool to allocate from, with or without its namespace; "" means any pool.
	Pool string
	// Labels are the labels of the Service, which Pool.For selects by. They matter only when an address is allocated.
	Labels map[string]string
	// Ports lists the ports of the Service. Services that share an address must not have a port in common.
	Ports []Port
}

// Equal reports whether two requests are of one owner and ask for the same addresses and ports. Labels are not compared.
func (c Request) Equal(other Request) bool {
	return c.Owner == other.Owner && c.SharingKey == other.SharingKey && c.Internal == other.Internal && c.Pool == other.Pool &&
		slices.Equal(c.Requested, other.Requested) && slices.Equal(c.Ports, other.Ports)
}

// clash returns the reason why two requests cannot both hold addr; "" if they can.
func (c Request) clash(other Request, addr netip.Addr) string {
	bothAsk := slices.Contains(c.Requested, addr) && slices.Contains(other.Requested, addr)
	if sameKey := c.SharingKey != "" && c.SharingKey == other.SharingKey; !bothAsk && !sameKey {
		return "to share it, both Services must ask for it by name or carry equal sharing keys"
	}
	for _, port := range c.Ports {
		if slices.Contains(other.Ports, port) {
			return "both serve " + port.String()
		}
	}
	return ""
}

// Pools allocates load balancer IPs. The zero value is not usable; see NewPools.
type Pools struct {
	pools []*poolState
	// requests holds the requests that hold each allocated address; a shared address has several.
	requests map[netip.Addr][]Request
	// keyed holds the addresses allocated with a sharing key, by key, to be shared by later requests.
	keyed map[string][]netip.Addr
}

type poolState struct {
	Pool
	used *numberSet // allocated addresses, as offsets from First
}

// NewPools returns an allocator for the given pools, without allocations. Earlier pools are used up first. Pools must not overlap.
func NewPools(pools []Pool) (*Pools, error) {
	p := &Pools{requests: map[netip.Addr][]Request{}, keyed: map[string][]netip.Addr{}}
	for i, pool := range pools {
		if err := pool.validate(); err != nil {
			return nil, err
		}
		for _, other := range pools[:i] {
			if pool.Contains(other.First) || other.Contains(pool.First) {
				return nil, fmt.Errorf("load balancer pools %s and %s overlap: give each address to one pool", other, pool)
			}
		}
		p.pools = append(p.pools, &poolState{Pool: pool, used: newNumberSet(pool.offset(pool.Last))})
	}
	return p, nil
}

// Contains reports whether an address lies in a pool.
func (p *Pools) Contains(addr netip.Addr) bool { return p.of(addr) != nil }

// Serves reports whether there is a pool of the family (IPv4 if ipv4 is set, otherwise IPv6). Serves considers only pools of internal addresses if
// internal is set, otherwise only the other pools.
func (p *Pools) Serves(ipv4, internal bool) bool {
	return slices.ContainsFunc(p.pools, func(pool *poolState) bool { return pool.First.Is4() == ipv4 && pool.Internal == internal })
}

// IsInternal reports whether an address lies in a pool of internal addresses.
func (p *Pools) IsInternal(addr netip.Addr) bool {
	pool := p.of(addr)
	return pool != nil && pool.Internal
}

// String lists the pools.
func (p *Pools) String() string { return p.text(func(*poolState) bool { return true }) }

// Internal lists the pools of internal addresses.
func (p *Pools) Internal() string { return p.text(func(pool *poolState) bool { return pool.Internal }) }

func (p *Pools) text(of func(*poolState) bool) string {
	var texts []string
	for _, pool := range p.pools {
		if of(pool) {
			texts = append(texts, pool.String())
		}
	}
	return strings.Join(texts, ", ")
}

// Take allocates a specific address to a request, possibly shared with other requests. It replaces a request of the same owner for that address. An
// internal request can get only internal addresses, and addresses that its owner already holds. Errors: *RangeError, *HeldError, *PoolError.
func (p *Pools) Take(addr netip.Addr, request Request) error {
	switch _, had := p.RequestOf(addr, request.Owner); {
	case request.Internal && !p.IsInternal(addr) && !had:
		return &RangeError{Value: addr.String(), Range: p.Internal()}
	case len(p.requests[addr]) == 0 && !p.Contains(addr):
		return &RangeError{Value: addr.String(), Range: p.String()}
	case !had && p.Contains(addr) && !p.of(addr).suits(&request):
		return &PoolError{Value: addr.String(), Pool: p.of(addr).Name, Asked: request.Pool}
	}
	return p.Hold(addr, request)
}

// suits reports whether a request may get addresses of the pool: it names this pool or none, and p.For includes the Service of the request.
func (p *Pool) suits(c *Request) bool {
	return (c.Pool == "" || c.names(p.Name)) && p.For.Includes(c)
}

// names reports whether a request asks for the pool with the given name. The request may omit the namespace of a name in the form "namespace/name".
func (c *Request) names(pool string) bool {
	_, name, _ := strings.Cut(pool, "/")
	return c.Pool == pool || c.Pool == name && name != ""
}

// endsAvoided reports whether an IPv4 address of the pool ends in .0 or .255 and the pool avoids these (AvoidEnds).
func (p *Pool) endsAvoided(addr netip.Addr) bool {
	if !p.AvoidEnds || !addr.Is4() {
		return false
	}
	last := addr.As4()[3]
	return last == 0 || last == 255
}

// Suits reports whether Next may use some pool of the family (IPv4 if ipv4 is set, otherwise IPv6) for a request.
func (p *Pools) Suits(ipv4 bool, request *Request) bool {
	return slices.ContainsFunc(p.pools, func(pool *poolState) bool { return pool.isOffered(ipv4, request) })
}

// Offered describes the pools of a family (IPv4 if ipv4 is set, otherwise IPv6) that Next may use for a request: their ranges as text, the total
// number of their addresses, and the owners that hold addresses in them, ordered by address.
func (p *Pools) Offered(ipv4 bool, request *Request) (ranges string, size uint64, holders []string) {
	offered := func(pool *poolState) bool { return pool.isOffered(ipv4, request) }
	for _, pool := range p.pools {
		if offered(pool) {
			size += pool.Size()
		}
	}
	var held []netip.Addr
	for addr := range p.requests {
		if pool := p.of(addr); pool != nil && offered(pool) {
			held = append(held, addr)
		}
	}
	slices.SortFunc(held, netip.Addr.Compare)
	for _, addr := range held {
		for _, holder := range p.requests[addr] {
			if !slices.Contains(holders, holder.Owner) {
				holders = append(holders, holder.Owner)
			}
		}
	}
	return p.text(offered), size, holders
}

// isOffered reports whether Next may use the pool for a request for an address of a family (IPv4 if ipv4 is set, otherwise IPv6). A pool with
// OnRequest is used only if the request names it.
func (p *Pool) isOffered(ipv4 bool, c *Request) bool {
	return p.First.Is4() == ipv4 && p.Internal == c.Internal && p.suits(c) && (!p.OnRequest || c.Pool != "")
}

// first returns the first address of a pool that is neither used nor avoided, starting at a point that depends on the owner's name. A nil avoid
// avoids none.
func (p *Pool) first(used *numberSet, owner string, avoid func(netip.Addr) bool) (netip.Addr, bool) {
	n, ok := pickFree(used, p.First, 0, 0, p.offset(p.Last), owner, func(addr netip.Addr) bool {
		return p.endsAvoided(addr) || avoid != nil && avoid(addr)
	})
	return plus(p.First, n), ok
}

// Elsewhere reports whether an address lies in another pool than the one that a request asks for.
func (p *Pools) Elsewhere(addr netip.Addr, request *Request) bool {
	pool := p.of(addr)
	return pool != nil && request.Pool != "" && !request.names(pool.Name)
}

// Replace replaces the pools and keeps all allocations. If NewPools refuses the new pools, Replace returns its error and changes nothing.
func (p *Pools) Replace(pools []Pool) error {
	next, err := NewPools(pools)
	if err != nil {
		return err
	}
	for addr, requests := range p.requests {
		for _, request := range requests {
			next.put(addr, request)
		}
	}
	*p = *next
	return nil
}

// Hold records that an owner already has an address, which may be outside of all pools. The only error is *HeldError.
func (p *Pools) Hold(addr netip.Addr, request Request) error {
	for _, other := range p.requests[addr] {
		if other.Owner == request.Owner {
			continue
		}
		if why := request.clash(other, addr); why != "" {
			return &HeldError{What: "IP", Owner: other.Owner, Why: why}
		}
	}
	p.Release(addr, request.Owner)
	p.put(addr, request)
	return nil
}

// Next allocates an address of a family (IPv4 if ipv4 is set, otherwise IPv6) to a request. It prefers an address that Services with the same sharing
// key hold, if no port conflicts. Otherwise it uses the first free address in the first pool that has any, starting at a point that depends on the
// owner's name. It skips addresses for which avoid returns true; a nil avoid skips none. The only error is ErrFull.
func (p *Pools) Next(ipv4 bool, request Request, avoid func(netip.Addr) bool) (netip.Addr, error) {
	for _, addr := range p.keyed[request.SharingKey] {
		pool := p.of(addr)
		if addr.Is4() == ipv4 && p.IsInternal(addr) == request.Internal && (pool == nil || pool.suits(&request)) && (avoid == nil || !avoid(addr)) && p.Hold(addr, request) == nil {
			return addr, nil
		}
	}
	for _, pool := range p.pools {
		if !pool.isOffered(ipv4, &request) {
			continue
		}
		if addr, ok := pool.first(pool.used, request.Owner, avoid); ok {
			p.put(addr, request)
			return addr, nil
		}
	}
	return netip.Addr{}, ErrFull
}

// Release removes the owner's request on an address, if there is one.
func (p *Pools) Release(addr netip.Addr, owner string) {
	requests := p.requests[addr]
	i := slices.IndexFunc(requests, func(c Request) bool { return c.Owner == owner })
	if i < 0 {
		return
	}
	key := requests[i].SharingKey
	requests = slices.Delete(slices.Clone(requests), i, i+1)
	p.requests[addr] = requests
	if key != "" && !slices.ContainsFunc(requests, func(c Request) bool { return c.SharingKey == key }) {
		p.keyed[key] = slices.DeleteFunc(p.keyed[key], func(a netip.Addr) bool { return a == addr })
		if len(p.keyed[key]) == 0 {
			delete(p.keyed, key)
		}
	}
	if len(requests) > 0 {
		return
	}
	delete(p.requests, addr)
	if pool := p.of(addr); pool != nil {
		pool.used.remove(pool.offset(addr))
	}
}

// RequestOf returns the request of an owner on an address; false if there is none.
func (p *Pools) RequestOf(addr netip.Addr, owner string) (Request, bool) {
	for _, request := range p.requests[addr] {
		if request.Owner == owner {
			return request, true
		}
	}
	return Request{}, false
}

// Sharing returns the requests that hold an address. The caller must not change the slice.
func (p *Pools) Sharing(addr netip.Addr) []Request { return p.requests[addr] }

// Holders returns the owners that hold each allocated address, sorted by name.
func (p *Pools) Holders() map[netip.Addr][]string {
	holders := make(map[netip.Addr][]string, len(p.requests))
	for addr, requests := range p.requests {
		for _, request := range requests {
			holders[addr] = append(holders[addr], request.Owner)
		}
		slices.Sort(holders[addr])
	}
	return holders
}

// put records a request that holds an address, without checks.
func (p *Pools) put(addr netip.Addr, request Request) {
	p.requests[addr] = append(p.requests[addr], request)
	if pool := p.of(addr); pool != nil {
		pool.used.add(pool.offset(addr))
	}
	if key := request.SharingKey; key != "" && !slices.Contains(p.keyed[key], addr) {
		addrs := append(p.keyed[key], addr)
		slices.SortFunc(addrs, netip.Addr.Compare)
		p.keyed[key] = addrs
	}
}

// of returns the pool that contains an address, or nil.
func (p *Pools) of(addr netip.Addr) *poolState {
	for _, pool := range p.pools {
		if pool.Contains(addr) {
			return pool
		}
	}
	return nil
}

func (p *Pool) offset(addr netip.Addr) uint64 { return low64(addr) - low64(p.First) }

// Size returns the number of addresses in the pool, but 2^64-1 for a pool of 2^64 addresses.
func (p *Pool) Size() uint64 { return max(p.offset(p.Last), p.offset(p.Last)+1) }

// A home is the value that a seed gets when only the values are held that taken reports. Where the record of the holders
// is lost, it is the best guess of the value that an owner had.

// Home returns the address that Next would allocate to an owner if the addresses for which taken returns true were held, and no others; false if none
// is free.
func (a *Addresses) Home(owner string, taken func(netip.Addr) bool) (netip.Addr, bool) {
	n, ok := pickFree(newNumberSet(a.last), a.prefix.Addr(), 1, a.band, a.last, owner, taken)
	return plus(a.prefix.Addr(), n), ok
}

// Size returns the number of addresses that can be allocated.
func (a *Addresses) Size() uint64 { return a.last }

// Home returns the port that Next would allocate for a seed if the ports for which taken returns true were held, and no others; false if none is
// free.
func (p *Ports) Home(seed string, taken func(uint16) bool) (uint16, bool) {
	passed := newNumberSet(p.last)
	for {
		n, ok := pick(union{passed}, p.first, p.band, p.last, seed)
		if !ok || !taken(uint16(n)) {
			return uint16(n), ok
		}
		passed.add(n)
	}
}

// Home returns the address that Next would allocate to a request without a sharing key if the addresses for which taken returns true were held, and
// no others; false if none is free.
func (p *Pools) Home(ipv4 bool, request *Request, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for _, pool := range p.pools {
		if !pool.isOffered(ipv4, request) {
			continue
		}
		if addr, ok := pool.first(newNumberSet(pool.offset(pool.Last)), request.Owner, taken); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// ErrFull means that a range has no free value left.
var ErrFull = errors.New("range is full")

// RangeError means that a requested address or port is outside of the range. Its texts are those of Kubernetes (pkg/registry/core/service/ipallocator
// and portallocator).
type RangeError struct {
	// Value is the address; empty for a port, because the text of Kubernetes does not contain it.
	Value string
	// Range is the valid range: a CIDR, or "first-last".
	Range string
}

// Error implements error.
func (e *RangeError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", e.Range)
	}
	return fmt.Sprintf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", e.Value, e.Range)
}

// HeldError means that another owner holds an address or port. Its text begins like that of Kubernetes and continues with the owner's name.
type HeldError struct {
	// What names the kind of value: "IP" or "port".
	What string
	// Owner is the "namespace/name" of the Service that holds the value.
	Owner string
	// Why is the reason why the value cannot be shared; may be empty.
	Why string
}

// Error implements error.
func (e *HeldError) Error() string {
	text := fmt.Sprintf("provided %s is already allocated to Service %s", e.What, e.Owner)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// PoolError means that an address is in a pool that the request does not name, or that is restricted to other Services (Pool.For).
type PoolError struct {
	Value string
	Pool  string // name of the pool that contains the address
	Asked string // name of the pool that the owner asks for; "" means any
}

func (e *PoolError) Error() string {
	if e.Asked != "" {
		return fmt.Sprintf("%s lies in another pool than %s", e.Value, e.Asked)
	}
	return fmt.Sprintf("%s lies in the pool %s, whose serviceAllocation leaves the Service out", e.Value, e.Pool)
}
