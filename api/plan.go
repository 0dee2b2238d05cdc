package api

import "net/http"

// plan answers POST /svcctl/v1/plan. The body is that of /svcctl/v1/apply, with removals=N after N lines of JSON with objects that
// are to go then (wire.PlanRemoval); or with directory=DIR lines of JSON with the files that are to be in a watched directory
// (wire.PlanFile).
func (s *Server) plan(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	plan, err := s.cfg.Plan(w, r)
	if err != nil {
		spare(w, r)
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, plan)
}
