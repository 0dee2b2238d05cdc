package api

import (
	"context"
	"net/http"

	"svcctl.io/svcctl/api/auth"
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

// fleet answers GET /svcctl/v1/fleet.
func (s *Server) fleet(w http.ResponseWriter, r *http.Request) {
	state := s.cfg.Fleet.State()
	boxes, err := s.cfg.Fleet.Boxes(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "the boxes of the fleet are not known: "+err.Error())
		return
	}
	state.Boxes = boxes
	writeJSON(w, http.StatusOK, state)
}

// sources answers GET /svcctl/v1/fleet/sources.
func (s *Server) sources(w http.ResponseWriter, r *http.Request) {
	list, err := s.cfg.Fleet.Sources(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "the readers of the fleet's sources are not known: "+err.Error())
		return
	}
	writeJSON(w, http.StatusOK, list)
}

// takeSource answers POST /svcctl/v1/fleet/source?name=SOURCE&box=BOX with the source as it was.
func (s *Server) takeSource(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	name, box := r.URL.Query().Get("name"), r.URL.Query().Get("box")
	if name == "" || box == "" {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "the request names no source, or no box: ask with ?name=SOURCE&box=BOX")
		return
	}
	before, err := s.cfg.Fleet.TakeSource(r.Context(), name, box)
	if err != nil {
		fail(w, http.StatusConflict, wire.ReasonConflict, "nothing is changed: "+err.Error())
		return
	}
	s.log.Warn("a source is given to a box", "source", name, "box", box, "before", before.Reader, "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, before)
}

// forgetSource answers POST /svcctl/v1/fleet/source/forget?name=SOURCE with what became of it.
func (s *Server) forgetSource(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	name := r.URL.Query().Get("name")
	if name == "" {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "the request names no source: ask with ?name=SOURCE")
		return
	}
	before, objects, err := s.cfg.Fleet.ForgetSource(r.Context(), name)
	if err != nil {
		fail(w, http.StatusConflict, wire.ReasonConflict, "nothing is changed: "+err.Error())
		return
	}
	s.log.Warn("a source is forgotten", "source", name, "reader", before.Reader, "objects", objects, "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, wire.ForgottenSource{FleetSource: before, Objects: objects})
}

// acceptFleet answers POST /svcctl/v1/fleet/accept.
func (s *Server) acceptFleet(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	before := s.cfg.Fleet.State()
	if err := s.cfg.Fleet.Accept(r.Context()); err != nil {
		fail(w, http.StatusConflict, wire.ReasonConflict, "nothing is accepted: "+err.Error())
		return
	}
	s.log.Warn("what etcd has is accepted", "fleet", before.Name, "was", before.State, "revision", before.Revision, "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, s.cfg.Fleet.State())
}
