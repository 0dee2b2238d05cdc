package api_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
)

func TestRelease(t *testing.T) {
	b := &backend{held: 7}
	s := start(t, b)
	if code, body := s.get(t, "/svcctl/v1/release"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %s", code, body)
	}
	post := func() (int, string) {
		resp, err := s.client().Post("http://svcctl/svcctl/v1/release", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(string(body))
	}
	if code, body := post(); code != http.StatusOK || body != `{"services":7}` {
		t.Errorf("POST: %d %s", code, body)
	}
	b.set(func(b *backend) { b.healthy = errors.New("on strike") })
	if code, body := post(); code != http.StatusServiceUnavailable || !strings.Contains(body, "on strike") {
		t.Errorf("POST: %d %s", code, body)
	}
	// Who does not come by the unix socket is nobody.
	srv := api.New(api.Config{}, b, slog.New(slog.DiscardHandler))
	w := httptest.NewRecorder()
	srv.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/svcctl/v1/release", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("POST by nobody: %d %s", w.Code, w.Body)
	}
}
