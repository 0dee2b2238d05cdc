package parts

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

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
