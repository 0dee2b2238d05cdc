package parts

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/feedback"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// sampler counts open connections; implemented by conntrack.Sampler.
type sampler interface {
	Scan(asked *conntrack.Asked, each func(conntrack.Tracked)) error
	Close() error
}

// Balance sets the weights of endpoints at run time: by their open connections for least-connection, and by their age for slow
// start. While no Service asks for either it does nothing.
type Balance struct {
	reconcile.NopPart
	log     *slog.Logger
	sampler sampler
	kick    chan struct{} // capacity 1; a value wakes Run after a change

	mu       sync.RWMutex
	box      nft.Box
	ports    map[portKey]*balanced
	services map[string][]portKey
	next     time.Time // time of the next count of connections

	failure task.LastError // the last error of counting connections
}

// portKey identifies a Service port in one family.
type portKey struct {
	id     string // nft.ServicePort.ID
	family nft.Family
}

// balanced is the state of a Service port that is balanced by connections, or has a slow start, or both.
type balanced struct {
	service string
	port    *nft.ServicePort // as planned last
	over    time.Duration    // duration of a slow start; 0: no slow start
	// since has the arrival time of each endpoint; the zero Time if the endpoint already has its whole weight.
	since map[netip.AddrPort]time.Time
	step  time.Time // time of the next step of a slow start; zero: none

	connections feedback.Connections         // only Run uses it
	looked      time.Time                    // the time of the last count; only Run uses it
	pools       [nft.NumPools]*feedback.Pool // nil for a pool of endpoints without a table
}

func NewBalance(log *slog.Logger) *Balance {
	return newBalance(conntrack.NewSampler(conntrack.Options{Log: log}), log)
}

func newBalance(sampler sampler, log *slog.Logger) *Balance {
	return &Balance{
		log: log, sampler: sampler, kick: make(chan struct{}, 1),
		ports: map[portKey]*balanced{}, services: map[string][]portKey{},
	}
}

// Name implements reconcile.Part.
func (b *Balance) Name() string { return "balance" }

// Tune implements reconcile.Tuner. Endpoints that the kernel already serves when the process starts have no slow start, and keep their slots.
func (b *Balance) Tune(p *nft.ServicePort, over time.Duration, served func() map[resolve.Frontend]*nft.ServicePort) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	at := b.ports[portKey{p.ID, p.Family}]
	if over > 0 {
		p.Starting = grow(p, over, at.arrivals(p, served), time.Now())
	}
	if p.Balance != nft.LeastConnection || p.Relayed() {
		return // the relay counts connections itself
	}
	for pool, endpoints := range p.Pools {
		refused, size := p.TableSlots(nft.Pool(pool))
		if size == 0 || len(endpoints) < 2 {
			continue
		}
		var had *feedback.Pool
		if at != nil {
			had = at.pools[pool]
		} else {
			had = slotsOf(p, nft.Pool(pool), refused+size, served)
		}
		if had == nil {
			continue
		}
		weights, slots := weightsIn(p, nft.Pool(pool), endpoints), had.Slots()
		if len(slots) != size || !had.Holds(endpoints, weights) {
			slots = had.Joined(endpoints, weights, size)
		}
		if p.Tables[pool] = slots; refused > 0 {
			p.Tables[pool] = append(make([]netip.AddrPort, refused, refused+size), slots...)
		}
	}
}

// arrivals returns the arrival times of the endpoints that the port has had so far, including those that the kernel served before this process. The
// zero Time means that the endpoint has its whole weight. The caller holds mu.
func (at *balanced) arrivals(p *nft.ServicePort, served func() map[resolve.Frontend]*nft.ServicePort) map[netip.AddrPort]time.Time {
	if at != nil && at.since != nil {
		return at.since
	}
	since := map[netip.AddrPort]time.Time{}
	if at != nil { // it had no slow start
		for _, ap := range slices.Concat(at.port.Pools[nft.PoolCluster], at.port.Pools[nft.PoolLocal]) {
			since[ap] = time.Time{}
		}
	}
	if served != nil {
		for i := range p.Frontends {
			if was := served()[frontendOf(p, i)]; was != nil {
				for _, ap := range distinct(was) {
					since[ap] = time.Time{}
				}
			}
		}
	}
	return since
}

// slotsOf returns a pool with the slots of the table that the kernel served before this process. It returns nil if there was no table of this size.
func slotsOf(p *nft.ServicePort, pool nft.Pool, size int, served func() map[resolve.Frontend]*nft.ServicePort) *feedback.Pool {
	if served == nil {
		return nil
	}
	for i := range p.Frontends {
		was := served()[frontendOf(p, i)]
		if was == nil || len(was.Tables[pool]) != size {
			continue
		}
		had := &feedback.Pool{}
		had.Set(was.Pools[pool], weightsIn(p, pool, was.Pools[pool]), taken(was.Tables[pool]))
		return had
	}
	return nil
}

func weightsIn(p *nft.ServicePort, pool nft.Pool, endpoints []netip.AddrPort) []uint32 {
	list := make([]uint32, len(endpoints))
	for i, ap := range endpoints {
		list[i] = p.Weight(pool, ap)
	}
	return list
}

// taken returns the slots of a table that hold an endpoint.
func taken(table []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(table), func(ap netip.AddrPort) bool { return !ap.IsValid() })
}

// grow sets the weights of a port's endpoints during slow starts, and returns the endpoints in slow start. If all endpoints are new, none has a slow
// start, since no other endpoint could take over their share.
func grow(p *nft.ServicePort, over time.Duration, since map[netip.AddrPort]time.Time, now time.Time) (starting []netip.AddrPort) {
	all := distinct(p)
	shares, old := make([]uint32, len(all)), false
	for i, ap := range all {
		came, known := since[ap]
		shares[i] = feedback.Least
		if known {
			old, shares[i] = true, feedback.Whole
			if !came.IsZero() {
				shares[i] = feedback.Ramp(now.Sub(came), over)
			}
		}
		if shares[i] < feedback.Whole {
			starting = append(starting, ap)
		}
	}
	if !old || len(starting) == 0 {
		return nil
	}
	for pool := range nft.NumPools {
		largest := max(1, uint32(p.Refused[pool]))
		for _, ap := range all {
			largest = max(largest, p.Weight(pool, ap))
		}
		finer := min(feedback.Whole, 0xffff/largest)
		weights := make(map[netip.AddrPort]uint16, len(all))
		for i, ap := range all {
			weights[ap] = uint16(max(1, p.Weight(pool, ap)*finer*shares[i]/feedback.Whole))
		}
		p.Weights[pool], p.Refused[pool] = weights, p.Refused[pool]*uint16(finer)
		p.Backends[pool] = slices.Clone(p.Backends[pool])
		for i := range p.Backends[pool] {
			b := &p.Backends[pool][i]
			b.Weights = maps.Clone(b.Weights)
			for at, ap := range all {
				if _, is := b.Weights[ap]; is {
					b.Weights[ap] *= shares[at]
				}
			}
		}
	}
	return starting
}

// distinct returns the endpoints of both pools of a port, sorted, each once.
func distinct(p *nft.ServicePort) []netip.AddrPort {
	all := slices.Concat(p.Pools[nft.PoolCluster], p.Pools[nft.PoolLocal])
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Planned implements reconcile.Part.
func (b *Balance) Planned(host *reconcile.Host, services []reconcile.Service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if host != nil {
		b.box = host.Box
	}
	changed := false
	for i := range services {
		changed = b.plan(&services[i]) || changed
	}
	if changed {
		task.Wake(b.kick)
	}
}

// plan records a Service. It reports whether Balance sets the weights of any of its ports, or did before. The caller holds mu.
func (b *Balance) plan(svc *reconcile.Service) bool {
	had := b.services[svc.Key]
	var keys []portKey
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if svc.SlowStart == 0 && (p.Balance != nft.LeastConnection || p.Relayed()) {
			continue
		}
		key := portKey{p.ID, p.Family}
		keys = append(keys, key)
		at := b.ports[key]
		if at == nil {
			at = &balanced{}
			b.ports[key] = at
		}
		at.service = svc.Key
		at.start(p, svc.SlowStart, time.Now())
		at.place(p)
		at.port = p
	}
	for _, key := range had {
		if !slices.Contains(keys, key) {
			delete(b.ports, key)
		}
	}
	if b.services[svc.Key] = keys; len(keys) == 0 {
		delete(b.services, svc.Key)
	}
	return len(had)+len(keys) > 0
}

// start records the endpoints of the port, and begins the slow start of new ones at now.
func (at *balanced) start(p *nft.ServicePort, over time.Duration, now time.Time) {
	before := at.since
	at.over, at.since, at.step = over, nil, time.Time{}
	if over == 0 || p.Balance == nft.DestinationHash {
		return
	}
	at.since = map[netip.AddrPort]time.Time{}
	for _, ap := range distinct(p) {
		at.since[ap] = time.Time{}
	}
	for _, ap := range p.Starting {
		if at.since[ap] = before[ap]; at.since[ap].IsZero() {
			at.since[ap] = now
		}
	}
	if len(p.Starting) > 0 {
		at.step = now.Add(feedback.Step(over))
	}
}

// place records the endpoint in each slot of the port's tables.
func (at *balanced) place(p *nft.ServicePort) {
	for pool := range nft.NumPools {
		table := p.Table(pool)
		if table == nil {
			at.pools[pool] = nil
			continue
		}
		table = taken(table)
		endpoints, weights := p.Pools[pool], weightsIn(p, pool, p.Pools[pool])
		if at.pools[pool] == nil {
			at.pools[pool] = &feedback.Pool{}
		}
		if of := at.pools[pool]; len(of.Slots()) != len(table) || !of.Holds(endpoints, weights) {
			of.Set(endpoints, weights, table)
		}
	}
}

// Problems implements reconcile.Part.
func (b *Balance) Problems() []resolve.Problem {
	return failing("NoFeedback", "endpoints keep the shares that they have, whatever least-connection asks for", b.failure.Err())
}

const (
	// lookAtLeast is the least time between two counts of open connections. A count that takes long is followed by a longer wait (conntrack.RestFor).
	lookAtLeast = time.Second
	// lookAgain is the wait after a count that failed.
	lookAgain = 5 * time.Second
)

// Run implements reconcile.Part.
func (b *Balance) Run(ctx context.Context) error {
	task.Repeat(ctx, b.kick, func() time.Time {
		grown := b.grow(time.Now())
		moved, otherProblem := b.lookIfDue(time.Now())
		if services := append(grown, moved...); len(services) > 0 || otherProblem {
			b.Changed(resolve.Plans(services...)...)
		}
		return b.due()
	})
	return b.sampler.Close()
}

// grow returns the Services whose endpoints get more weight at now, as a step of their slow start.
func (b *Balance) grow(now time.Time) (services []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.ports {
		if !at.step.IsZero() && !now.Before(at.step) {
			at.step = now.Add(feedback.Step(at.over))
			services = append(services, at.service)
		}
	}
	return services
}

// due returns the time of the next count of connections or step of a slow start; the zero Time if there is none.
func (b *Balance) due() (at time.Time) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	looks := false
	for _, p := range b.ports {
		soonest(p.step)
		looks = looks || p.hasTable()
	}
	if looks {
		soonest(b.next)
	}
	return at
}

func (at *balanced) hasTable() bool {
	return slices.ContainsFunc(at.pools[:], func(p *feedback.Pool) bool { return p != nil })
}

// lookIfDue counts the open connections, if that is due. moved has the Services with changed slots. otherProblem reports whether the result of
// Problems has changed.
func (b *Balance) lookIfDue(now time.Time) (moved []string, otherProblem bool) {
	b.mu.Lock()
	var list []*balanced
	var ports []*nft.ServicePort
	for _, at := range b.ports {
		if at.hasTable() {
			list, ports = append(list, at), append(ports, at.port)
		}
	}
	box, due := b.box, !now.Before(b.next)
	b.mu.Unlock()
	if len(list) == 0 {
		_ = b.sampler.Close()
		return nil, b.failure.SetErr(nil)
	}
	if !due {
		return nil, false
	}
	cost := conntrack.Cost()
	err := b.sampler.Scan(conntrack.NewAsked(&box, ports), func(t conntrack.Tracked) {
		list[t.Port].connections.See(t.Endpoint, t.ID, t.Ending)
	})
	b.mu.Lock()
	b.next = now.Add(max(lookAtLeast, (conntrack.RestFor+1)*cost()))
	if err != nil {
		b.next = now.Add(lookAgain)
	}
	for _, at := range list {
		if err != nil {
			at.connections.Forget()
		} else if b.rebalance(at, now) {
			moved = append(moved, at.service)
		}
	}
	b.mu.Unlock()
	return moved, b.failure.Log(b.log, err, "open connections are not counted; it is tried again", "open connections are counted again", "retry", lookAgain)
}

// rebalance reassigns the slots of a port's tables according to the last count of connections. It reports whether a slot changed. The caller holds
// mu.
func (b *Balance) rebalance(at *balanced, now time.Time) (changed bool) {
	counts, elapsed := at.connections.Done(), now.Sub(at.looked)
	at.looked = now
	if counts == nil {
		return false
	}
	for _, pool := range at.pools {
		if pool != nil && pool.Look(elapsed, counts) {
			changed = true
		}
	}
	return changed
}
