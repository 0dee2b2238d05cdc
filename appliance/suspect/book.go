package suspect

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

const (
	// again is the least time between two probes of an endpoint.
	again = time.Second
	// rate is the maximum number of probes per second, for all endpoints together.
	rate = 100
	// most is the maximum number of suspected and dead endpoints. Further endpoints are ignored until there is room.
	most = 4096
	// mostCounts is the maximum number of endpoints with a count of failures.
	mostCounts = 16384
	// undecided is the time after which an endpoint is no longer suspected if probing it gave no result.
	undecided = 10 * time.Second
)

// Book records suspected endpoints (a connection of a client failed), dead endpoints (a probe failed too) and the numbers of failed connections. Its
// methods may be called concurrently.
type Book struct {
	dead atomic.Pointer[map[netip.AddrPort]health.Dead] // the map is never modified; nil if no endpoint is dead

	mu     sync.Mutex
	asked  map[netip.AddrPort]time.Time // start of the last probe, by suspected endpoint
	tokens float64
	filled time.Time
	users  map[netip.AddrPort]map[string]struct{} // the Services ("namespace/name") that use each dead endpoint
	failed map[Place]uint64
}

// Place is an endpoint as used by one Service port.
type Place struct {
	Port     string // nft.ServicePort.ID: "namespace/name" or "namespace/name/port"
	Endpoint netip.AddrPort
}

// NewBook returns an empty Book.
func NewBook() *Book {
	return &Book{
		asked: map[netip.AddrPort]time.Time{}, tokens: rate, failed: map[Place]uint64{},
		users: map[netip.AddrPort]map[string]struct{}{},
	}
}

// Failed counts a failed connection of a client to an endpoint.
func (b *Book) Failed(p Place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.failed[p]; !known && len(b.failed) >= mostCounts {
		for other := range b.failed { // any: it is counted again
			delete(b.failed, other)
			break
		}
	}
	b.failed[p]++
}

// Restore sets the counts of failed connections to the result of Failures in the previous process. It must be called before all other methods.
func (b *Book) Restore(failures map[string]map[netip.AddrPort]uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for port, endpoints := range failures {
		for at, n := range endpoints {
			b.failed[Place{port, at}] = n
		}
	}
}

// Failures returns the numbers of failed connections by port and endpoint.
func (b *Book) Failures() map[string]map[netip.AddrPort]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]map[netip.AddrPort]uint64{}
	for p, n := range b.failed {
		if all[p.Port] == nil {
			all[p.Port] = map[netip.AddrPort]uint64{}
		}
		all[p.Port][p.Endpoint] = n
	}
	return all
}

// Suspect records that a connection to an endpoint failed. It reports whether the endpoint must be probed now. It returns false if the time since the
// last probe began is less than the constant again, if a limit is reached, or if the endpoint is dead and thus probed regularly.
func (b *Book) Suspect(endpoint netip.AddrPort, now time.Time) bool {
	if _, dead := b.Dead()[endpoint]; dead {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.asked[endpoint]
	if known && now.Sub(last) < again {
		return false
	}
	if !known && len(b.asked)+len(b.users) >= most {
		maps.DeleteFunc(b.asked, func(_ netip.AddrPort, last time.Time) bool { return now.Sub(last) >= again })
		if len(b.asked)+len(b.users) >= most {
			return false
		}
	}
	b.tokens = min(b.tokens+now.Sub(b.filled).Seconds()*rate, rate)
	if b.filled = now; b.tokens < 1 {
		return false
	}
	b.tokens--
	b.asked[endpoint] = now
	return true
}

// Undecided returns the suspected endpoints whose last probe has had no result for the time undecided, and stops suspecting them.
func (b *Book) Undecided(now time.Time) (list []netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, last := range b.asked {
		if now.Sub(last) >= undecided {
			delete(b.asked, at)
			list = append(list, at)
		}
	}
	return list
}

// Dead returns the dead endpoints. The caller must not change the map.
func (b *Book) Dead() map[netip.AddrPort]health.Dead {
	if all := b.dead.Load(); all != nil {
		return *all
	}
	return nil
}

// Bury marks an endpoint as dead for the reason d and adds services as its users. It returns all Services recorded as its users. If there are none,
// it does nothing.
func (b *Book) Bury(endpoint netip.AddrPort, d health.Dead, services []string) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.users[endpoint] == nil && len(services) == 0:
		return nil
	case b.users[endpoint] == nil:
		b.users[endpoint] = map[string]struct{}{}
	}
	delete(b.asked, endpoint)
	for _, key := range services {
		b.users[endpoint][key] = struct{}{}
	}
	b.replace(func(all map[netip.AddrPort]health.Dead) { all[endpoint] = d })
	return slices.Sorted(maps.Keys(b.users[endpoint]))
}

// Raise makes an endpoint no longer dead. It returns the Services that use it, none if it was not dead.
func (b *Book) Raise(endpoint netip.AddrPort) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	services := slices.Collect(maps.Keys(b.users[endpoint]))
	b.drop(endpoint)
	return services
}

// Use sets which endpoints a Service uses. Dead endpoints that no Service uses any more are removed and returned.
func (b *Book) Use(service string, endpoints []netip.AddrPort) (left []netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range endpoints {
		if b.users[at] != nil {
			b.users[at][service] = struct{}{}
		}
	}
	for at, users := range b.users {
		if _, uses := users[service]; !uses || slices.Contains(endpoints, at) {
			continue
		}
		if delete(users, service); len(users) == 0 {
			b.drop(at)
			left = append(left, at)
		}
	}
	return left
}

// drop makes an endpoint no longer dead. The caller must hold mu.
func (b *Book) drop(endpoint netip.AddrPort) {
	if b.users[endpoint] == nil {
		return
	}
	delete(b.users, endpoint)
	b.replace(func(all map[netip.AddrPort]health.Dead) { delete(all, endpoint) })
}

// replace applies change to a copy of the dead endpoints, and publishes the copy. The caller must hold mu.
func (b *Book) replace(change func(map[netip.AddrPort]health.Dead)) {
	all := map[netip.AddrPort]health.Dead{}
	maps.Copy(all, b.Dead())
	if change(all); len(all) == 0 {
		b.dead.Store(nil)
		return
	}
	b.dead.Store(&all)
}
