package api_test

import (
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
)

func TestProfiles(t *testing.T) {
	t.Parallel()
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

// A request that did not come by the unix socket is not the owner's, whatever token it shows.
func TestProfilesAreForTheOwner(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"} {
		if code, body := s.ask(t, s.token(t, auth.Admin), path); code != http.StatusForbidden || !strings.Contains(body, "only root") {
			t.Errorf("GET %s over TCP: %d %s", path, code, body)
		}
	}
}
