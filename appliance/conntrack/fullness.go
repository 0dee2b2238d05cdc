package conntrack

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/nft"
)

// Fullness finds endpoints that have as many open connections as their Service allows. The kernel cannot choose
// by a count, so connections are counted by looks through the table, while a Service asks for it: an endpoint that
// has reached its limit gets no new connections from the next change of the ruleset on, and gets some again when
// a tenth of them are closed. What comes between two looks is not held up.
type Fullness struct {
	log     *slog.Logger
	table   table
	wake    chan struct{} // holds one
	changed func(service string)

	mu        sync.Mutex
	limits    map[string]uint32       // by Service, "namespace/name"
	asked     map[Frontend]string     // the Service that has it
	services  map[string][]Frontend   // those of asked
	ranges    []Frontend              // those of asked that are ranges
	nodePorts map[netip.Addr]bool     //
	full      map[string]crowded      // by Service, of those that were looked at
	counts    map[string]crowdedCount // of the look that is under way
	err       error
}

// crowded are the endpoints that are full. An address with port 0, of no protocol, stands for all that is open to it.
type crowded map[crowdedAt]bool

type crowdedCount map[crowdedAt]int

type crowdedAt struct {
	protocol nft.Protocol
	endpoint netip.AddrPort
}

// lookEvery is how often the table is looked through; less often where a look takes long.
const lookEvery = time.Second

// NewFullness begins without Services. changed is told of each Service whose endpoints have become full, or have
// room again; it must not wait.
func NewFullness(options Options, changed func(service string)) *Fullness {
	if options.Log == nil {
		options.Log = slog.Default()
	}
	return newFullness(&kernelTable{netns: options.NetNS}, options.Log, changed)
}

func newFullness(table table, log *slog.Logger, changed func(string)) *Fullness {
	return &Fullness{
		log: log, table: table, wake: make(chan struct{}, 1), changed: changed,
		limits: map[string]uint32{}, asked: map[Frontend]string{}, services: map[string][]Frontend{}, full: map[string]crowded{},
	}
}

// Crowd is a Service's limit of open connections of an endpoint, 0: none, and its ports.
type Crowd struct {
	Limit uint32
	Ports []nft.ServicePort
}

// Update takes the box, if it changed, and the Services that changed.
func (x *Fullness) Update(box *nft.Box, changes map[string]Crowd) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if box != nil {
		x.nodePorts = addressSet(box.NodePortAddresses)
	}
	before := len(x.limits)
	for name := range changes {
		for _, fe := range x.services[name] {
			delete(x.asked, fe)
		}
		delete(x.services, name)
		delete(x.limits, name)
	}
	for name, c := range changes {
		if c.Limit == 0 || len(c.Ports) == 0 {
			delete(x.full, name)
			continue
		}
		x.limits[name] = c.Limit
		for i := range c.Ports {
			for _, fe := range FrontendsOf(&c.Ports[i]) {
				x.asked[fe] = name
				x.services[name] = append(x.services[name], fe)
			}
		}
	}
	if before+len(x.limits) > 0 {
		x.ranges = rangesOf(x.asked)
	}
	if (before == 0) != (len(x.limits) == 0) {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// Full reports whether an endpoint of a Service is full, or with port 0 an address by all of its ports; known is false until the Service was looked at.
func (x *Fullness) Full(service string, protocol nft.Protocol, endpoint netip.AddrPort) (full, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of, known := x.full[service]
	if endpoint.Port() == 0 {
		protocol = 0
	}
	return of[crowdedAt{protocol, endpoint}], known
}

// Err returns the error that keeps connections from being counted, nil when there is none.
func (x *Fullness) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// Run works until ctx is done. What fails is tried again. After a look it rests, so that looks through a large
// table keep no more than a twentieth of a CPU busy.
func (x *Fullness) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return x.table.close()
		case <-x.wake:
		case <-timer.C:
		}
		queries := x.queries()
		if len(queries) == 0 {
			timer.Stop()
			if err := x.table.close(); err != nil {
				x.log.Debug("close the connection tracking table", "err", err)
			}
			continue
		}
		start, pause := time.Now(), lookEvery
		if x.look(ctx, queries) != nil {
			pause = idleRetry
		}
		timer.Reset(max(pause, restFor*time.Since(start)))
	}
}

// queries cover the frontends.
func (x *Fullness) queries() (queries []query) {
	x.mu.Lock()
	defer x.mu.Unlock()
	whole, single := map[query]bool{}, map[query]bool{}
	for fe := range x.asked {
		whole[query{family: fe.Family, protocol: fe.Protocol}] = true
		single[query{family: fe.Family, protocol: fe.Protocol, port: fe.single()}] = true
	}
	if len(single) <= maxQueries {
		whole = single
	}
	// One that asks for all ports of a protocol finds what those of single ports would find again.
	for q := range whole {
		if q.port == 0 || !whole[query{family: q.family, protocol: q.protocol}] {
			queries = append(queries, q)
		}
	}
	return queries
}

// look counts, and tells of the Services for which that makes a difference.
func (x *Fullness) look(ctx context.Context, queries []query) (err error) {
	x.mu.Lock()
	x.counts = make(map[string]crowdedCount, len(x.limits))
	for service := range x.limits {
		x.counts[service] = crowdedCount{}
	}
	x.mu.Unlock()
	for _, q := range queries {
		if ctx.Err() != nil {
			return nil
		}
		if _, err = x.table.clean(q, x.countAll); err != nil {
			break
		}
	}
	x.mu.Lock()
	before := x.err
	x.err = err
	var changed []string
	if err == nil {
		changed = x.settle()
	}
	x.mu.Unlock()
	for _, service := range changed {
		x.changed(service)
	}
	switch {
	case err != nil && before == nil:
		x.log.Warn("connections of endpoints are not counted, so none is full; it is tried again", "err", err, "retry", idleRetry)
	case err == nil && before != nil:
		x.log.Info("connections of endpoints are counted again")
	}
	return err
}

// countAll counts the open connections among entries, and leaves them alone.
func (x *Fullness) countAll(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range entries {
		verdicts = append(verdicts, leave)
		e := &entries[i]
		if !e.answered || !e.isThrough() || e.isEnding() {
			continue
		}
		service, asked := atFrontend(x.asked, e, x.nodePorts, x.ranges)
		if counts := x.counts[service]; asked && counts != nil {
			counts[crowdedAt{e.protocol, e.replyFrom}]++
			counts[crowdedAt{0, netip.AddrPortFrom(e.replyFrom.Addr(), 0)}]++
		}
	}
	return verdicts, nil
}

// settle makes the endpoints full, or not any more, that were counted. It returns the Services for which that
// is new. The caller holds mu.
func (x *Fullness) settle() (changed []string) {
	for service, counts := range x.counts {
		limit, asks := x.limits[service]
		if !asks {
			continue
		}
		was, known := x.full[service]
		now := crowded{}
		for at, n := range counts {
			if uint32(n) >= limit || was[at] && uint64(n)*10 > uint64(limit)*9 {
				now[at] = true
			}
		}
		if x.full[service] = now; !known || !maps.Equal(was, now) {
			changed = append(changed, service)
		}
	}
	slices.Sort(changed)
	return changed
}
