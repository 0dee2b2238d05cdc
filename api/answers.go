package api

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// defaultNamespace is the namespace of requests that name none.
const defaultNamespace = "default"

// namespacePattern is an RFC 1123 label, which namespaces are.
var namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// probeLimit bounds the connections of one request.
const probeLimit = 5 * time.Second

func (s *Server) status(*http.Request, wire.None) (wire.Status, error) {
	return s.backend.Status(), nil
}

func (s *Server) release(r *http.Request, _ wire.None) (wire.Released, error) {
	released, err := s.backend.Release(r.Context())
	if err != nil {
		return released, unavailable("nothing is released", err)
	}
	s.log.Info("release was asked for", "services", released.Services, "frontends", released.Frontends, "user", userOf(r))
	return released, nil
}

func (s *Server) environment(_ *http.Request, q wire.EnvironmentQuery) (e wire.Environment, err error) {
	if !namespacePattern.MatchString(q.Namespace) {
		return e, badRequest("namespace=%q: want lower case letters, digits and '-', at most 63", q.Namespace)
	}
	e = wire.Environment{Namespace: q.Namespace, Variables: s.cfg.Environment(q.Namespace)}
	if e.Variables == nil {
		e.Variables = []wire.Variable{}
	}
	return e, nil
}

func (s *Server) allocations(*http.Request, wire.None) (wire.Allocations, error) {
	return s.cfg.Allocations(false), nil
}

func (s *Server) repair(*http.Request, wire.None) (wire.Allocations, error) {
	return s.cfg.Allocations(true), nil
}

func (s *Server) setup(*http.Request, wire.None) (wire.Setup, error) { return s.cfg.Setup(), nil }

func (s *Server) health(_ *http.Request, q wire.ObjectQuery) (wire.Health, error) {
	if q.Name != "" {
		q.Namespace = cmp.Or(q.Namespace, defaultNamespace)
	}
	return wire.Health{Endpoints: s.cfg.Health(q.Namespace, q.Name)}, nil
}

func (s *Server) probe(r *http.Request, q wire.ObjectQuery) (p wire.Probes, err error) {
	if q.Name == "" {
		return p, badRequest("name: give the Service whose endpoints are to be asked")
	}
	q.Namespace = cmp.Or(q.Namespace, defaultNamespace)
	ctx, cancel := context.WithTimeout(r.Context(), probeLimit)
	defer cancel()
	if p.Endpoints, err = s.cfg.Probe(ctx, q.Namespace, q.Name); err == nil {
		s.log.Info("endpoints were asked", "svc", q.Namespace+"/"+q.Name, "endpoints", len(p.Endpoints), "user", userOf(r))
	}
	return p, err
}

func (s *Server) service(_ *http.Request, q wire.ServiceQuery) (state wire.ServiceState, err error) {
	if q.Name == "" {
		return state, badRequest("name is missing: give that of the Service")
	}
	client, err := parseClient(q.Client)
	if err != nil {
		return state, err
	}
	return s.cfg.Service(q.Namespace, q.Name, client), nil
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
		return client, badRequest("client: %q is neither ADDRESS nor ADDRESS:PORT", text)
	}
	return netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), nil
}
