package parts

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/healthport"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Relay serves node ports on loopback addresses in user space.
type Relay struct {
	reconcile.NopPart
	relay    *relay.Relay
	loopback []netip.Addr            // the loopback addresses that node ports answer on
	ports    map[string][]relay.Port // by Service
	dirty    bool
}

func NewRelay(log *slog.Logger) *Relay {
	return &Relay{relay: relay.New(log), ports: map[string][]relay.Port{}, dirty: true}
}

// Name implements reconcile.Part.
func (r *Relay) Name() string { return "relay" }

// Run implements reconcile.Part.
func (r *Relay) Run(ctx context.Context, changed func()) error {
	return runSignaling(ctx, r.relay.Run, r.relay.Changed(), changed)
}

// Planned implements reconcile.Part.
func (r *Relay) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		r.loopback, r.dirty = host.Loopback, true
	}
	for _, svc := range services {
		if _, was := r.ports[svc.Key]; was {
			delete(r.ports, svc.Key)
			r.dirty = true
		}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for j := range p.Frontends {
				if fe := &p.Frontends[j]; !fe.Addr.IsValid() {
					r.add(svc.Key, p, fe)
				}
			}
		}
	}
}

// add has a node port served on the loopback addresses of its family. A client there is the host
// itself, which counts as internal.
func (r *Relay) add(key string, p *nft.ServicePort, fe *nft.Frontend) {
	for _, a := range r.loopback {
		if a.Is4() != (p.Family == nft.IPv4) {
			continue
		}
		port := relay.Port{
			ID: p.ID, Listen: netip.AddrPortFrom(a, fe.Port), Protocol: p.Protocol.String(),
			Endpoints: p.Pools[fe.Inside.Pool], Affinity: p.Affinity,
		}
		if p.Balance != nft.Random {
			choice := p.Choice(fe, fe.Inside.Pool)
			port.Choose = choice
		}
		if p.Weights != nil {
			for _, ap := range port.Endpoints {
				port.Weights = append(port.Weights, uint16(p.Weight(ap)))
			}
		}
		r.ports[key] = append(r.ports[key], port)
		r.dirty = true
	}
}

// Stepped implements reconcile.Part.
func (r *Relay) Stepped(reconcile.Step) {
	if !r.dirty {
		return
	}
	r.dirty = false
	var ports []relay.Port
	for _, key := range slices.Sorted(maps.Keys(r.ports)) {
		ports = append(ports, r.ports[key]...)
	}
	r.relay.Set(ports)
}

// Problems implements reconcile.Part.
func (r *Relay) Problems() []resolve.Problem {
	var list []resolve.Problem
	for _, p := range r.relay.Problems() {
		key := strings.Split(p.ID, "/")
		ref := object.Ref{Kind: object.KindService, Namespace: key[0], Name: key[1]}
		list = append(list, resolve.Problem{Object: ref, Reason: p.Reason, Message: p.Message})
	}
	return list
}

// HealthPorts answers on the health-check node ports.
type HealthPorts struct {
	reconcile.NopPart
	servers  *healthport.Servers
	services map[string]healthport.Service // by Service
	dirty    bool
}

func NewHealthPorts(log *slog.Logger) *HealthPorts {
	return &HealthPorts{servers: healthport.New(log), services: map[string]healthport.Service{}, dirty: true}
}

// Name implements reconcile.Part.
func (h *HealthPorts) Name() string { return "health-check node ports" }

// Run implements reconcile.Part.
func (h *HealthPorts) Run(ctx context.Context, changed func()) error {
	return runSignaling(ctx, h.servers.Run, h.servers.Changed(), changed)
}

// Planned implements reconcile.Part.
func (h *HealthPorts) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		addrs := host.Box.NodePortAddresses
		if len(addrs) == 0 {
			// None would mean every address; what is configured matches none of the host's.
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
	h.servers.SetSynced(step.Synced)
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

// runSignaling runs a server, and calls changed for each signal, until ctx is done.
func runSignaling(ctx context.Context, run func(context.Context) error, signals <-chan struct{}, changed func()) error {
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
