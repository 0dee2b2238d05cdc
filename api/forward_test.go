package api_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/appliance/test/pki"
)

// leafAuthority makes a CA of leaves, with a certificate of leaf gw1.
func leafAuthority(t *testing.T) (path string, leaves *auth.Leaves, gw1 *tls.Certificate) {
	t.Helper()
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	ca := pki.Issue(t, nil, begin, end, "ca")
	text, _ := pki.PEM(t, ca)
	path = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	leaves, err := auth.OpenLeaves(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return path, leaves, pki.Issue(t, ca, begin, end, "gw1")
}

// leafClient is a client with a certificate.
func (s *remote) leafClient(t *testing.T, cert *tls.Certificate) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return cert, nil
	}}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestWhatALeafMay(t *testing.T) {
	_, leaves, gw1 := leafAuthority(t)
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	stranger := pki.Issue(t, pki.Issue(t, nil, begin, end, "other ca"), begin, end, "gw1")
	for _, writes := range []bool{false, true} {
		s := serveTLS(t, newBackend(), api.Config{Objects: whoami, Commits: whoami, LeafWrites: writes, TLS: &api.TLS{Leaves: leaves}})
		behind := http.StatusForbidden
		if writes {
			behind = http.StatusOK
		}
		for _, tt := range []struct {
			cert              *tls.Certificate
			token             auth.Role
			method, path, who string
			code              int
			body              string
		}{
			{gw1, 0, "GET", "/svcctl/v1/commits", "", 200, "box:gw1 box "},
			{gw1, 0, "POST", "/svcctl/v1/commits/report", "", 200, "box:gw1 box "},
			{gw1, 0, "GET", "/api/v1/services", "", 403, "may follow its commits"},
			{gw1, 0, "POST", "/api/v1/namespaces/default/services", "", 403, "may follow its commits"},
			{gw1, 0, "GET", "/svcctl/v1/status", "", 403, "may follow its commits"},
			{gw1, 0, "POST", "/svcctl/v1/release", "", 403, "may follow its commits"},
			{gw1, 0, "POST", "/svcctl/v1/token", "root", 403, ""},
			{gw1, 0, "GET", "/api/v1/secrets", "root", 403, ""},
			{gw1, 0, "POST", "/svcctl/v1/release", "root", 403, ""},
			{gw1, 0, "POST", "/api/v1/namespaces/default/services", "root", behind, ""},
			{gw1, 0, "POST", "/svcctl/v1/apply", "uid:7", behind, ""},
			{gw1, auth.Reader, "GET", "/api/v1/services", "", 200, "reader"},
			{gw1, auth.Reader, "POST", "/svcctl/v1/apply", "root", 200, "root:test reader"}, // the token counts, the header means nothing
			{stranger, 0, "GET", "/svcctl/v1/commits", "", 401, "not that of a leaf"},
			{stranger, 0, "POST", "/svcctl/v1/apply", "root", 401, "not that of a leaf"},
			{&tls.Certificate{}, 0, "GET", "/svcctl/v1/commits", "", 401, ""},
			{&tls.Certificate{}, 0, "POST", "/svcctl/v1/apply", "root", 401, ""},
			{&tls.Certificate{}, auth.Reader, "GET", "/svcctl/v1/commits", "", 403, ""},
			{&tls.Certificate{}, auth.Reader, "POST", "/svcctl/v1/commits/report", "", 403, ""},
			{&tls.Certificate{}, auth.Admin, "GET", "/svcctl/v1/commits", "", 200, "admin"},
		} {
			token := ""
			if tt.token != 0 {
				token = s.token(t, tt.token)
			}
			req := s.request(t, t.Context(), token, tt.method, tt.path, "")
			if tt.who != "" {
				req.Header.Set("Svcctl-Forwarded-User", tt.who)
			}
			resp, err := s.leafClient(t, tt.cert).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != tt.code || !strings.Contains(string(body), tt.body) {
				t.Errorf("writes %t: %s %s for %q: %d %s, want %d %s", writes, tt.method, tt.path, tt.who, resp.StatusCode, body, tt.code, tt.body)
			}
			if resp.StatusCode == http.StatusOK && tt.who != "" && tt.token == 0 && !strings.HasPrefix(string(body), "box:gw1:"+tt.who+" admin ") {
				t.Errorf("an admin behind a leaf is %s", body)
			}
		}
	}
}

// What has no end ends when the certificate is not good any more.
func TestAStreamEndsWithTheCertificateOfItsLeaf(t *testing.T) {
	t.Parallel()
	path, leaves, gw1 := leafAuthority(t)
	began := make(chan struct{})
	s := serveTLS(t, newBackend(), api.Config{TLS: &api.TLS{Leaves: leaves}, Commits: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		close(began)
		<-r.Context().Done()
	})})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := s.leafClient(t, gw1).Do(s.request(t, ctx, "", http.MethodGet, "/svcctl/v1/commits", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-began
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	if ctx.Err() != nil {
		t.Error("the stream goes on without a good certificate")
	}
}

// elsewhere sends requests to another server.
type elsewhere struct {
	*http.Transport
	url *url.URL
}

func (e elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host = e.url.Scheme, e.url.Host
	return e.Transport.RoundTrip(r)
}

// A leaf hands on what changes objects, for its admins, and nothing else.
func TestForward(t *testing.T) {
	t.Parallel()
	_, leaves, gw1 := leafAuthority(t)
	core := serveTLS(t, newBackend(), api.Config{Objects: whoami, LeafWrites: true, TLS: &api.TLS{Leaves: leaves}})
	at := elsewhere{core.leafClient(t, gw1).Transport.(*http.Transport), &url.URL{Scheme: "https", Host: core.address}}
	leaf := serveTLS(t, newBackend(), api.Config{Objects: whoami, Forward: at})
	for _, tt := range []struct {
		role         auth.Role
		method, path string
		want         string
	}{
		{auth.Admin, "POST", "/api/v1/namespaces/default/services", "box:gw1:root:test admin"},
		{auth.Admin, "DELETE", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/a", "box:gw1:root:test admin"},
		{auth.Admin, "PATCH", "/api/v1/namespaces/default/services/a", "box:gw1:root:test admin"},
		{auth.Admin, "POST", "/svcctl/v1/apply", "box:gw1:root:test admin"},
		{auth.Admin, "GET", "/api/v1/services", "root:test admin"},
		{auth.Admin, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "root:test admin"},
		{auth.Reader, "POST", "/api/v1/namespaces/default/services", "root:test reader"}, // is refused here
	} {
		req := leaf.request(t, t.Context(), leaf.token(t, tt.role), tt.method, tt.path, "")
		req.Header.Set("Svcctl-Forwarded-User", "forged")
		resp, err := leaf.client(t, 2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), tt.want) {
			t.Errorf("%s %s of a %s: %d %s, want %s", tt.method, tt.path, tt.role, resp.StatusCode, body, tt.want)
		}
	}
	post := func() (int, http.Header, string) {
		t.Helper()
		resp, err := leaf.client(t, 2).Do(leaf.request(t, t.Context(), leaf.token(t, auth.Admin), http.MethodPost, "/api/v1/namespaces", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header, string(body)
	}
	if err := core.stop(); err != nil {
		t.Fatal(err)
	}
	at.CloseIdleConnections()
	if code, header, body := post(); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(body, "nothing was changed") {
		t.Errorf("without a core box: %d %v %s", code, header, body)
	}
	// A core box that takes the request and does not answer may have done it.
	ln, err := net.Listen("tcp", core.address)
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		ln, err = net.Listen("tcp", core.address) // another test may have the port for a while
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	if code, _, body := post(); code != http.StatusGatewayTimeout || !strings.Contains(body, "may have been made or not") {
		t.Errorf("without an answer: %d %s", code, body)
	}
}
