package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// The Kubernetes release whose API is spoken.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "37"
)

// readyPoll is the interval at which Ready is asked during a wait for it.
const readyPoll = 50 * time.Millisecond

// bodyGrace bounds the time for sending the body of a request that is refused for it: net/http
// reads it before it closes the connection.
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

// gitVersion puts the program's version into the build metadata of a semantic
// version (semver.org, 10), where only [0-9A-Za-z.-] may stand.
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

// comeAgain is the time, in seconds, after which a client asks again whether the box has what it waits for.
const comeAgain = 1

// refuse answers what a box without objects cannot.
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

// why is the reason that the appliance is behind, for the end of a message; err is
// what waiting ended with.
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

// untilReady returns nil when the backend is ready, an error when ctx is done first.
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

// maxReport bounds a report of the announcer, in bytes: of 100,000 addresses.
const maxReport = 32 << 20

// announcements answers GET /svcctl/v1/announcements with all of them, with ?watch=true followed by
// changes. ?announcer=true makes the watcher the announcer.
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
