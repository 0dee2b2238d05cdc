package api

import (
	"context"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/auth"
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

// probeLimit bounds the connections of one request.
const probeLimit = 5 * time.Second

// probe answers POST /svcctl/v1/probe: whether the endpoints of a Service accept connections of the box.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("name")
	if name == "" {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "name: give the Service whose endpoints are to be asked")
		return
	}
	if namespace == "" {
		namespace = defaultNamespace
	}
	ctx, cancel := context.WithTimeout(r.Context(), probeLimit)
	defer cancel()
	probed, err := s.cfg.Probe(ctx, namespace, name)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
		return
	}
	s.log.Info("endpoints were asked", "svc", namespace+"/"+name, "endpoints", len(probed), "user", auth.From(r.Context()).Name)
	writeJSON(w, http.StatusOK, wire.Probes{Endpoints: probed})
}
