package healthport

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// answer is the body of an answer. Its fields and their order are kube-proxy's.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers on any path, for the Service that has the port at the time of the request.
func (s *Servers) handler(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "health-check node ports answer GET", http.StatusMethodNotAllowed)
			return
		}
		s.mu.RLock()
		svc, there := s.services[port]
		synced := s.synced
		s.mu.RUnlock()
		if !there { // Run is about to close the listener
			http.Error(w, "no Service has this health-check node port any more", http.StatusServiceUnavailable)
			return
		}
		svc.answer(w, synced)
	})
}

func (svc Service) answer(w http.ResponseWriter, synced bool) {
	a := answer{LocalEndpoints: svc.LocalEndpoints, ServiceProxyHealthy: synced}
	a.Service.Namespace, a.Service.Name = svc.Namespace, svc.Name
	body, err := json.Marshal(a)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	// Weighted load balancers distribute connections by it.
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(svc.LocalEndpoints))
	if svc.LocalEndpoints <= 0 || !synced {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body) // the client may be gone
}
