package api_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
)

func TestProfiles(t *testing.T) {
	s := start(t, newBackend())
	for path, want := range map[string]string{
		"/debug/pprof/":                    "goroutine",
		"/debug/pprof/goroutine?debug=1":   "goroutine profile",
		"/debug/pprof/heap?debug=1":        "heap profile",
		"/debug/pprof/profile?seconds=1":   "",
		"/debug/pprof/allocs?debug=1&gc=1": "heap profile",
	} {
		if code, body := s.get(t, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %.200q, want %q in it", path, code, body, want)
		}
	}
}

// A request that did not come by the unix socket is nobody's: the same handler may be
// behind TCP one day.
func TestProfilesAreForTheOwner(t *testing.T) {
	h := api.New(api.Config{}, newBackend(), slog.New(slog.DiscardHandler)).Handler()
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "only root") {
			t.Errorf("GET %s without a peer: %d %s", path, w.Code, w.Body)
		}
	}
}
