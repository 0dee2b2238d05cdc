package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// What decides about connections and what follows them is the same for ports with TLS and HTTP.
func Test410_TLS_and_what_else_a_Service_asks_for(t *testing.T) {
	ca := newIssuer(t, "ca")
	secret := secretDocument("www", ca.issue("www.example.com"))
	b := newBox(t, nil)
	b.headered(t)
	documents := func(more []string, spec ...string) func(f family) []string {
		return func(f family) []string {
			annotations := append([]string{"svcctl.io/tls-secret: www", "svcctl.io/proxy-protocol: v2"}, more...)
			lines := append([]string{"type: LoadBalancer", "clusterIP: " + f.vip(41), "loadBalancerIP: " + f.lb(4), "ports: [{name: https, port: 443, nodePort: " + f.port(30080) + "}]"}, spec...)
			return []string{f.annotated("web", annotations, lines...), f.slice("web", "https: 9000", b.L1, b.R1)}
		}
	}
	b.write("web.yaml", documents(nil, "sessionAffinity: ClientIP")) // each rewrite changes something
	b.svcctl.Manifests.Write("secret.yaml", secret)
	b.svcctl.Start()
	told := func(t *testing.T, b *box, f family, from *netlab.Host, to netip.AddrPort, opts ...string) (server string) {
		t.Helper()
		source := f.of(from)
		out := curl(t, from, ca, "www.example.com", to, opts...)
		server, rest, _ := strings.Cut(out, " ")
		if want := fmt.Sprintf("%s %s %d", source, to.Addr(), to.Port()); rest != want {
			t.Errorf("the endpoint was told %q, want %q", rest, want)
		}
		return server
	}
	for name, more := range map[string][]string{"TLS": nil, "TLS and HTTP": {"svcctl.io/backend-protocol: http"}} {
		// The header of the PROXY protocol names the client, and endpoints take turns.
		b.rewrite("web.yaml", documents(more))
		b.each(t, func(t *testing.T, b *box, f family) {
			var servers []string
			for range 6 {
				servers = append(servers, told(t, b, f, b.EXT, f.at(f.lb(4), 443)))
			}
			takeTurns(t, servers, 2)
		})
		// A client keeps its endpoint.
		b.rewrite("web.yaml", documents(more, "sessionAffinity: ClientIP"))
		b.each(t, func(t *testing.T, b *box, f family) {
			first := told(t, b, f, b.EXT, f.at(f.lb(4), 443))
			for range 4 {
				if got := told(t, b, f, b.EXT, f.at(f.lb(4), 443)); got != first {
					t.Errorf("a client of %s was sent to %s", first, got)
				}
			}
		})
		// Source ranges and the policy Local hold.
		b.rewrite("web.yaml", documents(more, etpLocal, "loadBalancerSourceRanges: [203.0.113.0/25, '2001:db8:203::/65']"))
		b.each(t, func(t *testing.T, b *box, f family) {
			for range 4 {
				if got := told(t, b, f, b.EXT, f.at(f.lb(4), 443)); got != "nginx" {
					t.Errorf("outside clients get %s, want the local endpoint", got)
				}
			}
			b.drops(t, b.BLK, "tcp", f.at(f.lb(4), 443))
		})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func Test411_connections_with_TLS_drain_and_idle(t *testing.T) {
	ca := newIssuer(t, "ca")
	secret := secretDocument("www", ca.issue("www.example.com"))
	for name, annotation := range map[string]string{"drained": "svcctl.io/drain-timeout: 1s", "idle": "svcctl.io/idle-timeout: 2s"} {
		t.Run(name, func(t *testing.T) {
			b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www", annotation}, "9000", secret)
			for _, f := range families {
				c, err := secure(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443))
				if err != nil {
					t.Fatal(err)
				}
				ask(t, c)
				if name == "drained" {
					b.rewrite("web.yaml", func(g family) []string {
						docs := tlsDocuments(b, []string{"svcctl.io/tls-secret: www", annotation}, "9000", secret)(g)
						docs[1] = g.slice("web", "https: 9000", b.L2) // the listener stays: the relay drains
						return docs
					})
				}
				if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: %d bytes, %v, want that it ends", f, n, err)
				}
				if name == "drained" {
					b.rewrite("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www", annotation}, "9000", secret))
				}
			}
		})
	}
}

// Nothing but the data directory and a client that asks for the Secret sees a key.
func Test412_keys_stay_secret(t *testing.T) {
	ca := newIssuer(t, "ca")
	pair, next := ca.issue("www.example.com"), ca.issue("www.example.com")
	const scraped, listen = "127.0.0.1:9753", "127.0.0.1:6443"
	b := newBox(t, flags{"metrics-listen": {scraped}, "listen": {listen}, "log-level": {"debug"}})
	b.echoes(t, ca.issue("x"), b.L1, b.R1)
	b.write("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www"}, "9000"))
	b.svcctl.Start()
	shows := func(text string) string {
		for _, key := range []string{pair.key, next.key} {
			for i, line := range strings.Split(strings.TrimSpace(key), "\n") {
				if i > 0 && len(line) > 20 && !strings.HasPrefix(line, "-----") && strings.Contains(text, line) {
					return line
				}
			}
		}
		if strings.Contains(text, "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t") { // the beginning in base64
			return "a key in base64"
		}
		return ""
	}
	// By files and by a client.
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", pair)) })
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", issued{next.cert, pair.key})) })
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", "") })
	file := filepath.Join(t.TempDir(), "secret.yaml")
	if err := os.WriteFile(file, []byte(secretDocument("www", next)), 0o600); err != nil {
		t.Fatal(err)
	}
	verb := func(name string, args ...string) string {
		t.Helper()
		out, errOut, _ := b.svcctl.Svcctl(name, args...)
		return out + errOut
	}
	texts := map[string]string{"diff": verb("diff", "-f", file), "apply": verb("apply", "-f", file, "--wait")}
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, time.Minute, func() error { _, err := tryCurl(b.EXT, ca, "www.example.com", f.at(f.lb(4), 443)); return err })
	})
	texts["diff again"] = verb("diff", "-f", file)
	for name, args := range map[string][]string{"status": {"-o", "json"}, "journal": {"--events"}, "events": {"events", "-A", "-o", "yaml"}, "table": {"secrets", "-A", "-o", "wide"},
		"describe": {"secret/www"}, "describe service": {"svc/web-4"}, "explain": {"svc/web-4"}} {
		verbName := strings.Fields(name)[0]
		switch verbName {
		case "events", "table":
			verbName = "get"
		}
		texts[name] = verb(verbName, args...)
	}
	out, errOut, err := b.GW1.Run("curl", "-sS", "--noproxy", "*", "http://"+scraped+"/metrics")
	texts["metrics"] = out + errOut
	texts["log"] = b.svcctl.Log()
	for name, text := range texts {
		if what := shows(text); what != "" {
			t.Errorf("%s shows %s:\n%s", name, what, text)
		}
		if text == "" && name != "diff again" {
			t.Errorf("%s says nothing: %v", name, err)
		}
	}
	if !strings.Contains(texts["table"], "kubernetes.io/tls") || !strings.Contains(texts["diff"], "***") {
		t.Errorf("table: %s\ndiff: %s", texts["table"], texts["diff"])
	}
	// Who asks for it gets it, unless he may only read.
	if shows(verb("get", "secret/www", "-o", "yaml")) == "" {
		t.Error("get -o yaml does not show the Secret")
	}
	admin := b.api(t)
	reader := *admin
	reader.token = strings.TrimSpace(verb("admin", "token", "--role", "reader"))
	for path, want := range map[string]int{"/api/v1/namespaces/default/secrets/www": http.StatusForbidden, "/api/v1/secrets": http.StatusForbidden, "/api/v1/secrets?watch=true": http.StatusForbidden, "/api/v1/services": http.StatusOK} {
		resp := reader.start("GET", path, "")
		body, _ := io.ReadAll(resp.Body)
		if resp.Body.Close(); resp.StatusCode != want || shows(string(body)) != "" {
			t.Errorf("%s for who may read: %d, want %d", path, resp.StatusCode, want)
		}
	}
	// On disk only the owner reads it.
	err = filepath.WalkDir(filepath.Dir(b.svcctl.Socket), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.Contains(path, "manifests") {
			return err
		}
		content, err := os.ReadFile(path)
		if info, err := entry.Info(); err == nil && shows(string(content)) != "" && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has a key, and its mode is %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func Test413_certificates_are_told(t *testing.T) {
	ca := newIssuer(t, "ca")
	const scraped = "127.0.0.1:9753"
	soon := ca.until(time.Now().Add(10*24*time.Hour), "www.example.com")
	b := newBox(t, flags{"metrics-listen": {scraped}})
	b.write("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www, api", "svcctl.io/backend-protocol: http"}, "9000", secretDocument("www", soon), secretDocument("api", ca.issue("api.example.com"))))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "warning", "CertificateExpires", "metadata.annotations[svcctl.io/tls-secret]", "Secret default/www: its certificate (for www.example.com, until ", "expires within 14 days: renew it")
		explain, errOut, _ := b.svcctl.Svcctl("explain", "svc/"+f.name("web"))
		describe, _, _ := b.svcctl.Svcctl("describe", "svc/"+f.name("web"))
		for what, tt := range map[string]struct {
			text  string
			wants []string
		}{
			"explain": {explain + errOut, []string{"port 443/TCP is relayed, as svcctl.io/tls-secret asks", "TLS of clients ends here, from version TLS 1.2 on, with the certificates of www, api",
				"Secret default/www, for www.example.com, until ", "Secret default/api, for api.example.com, until ", "X-Forwarded-For"}},
			"describe": {describe, []string{"443/TCP  TLS ended with Secret www, api, HTTP", "default/www, for www.example.com, until "}},
		} {
			for _, want := range tt.wants {
				if !strings.Contains(tt.text, want) {
					t.Errorf("%s lacks %q:\n%s", what, want, tt.text)
				}
			}
		}
	})
	out, errOut, err := b.GW1.Run("curl", "-sS", "--noproxy", "*", "http://"+scraped+"/metrics")
	for _, want := range []string{`svcctl_tls_certificate_expiry_timestamp_seconds{namespace="default",secret="www"} 1.`, `svcctl_tls_certificate_expiry_timestamp_seconds{namespace="default",secret="api"}`, "svcctl_tls_handshake_failures_total 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("metrics lack %s: %v, %s", want, err, errOut)
		}
	}
	// A renewed one has nothing to tell.
	b.rewrite("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www, api"}, "9000", secretDocument("www", ca.issue("www.example.com")), secretDocument("api", ca.issue("api.example.com"))))
	for _, f := range families {
		b.noProblem(t, f.object("Service", "web"))
	}
}
