package api_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// call makes a request on the socket and gives code and body.
func (s *server) call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://svcctl"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

func TestTokensOverTheSocket(t *testing.T) {
	far := serveTLS(t, newBackend(), api.Config{Objects: whoami})
	s := serve(t, newBackend(), api.Config{TLS: &api.TLS{Tokens: far.tokens, Address: far.address}})
	get := func(body string) wire.Token {
		t.Helper()
		code, answer := s.call(t, http.MethodPost, "/svcctl/v1/token", body)
		var token wire.Token
		if err := json.Unmarshal([]byte(answer), &token); code != http.StatusOK || err != nil {
			t.Fatalf("%s: %d %s", body, code, answer)
		}
		return token
	}
	me := get("{}")
	if life := time.Until(me.Expires); me.Role != "admin" || life < 59*time.Minute || life > time.Hour {
		t.Errorf("a token without wishes: %+v", me)
	}
	if code, body := far.ask(t, me.Token, "/api"); code != http.StatusOK || !strings.Contains(body, " admin ") {
		t.Errorf("with it: %d %s", code, body)
	}
	named := get(`{"role":"reader","duration":"5m","name":"ci"}`)
	if code, body := far.ask(t, named.Token, "/api"); code != http.StatusOK || !strings.HasPrefix(body, me.User+":ci reader ") {
		t.Errorf("named: %d %s", code, body)
	}
	for body, want := range map[string]int{
		``: 400, `{`: 400, `[]`: 400, `{"rôle":"admin"}`: 400, `{"role":"god"}`: 400, `{"role":"nobody"}`: 400,
		`{"duration":"721h"}`: 400, `{"duration":"-1h"}`: 400, `{"duration":5}`: 400, `{"duration":"1ms"}`: 400,
		`{"name":"a b"}`: 400, `{"name":"` + strings.Repeat("a", 5000) + `"}`: 400,
	} {
		code, answer := s.call(t, http.MethodPost, "/svcctl/v1/token", body)
		var f wire.Failure
		if err := json.Unmarshal([]byte(answer), &f); code != want || err != nil || f.Code != want {
			t.Errorf("%.40s: %d %s", body, code, answer)
		}
	}
	if code, answer := s.call(t, http.MethodGet, "/svcctl/v1/token", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d %s", code, answer)
	}
	if code, answer := s.call(t, http.MethodDelete, "/svcctl/v1/token", ""); code != http.StatusOK || answer != `{"revoked":true}`+"\n" {
		t.Errorf("DELETE: %d %s", code, answer)
	}
	if code, body := far.ask(t, me.Token, "/api"); code != http.StatusUnauthorized {
		t.Errorf("with a token that is revoked: %d %s", code, body)
	}
	if code, _ := far.ask(t, get("{}").Token, "/api"); code != http.StatusOK {
		t.Errorf("with a new one: %d", code)
	}
}

func TestEndpoint(t *testing.T) {
	s := start(t, newBackend())
	for _, path := range []string{"/svcctl/v1/endpoint", "/svcctl/v1/token"} {
		if code, body := s.get(t, path); code != http.StatusNotFound || !strings.Contains(body, "start `svcctl serve` with --listen") {
			t.Errorf("%s without TLS: %d %s", path, code, body)
		}
	}
	for address, want := range map[string]string{
		"127.0.0.1:6443": "https://127.0.0.1:6443", "[::1]:6443": "https://[::1]:6443", "[::]:6443": "https://127.0.0.1:6443",
		"0.0.0.0:1": "https://127.0.0.1:1", "192.0.2.1:443": "https://192.0.2.1:443",
	} {
		s := serve(t, newBackend(), api.Config{TLS: &api.TLS{Address: address, CA: func() []byte { return []byte("a CA") }}})
		code, body := s.get(t, "/svcctl/v1/endpoint")
		var e wire.Endpoint
		if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil || e.Server != want || e.CertificateAuthority != "a CA" {
			t.Errorf("%s: %d %s", address, code, body)
		}
	}
}

func TestJournal(t *testing.T) {
	asked := 0
	s := serve(t, newBackend(), api.Config{Endpoints: []api.Endpoint{api.Stream(wire.GetJournal, func(_ *http.Request, q wire.JournalQuery, each func(wire.JournalEntry) error) error {
		asked = q.Limit
		return errors.Join(each(wire.JournalEntry{Revision: 1, Verb: "create", Kind: "Service", Namespace: "default", Name: "web", User: "root"}), each(wire.JournalEntry{Revision: 2}))
	})}})
	code, body := s.get(t, "/svcctl/v1/journal?limit=7")
	want := `{"revision":1,"time":"0001-01-01T00:00:00Z","verb":"create","kind":"Service","namespace":"default","name":"web","user":"root"}` + "\n"
	if code != http.StatusOK || asked != 7 || !strings.HasPrefix(body, want) || strings.Count(body, "\n") != 2 {
		t.Errorf("%d, asked for %d: %s", code, asked, body)
	}
	for _, limit := range []string{"0", "-1", "x", "10001"} {
		if code, body := s.get(t, "/svcctl/v1/journal?limit="+limit); code != http.StatusBadRequest {
			t.Errorf("limit %s: %d %s", limit, code, body)
		}
	}
}

// emptyJournal has no entries.
var emptyJournal = api.Stream(wire.GetJournal, func(*http.Request, wire.JournalQuery, func(wire.JournalEntry) error) error { return nil })

// TestReadersOfTheSocket: who may open the socket and is not one of its masters reads.
func TestReadersOfTheSocket(t *testing.T) {
	t.Parallel()
	const what = "PRIVILEGED TEST cannot run: it must be root to be another user, too"
	needRoot(t, what)
	far := serveTLS(t, newBackend(), api.Config{Objects: whoami})
	s := serve(t, newBackend(), api.Config{
		Socket: api.Socket{Readers: true, Group: "4321"}, Objects: whoami, Endpoints: []api.Endpoint{emptyJournal},
		TLS: &api.TLS{Tokens: far.tokens, Address: far.address},
	})
	openTo(t, filepath.Dir(filepath.Dir(s.socket)))
	other, member := as(t, 1234, 1234), as(t, 1234, 1234, 4321)
	for _, tt := range []struct {
		who                *asked
		method, path, body string
		code               int
		in                 string
	}{
		{other, "GET", "/api", "", 200, "uid:1234 reader"},
		{other, "GET", "/svcctl/v1/status", "", 200, "gw1"},
		{other, "GET", "/svcctl/v1/journal", "", 403, "uid:1234 may only read"},
		{other, "POST", "/svcctl/v1/release", "", 403, "may only read"},
		{other, "DELETE", "/svcctl/v1/token", "", 403, "may only read"},
		{other, "POST", "/svcctl/v1/token", `{"role":"admin"}`, 403, "a token cannot have a higher role than its creator"},
		{other, "POST", "/svcctl/v1/token", `{}`, 200, `"user":"uid:1234","role":"reader"`},
		{other, "POST", "/svcctl/v1/token", `{"name":"root"}`, 200, `"user":"uid:1234:root","role":"reader"`},
		{other, "GET", "/debug/pprof/heap", "", 403, "only root"},
		{member, "GET", "/api", "", 200, "uid:1234 admin"},
		{member, "POST", "/svcctl/v1/token", `{}`, 200, `"role":"admin"`},
		{member, "GET", "/svcctl/v1/journal", "", 200, ""},
		{member, "GET", "/debug/pprof/heap", "", 403, "only root"},
	} {
		if code, body := tt.who.do(t, s.socket, tt.method, tt.path, tt.body); code != tt.code || !strings.Contains(body, tt.in) {
			t.Errorf("%s %s by %s: %d %s, want %d %q", tt.method, tt.path, tt.who, code, body, tt.code, tt.in)
		}
	}

	// By default the socket is root's, and with a group its members'.
	for _, tt := range []struct {
		cfg  api.Config
		who  *asked
		good bool
	}{
		{api.Config{}, other, false}, {api.Config{}, member, false},
		{api.Config{Socket: api.Socket{Group: "4321"}}, other, false}, {api.Config{Socket: api.Socket{Group: "4321"}}, member, true},
		{api.Config{Socket: api.Socket{Readers: true}}, other, true},
	} {
		s := serve(t, newBackend(), tt.cfg)
		openTo(t, filepath.Dir(filepath.Dir(s.socket)))
		if code, _ := tt.who.do(t, s.socket, "GET", "/healthz", ""); (code == 200) != tt.good {
			t.Errorf("%+v: %s gets %d", tt.cfg, tt.who, code)
		}
	}
}

func TestSocketGroups(t *testing.T) {
	srv := api.New(api.Config{Socket: api.Socket{Path: filepath.Join(t.TempDir(), "s"), Group: "no-such-group"}}, newBackend(), slog.New(slog.DiscardHandler))
	if _, err := srv.Listen(); err == nil || !strings.Contains(err.Error(), `there is no group "no-such-group"`) {
		t.Errorf("a group that is not there: %v", err)
	}
	if u := (auth.User{}); u.Role != auth.Nobody {
		t.Error("the zero User is somebody")
	}
}
