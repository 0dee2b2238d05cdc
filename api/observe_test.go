package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/api"
)

// Every request is told of once, in words that no client chooses.
func TestObserve(t *testing.T) {
	b := newBackend()
	var mu sync.Mutex
	var calls []string
	var of *api.Server
	s := serve(t, b, api.Config{
		Observe: func(c api.Call) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintln(c.Verb, c.Resource, c.Code, c.Took > 0, c.Endless))
		},
		NameOf: func(r *http.Request) (verb, resource string) {
			if r.URL.Path != "/api/v1/services" {
				return "", ""
			}
			return "list", "services"
		},
		Objects: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if load := of.Load(); load != (api.Load{Requests: 1}) {
				t.Errorf("in the middle of a request: %+v", load)
			}
			w.WriteHeader(http.StatusTeapot)
		}),
	}, func(s *api.Server) { of = s })
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/api/v1/services", "list services 418 true false"},
		{"GET", "/api/v1/whatever", "get /api/ 418 true false"},
		{"GET", "/readyz", "get /readyz 200 true false"},
		{"GET", "/version/", "get /version/ 200 true false"},
		{"DELETE", "/svcctl/v1/status", "delete /svcctl/v1/status 405 true false"},
		{"GET", "/such/a/path", "get  404 true false"},
		{"BREW", "/svcctl/v1/nothing", "other  404 true false"},
		{"GET", "/svcctl/v1/wait?for=ready", "get /svcctl/v1/wait 200 true true"},
	} {
		calls = nil
		request(t, s, c.method, c.path)
		mu.Lock()
		if got := strings.TrimSpace(strings.Join(calls, "")); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.method, c.path, got, c.want)
		}
		mu.Unlock()
	}
	b.panics.Store(true)
	calls = nil
	request(t, s, "GET", "/svcctl/v1/status")
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(calls, ""); got != "get /svcctl/v1/status 500 true false\n" {
		t.Errorf("a panic is %q", got)
	}
	if load := of.Load(); load != (api.Load{}) {
		t.Errorf("at the end: %+v", load)
	}
}

// request makes a request, whatever becomes of it.
func request(t *testing.T, s *server, method, path string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://svcctl"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
