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
	"os"
	"strings"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

type peerKey struct{}

// peerFrom returns the peer of the unix socket that a request arrived on; false when it arrived
// over TCP.
func peerFrom(ctx context.Context) (auth.Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(auth.Peer)
	return p, ok
}

// withPeer is the http.Server's ConnContext hook.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if peer, ok := auth.PeerOf(conn); ok {
		return context.WithValue(ctx, peerKey{}, peer)
	}
	return ctx
}

// identify puts the user of each request into its context. A request with an invalid token gets 401, even if its path needs no token. A request for
// impersonation gets 403.
func (s *Server) identify(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asks, who := impersonates(r); asks {
			spare(w, r)
			fail(w, http.StatusForbidden, wire.ReasonForbidden, fmt.Sprintf("acting as %q is not supported here: leave out --as", who))
			return
		}
		if peer, ok := peerFrom(r.Context()); ok {
			h.ServeHTTP(w, r.WithContext(auth.With(r.Context(), s.local.User(peer))))
			return
		}
		token, err := bearerToken(r)
		if err != nil {
			unauthorized(w, r, err.Error())
			return
		}
		if token == "" && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && s.cfg.TLS != nil && s.cfg.TLS.Leaves != nil {
			s.withCertificate(w, r, h)
			return
		}
		if token == "" || s.cfg.TLS == nil {
			h.ServeHTTP(w, r.WithContext(auth.With(r.Context(), auth.User{Name: auth.Anonymous, Groups: []string{auth.GroupUnauthenticated}})))
			return
		}
		s.withToken(w, r, token, h)
	})
}

// errTokenEnded is the cause with which a watch or a wait ends when its token becomes invalid.
var errTokenEnded = errors.New("the token has expired")

// withToken serves a request with a bearer token. A long-running request, such as a watch, ends when the token expires or is revoked.
func (s *Server) withToken(w http.ResponseWriter, r *http.Request, token string, h http.Handler) {
	revoked := s.cfg.TLS.Tokens.Revoked()
	user, until, err := s.cfg.TLS.Tokens.Verify(token)
	if err != nil {
		unauthorized(w, r, err.Error())
		return
	}
	serveFor(user, w, r, h, func(ctx context.Context) error {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-revoked:
		case <-timer.C:
		case <-ctx.Done():
		}
		return errTokenEnded
	})
}

// serveFor serves a request for a user. For a long-running request, valid must block while the credentials are valid, and return the reason when they
// no longer are; that ends the request.
func serveFor(user auth.User, w http.ResponseWriter, r *http.Request, h http.Handler, valid func(context.Context) error) {
	ctx := auth.With(r.Context(), user)
	if isEndless(r) {
		ending, end := context.WithCancelCause(ctx)
		defer end(nil)
		go func() { end(valid(ending)) }()
		ctx = ending
	}
	h.ServeHTTP(w, r.WithContext(ctx))
}

// bearerToken returns the bearer token in the Authorization header of a request, or "" without that header. Another kind of authorization is an
// error.
func bearerToken(r *http.Request) (string, error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", fmt.Errorf("authorization by %q is not known here: show a bearer token, see `svcctl admin token`", scheme)
	}
	return token, nil
}

// impersonates reports whether a request asks for impersonation, and of which user. Such a request must not be served as the requesting user, since
// that user may have more permissions than the impersonated one.
func impersonates(r *http.Request) (asks bool, who string) {
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return true, r.Header.Get("Impersonate-User")
		}
	}
	return false, ""
}

// needs lets users of at least a role through to h.
func needs(role auth.Role, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user := auth.From(r.Context()); {
		case user.Role >= role:
			h.ServeHTTP(w, r)
		case user.Role == auth.Nobody:
			unauthorized(w, r, "show a bearer token, see `svcctl admin token`")
		case user.Role == auth.Box:
			spare(w, r)
			fail(w, http.StatusForbidden, wire.ReasonForbidden, user.Name+" is a leaf of the fleet, and may follow its commits and report")
		default:
			spare(w, r)
			fail(w, http.StatusForbidden, wire.ReasonForbidden, fmt.Sprintf(
				"%s may only read, and this is for an %s: ask as root, as a member of the group that --socket-group names, or with a token that one of these made", user.Name, role))
		}
	})
}

// leaves serves requests of leaf boxes and admins with h, and refuses others. Readers are refused because commits contain more than they may read.
func leaves(h http.Handler) http.Handler {
	admins := needs(auth.Admin, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if auth.From(r.Context()).Role == auth.Box {
			h.ServeHTTP(w, r)
			return
		}
		admins.ServeHTTP(w, r)
	})
}

// dashboard lets readers through to the pages.
func (s *Server) dashboard() http.Handler {
	pages := needs(auth.Reader, s.streaming(s.cfg.Dashboard))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.DashboardUnauthorized == nil || auth.From(r.Context()).Role > auth.Nobody {
			pages.ServeHTTP(w, r)
			return
		}
		spare(w, r)
		w.Header().Set("WWW-Authenticate", challenge)
		s.cfg.DashboardUnauthorized(w, r)
	})
}

// challenge is WWW-Authenticate of 401 (RFC 6750).
const challenge = `Bearer realm="svcctl"`

// unauthorized answers 401. kubectl asks for another token then.
func unauthorized(w http.ResponseWriter, r *http.Request, why string) {
	spare(w, r)
	w.Header().Set("WWW-Authenticate", challenge)
	fail(w, http.StatusUnauthorized, wire.ReasonUnauthorized, "Unauthorized: "+why)
}

// spare limits the time that net/http spends reading the rest of a request body to bodyGrace. Over HTTP/1 the connection is then closed.
func spare(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyGrace))
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// isOperator reports whether a request came by a unix socket from root or from the user
// that the appliance runs as.
func isOperator(r *http.Request) bool {
	peer, ok := peerFrom(r.Context())
	return ok && (peer.UID == 0 || int(peer.UID) == os.Geteuid())
}

// maxTokenRequest bounds the body of a TokenRequest, in bytes.
const maxTokenRequest = 4 << 10

// noTLS is the error message for a request that needs a TLS listener, on a box without one.
const noTLS = "the API is not served over TLS: start `svcctl serve` with --listen, as 127.0.0.1:6443"

// token answers /svcctl/v1/token: POST issues a token, DELETE revokes all tokens. Both are served only on the unix socket, so that a leaked token
// cannot be exchanged for another one.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	switch _, local := peerFrom(r.Context()); {
	case !local:
		Reply(w, r, nil, wire.NewFailure(http.StatusForbidden, wire.ReasonForbidden, "tokens are given over the unix socket only: run `svcctl admin token` on the appliance's box"))
	case s.cfg.TLS == nil:
		Reply(w, r, nil, wire.NewFailure(http.StatusNotFound, wire.ReasonNotFound, noTLS))
	case r.Method == http.MethodPost:
		token, err := s.issue(w, r)
		Reply(w, r, token, err)
	case r.Method == http.MethodDelete:
		needs(auth.Admin, http.HandlerFunc(s.revoke)).ServeHTTP(w, r)
	default:
		w.Header().Set("Allow", "POST, DELETE")
		Reply(w, r, nil, wire.NewFailure(http.StatusMethodNotAllowed, wire.ReasonMethodNotAllowed,
			fmt.Sprintf("%s is not allowed on %s: use POST, or DELETE to revoke", r.Method, r.URL.Path)))
	}
}

func (s *Server) issue(w http.ResponseWriter, r *http.Request) (t wire.Token, err error) {
	var ask wire.TokenRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTokenRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&ask); err != nil {
		return t, wire.BadRequest("read what token is asked for: %v", err)
	}
	by := auth.From(r.Context())
	role := by.Role
	if ask.Role != "" {
		role, err = auth.ParseRole(ask.Role)
	}
	var user auth.User
	if err == nil {
		user, err = auth.Delegate(by, role, ask.Name)
	}
	if err == nil {
		t.Token, t.Expires, err = s.cfg.TLS.Tokens.Issue(user, cmp.Or(time.Duration(ask.Duration), auth.DefaultTokenLife))
	}
	switch {
	case errors.Is(err, auth.ErrRole):
		return t, wire.NewFailure(http.StatusForbidden, wire.ReasonForbidden, err.Error())
	case errors.Is(err, auth.ErrEnded):
		return t, err // the box stops
	case err != nil:
		return t, wire.BadRequest("%v", err)
	}
	t.User, t.Role = user.Name, user.Role.String()
	s.log.Debug("token", "for", t.User, "role", t.Role, "expires", t.Expires)
	return t, nil
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

// reachable returns the host and port at which clients on this box can reach a listener. If it listens on all addresses, that is a loopback address.
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
