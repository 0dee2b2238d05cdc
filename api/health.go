package api

import (
	"net/http"

	"svcctl.io/svcctl/api/wire"
)

// health answers /svcctl/v1/health: which endpoints are up.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	namespace, name := query.Get("namespace"), query.Get("name")
	if name != "" && namespace == "" {
		namespace = defaultNamespace
	}
	writeJSON(w, http.StatusOK, wire.Health{Endpoints: s.cfg.Health(namespace, name)})
}
