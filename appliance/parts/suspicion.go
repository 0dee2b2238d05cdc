package parts

// This file is long because Suspicion joins three ways to see a failure and what comes of it.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/suspect"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

const (
	// hearInterval is the interval at which conntrack events of failed connections are read, as long as events arrive.
	hearInterval = 20 * time.Millisecond
	// attemptsEvery is the interval of scans for unanswered connections; ejectEvery is the shorter interval that applies while a Service uses eject.
	// attemptsEvery is extended to attemptsRest times the CPU time of a scan, so that scans use at most 0.5 % of a CPU.
	attemptsEvery = 5 * time.Second
	ejectEvery    = time.Second
	attemptsRest  = 200
	// unansweredFor is the time without a SYN-ACK after which an endpoint is suspected. It is slightly less than the time after which a client
	// repeats its SYN.
	unansweredFor = 900 * time.Millisecond
	// crowded is the number of conntrack entries above which events of refused connections are read only for the duration sample between two scans.
	// At 2,000 new connections a second the table exceeds it, since entries last for two minutes after the connection ends.
	crowded = 240_000
	sample  = time.Second
)

// Found is the Service port and the endpoint that a connection belongs to.
type Found struct {
	Service, Key string // "namespace/name" of the Service; the key of the port is that plus "/port"
	// Endpoint is the endpoint of the connection. For a port range only the address is set.
	Endpoint netip.AddrPort
	// Apart is set if the endpoints of the port are not probed, because the port is relayed or is a port range.
	Apart bool
}

// Suspicion probes endpoints to which connections of clients failed. The Services of an endpoint are planned again when it turns out to be dead, or
// accepts connections again.
type Suspicion struct {
	reconcile.NopPart
	// History records since when endpoints are dead, across restarts. If nil, only the time since this process found out is available.
	History *history.Book

	log      *slog.Logger
	book     *suspect.Book
	prober   Prober
	attempts *conntrack.Attempts
	Lookup
	always bool // look for failed connections even if no Service has eject set
	asked  bool // askAgain has probed the endpoints that were dead in the previous process; accessed only by the loop
	kick   chan struct{}
	start  chan struct{}

	mu       sync.Mutex
	ejecting map[string]map[netip.AddrPort]bool // endpoints that are ejected, by Service that has eject set
	pending  bool                               // an endpoint was ejected since the last scan was requested
	reading  struct {
		events *conntrack.Events
		err    error // why there are none
	}
}

// Lookup holds the functions by which Suspicion finds Services and their health checks.
type Lookup struct {
	// Find returns the Service port and endpoint of a connection. It returns false if the connection belongs to no Service.
	Find func(*conntrack.Connection) (Found, bool)
	// Served returns the ports of all Services by Service key, and the nft.Box for which the ports were planned.
	Served func() (map[string][]nft.ServicePort, nft.Box)
	// Hasten requests an immediate health check of an endpoint of a Service. It returns false if the endpoint has no health check.
	Hasten func(service string, endpoint netip.AddrPort) bool
}

// NewSuspicion returns a Suspicion that probes with p. It looks for failed connections all the time if always is set, and otherwise only while a
// Service has eject set.
func NewSuspicion(p Prober, always bool, lookup Lookup, log *slog.Logger) *Suspicion {
	return &Suspicion{
		log: log, book: suspect.NewBook(), prober: p, attempts: conntrack.NewAttempts(conntrack.Options{Log: log}), Lookup: lookup,
		always: always, kick: make(chan struct{}, 1), start: make(chan struct{}, 1), ejecting: map[string]map[netip.AddrPort]bool{},
	}
}

// Book returns the record of dead endpoints and failed connections.
func (s *Suspicion) Book() *suspect.Book { return s.book }

// Meet implements reconcile.Answerer.
func (s *Suspicion) Meet(_ string, _ *resolve.Demand, o *resolve.Observed) { o.Dead = s.book.Dead() }

// Name implements reconcile.Part.
func (s *Suspicion) Name() string { return "suspicion" }

// Run implements reconcile.Part.
func (s *Suspicion) Run(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { s.prober.Run(ctx, s.flipped) })
	all.Go(func() { s.look(ctx) })
	for ctx.Err() == nil {
		if s.wanted() {
			s.fail(s.listen(ctx))
		}
		var retry <-chan time.Time
		if s.wanted() {
			retry = time.After(listenRetry)
		}
		select {
		case <-ctx.Done():
		case <-s.start:
		case <-retry:
		}
	}
	all.Wait()
	return nil
}

// wanted reports whether to look for failed connections: if always is set, or a Service has eject set.
func (s *Suspicion) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.always || len(s.ejecting) > 0
}

// fail records the error because of which events of failed connections cannot be read; nil if reading ended without an error.
func (s *Suspicion) fail(err error) {
	s.mu.Lock()
	news := fmt.Sprint(err) != fmt.Sprint(s.reading.err)
	s.reading.events, s.reading.err = nil, err
	s.mu.Unlock()
	if news {
		s.Changed()
	}
}

// listen reads events of failed connections until ctx is done, or wanted returns false.
func (s *Suspicion) listen(ctx context.Context) error {
	return readEnds(ctx, conntrack.ListenFailed, hearInterval, func(events *conntrack.Events) error {
		s.mu.Lock()
		s.reading.events, s.reading.err = events, nil
		s.mu.Unlock()
		if !s.wanted() {
			return os.ErrClosed
		}
		return nil
	}, func(events *conntrack.Events) error {
		_, err := events.Read(time.Now(), s.recordEnd)
		return err
	})
}

// recordEnd records a connection that failed, and suspects its endpoint. It ignores other events.
func (s *Suspicion) recordEnd(e *conntrack.Event) {
	if e.Failure() == conntrack.NoFailure {
		return
	}
	found, ok := s.Find(e.Connection)
	if !ok {
		return // translated by another program
	}
	s.book.Failed(suspect.Place{Port: found.Key, Endpoint: found.Endpoint})
	s.suspect(found, e.Endpoint)
}

// suspect starts to probe an endpoint: by its health check, or by health.ProofCheck if it has none. It does nothing if found.Apart is set.
func (s *Suspicion) suspect(found Found, endpoint netip.AddrPort) {
	if found.Apart || !s.book.Suspect(endpoint, time.Now()) || s.Hasten(found.Service, endpoint) {
		return
	}
	s.prove(endpoint, health.New)
}

// prove starts to probe an endpoint by health.ProofCheck, which shows whether the endpoint accepts connections. start is its state until the first
// result.
func (s *Suspicion) prove(endpoint netip.AddrPort, start health.State) {
	s.prober.Set(endpoint.String(), []prober.Request{{Target: proofOf(endpoint), Start: start, Past: pastOf(s.History, deadKey(endpoint))}})
}

// leave stops probing an endpoint by health.ProofCheck, and records in the history that the endpoint is not dead.
func (s *Suspicion) leave(endpoint netip.AddrPort) {
	s.prober.Set(endpoint.String(), nil)
	s.History.Note(deadKey(endpoint), "", "", time.Now())
}

func proofOf(endpoint netip.AddrPort) health.Target {
	return health.Target{Addr: endpoint, Check: health.ProofCheck}
}

// flipped applies changed results of health.ProofCheck: it marks endpoints as dead, or no longer suspects them.
func (s *Suspicion) flipped() {
	for _, name := range s.prober.Flipped() {
		endpoint, err := netip.ParseAddrPort(name)
		verdict, known := s.prober.Verdict(proofOf(endpoint))
		if err != nil || !known || !verdict.Asked {
			continue
		}
		switch verdict.State {
		case health.Up:
			s.leave(endpoint)
			if services := s.book.Raise(endpoint); len(services) > 0 {
				s.log.Info("endpoint accepts connections again", "endpoint", name, "services", len(services))
				s.Changed(resolve.Plans(services...)...)
			}
		case health.Down:
			dead := health.DeadOf(verdict)
			services := s.book.Bury(endpoint, dead, s.usersOf(endpoint))
			if len(services) == 0 {
				s.leave(endpoint)
				continue
			}
			s.History.Note(deadKey(endpoint), stateDead, dead.Why, dead.Since, services...)
			s.log.Warn("endpoint accepts no connections", "endpoint", name, "why", dead.Why, "svc", services[0], "services", len(services))
			s.Changed(resolve.Plans(services...)...)
		}
	}
}

// usersOf returns the keys of the Services that have the endpoint on a TCP port, sorted.
func (s *Suspicion) usersOf(endpoint netip.AddrPort) (keys []string) {
	all, _ := s.Served()
	for key, ports := range all {
		if slices.ContainsFunc(ports, func(p nft.ServicePort) bool {
			return p.Protocol == nft.TCP && slices.ContainsFunc(p.Pools[:], func(pool []netip.AddrPort) bool { return slices.Contains(pool, endpoint) })
		}) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// look repeatedly scans the conntrack table for unanswered connections until ctx is done. It pauses while wanted returns false.
func (s *Suspicion) look(ctx context.Context) {
	defer func() { _ = s.attempts.Close() }()
	task.Repeat(ctx, s.kick, func() (next time.Time) {
		if !s.wanted() {
			_ = s.attempts.Close()
			return next
		}
		began, measure := time.Now(), conntrack.Cost()
		entries, found, err := s.attempts.Look(began, s.waits)
		if err != nil {
			s.log.Debug("unanswered connections are not seen", "err", err)
		}
		cost := measure()
		for _, endpoint := range s.book.Undecided(began) {
			if _, dead := s.book.Dead()[endpoint]; !dead {
				s.prober.Set(endpoint.String(), nil)
			}
		}
		s.mu.Lock()
		eject := len(s.ejecting) > 0
		s.mu.Unlock()
		pause := max(attemptsEvery, attemptsRest*cost)
		switch {
		case eject:
			pause = max(ejectEvery, conntrack.RestFor*cost)
		case found > 0:
			pause = max(ejectEvery, attemptsRest*cost)
		}
		s.ration(ctx, entries > crowded && !eject)
		return time.Now().Add(pause)
	})
}

// ration limits the reading of events of refused connections, since the kernel prepares a message for each. If many is set, it reads events for the
// duration sample and then pauses reading until the next scan.
func (s *Suspicion) ration(ctx context.Context, many bool) {
	s.mu.Lock()
	events := s.reading.events
	s.mu.Unlock()
	if events == nil {
		return
	}
	if err := events.Pause(false); err != nil {
		s.log.Debug("refused connections are not seen", "err", err)
	}
	if !many {
		return
	}
	if task.Sleep(ctx, sample) {
		_ = events.Pause(true)
	}
}

// waits handles a connection whose SYN has been unanswered for the duration waited. It suspects the endpoint after unansweredFor. It returns true if
// the endpoint is ejected: the caller then deletes the conntrack entry, so that the client's next SYN goes to another endpoint.
func (s *Suspicion) waits(c *conntrack.Connection, waited time.Duration) (forget bool) {
	found, ok := s.Find(c)
	if !ok || found.Apart {
		return false
	}
	s.mu.Lock()
	out := s.ejecting[found.Service][c.Endpoint]
	s.mu.Unlock()
	if !out && waited >= unansweredFor {
		s.suspect(found, c.Endpoint)
	}
	return out
}

// Planned implements reconcile.Part.
func (s *Suspicion) Planned(_ *reconcile.Host, services []reconcile.Service) {
	before := s.wanted()
	s.askAgain()
	for i := range services {
		svc := &services[i]
		dead := make([]netip.AddrPort, 0, len(svc.Dead))
		out := map[netip.AddrPort]bool{}
		for _, d := range svc.Dead {
			dead = append(dead, d.Endpoint)
			if _, known := s.book.Dead()[d.Endpoint]; d.Assumed && !known {
				users := append(s.usersOf(d.Endpoint), svc.Key)
				s.book.Bury(d.Endpoint, deadBefore(s.History, d.Endpoint), users)
				s.prove(d.Endpoint, health.Down)
				s.Changed(resolve.Plans(users...)...)
			}
			if svc.Eject && !slices.ContainsFunc(svc.Ports, func(p nft.ServicePort) bool { return slices.Contains(p.Pools[nft.PoolCluster], d.Endpoint) }) {
				out[d.Endpoint] = true
			}
		}
		for _, endpoint := range s.book.Use(svc.Key, dead) {
			s.leave(endpoint)
		}
		s.mu.Lock()
		was := s.ejecting[svc.Key]
		if delete(s.ejecting, svc.Key); svc.Eject {
			s.ejecting[svc.Key] = out
		}
		for endpoint := range out {
			s.pending = s.pending || !was[endpoint]
		}
		s.mu.Unlock()
	}
	switch after := s.wanted(); {
	case after && !before:
		task.Wake(s.start)
		task.Wake(s.kick)
	case before && !after:
		s.mu.Lock()
		if s.reading.events != nil {
			_ = s.reading.events.Close()
		}
		s.mu.Unlock()
	}
}

// askAgain probes the endpoints that were dead when the previous process ended, if Services still have them. Without connections of clients nothing
// else would show whether they are still dead. Only the first call does this, and only if s.always is set.
func (s *Suspicion) askAgain() {
	if s.asked || !s.always {
		return
	}
	s.asked = true
	dead := map[netip.AddrPort]bool{}
	for _, t := range s.History.Before(history.KindEndpoint) {
		if endpoint, err := netip.ParseAddrPort(t.What); err == nil && t.State == stateDead {
			dead[endpoint] = true
		}
	}
	if len(dead) == 0 {
		return
	}
	all, _ := s.Served()
	for _, ports := range all {
		for i := range ports {
			for _, endpoint := range slices.Concat(ports[i].Pools[:]...) {
				if dead[endpoint] && ports[i].Protocol == nft.TCP {
					delete(dead, endpoint)
					s.prove(endpoint, health.New)
				}
			}
		}
	}
}

// Stepped implements reconcile.Part. Once the kernel no longer uses an ejected endpoint, it requests a scan for unanswered connections to that
// endpoint.
func (s *Suspicion) Stepped(step reconcile.Step) {
	s.mu.Lock()
	look := step.Applied && s.pending
	s.pending = s.pending && !look
	s.mu.Unlock()
	if look {
		task.Wake(s.kick)
	}
}

// Problems implements reconcile.Part.
func (s *Suspicion) Problems() []resolve.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading.err == nil || len(s.ejecting) == 0 {
		return nil
	}
	return []resolve.Problem{{Reason: "EjectBlind", Warning: true,
		Message: fmt.Sprintf("endpoints that refuse connections are not taken out by svcctl.io/eject: %v; it is tried again every %s", s.reading.err, listenRetry)}}
}
