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
	census  *Census
	wake    chan struct{} // holds one
	changed func(service string)

	mu     sync.Mutex
	box    nft.Box
	crowds map[string]Crowd   // by Service, "namespace/name", of those with a limit
	asked  *crowdsAsked       // of crowds on box; nil: to be made anew
	full   map[string]crowded // by Service, of those that were looked at
	err    error
}

// crowdsAsked holds the ports of a look, with the Service of each port by its index.
type crowdsAsked struct {
	*Asked
	services []string
}

// crowded are the endpoints that are full. An address with port 0, of no protocol, stands for all that is open to it.
type crowded map[crowdedAt]bool

type crowdedCount map[crowdedAt]int

type crowdedAt struct {
	protocol nft.Protocol
	endpoint netip.AddrPort
}

// lookEvery is the interval of looks through the table; RestFor makes it longer where a look takes
// long.
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
		log: log, census: &Census{table}, wake: make(chan struct{}, 1), changed: changed,
		crowds: map[string]Crowd{}, full: map[string]crowded{},
	}
}

// Crowd is a Service's limit of open connections of an endpoint, 0: none, and its ports.
type Crowd struct {
	Limit uint32
	Ports []nft.ServicePort
}

// Update takes the box, if it changed, and the Services that changed. It reports whether any Service has a limit.
func (x *Fullness) Update(box *nft.Box, changes map[string]Crowd) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if box != nil {
		x.box, x.asked = *box, nil
	}
	before := len(x.crowds)
	for name, c := range changes {
		_, had := x.crowds[name]
		delete(x.crowds, name)
		if c.Limit == 0 || len(c.Ports) == 0 {
			delete(x.full, name)
		} else {
			x.crowds[name] = c
		}
		if _, has := x.crowds[name]; had || has {
			x.asked = nil
		}
	}
	if (before == 0) != (len(x.crowds) == 0) {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
	return len(x.crowds) > 0
}

// Full reports whether an endpoint of a Service is full, or with port 0 an address by all of its ports; known is
// false until the Service was looked at.
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
			return x.census.Close()
		case <-x.wake:
		case <-timer.C:
		}
		asked := x.asking()
		if asked == nil {
			timer.Stop()
			if err := x.census.Close(); err != nil {
				x.log.Debug("close the connection tracking table", "err", err)
			}
			continue
		}
		start, pause := time.Now(), lookEvery
		if x.look(ctx, asked) != nil {
			pause = idleRetry
		}
		timer.Reset(max(pause, RestFor*time.Since(start)))
	}
}

// asking returns the ports to look at; nil: no Service limits connections.
func (x *Fullness) asking() *crowdsAsked {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked == nil && len(x.crowds) > 0 {
		a, ports := &crowdsAsked{}, []*nft.ServicePort(nil)
		for service, c := range x.crowds {
			for i := range c.Ports {
				a.services, ports = append(a.services, service), append(ports, &c.Ports[i])
			}
		}
		a.Asked = NewAsked(&x.box, ports)
		x.asked = a
	}
	return x.asked
}

// look counts what is open, and tells of the Services for which that makes a difference.
func (x *Fullness) look(ctx context.Context, asked *crowdsAsked) error {
	counts := map[string]crowdedCount{}
	for _, service := range asked.services {
		counts[service] = crowdedCount{}
	}
	err := x.census.look(ctx, asked.Asked, func(port int, e *entry) {
		if e.answered && !e.isEnding() {
			of := counts[asked.services[port]]
			of[crowdedAt{e.protocol, e.replyFrom}]++
			of[crowdedAt{0, netip.AddrPortFrom(e.replyFrom.Addr(), 0)}]++
		}
	})
	if ctx.Err() != nil {
		return err
	}
	x.mu.Lock()
	before := x.err
	x.err = err
	var changed []string
	if err == nil {
		changed = x.settle(counts)
	}
	x.mu.Unlock()
	for _, service := range changed {
		x.changed(service)
	}
	switch {
	case err != nil && before == nil:
		x.log.Warn("connections of endpoints cannot be counted: endpoints that are full stay full and no other becomes full, until a retry succeeds", "err", err, "retry", idleRetry)
	case err == nil && before != nil:
		x.log.Info("connections of endpoints are counted again")
	}
	return err
}

// settle makes the endpoints full, or not any more, that were counted. It returns the Services for which that
// is new. The caller holds mu.
func (x *Fullness) settle(counts map[string]crowdedCount) (changed []string) {
	for service, open := range counts {
		limit := x.crowds[service].Limit
		if limit == 0 {
			continue
		}
		was, known := x.full[service]
		now := crowded{}
		for at, n := range open {
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
