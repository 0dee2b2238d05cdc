package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// issuer is a CA of a test.
type issuer struct {
	t    *testing.T
	cert *tls.Certificate
	file string // its certificate in PEM
}

// issued is a certificate with its key, in PEM.
type issued struct{ cert, key string }

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	ca := &issuer{t: t, cert: pki.Issue(t, nil, time.Now().Add(-24*time.Hour), time.Now().Add(1000*time.Hour), name)}
	ca.file = filepath.Join(t.TempDir(), name+".pem")
	if err := os.WriteFile(ca.file, []byte(ca.pem()), 0o600); err != nil {
		t.Fatal(err)
	}
	return ca
}

func (ca *issuer) pem() string {
	cert, _ := pki.PEM(ca.t, ca.cert)
	return string(cert)
}

// until issues a certificate for names that ends then.
func (ca *issuer) until(end time.Time, names ...string) issued {
	ca.t.Helper()
	cert, key := pki.PEM(ca.t, pki.Issue(ca.t, ca.cert, time.Now().Add(-48*time.Hour), end, names...))
	return issued{string(cert), string(key)}
}

func (ca *issuer) issue(names ...string) issued {
	return ca.until(time.Now().Add(500*time.Hour), names...)
}

// files writes a pair for programs.
func (i issued) files(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, text := range map[string]string{cert: i.cert, key: i.key} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// serial is that of the certificate.
func (i issued) serial(t *testing.T) string {
	t.Helper()
	block, _ := pem.Decode([]byte(i.cert))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c.SerialNumber.String()
}

// secretDocument is a Secret of type kubernetes.io/tls.
func secretDocument(name string, pair issued) string {
	return secretOf(name, "kubernetes.io/tls", map[string]string{"tls.crt": pair.cert, "tls.key": pair.key})
}

func secretOf(name, kind string, data map[string]string) string {
	doc := "apiVersion: v1\nkind: Secret\ntype: " + kind + "\nmetadata: {name: " + name + "}\nstringData:\n"
	for _, key := range slices.Sorted(maps.Keys(data)) {
		doc += "  " + key + ": |\n"
		for line := range strings.Lines(data[key]) {
			doc += "    " + strings.TrimSuffix(line, "\n") + "\n"
		}
	}
	return doc
}

// annotated is a Service with annotations, one a line.
func (f family) annotated(name string, annotations []string, spec ...string) string {
	return strings.Replace(f.service(name, spec...), "spec:\n", "  annotations:\n    "+strings.Join(annotations, "\n    ")+"\nspec:\n", 1)
}

// place is the host and port of a URL.
func place(at netip.AddrPort) string { return at.String() }

// curl asks over HTTPS for a name at an address and returns the body. With opts, which are curl's, curl asks. Without them this process
// does, as the start of curl costs more than most that these tests ask for.
func curl(t *testing.T, from *netlab.Host, ca *issuer, name string, at netip.AddrPort, opts ...string) string {
	t.Helper()
	out, err := tryCurl(from, ca, name, at, opts...)
	if err != nil {
		t.Fatalf("%s: curl of %s at %s: %v", from.Name, name, at, err)
	}
	return out
}

func tryCurl(from *netlab.Host, ca *issuer, name string, at netip.AddrPort, opts ...string) (string, error) {
	if len(opts) == 0 {
		return from.GetTLS(at, &tls.Config{RootCAs: pki.Pool(ca.cert), ServerName: name})
	}
	address := at.Addr().String()
	if at.Addr().Is6() {
		address = "[" + address + "]"
	}
	args := []string{"-sS", "--noproxy", "*", "--max-time", "100", "--cacert", ca.file, "--resolve", fmt.Sprintf("%s:%d:%s", name, at.Port(), address)}
	args = append(args, opts...)
	out, errOut, err := from.Run("curl", append(args, fmt.Sprintf("https://%s:%d/", name, at.Port()))...)
	if err != nil {
		return out, fmt.Errorf("%w: %s", err, errOut)
	}
	return out, nil
}

// openssl runs s_client, which ends at once.
func openssl(from *netlab.Host, at netip.AddrPort, opts ...string) (string, error) {
	out, errOut, err := from.RunInput("", "timeout", append([]string{"100", "openssl", "s_client", "-connect", place(at)}, opts...)...)
	return out + errOut, err
}

// certificateFor returns the certificate that a server sends to a client that asks for a name; "": for none.
func certificateFor(t *testing.T, from *netlab.Host, at netip.AddrPort, name string) (*x509.Certificate, error) {
	t.Helper()
	c, err := handshake(t, from, at, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	return c.ConnectionState().PeerCertificates[0], nil
}

// nginxEcho answers with what it was told: over HTTP at one port, over TLS at another.
const nginxEcho = `
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log;
events {}
http {
	access_log off;
	keepalive_timeout 10m;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s; listen %[3]s;
		listen %[4]s ssl; listen %[5]s ssl;
		ssl_certificate %[6]s; ssl_certificate_key %[7]s;
		location / { return 200 "%[8]s $remote_addr scheme=$scheme host=$http_host for=$http_x_forwarded_for proto=$http_x_forwarded_proto port=$http_x_forwarded_port secret=$http_x_secret te=$http_te upgrade=$http_upgrade uri=$request_uri"; }
	}
}
`

// echoes starts nginx on hosts: HTTP at port 9000, HTTPS at 9443 with a certificate.
func (b *box) echoes(t *testing.T, pair issued, hosts ...*netlab.Host) {
	t.Helper()
	cert, key := pair.files(t)
	for _, h := range hosts {
		dir := t.TempDir()
		path := filepath.Join(dir, "nginx.conf")
		text := fmt.Sprintf(nginxEcho, dir, ipv4.on(9000, h)[0], ipv6.on(9000, h)[0], ipv4.on(9443, h)[0], ipv6.on(9443, h)[0], cert, key, h.Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &program{host: h, pidFile: filepath.Join(dir, "nginx.pid"), start: []string{"nginx", "-e", filepath.Join(dir, "nginx.log"), "-c", path}}
		p.run(t)
		t.Cleanup(func() { p.signal(t, unix.SIGCONT); p.stop(t) })
	}
}

// tlsBox serves a load balancer "web" with TLS at port 443, and what more documents say.
func tlsBox(t *testing.T, ca *issuer, annotations []string, port string, more ...string) *box {
	t.Helper()
	b := newBox(t, nil)
	b.echoes(t, ca.issue("web-4.default.svc", "web-6.default.svc"), b.L1, b.R1)
	b.write("web.yaml", tlsDocuments(b, annotations, port, more...))
	b.svcctl.Start()
	return b
}

func tlsDocuments(b *box, annotations []string, port string, more ...string) func(f family) []string {
	return func(f family) []string {
		docs := []string{
			f.annotated("web", annotations, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
				"ports: [{name: https, port: 443, nodePort: "+f.port(30080)+"}]"),
			f.slice("web", "https: "+port, b.L1, b.R1),
		}
		if !f.v6 {
			docs = append(docs, more...)
		}
		return docs
	}
}

func Test400_TLS_is_ended_with_the_certificate_of_the_name(t *testing.T) {
	ca := newIssuer(t, "ca")
	www, api := ca.issue("www.example.com", "*.www.example.com"), ca.issue("api.example.com")
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www, api"}, "9000", secretDocument("www", www), secretDocument("api", api))
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, name := range []string{"www.example.com", "a.www.example.com", "api.example.com"} {
			for _, ask := range []struct {
				from *netlab.Host
				to   netip.AddrPort
			}{{b.EXT, f.at(f.lb(4), 443)}, {b.EXT, f.nodePort()}, {b.IN, f.at(f.vip(41), 443)}, {b.L1, f.at(f.vip(41), 443)}, {b.GW1, f.at(f.vip(41), 443)}} {
				servers := map[string]bool{}
				for i := 0; i < 4 && len(servers) < 2; i++ {
					server, rest, _ := strings.Cut(curl(t, ask.from, ca, name, ask.to), " ")
					if servers[server] = true; !strings.Contains(rest, "scheme=http host="+name) || !strings.Contains(rest, "for= proto=") {
						t.Errorf("%s: %s to %s: %s", name, ask.from.Name, ask.to, rest)
					}
				}
				if len(servers) != 2 {
					t.Errorf("%s: answers by %v, want both in turn", name, servers)
				}
			}
		}
		// Another name, or none, gets the first certificate.
		for _, name := range []string{"", "other.example.com"} {
			certificate, err := certificateFor(t, b.EXT, f.at(f.lb(4), 443), name)
			if err != nil || certificate.Subject.CommonName != "www.example.com" {
				t.Errorf("%q: %v, certificate %+v", name, err, certificate)
			}
		}
		b.noProblem(t, f.object("Service", "web"))
	})
}

func Test401_no_old_version_and_no_weak_suite(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www"}, "9000", secretDocument("www", ca.issue("www.example.com")))
	policy := func(name string) {
		t.Helper()
		b.rewrite("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www", "svcctl.io/tls-policy: '" + name + "'"}, "9000", secretDocument("www", ca.issue("www.example.com"))))
	}
	// Whether a client has a session, by its version and the suites that it offers. What crypto/tls lacks is offered by openssl.
	type offer struct {
		version uint16
		suites  []uint16
	}
	var every []uint16
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		every = append(every, suite.ID)
	}
	var (
		tls12  = offer{version: tls.VersionTLS12}
		tls13  = offer{version: tls.VersionTLS13}
		chacha = offer{tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}
		aes256 = offer{tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}}
	)
	never := []offer{
		{tls.VersionTLS10, every}, {tls.VersionTLS11, every},
		{tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}, {tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256}},
	}
	check := func(name string, good, bad []offer) {
		t.Helper()
		b.each(t, func(t *testing.T, b *box, f family) {
			try := func(o offer, want bool) {
				_, err := handshake(t, b.EXT, f.at(f.lb(4), 443), &tls.Config{RootCAs: pki.Pool(ca.cert), ServerName: "www.example.com", MinVersion: o.version, MaxVersion: o.version, CipherSuites: o.suites})
				if refused := err != nil && strings.Contains(err.Error(), "remote error: tls: "); (err == nil) != want || refused == want {
					t.Errorf("policy %q, %s with the suites %#x: %v, want a session %t", name, tls.VersionName(o.version), o.suites, err, want)
				}
			}
			for _, o := range good {
				try(o, true)
			}
			for _, o := range slices.Concat(bad, never) {
				try(o, false)
			}
			for _, suite := range []string{"ECDHE-ECDSA-AES256-CCM8:@SECLEVEL=0", "aNULL:@SECLEVEL=0"} {
				out, err := openssl(b.EXT, f.at(f.lb(4), 443), "-servername", "www.example.com", "-CAfile", ca.file, "-verify_return_error", "-tls1_2", "-cipher", suite)
				if err == nil && strings.Contains(out, "Verify return code: 0 (ok)") {
					t.Errorf("policy %q, %s: a session: %s", name, suite, out)
				}
			}
		})
	}
	check("", []offer{tls12, tls13, chacha, aes256}, nil)
	policy("1.3")
	check("1.3", []offer{tls13}, []offer{tls12})
	policy("ELBSecurityPolicy-TLS-1-2-2017-01")
	check("ELBSecurityPolicy-TLS-1-2-2017-01", []offer{tls12}, []offer{tls13, chacha})
	policy("ELBSecurityPolicy-2016-08")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "error", "metadata.annotations[svcctl.io/tls-policy]", "TLSNotTerminated", "below 1.2", "ELBSecurityPolicy-TLS13-1-2-2021-06")
		if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 443)); err == nil {
			t.Errorf("with an obsolete policy: %s", reply)
		}
	})
}

func Test402_session_tickets(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www"}, "9000", secretDocument("www", ca.issue("www.example.com")))
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, version := range []string{"-tls1_2", "-tls1_3"} {
			session := filepath.Join(t.TempDir(), "session")
			get := func(opts ...string) string {
				t.Helper()
				args := append([]string{"100", "openssl", "s_client", "-connect", place(f.at(f.lb(4), 443)), "-servername", "www.example.com", "-ign_eof", version}, opts...)
				out, errOut, _ := b.EXT.RunInput("GET / HTTP/1.0\r\nHost: www.example.com\r\n\r\n", "timeout", args...)
				if !strings.Contains(out, "200 OK") {
					t.Fatalf("%s: %s%s", version, out, errOut)
				}
				return out
			}
			if out := get("-sess_out", session); !strings.Contains(out, "New, TLS") {
				t.Errorf("%s: %s", version, out)
			}
			if out := get("-sess_in", session); !strings.Contains(out, "Reused, TLS") {
				t.Errorf("%s: the ticket was not taken: %s", version, out)
			}
		}
	})
}

// secure connects by TLS.
func secure(t *testing.T, from *netlab.Host, ca *issuer, name string, at netip.AddrPort, with ...tls.Certificate) (*tls.Conn, error) {
	t.Helper()
	return handshake(t, from, at, &tls.Config{RootCAs: pki.Pool(ca.cert), ServerName: name, Certificates: with})
}

// handshake connects by TLS with these settings. The connection is closed at the end of the test.
func handshake(t *testing.T, from *netlab.Host, at netip.AddrPort, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	raw := dial(t, from, at)
	t.Cleanup(func() { raw.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := tls.Client(raw, config)
	return c, c.HandshakeContext(ctx)
}

// ask sends a request over a connection that stays and returns the body of the answer.
func ask(t *testing.T, c *tls.Conn) string {
	t.Helper()
	res, body := request(t, c)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", res.Status, body)
	}
	return body
}

func request(t *testing.T, c *tls.Conn) (*http.Response, string) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func Test403_a_certificate_is_renewed_without_losing_a_connection(t *testing.T) {
	ca := newIssuer(t, "ca")
	pairs := []issued{ca.issue("www.example.com"), ca.issue("www.example.com"), ca.issue("www.example.com")}
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www"}, "9000")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "error", "SecretUnusable", "metadata.annotations[svcctl.io/tls-secret]", "Secret default/www: it is not there", "kubectl create secret tls www", "clients are refused")
		b.refuses(t, b.EXT, "tcp", f.at(f.lb(4), 443))
	})
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", pairs[0])) })
	// current waits until new connections have a certificate.
	current := func(f family, want issued) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			c, err := secure(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443))
			if err != nil {
				return err
			}
			if got := c.ConnectionState().PeerCertificates[0].SerialNumber.String(); got != want.serial(t) {
				return fmt.Errorf("certificate %s, want %s", got, want.serial(t))
			}
			return nil
		})
	}
	open := map[family]*tls.Conn{}
	for _, f := range families {
		current(f, pairs[0])
		c, err := secure(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443))
		if err != nil {
			t.Fatal(err)
		}
		open[f] = c
		ask(t, c)
	}
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", pairs[1])) })
	for _, f := range families {
		current(f, pairs[1])
		b.noProblem(t, f.object("Service", "web"))
	}
	// What is wrong leaves the last good one in use, and is told.
	other := ca.issue("www.example.com")
	for name, tt := range map[string]struct{ doc, text string }{
		"mismatch":     {secretDocument("www", issued{pairs[2].cert, other.key}), "the key in data[tls.key] does not belong to the certificate in data[tls.crt]"},
		"half written": {secretDocument("www", issued{pairs[2].cert[:len(pairs[2].cert)/2], pairs[2].key}), "data[tls.crt] is not PEM, or ends in the middle"},
		"half a key":   {secretDocument("www", issued{pairs[2].cert, pairs[2].key[:60]}), "data[tls.key] is not PEM, or ends in the middle"},
		"ended":        {secretDocument("www", ca.until(time.Now().Add(-time.Hour), "www.example.com")), "has expired: renew it"},
		"gone":         {"", "it is not there"},
	} {
		b.change(func() { b.svcctl.Manifests.Write("secret.yaml", tt.doc) })
		for _, f := range families {
			b.hasProblem(t, f.object("Service", "web"), "error", "SecretNotInForce", "metadata.annotations[svcctl.io/tls-secret]", tt.text, "the certificate before (for www.example.com, until ", "stays in use")
			current(f, pairs[1])
		}
		if t.Failed() {
			t.Fatalf("with the Secret: %s", name)
		}
	}
	b.change(func() { b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", pairs[2])) })
	for _, f := range families {
		current(f, pairs[2])
		b.noProblem(t, f.object("Service", "web"))
		ask(t, open[f]) // nothing of this has touched it
	}
}
