package api

import (
	"net/http"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// release answers POST /svcctl/v1/release.
func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	released, err := s.backend.Release(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "nothing is released: "+err.Error())
		return
	}
	s.log.Info("release was asked for", "services", released.Services, "frontends", released.Frontends, "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, released)
}
