package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// Traffic answers queries about connections through Services. Its methods may be called
// concurrently.
type Traffic interface {
	Traffic(wire.TrafficQuery) (*wire.Traffic, error)
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	// Kill ends a connection. It returns nil when there is none of that ID.
	Kill(id uint32) (*wire.Connection, error)
}

func (s *Server) traffic(_ *http.Request, q wire.TrafficQuery) (t wire.Traffic, err error) {
	switch {
	case !slices.Contains(wire.TrafficSorts(), q.Sort):
		return t, badRequest("sort=%q: want %s", q.Sort, strings.Join(wire.TrafficSorts(), ", "))
	case q.Clients && (q.Namespace == "" || q.Service == ""):
		return t, badRequest("clients=true: they are those of one Service: give namespace and name")
	case len(q.Filter) > wire.MaxTrafficFilter:
		return t, badRequest("filter: it is %d bytes long, %d is the most", len(q.Filter), wire.MaxTrafficFilter)
	}
	answer, err := s.cfg.Traffic.Traffic(q)
	if err != nil {
		return t, err
	}
	return *answer, nil
}

func (s *Server) connections(_ *http.Request, asked wire.ConnectionsQuery) (c wire.Connections, err error) {
	q := wire.ConnectionQuery{Namespace: asked.Namespace, Service: asked.Service, Limit: asked.Limit}
	if asked.Endpoint != "" {
		if q.Endpoint, err = netip.ParseAddrPort(asked.Endpoint); err != nil {
			if q.EndpointAddr, err = netip.ParseAddr(asked.Endpoint); err != nil {
				return c, badRequest("endpoint=%q: want an address, or an address and port as 10.1.2.11:8080", asked.Endpoint)
			}
		}
	}
	if asked.Client != "" {
		if q.Client, err = wire.ParseClients(asked.Client); err != nil {
			return c, badRequest("client=%v", err)
		}
	}
	answer, err := s.cfg.Traffic.Connections(q)
	if err != nil {
		return c, err
	}
	return *answer, nil
}

func (s *Server) kill(r *http.Request, q wire.KillQuery) (wire.Connection, error) {
	killed, err := s.cfg.Traffic.Kill(q.ID)
	switch {
	case err != nil:
		return wire.Connection{}, err
	case killed == nil:
		return wire.Connection{}, wire.NewFailure(http.StatusNotFound, wire.ReasonNotFound, fmt.Sprintf("no Service has a connection %d: it ended, or never was", q.ID))
	}
	s.log.Info("a connection was ended", "svc", killed.Namespace+"/"+killed.Service, "client", killed.Client, "endpoint", killed.Endpoint, "user", userOf(r))
	return *killed, nil
}
