package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
)

// brokenPage is the value that the page's handler panics with.
type brokenPage struct{}

func (brokenPage) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, "a page")
}

func TestPanic(t *testing.T) {
	b := newBackend()
	s := serve(t, b, api.Config{Dashboard: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(brokenPage{}) })})
	b.panics.Store(true)
	code, body := s.get(t, "/svcctl/v1/status")
	if code != 500 || !strings.Contains(body, `"reason":"InternalError"`) || strings.Contains(body, "broken") {
		t.Errorf("a panic is answered %d %s", code, body)
	}
	b.panics.Store(false)
	if code, _ := s.get(t, "/svcctl/v1/status"); code != 200 {
		t.Errorf("after a panic: %d", code)
	}
	if s.panics.Load() != 1 {
		t.Errorf("%d panics counted, want 1", s.panics.Load())
	}
	// A panic with a handler is answered by that.
	if code, body := s.get(t, "/dashboard/"); code != http.StatusInternalServerError || body != "a page" {
		t.Errorf("the panic of a page is answered %d %s", code, body)
	}
	if s.panics.Load() != 2 {
		t.Errorf("%d panics counted, want 2", s.panics.Load())
	}
	_ = s.stop()
	if log := s.log.String(); !strings.Contains(log, "the status is broken") || !strings.Contains(log, "server_test.go") {
		t.Errorf("the log does not tell the panic and where:\n%s", log)
	}
}
