package api

import (
	"context"
	"net/http"

	"svcctl.io/svcctl/api/wire"
)

// Fleet is the fleet that the box belongs to. All methods may be called concurrently.
type Fleet interface {
	// State does not wait; Boxes asks etcd.
	State() wire.Fleet
	Boxes(ctx context.Context) ([]wire.FleetBox, error)
	// Accept takes what etcd has, although it went back.
	Accept(ctx context.Context) error
	// Sources asks etcd for the readers of the sources; TakeSource makes a box the reader of a
	// source.
	Sources(ctx context.Context) ([]wire.FleetSource, error)
	TakeSource(ctx context.Context, name, box string) (before wire.FleetSource, err error)
	// ForgetSource drops a source that no box has any more: its objects, which it counts, are the API's from then on.
	ForgetSource(ctx context.Context, name string) (before wire.FleetSource, objects int, err error)
}

func (s *Server) fleet(r *http.Request, _ wire.None) (wire.Fleet, error) {
	state := s.cfg.Fleet.State()
	boxes, err := s.cfg.Fleet.Boxes(r.Context())
	if err != nil {
		return state, unavailable("the boxes of the fleet are not known", err)
	}
	state.Boxes = boxes
	return state, nil
}

func (s *Server) sources(r *http.Request, _ wire.None) ([]wire.FleetSource, error) {
	list, err := s.cfg.Fleet.Sources(r.Context())
	if err != nil {
		return nil, unavailable("the readers of the fleet's sources are not known", err)
	}
	return list, nil
}

func (s *Server) takeSource(r *http.Request, q wire.SourceQuery) (before wire.FleetSource, err error) {
	if q.Name == "" || q.Box == "" {
		return before, badRequest("the request names no source, or no box: ask with ?name=SOURCE&box=BOX")
	}
	if before, err = s.cfg.Fleet.TakeSource(r.Context(), q.Name, q.Box); err != nil {
		return before, conflict("nothing is changed", err)
	}
	s.log.Warn("a source is given to a box", "source", q.Name, "box", q.Box, "before", before.Reader, "user", userOf(r))
	return before, nil
}

func (s *Server) forgetSource(r *http.Request, q wire.SourceQuery) (gone wire.ForgottenSource, err error) {
	if q.Name == "" {
		return gone, badRequest("the request names no source: ask with ?name=SOURCE")
	}
	if gone.FleetSource, gone.Objects, err = s.cfg.Fleet.ForgetSource(r.Context(), q.Name); err != nil {
		return gone, conflict("nothing is changed", err)
	}
	s.log.Warn("a source is forgotten", "source", q.Name, "reader", gone.Reader, "objects", gone.Objects, "user", userOf(r))
	return gone, nil
}

func (s *Server) acceptFleet(r *http.Request, _ wire.None) (wire.Fleet, error) {
	before := s.cfg.Fleet.State()
	if err := s.cfg.Fleet.Accept(r.Context()); err != nil {
		return before, conflict("nothing is accepted", err)
	}
	s.log.Warn("what etcd has is accepted", "fleet", before.Name, "was", before.State, "revision", before.Revision, "user", userOf(r))
	return s.cfg.Fleet.State(), nil
}
