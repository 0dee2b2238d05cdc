package box

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/client"
)

// The door lets in the browser that has the code, once, and no other.
func TestDashboardDoor(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	inside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "inside "+r.URL.Path) })
	d := newDoor("127.0.0.1:8790", inside, func() time.Time { return now })
	ask := func(method, path string, change func(*http.Request)) *http.Response {
		r := httptest.NewRequest(method, "http://127.0.0.1:8790"+path, nil)
		if change != nil {
			change(r)
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w.Result()
	}
	wants := func(what string, resp *http.Response, code int) {
		t.Helper()
		if resp.StatusCode != code {
			t.Errorf("%s: %d, want %d", what, resp.StatusCode, code)
		}
		if page, _ := io.ReadAll(resp.Body); code >= 400 && (!strings.Contains(string(page), `role="alert"`) || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html")) {
			t.Errorf("%s: no page says so: %s", what, page)
		}
	}
	open := strings.TrimPrefix(d.link(), "http://127.0.0.1:8790")
	wants("without a session", ask("GET", "/dashboard/", nil), http.StatusForbidden)
	wants("a wrong code", ask("GET", "/open?code=x", nil), http.StatusForbidden)
	wants("led by another site", ask("GET", open, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }), http.StatusForbidden)
	wants("another name for this address", ask("GET", open, func(r *http.Request) { r.Host = "evil.example:8790" }), http.StatusForbidden)
	resp := ask("GET", open, nil)
	wants("the code", resp, http.StatusSeeOther)
	cookies := resp.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("cookies %v", cookies)
	}
	wants("the code again", ask("GET", open, nil), http.StatusForbidden)

	with := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			r.AddCookie(cookies[0])
			if name != "" {
				r.Header.Set(name, value)
			}
		}
	}
	if body, _ := io.ReadAll(ask("GET", "/dashboard/services", with("", "")).Body); string(body) != "inside /dashboard/services" {
		t.Errorf("with the session: %s", body)
	}
	wants("the top", ask("GET", "/", with("", "")), http.StatusSeeOther)
	wants("the API", ask("GET", "/api/v1/secrets", with("", "")), http.StatusNotFound)
	wants("a change", ask("POST", "/dashboard/", with("", "")), http.StatusMethodNotAllowed)
	wants("another origin", ask("GET", "/dashboard/", with("Origin", "http://evil.example")), http.StatusForbidden)
	wants("a wrong session", ask("GET", "/dashboard/", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: "x"}) }), http.StatusForbidden)

	gone := client.New(filepath.Join(t.TempDir(), "gone.sock")).Proxy(unanswered)
	d.inside = gone
	wants("an appliance that is not there", ask("GET", "/dashboard/", with("", "")), http.StatusBadGateway)

	late := newDoor("127.0.0.1:8790", inside, func() time.Time { return now })
	now = now.Add(codeLife + time.Second)
	d = late
	wants("a code of a minute ago", ask("GET", strings.TrimPrefix(late.link(), "http://127.0.0.1:8790"), nil), http.StatusForbidden)
}
