package appliance

import (
	"context"
	"log/slog"
	"time"

	"svcctl.io/svcctl/nft/kernel"
)

// How long the monitor waits before it listens again: the wait doubles from the first to the last.
const (
	monitorRetryFirst = 500 * time.Millisecond
	monitorRetryLast  = 30 * time.Second
)

// monitor passes on the changes of nf_tables (kernel.Conn.Watch). When listening ends it begins
// again, and sends a Change that changes were lost.
type monitor struct {
	listen  func(context.Context) (<-chan kernel.Change, error)
	log     *slog.Logger
	current <-chan kernel.Change
	changes chan kernel.Change
}

// newMonitor listens until ctx is done; changes are passed on by Run.
func newMonitor(ctx context.Context, listen func(context.Context) (<-chan kernel.Change, error), log *slog.Logger) (*monitor, error) {
	current, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	return &monitor{listen: listen, log: log, current: current, changes: make(chan kernel.Change)}, nil
}

// Run passes on changes until ctx is done.
func (m *monitor) Run(ctx context.Context) error {
	wait := monitorRetryFirst
	var err error
	for {
		for c := range m.current {
			wait = monitorRetryFirst
			select {
			case m.changes <- c:
			case <-ctx.Done():
			}
		}
		for m.current = nil; m.current == nil; wait = min(2*wait, monitorRetryLast) {
			if ctx.Err() == nil {
				m.log.Warn("nf_tables is not watched any more; it is tried again", "err", err, "retry", wait)
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil
			}
			if m.current, err = m.listen(ctx); err != nil {
				m.current = nil
			}
		}
		select {
		case m.changes <- kernel.Change{Lost: true}:
		case <-ctx.Done():
		}
	}
}
