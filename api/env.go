package api

import (
	"fmt"
	"net/http"
	"regexp"

	"svcctl.io/svcctl/api/wire"
)

// defaultNamespace is the namespace of who names none.
const defaultNamespace = "default"

// namespacePattern is an RFC 1123 label, which namespaces are.
var namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// environment answers /svcctl/v1/env.
func (s *Server) environment(w http.ResponseWriter, r *http.Request) {
	namespace := r.URL.Query().Get("namespace")
	if namespace == "" {
		namespace = defaultNamespace
	}
	if !namespacePattern.MatchString(namespace) {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest,
			fmt.Sprintf("namespace=%q: want lower case letters, digits and '-', at most 63", namespace))
		return
	}
	variables := s.cfg.Environment(namespace)
	if variables == nil {
		variables = []wire.Variable{}
	}
	writeJSON(w, http.StatusOK, wire.Environment{Namespace: namespace, Variables: variables})
}
