package rest

import (
	"context"
	"slices"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

const (
	// eventLife is the time for which an Event is kept after it was last seen (--event-ttl of
	// kube-apiserver).
	eventLife = time.Hour
	// maxEvents bounds the Events that are kept, the newest ones. Between two sweeps there may be
	// eventSlack more.
	maxEvents  = 5000
	eventSlack = 500
	// sweepMost bounds the Events that one commit removes, because other writes wait for the commit.
	sweepMost = 1000
)

// countEvent counts the creation of an Event. After eventSlack of them it removes old Events. It ignores other kinds.
func (s *Server) countEvent(kind string, dryRun bool) error {
	if kind != object.KindEvent || dryRun || s.guards.events.Add(1) < eventSlack {
		return nil
	}
	return s.sweepEvents()
}

// sweepEvents removes Events that are too old or too many.
func (s *Server) sweepEvents() error {
	s.guards.events.Store(0)
	objects, _, err := s.store.List(object.KindEvent, "", 0)
	if err != nil {
		return err
	}
	now := s.now()
	objects = slices.Clone(objects) // the list is the store's
	slices.SortStableFunc(objects, func(a, b object.Object) int { return seenAt(a, now).Compare(seenAt(b, now)) })
	var writes []store.Write
	for i, o := range objects {
		if len(objects)-i <= maxEvents && now.Sub(seenAt(o, now)) <= eventLife {
			break
		}
		writes = append(writes, store.Write{
			Ref: object.RefOf(o), Delete: true, Version: o.GetMeta().ResourceVersion, By: store.Caller{Verb: "delete"},
		})
	}
	for chunk := range slices.Chunk(writes, sweepMost) {
		// One that was seen again meanwhile, or belongs to a controller, stays.
		if _, err := s.commit(chunk...); err != nil {
			return err
		}
	}
	return nil
}

// seenAt returns the latest time in an Event, including its creation time. Times in the future are ignored.
func seenAt(o object.Object, now time.Time) time.Time {
	e, ok := o.(*object.Event)
	if !ok {
		return now
	}
	seen := createdAt(o, now)
	later := func(t *time.Time) {
		if t != nil && t.After(seen) && !t.After(now) {
			seen = *t
		}
	}
	later(e.FirstTimestamp)
	later(e.LastTimestamp)
	if e.EventTime != nil {
		later(&e.EventTime.Time)
	}
	if e.Series != nil && e.Series.LastObservedTime != nil {
		later(&e.Series.LastObservedTime.Time)
	}
	return seen
}

const (
	// sweepEvery is the interval at which old Events are removed. emptyEvery is the interval at which objects in deleted namespaces are removed.
	sweepEvery = time.Minute
	emptyEvery = 10 * time.Second
)

// Run periodically removes Events that are too old or too many, and objects in namespaces that were not completely removed, until ctx is done.
func (s *Server) Run(ctx context.Context) {
	sweep, empty := time.NewTicker(sweepEvery), time.NewTicker(emptyEvery)
	defer sweep.Stop()
	defer empty.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			err = s.sweepEvents()
		case <-empty.C:
			err = s.emptyNamespaces()
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("could not tidy up; will try again", "err", err)
		}
	}
}
