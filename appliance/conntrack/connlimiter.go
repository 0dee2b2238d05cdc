package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// ConnLimiter finds full endpoints: those with as many open connections as their Service allows. The kernel cannot choose an endpoint by a
// count, so connections are counted by scans of the table while any Service has a limit. A full endpoint gets no new connections after the
// next change of the ruleset, until a tenth of its connections are closed. Connections that begin between two scans may exceed the limit.
type ConnLimiter struct {
	log     *slog.Logger
	sampler *Sampler
	wake    chan struct{} // capacity 1: the first limit was set or the last one removed
	changed func(service string)

	mu     sync.Mutex
	box    nft.Box
	limits map[string]EndpointLimit // limits by Service, "namespace/name", without Services that have none
	asked  *limitsAsked             // computed from limits and box; nil if it must be computed again
	full   map[string]fullEndpoints // by Service, for Services that were scanned

	task.LastError // why connections cannot be counted
}

// limitsAsked holds the ports of a scan. services holds the Service of each port, at the same index.
type limitsAsked struct {
	*Asked
	services []string
}

// fullEndpoints has the endpoints that reached the limit. A key with port 0 and protocol 0 stands for all connections to an address.
type fullEndpoints map[endpointKey]bool

type openCount map[endpointKey]int

type endpointKey struct {
	protocol nft.Protocol
	endpoint netip.AddrPort
}

// scanInterval is the minimum interval between scans of the table. It is longer if scans are slow (RestFor).
const scanInterval = time.Second

// NewConnLimiter returns a ConnLimiter without Services. changed is called with each Service when one of its endpoints becomes full or
// accepts connections again. It must not block.
func NewConnLimiter(options Options, changed func(service string)) *ConnLimiter {
	options.Log = cmp.Or(options.Log, slog.Default())
	return newConnLimiter(&kernelTable{netns: options.NetNS}, options.Log, changed)
}

func newConnLimiter(table table, log *slog.Logger, changed func(string)) *ConnLimiter {
	return &ConnLimiter{
		log: log, sampler: &Sampler{table}, wake: make(chan struct{}, 1), changed: changed,
		limits: map[string]EndpointLimit{}, full: map[string]fullEndpoints{},
	}
}

// EndpointLimit holds the ports of a Service and its limit of open connections for each endpoint; 0 means no limit.
type EndpointLimit struct {
	Limit uint32
	Ports []nft.ServicePort
}

// Update records the box, unless it is nil, and the Services that changed. It reports whether any Service has a limit.
func (x *ConnLimiter) Update(box *nft.Box, changes map[string]EndpointLimit) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if box != nil {
		x.box, x.asked = *box, nil
	}
	before := len(x.limits)
	for name, c := range changes {
		_, had := x.limits[name]
		delete(x.limits, name)
		if c.Limit == 0 || len(c.Ports) == 0 {
			delete(x.full, name)
		} else {
			x.limits[name] = c
		}
		if _, has := x.limits[name]; had || has {
			x.asked = nil
		}
	}
	if (before == 0) != (len(x.limits) == 0) {
		task.Wake(x.wake)
	}
	return len(x.limits) > 0
}

// Full reports whether an endpoint of a Service reached the limit. Port 0 selects the connections to all ports of the address. known is
// false until the Service was scanned.
func (x *ConnLimiter) Full(service string, protocol nft.Protocol, endpoint netip.AddrPort) (full, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of, known := x.full[service]
	if endpoint.Port() == 0 {
		protocol = 0
	}
	return of[endpointKey{protocol, endpoint}], known
}

// Run scans the table until ctx is done. Failed scans are repeated. After each scan it pauses, so that scans of a large table use at most a
// twentieth of a CPU.
func (x *ConnLimiter) Run(ctx context.Context) error {
	task.Repeat(ctx, x.wake, func() (next time.Time) {
		asked := x.asking()
		if asked == nil {
			_ = x.sampler.Close()
			return next
		}
		cost, pause := Cost(), scanInterval
		if x.scan(ctx, asked) != nil {
			pause = idleRetry
		}
		return time.Now().Add(max(pause, RestFor*cost()))
	})
	return x.sampler.Close()
}

// asking returns the ports to scan for, or nil if no Service has a limit.
func (x *ConnLimiter) asking() *limitsAsked {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked == nil && len(x.limits) > 0 {
		a, ports := &limitsAsked{}, []*nft.ServicePort(nil)
		for service, c := range x.limits {
			for i := range c.Ports {
				a.services, ports = append(a.services, service), append(ports, &c.Ports[i])
			}
		}
		a.Asked = NewAsked(&x.box, ports)
		x.asked = a
	}
	return x.asked
}

// scan counts open connections, and calls changed for the Services whose full endpoints changed.
func (x *ConnLimiter) scan(ctx context.Context, asked *limitsAsked) error {
	counts := map[string]openCount{}
	for _, service := range asked.services {
		counts[service] = openCount{}
	}
	err := x.sampler.scan(ctx, asked.Asked, func(port int, e *entry) {
		if e.answered && !e.isEnding() {
			of := counts[asked.services[port]]
			of[endpointKey{e.protocol, e.replyFrom}]++
			of[endpointKey{0, netip.AddrPortFrom(e.replyFrom.Addr(), 0)}]++
		}
	})
	if ctx.Err() != nil {
		return err
	}
	x.mu.Lock()
	var changed []string
	if err == nil {
		changed = x.update(counts)
	}
	x.mu.Unlock()
	x.Log(x.log, err, "connections of endpoints cannot be counted: endpoints that are full stay full and no other becomes full, until a retry succeeds",
		"connections of endpoints are counted again", "retry", idleRetry)
	for _, service := range changed {
		x.changed(service)
	}
	return err
}

// update replaces the full endpoints according to the counts, and returns the Services with changed full endpoints. The caller holds mu.
func (x *ConnLimiter) update(counts map[string]openCount) (changed []string) {
	for service, open := range counts {
		limit := x.limits[service].Limit
		if limit == 0 {
			continue
		}
		was, known := x.full[service]
		now := fullEndpoints{}
		for at, n := range open {
			if uint32(n) >= limit || was[at] && uint64(n)*10 > uint64(limit)*9 {
				now[at] = true
			}
		}
		if x.full[service] = now; !known || !maps.Equal(was, now) {
			changed = append(changed, service)
		}
	}
	slices.Sort(changed)
	return changed
}

// Sampler reads the connections of Service ports from the connection tracking table. It changes nothing in the table. Only one goroutine
// may use it at a time.
type Sampler struct{ table table }

// NewSampler returns a Sampler that opens its socket at the first scan.
func NewSampler(options Options) *Sampler { return &Sampler{&kernelTable{netns: options.NetNS}} }

// Asked holds the Service ports to scan for. Results refer to a port by its index.
type Asked struct {
	ports     Index[int]
	nodePorts map[netip.Addr]bool
}

// NewAsked returns an Asked for the given ports on a box.
func NewAsked(box *nft.Box, ports []*nft.ServicePort) *Asked {
	a := &Asked{ports: NewIndex[int](len(ports)), nodePorts: addressSet(box.NodePortAddresses)}
	for i, p := range ports {
		for _, fe := range FrontendsOf(p) {
			a.ports.Set(fe, i)
		}
	}
	return a
}

// Tracked is a connection that was translated to an endpoint.
type Tracked struct {
	Port     int // index of the Service port
	ID       uint32
	Endpoint netip.AddrPort
	// Ending reports that both ends have closed the connection.
	Ending bool
}

// Scan calls each for every tracked connection of the ports. A connection that begins or ends during the scan may be missed, or
// reported twice. After an error the next scan may succeed.
func (c *Sampler) Scan(asked *Asked, each func(Tracked)) error {
	return c.scan(context.Background(), asked, func(port int, e *entry) {
		each(Tracked{port, binary.BigEndian.Uint32(e.id), e.replyFrom, e.isEnding()})
	})
}

// scan calls each for every entry of the ports that has an endpoint, until ctx is done. port is the index in asked.
func (c *Sampler) scan(ctx context.Context, asked *Asked, each func(port int, e *entry)) error {
	_, err := c.table.deleteMatching(ctx, queriesOf(asked.ports.Of, false), func(e *entry) (verdict, netip.Addr) {
		if e.isThrough() {
			if port, is := asked.ports.of(e, asked.nodePorts); is {
				each(port, e)
			}
		}
		return leave, netip.Addr{}
	})
	return cmp.Or(ctx.Err(), err)
}

// Close closes the socket; the next scan opens another one.
func (c *Sampler) Close() error { return c.table.close() }
