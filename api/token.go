package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// maxTokenRequest bounds the body of a TokenRequest, in bytes.
const maxTokenRequest = 4 << 10

// noTLS is the answer to requests that need a TLS listener when there is none.
const noTLS = "the API is not served over TLS: start `svcctl serve` with --listen, as 127.0.0.1:6443"

// token answers /svcctl/v1/token: POST gives a token, DELETE revokes all of them. Both are for
// clients on the unix socket: a token that leaked must not be good for another one.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if _, local := peerFrom(r.Context()); !local {
		spare(w, r)
		fail(w, http.StatusForbidden, wire.ReasonForbidden, "tokens are given over the unix socket only: run `svcctl admin token` on the appliance's box")
		return
	}
	if s.cfg.TLS == nil {
		spare(w, r)
		fail(w, http.StatusNotFound, wire.ReasonNotFound, noTLS)
		return
	}
	switch r.Method {
	case http.MethodPost:
		s.issue(w, r)
	case http.MethodDelete:
		needs(auth.Admin, http.HandlerFunc(s.revoke)).ServeHTTP(w, r)
	default:
		spare(w, r)
		w.Header().Set("Allow", "POST, DELETE")
		fail(w, http.StatusMethodNotAllowed, wire.ReasonMethodNotAllowed,
			fmt.Sprintf("%s is not allowed on %s: use POST, or DELETE to revoke", r.Method, r.URL.Path))
	}
}

func (s *Server) issue(w http.ResponseWriter, r *http.Request) {
	var ask wire.TokenRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTokenRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&ask); err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf("read what token is asked for: %v", err))
		return
	}
	by := auth.From(r.Context())
	role := by.Role
	if ask.Role != "" {
		var err error
		if role, err = auth.ParseRole(ask.Role); err != nil {
			fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
			return
		}
	}
	user, err := auth.Delegate(by, role, ask.Name)
	if err == nil {
		var text string
		var expires time.Time
		if text, expires, err = s.cfg.TLS.Tokens.Issue(user, cmp.Or(time.Duration(ask.Duration), auth.DefaultTokenLife)); err == nil {
			s.log.Debug("token", "for", user.Name, "role", user.Role.String(), "expires", expires)
			writeJSON(w, http.StatusOK, wire.Token{Token: text, User: user.Name, Role: user.Role.String(), Expires: expires})
			return
		}
	}
	switch {
	case errors.Is(err, auth.ErrRole):
		fail(w, http.StatusForbidden, wire.ReasonForbidden, err.Error())
		return
	case errors.Is(err, auth.ErrEnded):
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
		return
	}
	fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	spare(w, r)
	revoke := s.cfg.TLS.Revoke
	if revoke == nil {
		revoke = func(context.Context) (pending, err error) { return nil, s.cfg.TLS.Tokens.RevokeAll() }
	}
	pending, err := revoke(r.Context())
	if err != nil {
		s.log.Error("tokens are not revoked", "err", err)
		fail(w, http.StatusInternalServerError, wire.ReasonInternalError, "nothing is revoked: "+err.Error())
		return
	}
	done := wire.Revoked{Revoked: true}
	if pending != nil {
		done.Pending = pending.Error()
	}
	s.log.Info("all tokens are revoked", "user", auth.From(r.Context()).Name, "pending", done.Pending)
	writeJSON(w, http.StatusOK, done)
}

func (s *Server) endpoint(*http.Request, wire.None) (e wire.Endpoint, err error) {
	if s.cfg.TLS == nil {
		return e, wire.NotFound(noTLS)
	}
	e.Server = "https://" + reachable(s.cfg.TLS.Address)
	if s.cfg.TLS.CA != nil {
		e.CertificateAuthority = string(s.cfg.TLS.CA())
	}
	return e, nil
}

// reachable is the host and port by which clients on this box reach a listener: one on all
// addresses by a loopback one.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
