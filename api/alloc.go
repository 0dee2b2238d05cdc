package api

import "net/http"

// alloc answers /svcctl/v1/alloc: the ranges, who holds what, and where that disagrees
// with the Services.
func (s *Server) alloc(w http.ResponseWriter, _ *http.Request) { s.allocations(w, false) }

// repair answers POST /svcctl/v1/alloc/repair: the same, with the disagreements put right.
func (s *Server) repair(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	s.allocations(w, true)
}

func (s *Server) allocations(w http.ResponseWriter, repair bool) {
	writeJSON(w, http.StatusOK, s.cfg.Allocations(repair))
}
