package api

import (
	"fmt"
	"net/http"
	"net/netip"

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
	client, err := parseClient(query.Get("client"))
	if err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, s.cfg.Service(namespace, name, client))
}

// parseClient reads ADDRESS or ADDRESS:PORT.
func parseClient(text string) (client netip.AddrPort, err error) {
	if text == "" {
		return client, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	if client, err = netip.ParseAddrPort(text); err != nil {
		return client, fmt.Errorf("client: %q is neither ADDRESS nor ADDRESS:PORT", text)
	}
	return netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), nil
}

// setup answers /svcctl/v1/setup: where the appliance has what is its own.
func (s *Server) setup(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.cfg.Setup())
}
