package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// remote is a server on TLS, and what a test wants to know of it.
type remote struct {
	address string
	tokens  *auth.Tokens
	roots   *x509.CertPool
	log     *bytes.Buffer
	stop    func() error
}

// serveTLS serves b over TLS on loopback, with a CA and tokens of its own.
func serveTLS(t *testing.T, b api.Backend, cfg api.Config, more ...func(*api.Server)) *remote {
	t.Helper()
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	tokens, err := auth.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := auth.OpenAuthority(dir, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &remote{address: ln.Addr().String(), tokens: tokens, roots: x509.NewCertPool(), log: &bytes.Buffer{}}
	s.roots.AppendCertsFromPEM(ca.CA())
	var leaves *auth.Leaves
	if cfg.TLS != nil {
		leaves = cfg.TLS.Leaves
	}
	cfg.TLS = &api.TLS{Tokens: tokens, Certificate: ca.Certificate, CA: ca.CA, Address: s.address, Leaves: leaves}
	srv := api.New(cfg, b, slog.New(slog.NewTextHandler(s.log, nil)))
	for _, f := range more {
		f(srv)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.ServeTLS(ctx, ln) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-served })
	t.Cleanup(func() { _ = s.stop() })
	return s
}

// token is a token for a role, "" for nobody.
func (s *remote) token(t *testing.T, role auth.Role) string {
	t.Helper()
	if role == auth.Nobody {
		return ""
	}
	user, err := auth.Delegate(auth.User{Name: "root", Role: auth.Admin}, role, "test")
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := s.tokens.Issue(user, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// client is an HTTP client that trusts the server's CA; it speaks HTTP/2 when protocol is 2.
func (s *remote) client(t *testing.T, protocol int) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: protocol == 2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (s *remote) request(t *testing.T, ctx context.Context, token, method, path, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+s.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req
}

// do makes a request and gives code and body.
func (s *remote) do(t *testing.T, token, method, path, body string) (int, string) {
	t.Helper()
	resp, err := s.client(t, 2).Do(s.request(t, context.Background(), token, method, path, body))
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

// ask is do for GET.
func (s *remote) ask(t *testing.T, token, path string) (int, string) {
	t.Helper()
	return s.do(t, token, http.MethodGet, path, "")
}

// whoami answers who asks.
var whoami = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	user := auth.From(r.Context())
	_, _ = io.WriteString(w, user.Name+" "+user.Role.String()+" "+strings.Join(user.Groups, ","))
})

func TestWhoMayWhatOverTLS(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, newBackend(), api.Config{
		Objects: whoami, Endpoints: []api.Endpoint{emptyJournal},
	})
	expired, _, err := s.tokens.Issue(auth.User{Name: "x", Role: auth.Admin}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	reader, admin := s.token(t, auth.Reader), s.token(t, auth.Admin)
	time.Sleep(1100 * time.Millisecond) // real time: the token expires
	for _, tt := range []struct {
		token, path string
		code        int
		in          string
	}{
		{"", "/healthz", 200, "ok"},
		{"", "/livez", 200, "ok"},
		{"", "/readyz", 200, "ok"},
		{"", "/version", 200, "v1.37"},
		{"", "/version/", 200, "v1.37"},
		{"", "/version/more", 401, "Unauthorized"},
		{"", "/api", 401, "Unauthorized"},
		{"", "/api/v1/services", 401, "Unauthorized"},
		{"", "/apis/", 401, "Unauthorized"},
		{"", "/openapi/v3", 401, "Unauthorized"},
		{"", "/svcctl/v1/status", 401, "Unauthorized"},
		{"", "/svcctl/v1/wait?for=ready", 401, "Unauthorized"},
		{"", "/svcctl/v1/token", 401, "Unauthorized"},
		{"", "/svcctl/v1/endpoint", 401, "Unauthorized"},
		{"", "/svcctl/v1/journal", 401, "Unauthorized"},
		{"", "/debug/pprof/heap", 401, "Unauthorized"},
		{"", "/nothing", 401, "Unauthorized"},
		{"nonsense", "/healthz", 401, "Unauthorized"},
		{reader + "x", "/api", 401, "Unauthorized"},
		{expired, "/api", 401, "it expired at"},
		{reader, "/api/v1/services", 200, "root:test reader svcctl:readers,system:authenticated"},
		{reader, "/svcctl/v1/status", 200, "gw1"},
		{reader, "/svcctl/v1/journal", 403, "may only read"},
		{reader, "/svcctl/v1/token", 403, "over the unix socket only"},
		{reader, "/nothing", 404, "NotFound"},
		{admin, "/api", 200, "root:test admin system:masters,system:authenticated"},
		{admin, "/svcctl/v1/journal", 200, ""},
		{admin, "/svcctl/v1/token", 403, "over the unix socket only"},
	} {
		code, body := s.ask(t, tt.token, tt.path)
		if code != tt.code || !strings.Contains(body, tt.in) {
			t.Errorf("GET %s: %d %s, want %d %q", tt.path, code, body, tt.code, tt.in)
		}
		var f wire.Failure
		if code >= 400 && (json.Unmarshal([]byte(body), &f) != nil || f.Kind != "Status" || f.Code != code) {
			t.Errorf("GET %s: %d without a Status: %s", tt.path, code, body)
		}
	}
}

func TestOtherAuthorization(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{Objects: whoami})
	for header, want := range map[string]int{
		"Basic cm9vdDpyb290":                    401,
		"Bearer":                                401,
		"Bearer ":                               401,
		"bearer " + s.token(t, auth.Reader):     200,
		"Bearer  " + s.token(t, auth.Admin):     200,
		s.token(t, auth.Admin):                  401,
		"Bearer " + strings.Repeat("a", 40<<10): 401,
	} {
		req := s.request(t, context.Background(), "", http.MethodGet, "/api", "")
		req.Header.Set("Authorization", header)
		resp, err := s.client(t, 1).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || want == 401 && resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%.20s: %d, want %d", header, resp.StatusCode, want)
		}
	}
}

// TestNobodyActsAsAnother: a request that asks for that is refused, whoever makes it.
func TestNobodyActsAsAnother(t *testing.T) {
	far := serveTLS(t, newBackend(), api.Config{Objects: whoami})
	near := serve(t, newBackend(), api.Config{Objects: whoami})
	for _, header := range []string{"Impersonate-User", "Impersonate-Group", "impersonate-uid", "Impersonate-Extra-Scopes"} {
		for _, way := range []wayIn{
			{near.client(), "http://svcctl", http.Header{}, nil},
			{far.client(t, 2), "https://" + far.address, http.Header{"Authorization": {"Bearer " + far.token(t, auth.Admin)}}, nil},
		} {
			req, err := http.NewRequest(http.MethodGet, way.url+"/api", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = way.header
			req.Header.Set(header, "somebody")
			resp, err := way.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %d", header, resp.StatusCode)
			}
		}
	}
}

// TestWatchesEndWithTheirToken: so who is let go sees no more, and comes back with another one.
func TestWatchesEndWithTheirToken(t *testing.T) {
	t.Parallel()
	h := newTicking()
	s := serveTLS(t, newBackend(), api.Config{Objects: h})
	watch := func(token string) *http.Response {
		t.Helper()
		resp, err := s.client(t, 2).Do(s.request(t, t.Context(), token, http.MethodGet, "/api/v1/services?watch=true", ""))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	for what, life := range map[string]time.Duration{"revoked": time.Hour, "expired": 2 * time.Second} {
		token, _, err := s.tokens.Issue(auth.User{Name: "x", Role: auth.Reader}, life)
		if err != nil {
			t.Fatal(err)
		}
		resp := watch(token)
		if what == "revoked" {
			if err := s.tokens.RevokeAll(); err != nil {
				t.Fatal(err)
			}
		}
		if body, err := io.ReadAll(resp.Body); err != nil || len(body) > 0 {
			t.Errorf("%s: %q, %v, want a clean end", what, body, err)
		}
		if err := <-h.ended; err == nil || err.Error() != "the token has expired" {
			t.Errorf("%s: ended with %v", what, err)
		}
	}
}

func TestTLSVersions(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{})
	for version, good := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots, MinVersion: version, MaxVersion: version, NextProtos: []string{"h2"}})
		if (err == nil) != good {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			if got := conn.ConnectionState().NegotiatedProtocol; got != "h2" {
				t.Errorf("%s: protocol %q", tls.VersionName(version), got)
			}
			_ = conn.Close()
		}
	}
	resp, err := http.Get("http://" + s.address + "/healthz")
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP: %d", resp.StatusCode)
		}
	}
}

// TestSlowTLSClients: clients that do not even finish the handshake, or send half a header,
// are let go in time and shut nobody out.
func TestSlowTLSClients(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{}, func(s *api.Server) { s.SetHeaderTimeout(300 * time.Millisecond) })
	var conns []net.Conn
	for i := range 300 {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%10 == 1 {
			_, _ = conn.Write([]byte{22, 3, 1}) // the beginning of a handshake
		}
		conns = append(conns, conn)
	}
	for made, tries := 0, 0; made < 4; tries++ { // likewise, after the handshake
		conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: s.roots})
		if err != nil && tries < 1000 {
			continue // it was as slow as the others
		} else if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		made++
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: ")
		conns = append(conns, conn)
	}
	if code, body := s.ask(t, "", "/healthz"); code != 200 {
		t.Errorf("beside slow clients: %d %s", code, body)
	}
	for i, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("client %d is still connected", i)
		}
	}
}
