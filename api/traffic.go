package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/auth"
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

const (
	defaultTraffic     = 100
	maxTraffic         = 10_000
	defaultConnections = 1000
	mostConnections    = 100_000
)

// limitOf reads the query's limit.
func limitOf(r *http.Request, def, most int) (int, error) {
	n, err := wire.ParseBounded(r.URL.Query().Get("limit"), def, most)
	if err != nil {
		return 0, fmt.Errorf("limit=%w", err)
	}
	return n, nil
}

// traffic answers /svcctl/v1/traffic.
func (s *Server) traffic(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := wire.TrafficQuery{
		Namespace: values.Get("namespace"), Service: values.Get("name"), Filter: values.Get("filter"), Sort: values.Get("sort"),
		Endpoints: values.Get("endpoints") == "true", History: values.Get("history") == "true",
		Clients: values.Get("clients") == "true",
	}
	if q.Sort == "" {
		q.Sort = "open"
	}
	if !slices.Contains(wire.TrafficSorts(), q.Sort) {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("sort=%q: want %s", q.Sort, strings.Join(wire.TrafficSorts(), ", ")))
		return
	}
	if q.Clients && (q.Namespace == "" || q.Service == "") {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, "clients=true: they are those of one Service: give namespace and name")
		return
	}
	if len(q.Filter) > wire.MaxTrafficFilter {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("filter: it is %d bytes long, %d is the most", len(q.Filter), wire.MaxTrafficFilter))
		return
	}
	var err error
	if q.Limit, err = limitOf(r, defaultTraffic, maxTraffic); err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
		return
	}
	answer, err := s.cfg.Traffic.Traffic(q)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// conns answers /svcctl/v1/conns.
func (s *Server) conns(w http.ResponseWriter, r *http.Request) {
	q, err := connectionQuery(r)
	if err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
		return
	}
	answer, err := s.cfg.Traffic.Connections(q)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func connectionQuery(r *http.Request) (q wire.ConnectionQuery, err error) {
	values := r.URL.Query()
	q.Namespace, q.Service = values.Get("namespace"), values.Get("name")
	if q.Limit, err = limitOf(r, defaultConnections, mostConnections); err != nil {
		return q, err
	}
	if text := values.Get("endpoint"); text != "" {
		if q.Endpoint, err = netip.ParseAddrPort(text); err != nil {
			if q.EndpointAddr, err = netip.ParseAddr(text); err != nil {
				return q, fmt.Errorf("endpoint=%q: want an address, or an address and port as 10.1.2.11:8080", text)
			}
		}
	}
	if text := values.Get("client"); text != "" {
		if q.Client, err = wire.ParseClients(text); err != nil {
			return q, fmt.Errorf("client=%w", err)
		}
	}
	return q, nil
}

// kill answers POST /svcctl/v1/conns/kill.
func (s *Server) kill(w http.ResponseWriter, r *http.Request) {
	if !onlyPost(w, r) {
		return
	}
	text := r.URL.Query().Get("id")
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("id=%q: want the number that `svcctl conns` shows", text))
		return
	}
	killed, err := s.cfg.Traffic.Kill(uint32(id))
	switch {
	case err != nil:
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
	case killed == nil:
		fail(w, http.StatusNotFound, wire.ReasonNotFound, fmt.Sprintf("no Service has a connection %d: it ended, or never was", id))
	default:
		s.log.Info("a connection was ended", "svc", killed.Namespace+"/"+killed.Service, "client", killed.Client,
			"endpoint", killed.Endpoint, "user", auth.From(r.Context()).Name)
		writeJSON(w, http.StatusOK, killed)
	}
}
