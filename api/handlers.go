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
	"net/http/pprof"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// kubernetesMajor and kubernetesMinor are the Kubernetes release that the API follows.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "37"
)

// readyPoll is the interval at which a request that waits for readiness calls Backend.Ready.
const readyPoll = 50 * time.Millisecond

// bodyGrace bounds the time in which the client may send the rest of the body of a refused request: net/http reads it before it closes the
// connection.
const bodyGrace = time.Second

// HealthHandler answers /healthz, /livez and /readyz in plain text as Kubernetes'
// servers do: "ok", with ?verbose one line for each check.
func HealthHandler(health Health) http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, r *http.Request) {
		check(w, r, "alive", health.Healthy(), http.StatusInternalServerError)
	}
	mux.Handle("/healthz", get(alive))
	mux.Handle("/livez", get(alive))
	mux.Handle("/readyz", get(func(w http.ResponseWriter, r *http.Request) {
		if err := health.Healthy(); err != nil {
			check(w, r, "alive", err, http.StatusServiceUnavailable)
			return
		}
		check(w, r, "ready", health.Ready(), http.StatusServiceUnavailable)
	}))
	return mux
}

// check writes the outcome of one health check; code is the status of a failure.
func check(w http.ResponseWriter, r *http.Request, name string, err error, code int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	endpoint := strings.TrimPrefix(r.URL.Path, "/")
	switch _, verbose := r.URL.Query()["verbose"]; {
	case err != nil:
		w.WriteHeader(code)
		fmt.Fprintf(w, "[-]%s failed: %v\n%s check failed\n", name, err, endpoint)
	case verbose:
		fmt.Fprintf(w, "[+]%s ok\n%s check passed\n", name, endpoint)
	default:
		fmt.Fprint(w, "ok")
	}
}

func (s *Server) status(*http.Request, wire.None) (wire.Status, error) {
	return s.backend.Status(), nil
}

func (s *Server) release(r *http.Request, _ wire.None) (wire.Released, error) {
	released, err := s.backend.Release(r.Context())
	if err != nil {
		return released, wire.Unavailable("nothing is released: %v", err)
	}
	s.log.Info("release was asked for", "services", released.Services, "frontends", released.Frontends, "user", UserOf(r))
	return released, nil
}

// version answers /version.
func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	v := wire.Version{
		Major: kubernetesMajor, Minor: kubernetesMinor,
		GitVersion: gitVersion(s.cfg.Version),
		GoVersion:  runtime.Version(),
		Compiler:   runtime.Compiler,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range info.Settings {
			switch kv.Key {
			case "vcs.revision":
				v.GitCommit = kv.Value
			case "vcs.time":
				v.BuildDate = kv.Value
			case "vcs.modified":
				v.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[kv.Value]
			}
		}
	}
	writeJSON(w, http.StatusOK, v)
}

// gitVersion returns a semantic version with the Kubernetes release and, as build metadata, the version of the program. Build metadata may only have
// the characters [0-9A-Za-z.-] (semver.org, item 10); others are replaced by "-".
func gitVersion(version string) string {
	build := strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r == '.', r == '-':
			return r
		}
		return '-'
	}, strings.TrimPrefix(version, "v"))
	return fmt.Sprintf("v%s.%s.0+%s", kubernetesMajor, kubernetesMinor, strings.Trim("svcctl."+build, "."))
}

// comeAgain is the Retry-After, in seconds, of a box that has no objects yet.
const comeAgain = 1

// refuse answers 503 to a request for objects on a box that has none yet, with the reason.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request) {
	spare(w, r)
	st := s.backend.Status()
	refusal := wire.NewFailure(http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, st.Reason)
	if st.Fleet != nil {
		refusal.Message = fmt.Sprintf("the state in fleet %s is %s: %s", st.Fleet.Name, st.Fleet.State, st.Reason)
	}
	refusal.Details = &wire.FailureDetails{RetryAfterSeconds: comeAgain}
	writeJSON(w, refusal.Code, refusal)
}

// wait answers /svcctl/v1/wait with the Status once the condition holds.
func (s *Server) wait(r *http.Request, q wire.WaitQuery) (none wire.Status, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), q.Timeout)
	defer cancel()
	if q.For == "ready" {
		err = s.untilReady(ctx)
	} else {
		err = s.backend.Synced(ctx, q.Revision)
	}
	switch {
	case err == nil:
		return s.backend.Status(), nil
	case r.Context().Err() != nil:
		return none, fmt.Errorf("not %s: %v", q.For, context.Cause(r.Context()))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return none, wire.NewFailure(http.StatusGatewayTimeout, wire.ReasonTimeout,
			fmt.Sprintf("not %s after %s%s", q.For, q.Timeout.Round(time.Millisecond), s.why(err)))
	}
	return none, fmt.Errorf("not %s: %v", q.For, err)
}

// why returns the reason for which a wait failed, as the end of a message; "" if there is none. err is the error of the wait.
func (s *Server) why(err error) string {
	switch st := s.backend.Status(); {
	case !errors.Is(err, context.DeadlineExceeded):
		return ": " + err.Error()
	case st.Reason != "":
		return ": " + st.Reason
	case !st.Synced:
		return fmt.Sprintf(": revision %d is accepted, %d is programmed", st.Revision.Accepted, st.Revision.Programmed)
	}
	return ""
}

// untilReady waits until the backend is ready. When ctx is done first, it returns why the backend is not ready.
func (s *Server) untilReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := s.backend.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// notFound answers every path that is not served, the Kubernetes-shaped API's too.
func notFound(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusNotFound, wire.ReasonNotFound, "the server could not find the requested resource")
}

// fail answers with a Kubernetes Status.
func fail(w http.ResponseWriter, code int, reason, message string) {
	writeJSON(w, code, wire.NewFailure(code, reason, message))
}

// writeJSON answers with one JSON document. A client that hung up is no error.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("api: encode %T: %v", v, err)) // our own types: a bug
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(code)
	_, _ = w.Write(body)
	_, _ = io.WriteString(w, "\n")
}

// profilePath is the path at which `go tool pprof` expects the profiles of a Go program.
const profilePath = "/debug/pprof/"

// profiles answers profilePath, only for root and the user that the appliance runs as: a profile
// takes time, and a dump of all goroutines shows what the process works on.
//
//	curl --unix-socket /run/svcctl/svcctl.sock http://svcctl/debug/pprof/profile?seconds=10 >cpu.prof
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(profilePath, pprof.Index) // also every profile by its name
	mux.HandleFunc(profilePath+"profile", pprof.Profile)
	mux.HandleFunc(profilePath+"trace", pprof.Trace)
	mux.HandleFunc(profilePath+"symbol", pprof.Symbol)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOperator(r) {
			fail(w, http.StatusForbidden, wire.ReasonForbidden, "only root and the user that svcctl runs as may profile it: ask as one of these, on the unix socket")
			return
		}
		// The server's read deadline, made for answers at once, would end a profile that
		// takes longer. Package pprof moves the write deadline itself.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r)
	})
}

// maxReport bounds a report of the announcer in bytes; a report about 100,000 addresses fits.
const maxReport = 32 << 20

// announcements answers GET /svcctl/v1/announcements with all announcements and, with ?watch=true, their changes. With ?announcer=true the client
// becomes the announcer, the process that announces the addresses.
func (s *Server) announcements(w http.ResponseWriter, r *http.Request) {
	if !isWatch(r) {
		writeJSON(w, http.StatusOK, s.cfg.Announcements.List())
		return
	}
	announces := r.URL.Query().Get("announcer") == "true"
	if announces && !mayAnnounce(r) {
		notAnnouncer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	frames := json.NewEncoder(w)
	_ = s.cfg.Announcements.Watch(r.Context(), announces, func(e wire.AnnouncementsEvent) error {
		if err := frames.Encode(e); err != nil {
			return err
		}
		return control.Flush()
	}) // the client hung up, or we stop
}

// announcerReport answers POST /svcctl/v1/announcements/report.
func (s *Server) announcerReport(w http.ResponseWriter, r *http.Request) {
	if !mayAnnounce(r) {
		notAnnouncer(w, r)
		return
	}
	var report wire.AnnouncerReport
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(&report)
	if err != nil {
		err = wire.BadRequest("the report is not read: %v", err)
	} else {
		s.cfg.Announcements.Report(report)
	}
	Reply(w, r, wire.None{}, err)
}

// mayAnnounce reports whether the user of a request may be the announcer: over the socket, an admin
// or a member of the group that the appliance runs as. The announcer's reports are shown, and
// change nothing.
func mayAnnounce(r *http.Request) bool {
	peer, unix := peerFrom(r.Context())
	if !unix {
		return false
	}
	group := uint32(os.Getegid())
	return auth.From(r.Context()).Role == auth.Admin || peer.GID == group || slices.Contains(peer.Groups, group)
}

func notAnnouncer(w http.ResponseWriter, r *http.Request) {
	spare(w, r)
	fail(w, http.StatusForbidden, wire.ReasonForbidden, fmt.Sprintf(
		"%s may not announce: run `svcctl announce` on this box, as root or in the group of `svcctl serve`", auth.From(r.Context()).Name))
}

// tracePage is the page of Config.Dashboard that follows packets.
const tracePage = "/dashboard/trace"

// Endpoint is an operation with its handler.
type Endpoint struct {
	wire.Operation
	handler func(*Server) http.Handler
}

// Answer returns the endpoint that answers a route with the result of calling answer with the query parameters. An error other than a *wire.Failure
// results in status 503.
func Answer[Query, A any](at wire.Route[Query, A], answer func(r *http.Request, q Query) (A, error)) Endpoint {
	return Handle(at.Operation, func(w http.ResponseWriter, r *http.Request) {
		if q, ok := parameters(w, r, at); ok {
			a, err := answer(r, q)
			Reply(w, r, a, err)
		}
	})
}

// Stream returns the endpoint that answers a route with a sequence of values, one a line. A watch or a trace sends each value as it comes. An error
// before the first value is answered as by Answer. After a later error the connection is closed without the end of the response, so that the client
// detects that it is incomplete.
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

// Handle returns the endpoint that serves an operation by a handler, with the time limits of streaming for the body and the answer.
func Handle(at wire.Operation, h http.HandlerFunc) Endpoint {
	return Endpoint{at, func(s *Server) http.Handler {
		return s.streaming(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if at.Method != http.MethodGet || bodiless(w, r) {
				h(w, r)
			}
		}))
	}}
}

// parameters reads the query parameters of a request without a body. If it returns false, it has sent the refusal of the request.
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

// register adds an endpoint to the mux, for its method and for users of its role.
func (s *Server) register(mux *http.ServeMux, e Endpoint) {
	role := auth.Reader
	if e.Admin {
		role = auth.Admin
	}
	mux.Handle(e.Path, needs(role, only(e.Method, e.handler(s))))
}

// only answers 405 to requests with methods other than the given one. If that is GET, HEAD is permitted too.
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

// bodiless reports whether a request has no body. If it has one, bodiless answers with an error.
func bodiless(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	spare(w, r)
	fail(w, http.StatusBadRequest, wire.ReasonBadRequest, r.Method+" takes no body: leave it out")
	return false
}

// Reply answers a request in a handler passed to Handle, with the value v in JSON, or with err if it is not nil.
func Reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		spare(w, r)
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// failWith answers with an error: a *wire.Failure as it is, any other error with status 503.
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

// maxForwardedUser bounds the value of the header forwardedUser in bytes.
const maxForwardedUser = 256

// awayRetry is the Retry-After, in seconds, of a change that could not be sent to a core box.
const awayRetry = 5

// applyPath is the path of a batch of objects, which Config.Objects answers.
const applyPath = "/svcctl/v1/apply"

// changesObjects reports whether a request would change the objects of the whole fleet, or another state that its boxes share.
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

// forward returns a handler that, on a leaf box, forwards changes by admins to a core box through Config.Forward. h serves all other requests.
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

// slogless discards the log of the reverse proxy, because notForwarded handles its errors.
var slogless = log.New(io.Discard, "", 0)

// patientBody is a request body with a time limit for each read, and none for the whole.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	each    time.Duration
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.each))
	return b.ReadCloser.Read(p)
}

// notForwarded answers a change that no core box has answered: 503 if it was not sent, 504 if it may have been made.
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

// withCertificate serves a request of a leaf box that is identified by its client certificate. A long-running request, such as a watch, ends when the
// certificate is revoked or expires.
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

// certificateLook is the interval at which the certificate of a leaf box is verified again during a long-running request.
const certificateLook = 3 * time.Second
