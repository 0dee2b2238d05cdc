package parts

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Relay serves in user space: the ports of Services that ask for it, and node ports on loopback
// addresses.
type Relay struct {
	reconcile.NopPart
	log      *slog.Logger
	relay    *relay.Relay
	loopback []netip.Addr            // the loopback addresses that node ports answer on
	ports    map[string][]relay.Port // on loopback, by Service
	dirty    bool

	// redirected are the ports that the kernel redirects to the relay, by Service; changed those that
	// the relay was not told of since they are in the kernel.
	redirected map[string][]relay.Port
	changed    map[string]bool
	fronts     *fronts
	names      names
	ask        chan struct{} // has a value when the loop is to call Retry
	unknown    []string      // Services that are named and were not planned yet

	mu      sync.Mutex
	waiting map[listener]map[string]bool // the Services that wait for a listener
	again   []string                     // Services whose listener is open by now
	due     []string                     // Secrets of which time has changed what is to be said
}

// listener is one that the kernel redirects clients to.
type listener struct {
	protocol string
	at       netip.AddrPort
}

// NewRelay returns the part. secret gives the Secret of a "namespace/name", nil when there is none.
func NewRelay(log *slog.Logger, secret func(key string) *object.Secret) *Relay {
	origins := &conntrack.Origins{}
	origin := func(at, client netip.AddrPort) (netip.AddrPort, error) { return origins.Of(nft.UDP, at, client) }
	return &Relay{
		log: log, relay: relay.New(log, origin), ports: map[string][]relay.Port{}, dirty: true,
		redirected: map[string][]relay.Port{}, changed: map[string]bool{}, waiting: map[listener]map[string]bool{},
		fronts: newFronts(secret), names: newNames(), ask: make(chan struct{}, 1),
	}
}

// Name implements reconcile.Part.
func (r *Relay) Name() string { return "relay" }

// Run implements reconcile.Part.
func (r *Relay) Run(ctx context.Context, changed func()) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return runSignaling(ctx, r.relay.Run, r.relay.Changed(), changed) })
	tasks.Go(func() error { return r.openLate(ctx, changed) })
	tasks.Go(func() error { return r.watchTime(ctx, changed) })
	return tasks.Wait()
}

// Stats are the numbers of the relay.
func (r *Relay) Stats() relay.Stats { return r.relay.Stats() }

// Listens opens a listener before clients are redirected to it, for resolve.Facts.
func (r *Relay) Listens(service string, proto nft.Protocol, at netip.AddrPort) (why string) {
	l := listener{proto.String(), at}
	err := r.relay.Open(l.protocol, l.at)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.waiting[l], service)
		return ""
	}
	if r.waiting[l] == nil {
		r.waiting[l] = map[string]bool{}
	}
	r.waiting[l][service] = true
	return err.Error()
}

// openInterval is between attempts to open listeners.
const openInterval = 5 * time.Second

// openLate tries to open the listeners that Services wait for.
func (r *Relay) openLate(ctx context.Context, changed func()) error {
	tick := time.NewTicker(openInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if r.openWaiting() {
			changed()
		}
	}
}

// openWaiting reports whether a listener that Services wait for could be opened.
func (r *Relay) openWaiting() (opened bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, services := range r.waiting {
		if len(services) > 0 && r.relay.Open(l.protocol, l.at) != nil {
			continue
		}
		r.again = slices.AppendSeq(r.again, maps.Keys(services))
		opened = opened || len(services) > 0
		delete(r.waiting, l)
	}
	return opened
}

// Retry implements reconcile.Part.
func (r *Relay) Retry() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := append(r.again, r.unknown...)
	for _, secret := range r.due {
		again = append(again, r.fronts.users[secret]...)
	}
	r.again, r.unknown, r.due = nil, nil, nil
	slices.Sort(again)
	return slices.Compact(again)
}

// Keys implements reconcile.Relays.
func (r *Relay) Keys(secret string, use resolve.KeyUse) resolve.KeyState {
	return r.fronts.Keys(secret, use)
}

// Planned implements reconcile.Part.
func (r *Relay) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		r.loopback, r.dirty = host.Loopback, true
	}
	r.fronts.plan(services)
	again, unknown := r.names.plan(services)
	if r.unknown = unknown; len(unknown) > 0 {
		select {
		case r.ask <- struct{}{}:
		default:
		}
	}
	services = append(services[:len(services):len(services)], again...)
	for i := range services {
		svc := &services[i]
		if _, was := r.ports[svc.Key]; was {
			delete(r.ports, svc.Key)
			r.dirty = true
		}
		ports := r.redirect(svc)
		if len(ports) > 0 || len(r.redirected[svc.Key]) > 0 {
			r.changed[svc.Key] = true
		}
		if len(ports) > 0 {
			r.redirected[svc.Key] = ports
		} else {
			delete(r.redirected, svc.Key)
		}
		for j := range svc.Ports {
			p := &svc.Ports[j]
			for k := range p.Frontends {
				if fe := &p.Frontends[k]; !fe.Addr.IsValid() {
					r.add(svc, p, fe)
				}
			}
		}
	}
}

// add has a node port served on the loopback addresses of its family. A client there is the host
// itself, which counts as internal.
func (r *Relay) add(svc *reconcile.Service, p *nft.ServicePort, fe *nft.Frontend) {
	for _, a := range r.loopback {
		if nft.FamilyOf(a) != p.Family {
			continue
		}
		port := relay.Port{ID: p.ID, Listen: netip.AddrPortFrom(a, fe.Port), Protocol: p.Protocol.String(), Endpoints: p.Pools[fe.Inside.Pool], Affinity: p.Affinity}
		if p.Relayed() {
			if svc.Relay == nil {
				return // nobody knows how, in the clear or not
			}
			port = r.relayedPort(svc, p, fe.Inside.Pool)
			port.Listen = netip.AddrPortFrom(a, fe.Port)
			port.Names = r.named(svc, p, fe.Inside.Pool, port.Listen)
		} else {
			if p.Balance != nft.Random && p.Balance != nft.LeastConnection {
				port.Choose = p.Choice(fe, fe.Inside.Pool)
			}
			if p.Balance == nft.LeastConnection {
				for _, share := range p.Shares(fe.Inside.Pool) {
					port.Weights = append(port.Weights, uint16(share*10000))
				}
			} else if p.Weights != nil {
				for _, ap := range port.Endpoints {
					port.Weights = append(port.Weights, uint16(p.Weight(ap)))
				}
			}
		}
		r.ports[svc.Key] = append(r.ports[svc.Key], port)
		r.dirty = true
	}
}

// redirect gives the ports of a Service that the kernel redirects: one for each pool that clients
// may be sent to.
func (r *Relay) redirect(svc *reconcile.Service) (ports []relay.Port) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Relayed() || svc.Relay == nil {
			continue
		}
		for pool := range nft.NumPools {
			port := r.relayedPort(svc, p, pool)
			port.Names = r.named(svc, p, pool, port.Listen)
			port.Frontends = []netip.AddrPort{}
			for _, fe := range p.Frontends {
				if fe.Inside.Pool == pool || fe.Outside.Pool == pool {
					port.Frontends = append(port.Frontends, netip.AddrPortFrom(fe.Addr, fe.Port))
				}
			}
			if len(port.Frontends) > 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// relayedPort describes a pool of a port to the relay.
func (r *Relay) relayedPort(svc *reconcile.Service, p *nft.ServicePort, pool nft.Pool) relay.Port {
	port := relay.Port{
		ID: p.ID, Listen: p.Relay[pool], Protocol: p.Protocol.String(),
		Endpoints: p.Pools[pool], Serving: p.Serving, Ended: ended(svc, p), RoundRobin: true,
	}
	if svc.Drain.On {
		port.Drain = &svc.Drain.Timeout
	}
	if how := svc.Relay; how != nil {
		port.Affinity, port.ConnectTimeout, port.Retries, port.IdleTimeout = how.Affinity, how.ConnectTimeout, how.ConnectRetries, how.IdleTimeout
		port.ProxyProtocol, port.Front = how.ProxyProtocol, r.fronts.of(svc.Key, p.ID)
	}
	return port
}

// Applying implements reconcile.Part: the relay serves what the kernel is about to redirect.
func (r *Relay) Applying(bool) { r.tell(true) }

// Stepped implements reconcile.Part.
func (r *Relay) Stepped(step reconcile.Step) {
	if step.Applied && len(r.changed) > 0 {
		r.tell(false)
		clear(r.changed)
		r.relay.CloseUnused()
	}
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

// tell tells the relay about the Services that changed. more says that the kernel may still send
// it clients as before.
func (r *Relay) tell(more bool) {
	for key := range r.changed {
		if err := r.relay.Redirect(key, r.redirected[key], more); err != nil {
			r.log.Error("clients of a relayed port are refused", "svc", key, "err", err)
		}
	}
}

// Problems implements reconcile.Part.
func (r *Relay) Problems() []resolve.Problem {
	list := r.names.problems()
	for _, p := range r.relay.Problems() {
		key := strings.Split(p.ID, "/")
		ref := object.Ref{Kind: object.KindService, Namespace: key[0], Name: key[1]}
		list = append(list, resolve.Problem{Object: ref, Reason: p.Reason, Message: p.Message})
	}
	return list
}
