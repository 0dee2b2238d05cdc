package parts

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Relay serves in user space: the ports of Services that ask for it, and node ports on loopback addresses. It
// has more than 15 fields: both follow from the same plans and are opened by one relay, and three groups of
// fields have different users (the loop, all under mu, the task that opens listeners late).
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
	again   []string                     // Services that have by now what they waited for
	// routeless are the Services that wait for routes by which endpoints answer clients' own addresses.
	routeless map[nft.Family]map[string]bool

	late    *listen.Reconciler[string] // opens listeners that Services wait for
	settled bool                       // all Services were named once
	due     []string                   // Secrets of which time has changed what is to be said
}

// listener is one that the kernel redirects clients to.
type listener struct {
	protocol string
	at       netip.AddrPort
}

// NewRelay returns the part. secret gives the Secret of a "namespace/name", nil when there is none. It goes on
// with what the program before has left: state, of relay.State as JSON, or nil, and sockets that were kept.
func NewRelay(log *slog.Logger, secret func(key string) *object.Secret, state []byte, sockets map[string]*os.File) *Relay {
	origins := &conntrack.Origins{}
	origin := func(at, client netip.AddrPort) (netip.AddrPort, error) { return origins.Of(nft.UDP, at, client) }
	r := &Relay{
		log: log, relay: relay.New(log, origin), ports: map[string][]relay.Port{}, dirty: true,
		redirected: map[string][]relay.Port{}, changed: map[string]bool{}, waiting: map[listener]map[string]bool{},
		routeless: map[nft.Family]map[string]bool{nft.IPv4: {}, nft.IPv6: {}},
		late:      listen.NewReconciler[string](openInterval),
		fronts:    newFronts(secret), names: newNames(), ask: make(chan struct{}, 1),
	}
	if len(state) > 0 { // without a relayed Service there is nothing
		s, err := relay.ParseState(state)
		if err != nil {
			log.Error("what the program before has handed over cannot be read", "err", err)
		} else {
			r.relay.Inherit(s)
		}
	}
	for name, f := range sockets {
		if err := r.relay.InheritSocket(f); err != nil {
			log.Warn("a socket that systemd has kept is of no use", "name", name, "err", err)
		}
	}
	return r
}

// HandedOver returns the state that Run has left for the next program, as JSON, with its descriptors; nil: nothing.
func (r *Relay) HandedOver() (state []byte, descriptors []int, err error) {
	s := r.relay.HandedOver()
	if s == nil {
		return nil, nil, nil
	}
	state, err = json.Marshal(s)
	return state, s.Descriptors(), err
}

// Drain waits before a hand-over for what cannot be handed over: see relay.Relay.
func (r *Relay) Drain(ctx context.Context) { r.relay.Drain(ctx) }

// Name implements reconcile.Part.
func (r *Relay) Name() string { return "relay" }

// Run implements reconcile.Part.
func (r *Relay) Run(ctx context.Context, changed func()) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return runSignaling(ctx, r.relay.Run, r.relay.Changed(), changed) })
	tasks.Go(func() error {
		return runSignaling(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }, r.relay.OverloadedChanged(), changed)
	})
	tasks.Go(func() error { return r.openLate(ctx, changed) })
	tasks.Go(func() error { return r.watchTime(ctx, changed) })
	return tasks.Wait()
}

// Stats are the numbers of the relay.
func (r *Relay) Stats() relay.Stats { return r.relay.Stats() }

// Retry implements reconcile.Part.
func (r *Relay) Retry() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := append(r.again, r.unknown...)
	for _, secret := range r.due {
		again = slices.AppendSeq(again, maps.Keys(r.fronts.users[secret]))
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
		if svc.Relay == nil {
			r.waitNoMore(svc.Key)
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

// Applying implements reconcile.Part: the relay serves what the kernel is about to redirect.
func (r *Relay) Applying(bool) { r.tell(true) }

// Stepped implements reconcile.Part.
func (r *Relay) Stepped(step reconcile.Step) {
	if step.Applied && len(r.changed) > 0 {
		r.tell(false)
		clear(r.changed)
		r.relay.CloseUnused()
	}
	if r.dirty {
		r.dirty = false
		var ports []relay.Port
		for _, key := range slices.Sorted(maps.Keys(r.ports)) {
			ports = append(ports, r.ports[key]...)
		}
		r.relay.Set(ports)
	}
	if step.Applied && !r.settled {
		r.relay.Settle()
		r.settled = true
	}
}

// tell passes the Services that changed to the relay. more says that the kernel may still send it clients as
// before.
func (r *Relay) tell(more bool) {
	services := make(map[string][]relay.Port, len(r.changed))
	for key := range r.changed {
		services[key] = r.redirected[key]
	}
	if err := r.relay.RedirectAll(services, more); err != nil {
		r.log.Error("clients of relayed ports are refused", "err", err)
	}
}

// EndpointsOf returns the endpoints that a client of a relayed and logged port had, as relay.Relay's does.
func (r *Relay) EndpointsOf(protocol string, client netip.AddrPort, listener uint16) []netip.AddrPort {
	return r.relay.EndpointsOf(protocol, client, listener)
}
