package parts

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Relay serves two kinds of ports in user space: relayed ports of Services, and node ports on loopback addresses. One
// relay.Relay opens both.
type Relay struct {
	reconcile.NopPart
	log      *slog.Logger
	relay    *relay.Relay
	loopback []netip.Addr            // loopback addresses on which node ports are served
	ports    map[string][]relay.Port // node ports on loopback addresses, by Service
	dirty    bool

	// redirected holds the ports that the kernel redirects to the relay, by Service. changed holds the Services with changes in redirected that are
	// not yet both in the kernel and in the relay.
	redirected map[string][]relay.Port
	changed    map[string]bool
	fronts     *fronts
	names      names

	mu    sync.Mutex
	unmet map[resolve.Need]bool // listeners and return routes that are missing, for which Services wait

	late    *listen.Reconciler[string] // retries to open the missing listeners
	settled bool                       // relay.Settle was called, after the first applied plan
}

// NewRelay returns a Relay. secret returns the Secret with the given "namespace/name", or nil if there is none. state is a relay.State as JSON that
// the previous process handed over, or nil; sockets are the sockets that systemd kept for that state, by name.
func NewRelay(log *slog.Logger, secret func(key string) *object.Secret, state []byte, sockets map[string]*os.File) *Relay {
	origins := &conntrack.Origins{}
	origin := func(at, client netip.AddrPort) (netip.AddrPort, error) { return origins.Of(nft.UDP, at, client) }
	r := &Relay{
		log: log, relay: relay.New(log, origin), ports: map[string][]relay.Port{}, dirty: true,
		redirected: map[string][]relay.Port{}, changed: map[string]bool{}, unmet: map[resolve.Need]bool{},
		late:   listen.NewReconciler[string](openInterval),
		fronts: newFronts(secret), names: names{naming: map[string]reconcile.Service{}, by: map[string]map[string]bool{}, targets: map[string]reconcile.Service{}, unknown: map[string]bool{}},
	}
	if len(state) > 0 { // without a relayed Service there is nothing
		if s, err := relay.ParseState(state); err != nil {
			log.Error("what the program before has handed over cannot be read", "err", err)
		} else {
			r.relay.Inherit(s)
		}
	}
	for name, f := range sockets {
		if err := r.relay.InheritSocket(f); err != nil {
			log.Warn("a socket that systemd kept cannot be used", "name", name, "err", err)
		}
	}
	return r
}

// HandedOver returns the state for the next process as JSON, and the file descriptors that the state refers to. It must be called after Run has
// returned. Both results are nil if there is nothing to hand over.
func (r *Relay) HandedOver() (state []byte, descriptors []int, err error) {
	s := r.relay.HandedOver()
	if s == nil {
		return nil, nil, nil
	}
	state, err = json.Marshal(s)
	return state, s.Descriptors(), err
}

// Drain waits, before a hand-over, until the connections that cannot be handed over have ended or ctx is done (see relay.Relay.Drain).
func (r *Relay) Drain(ctx context.Context) { r.relay.Drain(ctx) }

// Name implements reconcile.Part.
func (r *Relay) Name() string { return "relay" }

// Run implements reconcile.Part.
func (r *Relay) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return runSignaling(ctx, r.relay.Run, r.relay.Changed(), r.Changed) })
	tasks.Go(func() error { return runSignaling(ctx, r.NopPart.Run, r.relay.OverloadedChanged(), r.Changed) })
	tasks.Go(func() error {
		r.late.Run(ctx, func() ([]string, bool) { return nil, r.openLate() })
		return nil
	})
	tasks.Go(func() error { return r.watchTime(ctx) })
	return tasks.Wait()
}

// Stats returns the counters of the relay.
func (r *Relay) Stats() relay.Stats { return r.relay.Stats() }

// Meet implements reconcile.Answerer: it opens listeners before the kernel redirects clients to them.
func (r *Relay) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, n := range d.Needs {
		switch n.Kind {
		case resolve.NeedListener, resolve.NeedReturnRoutes:
			state := r.open(n)
			r.mu.Lock()
			if delete(r.unmet, n); state.Missing {
				r.unmet[n] = true
				r.late.Trigger()
			}
			r.mu.Unlock()
			o.Answer(n, state)
		case resolve.NeedKeyPair, resolve.NeedAuthority:
			o.Answer(n, r.fronts.state(n))
		}
	}
}

// open opens the listener that n asks for, unless it is open already. For resolve.NeedReturnRoutes it checks the routes instead. It returns the
// resulting state of n.
func (r *Relay) open(n resolve.Need) resolve.State {
	if n.Kind == resolve.NeedReturnRoutes {
		return returnRoutes(n.Family)
	}
	if err := r.relay.Open(n.Protocol.String(), n.At); err != nil {
		return resolve.State{Missing: true, Wrong: err.Error()}
	}
	return resolve.State{}
}

// Foresee implements reconcile.Opener.
func (r *Relay) Foresee(objs reconcile.Objects) reconcile.Answerer { return NewForeseen(objs.Secret) }

// Close implements reconcile.Opener. It drops the certificate or CA that was kept for a need. Listeners are closed later, once they have no ports
// (relay.CloseUnused).
func (r *Relay) Close(n resolve.Need) {
	r.mu.Lock()
	delete(r.unmet, n)
	r.mu.Unlock()
	switch n.Kind {
	case resolve.NeedKeyPair:
		r.fronts.keeper.ForgetPair(n.Name)
	case resolve.NeedAuthority:
		r.fronts.keeper.ForgetAuthority(n.Name)
	}
}

// Planned implements reconcile.Part.
func (r *Relay) Planned(host *reconcile.Host, services []reconcile.Service) {
	if host != nil {
		r.loopback, r.dirty = host.Loopback, true
	}
	r.fronts.plan(services)
	again, unknown := r.names.plan(services)
	if len(unknown) > 0 {
		r.Changed(resolve.Plans(unknown...)...)
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
		if r.redirected[svc.Key] = ports; len(ports) == 0 {
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

// Applying implements reconcile.Part: the relay starts to serve changed ports before the kernel redirects clients to them.
func (r *Relay) Applying(bool) { r.redirectChanged(true) }

// Stepped implements reconcile.Part.
func (r *Relay) Stepped(step reconcile.Step) {
	if step.Applied && len(r.changed) > 0 {
		r.redirectChanged(false)
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

// redirectChanged passes the ports of the Services in changed to the relay. If more is set, the relay also keeps serving their previous ports, to
// which the kernel may still redirect clients.
func (r *Relay) redirectChanged(more bool) {
	services := make(map[string][]relay.Port, len(r.changed))
	for key := range r.changed {
		services[key] = r.redirected[key]
	}
	if err := r.relay.RedirectAll(services, more); err != nil {
		r.log.Error("clients of relayed ports are refused", "err", err)
	}
}

// EndpointsOf returns the endpoints that a client of a relayed and logged port was connected to, see relay.Relay.EndpointsOf.
func (r *Relay) EndpointsOf(protocol string, client netip.AddrPort, listener uint16) []netip.AddrPort {
	return r.relay.EndpointsOf(protocol, client, listener)
}

// openInterval is the interval between attempts to open listeners that could not be opened before.
const openInterval = 5 * time.Second

// openLate tries to open the listeners that could not be opened before. When it succeeds, it makes the loop plan their Services again. It reports
// whether some listeners are still missing.
func (r *Relay) openLate() (waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.unmet {
		if r.open(n).Missing {
			waiting = true
			continue
		}
		delete(r.unmet, n)
		r.Changed(n)
	}
	return waiting
}

// returnRoutes returns the state of resolve.NeedReturnRoutes for an IP family: Missing unless replies to the addresses of clients are delivered to
// this host, as transparent proxying requires.
func returnRoutes(f nft.Family) resolve.State {
	switch delivered, err := node.DeliversForOthers(f == nft.IPv6); {
	case err != nil:
		return resolve.State{Missing: true, Wrong: err.Error()}
	case delivered:
		return resolve.State{}
	}
	ip := "ip"
	if f == nft.IPv6 {
		ip = "ip -6"
	}
	return resolve.State{Missing: true, Wrong: annotation.Transparent + " has endpoints answer to the clients' own addresses, and no rule of routing delivers such answers here: " +
		"mark them by a rule of nft (`socket transparent 1 meta mark set 0x1`), and route them by `" + ip + " rule add fwmark 0x1 lookup 100` and `" + ip + " route add local default dev lo table 100`"}
}

// add makes the relay serve a node port on the loopback addresses of the port's family. Clients there are programs of this host, so the internal
// traffic policy applies.
func (r *Relay) add(svc *reconcile.Service, p *nft.ServicePort, fe *nft.Frontend) {
	for _, a := range r.loopback {
		if nft.FamilyOf(a) != p.Family {
			continue
		}
		port := relay.Port{ID: p.ID, Listen: netip.AddrPortFrom(a, fe.Port), Protocol: p.Protocol.String(), Endpoints: p.Pools[fe.Internal.Pool], Pick: relay.Pick{Affinity: p.Affinity}}
		if p.Relayed() {
			if svc.Relay == nil {
				return // whether in the clear or not is unknown
			}
			port = r.relayedPort(svc, p, fe.Internal.Pool)
			port.Listen = netip.AddrPortFrom(a, fe.Port)
			port.Names = r.named(svc, p, fe.Internal.Pool)
		} else {
			port.Pick.Choose = p.Chooser(fe.Internal.Pool)
			if p.Balance == nft.LeastConnection {
				for _, share := range p.Shares(fe.Internal.Pool) {
					port.Pick.Weights = append(port.Pick.Weights, uint16(share*10000))
				}
			} else {
				port.Pick.Weights = weightsOf(p, fe.Internal.Pool)
			}
			port.Pick.Refused = p.RefusedShare(fe.Internal.Pool)
		}
		r.ports[svc.Key] = append(r.ports[svc.Key], port)
		r.dirty = true
	}
}

// redirect returns the ports on which the relay serves the clients of a Service that the kernel redirects to it. Each relayed port of the Service has
// one for each pool of endpoints that its frontends use.
func (r *Relay) redirect(svc *reconcile.Service) (ports []relay.Port) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Relayed() || svc.Relay == nil {
			continue
		}
		for pool := range nft.NumPools {
			port := r.relayedPort(svc, p, pool)
			port.Names = r.named(svc, p, pool)
			port.Frontends = []netip.AddrPort{}
			for _, fe := range p.Frontends {
				if fe.Internal.Pool == pool || fe.External.Pool == pool {
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

// relayedPort returns the relay's port for one pool of a Service port.
func (r *Relay) relayedPort(svc *reconcile.Service, p *nft.ServicePort, pool nft.Pool) relay.Port {
	port := relay.Port{
		ID: p.ID, Listen: p.Relay[pool], Protocol: p.Protocol.String(),
		Endpoints: p.Pools[pool], Serving: p.Serving, Ended: ended(svc, p), Pick: pickOf(p, pool), Logged: svc.Logged,
	}
	if svc.Drain.On {
		port.Drain = &svc.Drain.Timeout
	}
	if how := svc.Relay; how != nil {
		port.Pick.Affinity, port.IdleTimeout = how.Affinity, how.IdleTimeout
		port.Connect = relay.Connect{Retries: how.ConnectRetries, Timeout: how.ConnectTimeout, ProxyProtocol: how.ProxyProtocol, Transparent: how.Transparent}
		port.ProxyFrom = how.ProxyFrom
		port.Front = r.fronts.of(svc.Key, p.ID)
	}
	return port
}

// pickOf returns how the relay picks an endpoint of a pool. p may be a port that is not relayed itself, but to which a TLS server name of a relayed
// port leads. Then round robin replaces the kernel's random choice, with the same shares.
func pickOf(p *nft.ServicePort, pool nft.Pool) relay.Pick {
	pick := relay.Pick{By: relay.RoundRobin, Choose: p.Chooser(pool), Weights: weightsOf(p, pool), Refused: p.RefusedShare(pool)}
	switch {
	case p.Balance == nft.LeastConnection:
		pick.By = relay.LeastConnection
	case p.Balance == nft.Random && p.Relayed():
		pick.By = relay.Random
	}
	return pick
}

// weightsOf returns the weights of the endpoints of a pool, in the order of the pool, or nil if all are equal.
func weightsOf(p *nft.ServicePort, pool nft.Pool) []uint16 {
	if p.Weights[pool] == nil {
		return nil
	}
	weights := make([]uint16, len(p.Pools[pool]))
	for i, ap := range p.Pools[pool] {
		weights[i] = uint16(p.Weight(pool, ap))
	}
	return weights
}

// Load returns the number of connections of a relayed port of a Service, summed over its listeners. It is passed to reconcile.NewGrants.
func (r *Relay) Load(service string, p *nft.ServicePort) *wire.RelayLoad {
	load := &wire.RelayLoad{Open: map[string]int{}}
	for _, l := range r.relay.Load(service) {
		if l.ID != p.ID || l.Protocol != p.Protocol.String() || nft.FamilyOf(l.Listen.Addr()) != p.Family {
			continue
		}
		load.Taken += l.Taken
		load.FailedConnects += l.FailedConnects
		for endpoint, n := range l.Open {
			load.Open[endpoint.String()] += n
		}
	}
	return load
}

// Loads returns the loads of all relayed ports.
func (r *Relay) Loads() []relay.PortLoad { return r.relay.Load("") }

// Passages returns, for all relayed ports, which endpoint each client is connected to.
func (r *Relay) Passages() []relay.Passage { return r.relay.Passages() }

// PortOf splits the ID of a Service port into its parts. port is "" for a port without a name.
func PortOf(id string) (namespace, name, port string) {
	service, port := nft.SplitID(id)
	namespace, name, _ = strings.Cut(service, "/")
	return namespace, name, port
}

// Problems implements reconcile.Part.
func (r *Relay) Problems() []resolve.Problem {
	list := r.names.problems()
	for _, p := range r.relay.Problems() {
		service, _ := nft.SplitID(p.ID)
		list = append(list, resolve.Problem{Object: object.ServiceRef(service), Reason: p.Reason, Message: p.Message})
	}
	return append(list, overloadProblems(r.relay.Overloaded())...)
}

// overloadProblems returns the problems of the ports that refuse clients. A port that is full because of a relay loop is reported only as a loop.
func overloadProblems(all []relay.Overloaded) (list []resolve.Problem) {
	for _, c := range all {
		loop := c
		loop.Looped = true
		switch {
		case c.Looped:
			list = append(list, loopProblem(c))
		case !slices.Contains(all, loop):
			list = append(list, overloadedProblem(c))
		}
	}
	return list
}

func loopProblem(c relay.Overloaded) resolve.Problem {
	service, port := nft.SplitID(c.ID)
	if port != "" {
		port = "of port " + port + " "
	}
	return resolve.Problem{
		Object: object.ServiceRef(service), Reason: resolve.ReasonRelayLoop,
		Message: fmt.Sprintf("clients %sover %s are refused that come with a hop limit (TTL) of 1: an endpoint of this Service leads to another relay, perhaps on another box, whose endpoint leads back here; "+
			"look where the endpoints lead (`svcctl get endpointslices -A`), or at clients that send with so low a hop limit", port, strings.ToUpper(c.Protocol)),
	}
}

// reasonRelayFull is the Reason of the problem of a relayed port that refuses clients because it has too many connections.
const reasonRelayFull = "RelayFull"

func overloadedProblem(c relay.Overloaded) resolve.Problem {
	service, port := nft.SplitID(c.ID)
	if port != "" {
		port = "to port " + port + " "
	}
	what, of := "connections "+port+"over TCP are reset", "relayed ports"
	if c.Protocol == relay.UDP {
		what = "clients " + port + "over UDP lose their flow to new ones"
	}
	if !c.Redirected {
		of = "node ports on loopback addresses"
	}
	return resolve.Problem{
		Object: object.ServiceRef(service), Reason: reasonRelayFull, Warning: true,
		Message: fmt.Sprintf("%s: all %s together have room for %d at once, and one port for as many as the others leave free: look for clients that leave connections open, or raise the limit of open files (LimitNOFILE)", what, of, c.Limit),
	}
}
