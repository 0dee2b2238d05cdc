package api

import (
	"net/http"

	"svcctl.io/svcctl/api/wire"
)

// service answers /svcctl/v1/service: what the appliance makes of one Service.
func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	namespace, name := query.Get("namespace"), query.Get("name")
	if namespace == "" {
		namespace = defaultNamespace
	}
	if name == "" {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "name is missing: say which Service is meant")
		return
	}
	writeJSON(w, http.StatusOK, s.cfg.Service(namespace, name))
}

// setup answers /svcctl/v1/setup: where the appliance has what is its own.
func (s *Server) setup(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.cfg.Setup())
}
