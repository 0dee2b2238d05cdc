package parts

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/healthport"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// HealthPorts passes changes of Services to the servers that answer on health-check node ports (spec.healthCheckNodePort).
type HealthPorts struct {
	reconcile.NopPart
	servers  *healthport.Servers
	services map[string]healthport.Service // the ports to serve, by key of the Service
	dirty    bool
}

func NewHealthPorts(log *slog.Logger) *HealthPorts {
	return &HealthPorts{servers: healthport.New(log), services: map[string]healthport.Service{}, dirty: true}
}

// Name implements reconcile.Part.
func (h *HealthPorts) Name() string { return "health-check node ports" }

// Run implements reconcile.Part.
func (h *HealthPorts) Run(ctx context.Context) error {
	return runSignaling(ctx, h.servers.Run, h.servers.Changed(), h.Changed)
}

// Planned implements reconcile.Part.
func (h *HealthPorts) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		addrs := host.Box.NodePortAddresses
		if len(addrs) == 0 {
			// None would mean every address; --nodeport-addresses matches none of the host's.
			addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		}
		h.servers.SetAddresses(addrs)
		h.dirty = true
	}
	for _, svc := range services {
		if _, was := h.services[svc.Key]; was || svc.LocalEndpoints != nil {
			delete(h.services, svc.Key)
			h.dirty = true
		}
		if svc.LocalEndpoints != nil {
			namespace, name, _ := strings.Cut(svc.Key, "/")
			h.services[svc.Key] = healthport.Service{Namespace: namespace, Name: name, Port: svc.LocalEndpoints.Port, LocalEndpoints: svc.LocalEndpoints.Count}
		}
	}
}

// Stepped implements reconcile.Part.
func (h *HealthPorts) Stepped(step reconcile.Step) {
	h.servers.SetSynced(step.Applied)
	if !h.dirty {
		return
	}
	h.dirty = false
	services := make([]healthport.Service, 0, len(h.services))
	for _, key := range slices.Sorted(maps.Keys(h.services)) {
		services = append(services, h.services[key])
	}
	h.servers.Set(services)
}

// Problems implements reconcile.Part.
func (h *HealthPorts) Problems() []resolve.Problem {
	var list []resolve.Problem
	for _, p := range h.servers.Problems() {
		ref := object.Ref{Kind: object.KindService, Namespace: p.Namespace, Name: p.Name}
		list = append(list, resolve.Problem{Object: ref, Field: "spec.healthCheckNodePort", Reason: p.Reason, Message: p.Message})
	}
	return list
}

// runSignaling calls run, and calls changed for each value received from signals, until ctx is done.
func runSignaling(ctx context.Context, run func(context.Context) error, signals <-chan struct{}, changed func(...resolve.Need)) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return run(ctx) })
	tasks.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-signals:
				changed()
			}
		}
	})
	return tasks.Wait()
}

// DNS passes changes of Services to the DNS server, which answers with their records.
type DNS struct {
	reconcile.NopPart
	server *dns.Server
	// objects returns the store whose objects are in force, which may be a different one at each call.
	objects func() *store.Store
	store   *store.Store // the store that objects returned in the last step

	// demoted holds the endpoints of each Service that are out of use, by Service key. moved holds the keys of the Services with a changed entry in
	// demoted since the last step.
	demoted map[string][]resolve.Demoted
	moved   map[string]bool

	seen  uint64      // the store revision up to which the server has received all changes
	facts *node.Facts // the host facts last passed to the server
}

// NewDNS returns the Part that runs server and passes it changes of Services. objects returns the store whose objects are in force; it may return
// another store at each step.
func NewDNS(server *dns.Server, objects func() *store.Store) *DNS {
	return &DNS{server: server, objects: objects, demoted: map[string][]resolve.Demoted{}, moved: map[string]bool{}}
}

// Name implements reconcile.Part.
func (d *DNS) Name() string { return "DNS" }

// Run implements reconcile.Part.
func (d *DNS) Run(ctx context.Context) error { return d.server.Run(ctx) }

// Planned implements reconcile.Part.
func (d *DNS) Planned(_ *reconcile.Host, services []reconcile.Service) {
	for i := range services {
		svc := &services[i]
		if slices.Equal(svc.Demoted, d.demoted[svc.Key]) {
			continue
		}
		d.moved[svc.Key] = true
		if d.demoted[svc.Key] = svc.Demoted; len(svc.Demoted) == 0 {
			delete(d.demoted, svc.Key)
		}
	}
}

// Stepped implements reconcile.Part. It passes the changes since the last step to the DNS server once the kernel has them, so that no name resolves
// to an address that is not served yet. It also passes them if the kernel refused them. Objects stored before a restart are passed at once, as their
// rules are still in the kernel.
func (d *DNS) Stepped(step reconcile.Step) {
	if step.Applied {
		defer d.server.Complete()
	}
	if step.Facts != nil && step.Facts != d.facts {
		addrs := make([]netip.Addr, 0, len(step.Facts.Addresses))
		for _, a := range step.Facts.Addresses {
			addrs = append(addrs, a.Prefix.Addr())
		}
		d.server.SetLocal(addrs)
		d.facts = step.Facts
	}
	if now := d.objects(); now != d.store {
		d.store, d.seen = now, 0
	}
	changes := d.store.Changes(d.seen)
	if changes.All {
		changes.Services = append(d.server.Services(), d.store.InForce().Services()...)
	}
	if changes.Revision == d.seen && !changes.All && len(d.moved) == 0 {
		return
	}
	changed := make(map[string]resolve.Input, len(changes.Services)+len(d.moved))
	for _, key := range slices.AppendSeq(changes.Services, maps.Keys(d.moved)) {
		svc, slices, _ := d.store.InForce().Service(key)
		changed[key] = resolve.Input{Service: svc, Slices: slices, Demoted: d.demoted[key]}
	}
	d.server.Update(changed)
	d.seen = changes.Revision
	clear(d.moved)
}
