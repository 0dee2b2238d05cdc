package rest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"svcctl.io/svcctl/store/object"
)

// reachTimeout bounds the wait of a read for a revision that is not here yet: it may be another
// box's.
const reachTimeout = 3 * time.Second

// fresh makes a read see what any box has written before it, if other boxes write to the store. Without a
// revision the newest one is asked for, and while that is not known, the read is answered from the local
// objects with a warning: except for a Lease, by which clients elect a leader. A revision is waited for
// for a moment; the caller says what becomes of one that does not come.
func (s *Server) fresh(w http.ResponseWriter, r *request, given string, revision uint64) error {
	if !s.store.IsShared() {
		return nil
	}
	if given != "" {
		s.reach(r.http.Context(), revision)
		return nil
	}
	err := s.store.Fresh(r.http.Context())
	switch {
	case err == nil || !isAway(err):
		return err
	case r.kind.Name == object.KindLease:
		return unavailable("the newest version is not known: "+err.Error(), busyRetry)
	}
	warnings{fmt.Sprintf("this is as of revision %d, and may be old: %v", s.store.Revision(), err)}.send(w)
	return nil
}

// reach waits until a revision is here, for a moment.
func (s *Server) reach(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	for {
		published := s.store.Published()
		if s.store.Revision() >= revision {
			return
		}
		select {
		case <-published:
		case <-ctx.Done():
			return
		}
	}
}
