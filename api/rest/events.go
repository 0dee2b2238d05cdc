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
	// sweepMost bounds the Events that one commit removes, which other writes wait for.
	sweepMost = 1000
)

// countEvent counts an object of a kind that is to be created, if it is an Event, and sweeps before there are too many.
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

// seenAt returns the latest of the times in an Event, among them its creation time. It ignores other times that are in the future.
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
	// sweepEvery is the interval of removals of old Events, emptyEvery that of removing the objects
	// of namespaces that are deleted.
	sweepEvery = time.Minute
	emptyEvery = 10 * time.Second
)

// Run removes Events after an hour, or when there are too many, and objects left in namespaces
// whose removal was not finished, until the context ends.
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
