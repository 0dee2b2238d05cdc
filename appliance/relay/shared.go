package relay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
)

// shared is what all ports of a Relay use. It has more than 15 fields: limits, counts, buffers and what is handed over
// to a new process belong to all of them together.
type shared struct {
	log              *slog.Logger
	limits           limits
	quotas           *quotas
	overload         *overload
	datagrams        *datagrams
	pump             *pump
	open             *openCounts
	lately           lately
	http             *httpproxy.Proxy
	store            *handover.Store
	leaving          leaving
	draining         draining
	failedConnects   atomic.Int64
	failedHandshakes atomic.Int64 // with clients and with endpoints
	tasks            sync.WaitGroup
	// ctx ends after that of Run, by the same cause: connections of the program before go on before Run.
	ctx context.Context
	end context.CancelCauseFunc
}

func newShared(log *slog.Logger, l limits) *shared {
	ctx, end := context.WithCancelCause(context.Background())
	return &shared{
		log: log, limits: l, quotas: newQuotas(&l), overload: newOverload(log, l.logInterval),
		datagrams: newDatagrams(), pump: newPump(l.pipes), open: newOpenCounts(), http: httpproxy.New(log),
		store: handover.NewStore(), leaving: leaving{ports: map[*balancer]*leavingPort{}}, draining: newDraining(),
		ctx: ctx, end: end,
	}
}

func (s *shared) logOf(p Port) *slog.Logger {
	return s.log.With("svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol)
}

// forget has systemd keep a listener no longer.
func (s *shared) forget(key socketKey) {
	if err := s.store.Drop(key.name()); err != nil {
		s.log.Warn("systemd cannot be notified to close a stored socket", "name", key.name(), "err", err)
	}
}
