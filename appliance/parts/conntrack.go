package parts

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/parallel"
)

// Conntrack ends the connections that a change leaves without their endpoint. It never keeps the
// loop waiting.
type Conntrack struct {
	reconcile.NopPart
	tracker *conntrack.ChangeTracker
	idle    *conntrack.Idle
	retry   *conntrack.Retry
	cleaner *conntrack.Cleaner // nil: the connection tracking table cannot be reached
	err     error              // why
}

// NewConntrack opens the connection tracking table. When it cannot be reached, that is a problem.
func NewConntrack(log *slog.Logger) *Conntrack {
	options := conntrack.Options{Log: log}
	c := &Conntrack{tracker: conntrack.NewChangeTracker(), idle: conntrack.NewIdle(options), retry: conntrack.NewRetry(options)}
	c.cleaner, c.err = conntrack.New(options)
	return c
}

// Stats are nil when the connection tracking table cannot be reached.
func (c *Conntrack) Stats() func() conntrack.Stats {
	if c.cleaner == nil {
		return nil
	}
	return func() conntrack.Stats {
		stats := c.cleaner.Stats()
		stats.Retried = c.retry.Retried()
		return stats
	}
}

// Name implements reconcile.Part.
func (c *Conntrack) Name() string { return "conntrack" }

// Run implements reconcile.Part.
func (c *Conntrack) Run(ctx context.Context) error {
	if c.cleaner == nil {
		return c.NopPart.Run(ctx)
	}
	others := make(chan error, 2)
	go func() { others <- c.idle.Run(ctx) }()
	go func() { others <- c.retry.Run(ctx) }()
	return errors.Join(c.cleaner.Run(ctx), <-others, <-others)
}

// Adopt implements reconcile.Part.
func (c *Conntrack) Adopt(have nft.Ruleset) { c.tracker.Adopt(have) }

// minShare is the number of Services from which another CPU is used.
const minShare = 256

// Planned implements reconcile.Part.
func (c *Conntrack) Planned(host *reconcile.Host, services []reconcile.Service) {
	ports := make([][]conntrack.Port, len(services))
	parallel.Do(len(services), minShare, func(i int) {
		svc := &services[i]
		if len(svc.Ports) == 0 {
			return
		}
		ports[i] = make([]conntrack.Port, len(svc.Ports))
		for j := range svc.Ports {
			ports[i][j] = conntrack.PortOf(&svc.Ports[j], svc.Ports[j].Serving, conntrack.Drain(svc.Drain))
			ports[i][j].Ended = ended(svc, &svc.Ports[j])
		}
	})
	changes := make(map[string][]conntrack.Port, len(services))
	for i := range services {
		changes[services[i].Key] = ports[i]
	}
	idle := make(map[string][]nft.ServicePort, len(services))
	retrying := make(map[string]conntrack.Retrying, len(services))
	for i := range services {
		idle[services[i].Key] = services[i].Ports
		retrying[services[i].Key] = conntrack.Retrying{After: services[i].RetryAfter, Ports: services[i].Ports}
	}
	var box *nft.Box
	if host != nil {
		box = &host.Box
	}
	c.tracker.Update(box, changes)
	c.idle.Update(box, idle)
	c.retry.Update(box, retrying)
}

// ended returns the endpoints of a port that are down and whose connections end for that, sorted.
func ended(svc *reconcile.Service, p *nft.ServicePort) []netip.AddrPort {
	if !svc.ResetDown || p.Protocol != nft.TCP {
		return nil
	}
	var list []netip.AddrPort
	for _, d := range svc.Demoted {
		if !d.Out && d.Protocol == p.Protocol.Name() && resolve.PortID(svc.Key, d.Port) == p.ID && nft.FamilyOf(d.Addr.Addr()) == p.Family {
			list = append(list, d.Addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// Applying implements reconcile.Part.
func (c *Conntrack) Applying(restored bool) {
	if restored {
		c.tracker.Restored()
	}
	if c.cleaner != nil {
		c.cleaner.Expect(c.tracker.Pending())
	}
}

// Stepped implements reconcile.Part.
func (c *Conntrack) Stepped(step reconcile.Step) {
	if !step.Applied {
		return
	}
	if work := c.tracker.Take(); c.cleaner != nil {
		c.cleaner.Reconcile(work)
	}
}

// Problems implements reconcile.Part.
func (c *Conntrack) Problems() []resolve.Problem {
	err := c.err
	if c.cleaner != nil {
		err = c.cleaner.Err()
	}
	var problems []resolve.Problem
	if err != nil {
		problems = append(problems, resolve.Problem{
			Reason:  "StaleConnections",
			Message: "connections to removed endpoints may continue: " + err.Error(),
			Warning: true,
		})
	}
	if err := c.retry.Err(); err != nil {
		problems = append(problems, resolve.Problem{
			Reason:  "NoRetry",
			Message: "clients stay with endpoints that do not answer, in spite of svcctl.io/retry-after: " + err.Error(),
			Warning: true,
		})
	}
	return problems
}

func frontendOf(p *nft.ServicePort, i int) resolve.Frontend {
	return resolve.Frontend{Family: p.Family, Protocol: p.Protocol, At: netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)}
}

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

// Adopt implements reconcile.Part. Until connections are counted, an endpoint counts as full if the kernel did not use it before
// the restart, so that a restart changes nothing.
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

// wasLeftOut reports whether the kernel served a port before this process, but not by this endpoint.
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
