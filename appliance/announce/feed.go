package announce

import (
	"context"
	"log/slog"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// How long the feed waits before it connects again.
const (
	reconnectFirst = 50 * time.Millisecond
	reconnectLast  = time.Second
)

// feed connects to serve again and again, and passes on what it says. A nil event means that the connection ended.
type feed struct {
	client *client.Client
	log    *slog.Logger
	events chan *wire.AnnouncementsEvent
}

func (f *feed) run(ctx context.Context) error {
	wait, connected, warned := reconnectFirst, false, false
	for ctx.Err() == nil {
		err := f.client.WatchAnnouncements(ctx, func(e wire.AnnouncementsEvent) error {
			if !connected {
				connected, warned, wait = true, false, reconnectFirst
				f.log.Info("connected to svcctl serve", "socket", f.client.Place())
			}
			return f.give(ctx, &e)
		})
		if ctx.Err() != nil {
			break
		}
		if connected || !warned {
			f.log.Warn("svcctl serve does not answer: the addresses that it sent last stay announced", "err", err)
			warned = true
		}
		if connected {
			connected = false
			_ = f.give(ctx, nil)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, reconnectLast)
	}
	return nil
}

func (f *feed) give(ctx context.Context, e *wire.AnnouncementsEvent) error {
	select {
	case f.events <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stale is the absence of serve after which another box should take over.
const stale = 30 * time.Second

// absence is the time without serve.
type absence struct {
	since time.Time        // zero: serve is there, or was not yet
	late  <-chan time.Time // when it is too long
}

// begin starts an absence.
func (s *absence) begin() { *s = absence{time.Now(), time.After(stale)} }

// isStale reports whether another box should take over for it.
func (s *absence) isStale() bool { return !s.since.IsZero() && time.Since(s.since) >= stale }
