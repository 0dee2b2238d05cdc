package parts

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// Fullness keeps new connections from endpoints that have as many open ones as their Service allows.
type Fullness struct {
	reconcile.NopPart
	counting *conntrack.Fullness
	kernel   atomic.Pointer[adopted] // what it served at the start; nil: not needed any more

	mu    sync.Mutex
	again map[string]bool // Services to plan again
	wake  func()          // has the loop ask for them; nil before Run
}

// NewFullness is without Services.
func NewFullness(log *slog.Logger) *Fullness {
	f := &Fullness{again: map[string]bool{}}
	f.counting = conntrack.NewFullness(conntrack.Options{Log: log}, f.reconsider)
	return f
}

// Name implements reconcile.Part.
func (f *Fullness) Name() string { return "full endpoints" }

// Run implements reconcile.Part.
func (f *Fullness) Run(ctx context.Context, changed func()) error {
	f.mu.Lock()
	f.wake = changed
	f.mu.Unlock()
	return f.counting.Run(ctx)
}

func (f *Fullness) reconsider(service string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.again[service] = true; f.wake != nil {
		f.wake()
	}
}

// Adopt implements reconcile.Part. Until connections are counted, full endpoints are those that the kernel was
// left without: so a restart changes nothing.
func (f *Fullness) Adopt(have nft.Ruleset) {
	served := adopt(have)
	f.kernel.Store(&served)
}

// Full is resolve.Facts.Full.
func (f *Fullness) Full(port resolve.Port, at []netip.AddrPort, endpoint netip.AddrPort) (full, known bool) {
	proto, _ := nft.ProtocolNamed(port.Protocol)
	full, known = f.counting.Full(port.Service, proto, endpoint)
	kernel := f.kernel.Load()
	switch {
	case known:
		f.kernel.Store(nil) // all were looked at together
		return full, known
	case kernel == nil:
		return false, false
	}
	had := false
	for _, a := range at {
		p := (*kernel)()[frontend{port.Family, proto, a}]
		if p == nil {
			continue
		}
		if slices.ContainsFunc(p.Serving, func(ap netip.AddrPort) bool {
			return ap == endpoint || endpoint.Port() == 0 && ap.Addr() == endpoint.Addr()
		}) {
			return false, false
		}
		had = true
	}
	return had, false
}

// Planned implements reconcile.Part.
func (f *Fullness) Planned(host *reconcile.Host, services []reconcile.Service) {
	changes := make(map[string]conntrack.EndpointLimit, len(services))
	for i := range services {
		changes[services[i].Key] = conntrack.EndpointLimit{Limit: services[i].EndpointConnections, Ports: services[i].Ports}
	}
	var box *nft.Box
	if host != nil {
		box = &host.Box
	}
	if !f.counting.Update(box, changes) {
		f.kernel.Store(nil) // no first count is awaited
	}
}

// Problems implements reconcile.Part.
func (f *Fullness) Problems() []resolve.Problem {
	err := f.counting.Err()
	if err == nil {
		return nil
	}
	return []resolve.Problem{{
		Reason:  "NotCounted",
		Message: "endpoints stay full, or not, as they were counted last, in spite of svcctl.io/endpoint-connections: " + err.Error(),
		Warning: true,
	}}
}

// Retry implements reconcile.Part.
func (f *Fullness) Retry() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := slices.Sorted(maps.Keys(f.again))
	clear(f.again)
	return keys
}
