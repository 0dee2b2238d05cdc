package appliance

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/healthport"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// listeners are what the appliance answers in user space: node ports on loopback
// addresses, and health-check node ports. The loop tells them what the Services came
// to; they can never hold it up.
type listeners struct {
	relay   *relay.Relay
	health  *healthport.Servers
	changed chan struct{} // their problems are others now

	loopback []netip.Addr // the loopback addresses that node ports answer on
	ports    map[string][]relay.Port
	services map[string]healthport.Service
	dirty    bool
}

func newListeners(log *slog.Logger) *listeners {
	return &listeners{
		relay: relay.New(log), health: healthport.New(log), changed: make(chan struct{}, 1),
		ports: map[string][]relay.Port{}, services: map[string]healthport.Service{}, dirty: true,
	}
}

// run has both listen until ctx is done.
func (l *listeners) run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return l.relay.Run(ctx) })
	tasks.Go(func() error { return l.health.Run(ctx) })
	tasks.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-l.relay.Changed():
			case <-l.health.Changed():
			}
			select {
			case l.changed <- struct{}{}:
			default:
			}
		}
	})
	return tasks.Wait()
}

// place says where to listen; Services are recorded anew after it.
func (l *listeners) place(nodePorts []netip.Addr, loopback []netip.Addr) {
	if len(nodePorts) == 0 {
		// None would mean every address; what is configured matches none of the host's.
		nodePorts = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	l.health.SetAddresses(nodePorts)
	l.loopback, l.dirty = loopback, true
}

// record takes what a Service came to.
func (l *listeners) record(key string, health *resolve.Health, ports []nft.ServicePort) {
	namespace, name, _ := strings.Cut(key, "/")
	if _, was := l.services[key]; was || health != nil {
		delete(l.services, key)
		l.dirty = true
	}
	if health != nil {
		l.services[key] = healthport.Service{Namespace: namespace, Name: name, Port: health.Port, LocalEndpoints: health.LocalEndpoints}
	}
	if _, was := l.ports[key]; was {
		delete(l.ports, key)
		l.dirty = true
	}
	for i := range ports {
		p := &ports[i]
		for j := range p.Frontends {
			if fe := &p.Frontends[j]; !fe.Addr.IsValid() {
				l.relayed(key, p, fe)
			}
		}
	}
}

// relayed has a node port answered on the loopback addresses of its family. Who asks
// there is the box itself, which is inside.
func (l *listeners) relayed(key string, p *nft.ServicePort, fe *nft.Frontend) {
	for _, a := range l.loopback {
		if a.Is4() != (p.Family == nft.IPv4) {
			continue
		}
		l.ports[key] = append(l.ports[key], relay.Port{
			ID: p.ID, Listen: netip.AddrPortFrom(a, fe.Port), Protocol: p.Protocol.String(),
			Endpoints: p.Pools[fe.Inside.Pool], Affinity: p.Affinity,
		})
		l.dirty = true
	}
}

// tell passes on what was recorded, and whether all of it is in the kernel.
func (l *listeners) tell(synced bool) {
	l.health.SetSynced(synced)
	if !l.dirty {
		return
	}
	l.dirty = false
	var ports []relay.Port
	for _, key := range slices.Sorted(maps.Keys(l.ports)) {
		ports = append(ports, l.ports[key]...)
	}
	l.relay.Set(ports)
	services := make([]healthport.Service, 0, len(l.services))
	for _, key := range slices.Sorted(maps.Keys(l.services)) {
		services = append(services, l.services[key])
	}
	l.health.Set(services)
}

// problems are the ports that cannot be listened on.
func (l *listeners) problems() []resolve.Problem {
	var list []resolve.Problem
	for _, p := range l.relay.Problems() {
		key := strings.Split(p.ID, "/")
		ref := object.Ref{Kind: object.KindService, Namespace: key[0], Name: key[1]}
		list = append(list, resolve.Problem{Object: ref, Reason: p.Reason, Message: p.Message})
	}
	for _, p := range l.health.Problems() {
		ref := object.Ref{Kind: object.KindService, Namespace: p.Namespace, Name: p.Name}
		list = append(list, resolve.Problem{Object: ref, Field: "spec.healthCheckNodePort", Reason: p.Reason, Message: p.Message})
	}
	return list
}

// loopbackAddresses are the host's loopback addresses that node ports are to answer on:
// those that the configuration names by a prefix. Nothing is relayed unless asked for.
func (c *Config) loopbackAddresses(facts *node.Facts) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		named := slices.ContainsFunc(c.NodePortAddresses.Prefixes, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(addr) })
		if addr.IsLoopback() && named && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
