package parts

import (
	"context"
	"log/slog"
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
	counting *conntrack.ConnLimiter
	kernel   atomic.Pointer[func() map[resolve.Frontend]*nft.ServicePort] // what it served at the start; nil: not needed any more
}

// NewFullness returns a Fullness without Services.
func NewFullness(log *slog.Logger) *Fullness {
	f := &Fullness{}
	f.counting = conntrack.NewConnLimiter(conntrack.Options{Log: log}, func(service string) { f.Changed(resolve.Plans(service)...) })
	return f
}

// Name implements reconcile.Part.
func (f *Fullness) Name() string { return "full endpoints" }

// Run implements reconcile.Part.
func (f *Fullness) Run(ctx context.Context) error { return f.counting.Run(ctx) }

// Adopt implements reconcile.Part. Until connections are counted, full endpoints are those that the kernel was
// left without: so a restart changes nothing.
func (f *Fullness) Adopt(have nft.Ruleset) {
	served := sync.OnceValue(func() map[resolve.Frontend]*nft.ServicePort { return reconcile.ServedBefore(have) })
	f.kernel.Store(&served)
}

// Meet implements reconcile.Answerer.
func (f *Fullness) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, l := range d.Limited {
		proto, _ := nft.ProtocolNamed(l.Port.Protocol)
		for _, endpoint := range l.Endpoints {
			full, counted := f.counting.Full(l.Port.Service, proto, endpoint)
			if counted {
				f.kernel.Store(nil) // all were looked at together
			} else {
				full = f.wasLeftOut(&l, proto, endpoint)
			}
			o.Count(l.Port, endpoint, resolve.Fullness{Full: full, Counted: counted})
		}
	}
}

// wasLeftOut reports whether the kernel served a port before this process, and not by this endpoint.
func (f *Fullness) wasLeftOut(l *resolve.Limited, proto nft.Protocol, endpoint netip.AddrPort) (served bool) {
	kernel := f.kernel.Load()
	if kernel == nil {
		return false
	}
	for _, at := range l.Frontends {
		p := (*kernel)()[resolve.Frontend{Family: l.Port.Family, Protocol: proto, At: at}]
		if p == nil {
			continue
		}
		if slices.ContainsFunc(p.Serving, func(ap netip.AddrPort) bool {
			return ap == endpoint || endpoint.Port() == 0 && ap.Addr() == endpoint.Addr()
		}) {
			return false
		}
		served = true
	}
	return served
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
