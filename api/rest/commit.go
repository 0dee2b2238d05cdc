package rest

import (
	"errors"
	"fmt"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// commitObjects bounds the objects of one commit.
const commitObjects = 1000

// commit makes changes, with what goes with them. When the engine fails, nothing has changed.
func (s *Server) commit(writes ...store.Write) ([]store.Written, error) {
	for i := range writes {
		if svc, isService := writes[i].Object.(*object.Service); isService && !writes[i].Status {
			s.look(svc)
		}
	}
	results, err := s.store.Write(writes...)
	switch {
	case errors.Is(err, engine.ErrNoSpace), errors.Is(err, engine.ErrUnsettled), isAway(err):
		return nil, err
	case err != nil:
		s.log.Error("write failed", "err", err)
		return nil, unavailable(fmt.Sprintf("the change could not be stored, and nothing was changed: %v", err), busyRetry)
	}
	s.removeDependents(writes, results)
	return results, nil
}
