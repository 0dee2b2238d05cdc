package api_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
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
	// Who may only read lets nothing go.
	remote := serveTLS(t, b, api.Config{})
	for role, want := range map[auth.Role]int{auth.Reader: http.StatusForbidden, auth.Nobody: http.StatusUnauthorized} {
		if code, body := remote.do(t, remote.token(t, role), http.MethodPost, "/svcctl/v1/release", ""); code != want {
			t.Errorf("POST by %s: %d %s", role, code, body)
		}
	}
}
