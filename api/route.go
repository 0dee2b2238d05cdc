package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Endpoint is an operation with its handler.
type Endpoint struct {
	wire.Operation
	handler func(*Server) http.Handler
}

// Answer returns the endpoint that serves a route by a function of its parameters. An error that is no *wire.Failure is answered 503.
func Answer[Query, A any](at wire.Route[Query, A], answer func(r *http.Request, q Query) (A, error)) Endpoint {
	return Handle(at.Operation, func(w http.ResponseWriter, r *http.Request) {
		if q, ok := parameters(w, r, at); ok {
			a, err := answer(r, q)
			Reply(w, r, a, err)
		}
	})
}

// Stream returns the endpoint that serves a route by values, one a line. A watch or a trace sends each as it comes. An error
// before the first value is answered as one of Answer; after it the answer is cut, so that a client does not take it for whole.
func Stream[Query, Value any](at wire.Route[Query, Value], answer func(r *http.Request, q Query, each func(Value) error) error) Endpoint {
	return Endpoint{at.Operation, func(s *Server) http.Handler {
		return s.streaming(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q, ok := parameters(w, r, at)
			if !ok {
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			lines, flush, begun := json.NewEncoder(w), func() error { return nil }, false
			if isEndless(r) {
				flush = http.NewResponseController(w).Flush
			}
			begin := func() {
				if !begun {
					begun = true
					w.Header().Set("Content-Type", "application/jsonl")
					w.Header().Set("Cache-Control", "no-store")
				}
			}
			err := answer(r.WithContext(ctx), q, func(v Value) error {
				begin()
				err := lines.Encode(v)
				if err == nil {
					err = flush()
				}
				if err != nil { // the client hung up, or does not read
					cancel()
				}
				return err
			})
			switch {
			case err == nil:
				begin()
			case !begun:
				failWith(w, err)
			default:
				s.log.Warn("an answer ended early", "path", r.URL.Path, "err", err)
				panic(http.ErrAbortHandler)
			}
		}))
	}}
}

// Handle returns the endpoint that serves an operation by a handler, which may take its time for the body and the answer.
func Handle(at wire.Operation, h http.HandlerFunc) Endpoint {
	return Endpoint{at, func(s *Server) http.Handler {
		return s.streaming(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if at.Method != http.MethodGet || bodiless(w, r) {
				h(w, r)
			}
		}))
	}}
}

// parameters reads the parameters of a request without a body; when it returns false it has answered.
func parameters[Query, A any](w http.ResponseWriter, r *http.Request, _ wire.Route[Query, A]) (q Query, ok bool) {
	if !bodiless(w, r) {
		return q, false
	}
	if err := wire.ReadQuery(r.URL.Query(), &q); err != nil {
		failWith(w, wire.BadRequest("%v", err))
		return q, false
	}
	return q, true
}

// register serves an endpoint for users of its role, by its method alone.
func (s *Server) register(mux *http.ServeMux, e Endpoint) {
	role := auth.Reader
	if e.Admin {
		role = auth.Admin
	}
	mux.Handle(e.Path, needs(role, only(e.Method, e.handler(s))))
}

// only refuses requests by other methods. GET permits HEAD.
func only(method string, h http.Handler) http.Handler {
	allowed := method
	if method == http.MethodGet {
		allowed = "GET, HEAD"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (r.Method != http.MethodHead || method != http.MethodGet) {
			spare(w, r)
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, wire.ReasonMethodNotAllowed, fmt.Sprintf("%s is not allowed on %s: use %s", r.Method, r.URL.Path, method))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// get lets GET and HEAD without a body through to h and refuses the rest.
func get(h http.HandlerFunc) http.Handler {
	return only(http.MethodGet, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bodiless(w, r) {
			h(w, r)
		}
	}))
}

// bodiless refuses a request with a body, and then returns false.
func bodiless(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	spare(w, r)
	fail(w, http.StatusBadRequest, wire.ReasonBadRequest, r.Method+" takes no body: leave it out")
	return false
}

// Reply answers a request that Handle serves with a value, or an error.
func Reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		spare(w, r)
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// failWith answers with an error.
func failWith(w http.ResponseWriter, err error) {
	if f, is := errors.AsType[*wire.Failure](err); is {
		writeJSON(w, f.Code, f)
		return
	}
	fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
}

// UserOf returns the name of the user of a request.
func UserOf(r *http.Request) string { return auth.From(r.Context()).Name }

// A leaf of a fleet forwards the requests of its admins that change objects to a core box, and returns its answer. Its certificate
// names the box, and a header the admin: the core box accepts that with --leaf-writes only.

// commitsPath is the path of the stream of commits that leaves follow.
const commitsPath = "/svcctl/v1/commits"

// forwardedUser is the header with the name of the admin of a leaf.
const forwardedUser = "Svcctl-Forwarded-User"

// maxForwardedUser bounds that name, in bytes.
const maxForwardedUser = 256

// awayRetry is the Retry-After, in seconds, of changes that no core box takes.
const awayRetry = 5

// applyPath is the path of a batch of objects, which Config.Objects answers.
const applyPath = "/svcctl/v1/apply"

// changesObjects reports whether a request is to change objects that all boxes of a fleet have.
func changesObjects(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return false
	}
	path := r.URL.Path
	if strings.HasPrefix(path, "/svcctl/v1/") {
		return path == applyPath || slices.ContainsFunc(wire.Operations(), func(o wire.Operation) bool { return o.Shared && o.Path == path })
	}
	for _, group := range []string{"authentication.k8s.io", "authorization.k8s.io"} { // questions about the user here
		if strings.HasPrefix(path, "/apis/"+group+"/") {
			return false
		}
	}
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}

// forward hands changes by admins to Config.Forward.
func (s *Server) forward(h http.Handler) http.Handler {
	if s.cfg.Forward == nil {
		return h
	}
	proxy := s.streaming(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", "core", "" // Forward has the address
			r.Out.Header.Del("Authorization")
			r.Out.Header.Set(forwardedUser, auth.From(r.In.Context()).Name)
		},
		Transport: s.cfg.Forward, FlushInterval: -1, ErrorLog: slogless, ErrorHandler: s.notForwarded,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !changesObjects(r) || auth.From(r.Context()).Role != auth.Admin {
			h.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex() // an apply is answered while it comes in
		r.Body = &patientBody{r.Body, control, s.limits.objects}
		proxy.ServeHTTP(w, r)
	})
}

// slogless is for net/http's proxy: what it would log is answered.
var slogless = log.New(io.Discard, "", 0)

// patientBody is a body whose sender may take its time for the whole of it, but not for each piece.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	each    time.Duration
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.each))
	return b.ReadCloser.Read(p)
}

// notForwarded answers a change that no core box has answered.
func (s *Server) notForwarded(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) {
		return // the client hung up
	}
	dial, isNet := errors.AsType[*net.OpError](err)
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted || isNet && dial.Op == "dial" { // it was not sent
		w.Header().Set("Retry-After", strconv.Itoa(awayRetry))
		fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, "nothing was changed: this box is a leaf of its fleet and hands changes to a core box: "+err.Error())
		return
	}
	s.log.Debug("a core box has not answered a change", "err", err)
	fail(w, http.StatusGatewayTimeout, wire.ReasonTimeout,
		fmt.Sprintf("the core box that this leaf has handed the change to did not answer (%v), and the change may have been made or not: look before you try again", err))
}

// withCertificate serves a request of a leaf, which shows its certificate. What has no end of its own ends with it.
func (s *Server) withCertificate(w http.ResponseWriter, r *http.Request, h http.Handler) {
	user, err := s.cfg.TLS.Leaves.Verify(r.TLS.PeerCertificates)
	if err != nil {
		unauthorized(w, r, err.Error())
		return
	}
	if name := r.Header.Get(forwardedUser); name != "" {
		if !s.cfg.LeafWrites || len(name) > maxForwardedUser || !changesObjects(r) {
			spare(w, r)
			fail(w, http.StatusForbidden, wire.ReasonForbidden, fmt.Sprintf(
				"%s may not change the objects of the fleet for its admins: start the core boxes with --leaf-writes, or ask the core box at https://%s with a token of its own", user.Name, r.Host))
			return
		}
		user = auth.Behind(user, name)
	}
	serveFor(user, w, r, h, func(ctx context.Context) error {
		look := time.NewTicker(certificateLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-look.C:
			}
			if _, err := s.cfg.TLS.Leaves.Verify(r.TLS.PeerCertificates); err != nil {
				s.log.Warn("a leaf is not served any more", "box", user.Name, "err", err, slog.String("from", r.RemoteAddr))
				return err
			}
		}
	})
}

// certificateLook is the interval at which the certificate of a leaf is looked at again during a request without end.
const certificateLook = 3 * time.Second
