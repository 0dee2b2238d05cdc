package api

import (
	"fmt"
	"net/http"
	"os"

	"svcctl.io/svcctl/api/wire"
)

// release answers POST /svcctl/v1/release.
func (s *Server) release(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		fail(w, http.StatusMethodNotAllowed, wire.ReasonMethodNotAllowed,
			fmt.Sprintf("%s is not allowed on %s: use POST", r.Method, r.URL.Path))
		return
	}
	if !isOperator(r) {
		fail(w, http.StatusForbidden, wire.ReasonForbidden, "only root may let Services go that vanished from the manifests: run it as root")
		return
	}
	services, err := s.backend.Release(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "nothing is released: "+err.Error())
		return
	}
	s.log.Info("release was asked for", "services", services)
	writeJSON(w, http.StatusOK, wire.Released{Services: services})
}

// isOperator tells whether a request came by a unix socket from root or from the user
// that the appliance runs as.
func isOperator(r *http.Request) bool {
	peer, ok := PeerFrom(r.Context())
	return ok && (peer.UID == 0 || int(peer.UID) == os.Geteuid())
}
