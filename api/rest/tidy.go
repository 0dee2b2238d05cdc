package rest

import (
	"context"
	"time"
)

const (
	// sweepEvery is the interval of removals of old Events, emptyEvery that of removing the objects
	// of namespaces that are deleted.
	sweepEvery = time.Minute
	emptyEvery = 10 * time.Second
)

// Run removes what has had its time, until the context ends: Events after an hour, or when
// there are too many, and what is left in namespaces whose removal was not finished.
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
