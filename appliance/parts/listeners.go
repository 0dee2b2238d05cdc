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
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

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

// runSignaling runs a server, and calls changed for each signal, until ctx is done.
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
