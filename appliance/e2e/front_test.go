package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

func Test404_nobody_is_served_in_the_clear_instead(t *testing.T) {
	ca := newIssuer(t, "ca")
	const web = "web"
	b := newBox(t, nil)
	b.echoes(t, ca.issue("x"), b.L1)
	documents := func(annotations ...string) func(f family) []string {
		return func(f family) []string {
			ports := "ports: [{name: https, port: 443, nodePort: " + f.port(30080) + "}, {name: http, port: 80, nodePort: " + f.port(30090) + "}, {name: dns, port: 53, protocol: UDP, nodePort: " + f.port(30080) + "}]"
			return []string{
				f.annotated(web, annotations, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), ports),
				f.slice(web, "https: 9000, http: 80, dns: 53/UDP", b.L1),
			}
		}
	}
	b.write("web.yaml", documents()) // none of those below: rewriting a file as it is makes no revision
	b.svcctl.Start()
	for name, tt := range map[string]struct {
		annotations []string
		field, text string
		udp         bool // is served
	}{
		"no Secret":       {[]string{"svcctl.io/tls-secret.https: www"}, "metadata.annotations[svcctl.io/tls-secret.https]", "it is not there", true},
		"bad name":        {[]string{"svcctl.io/tls-secret.https: other/www"}, "metadata.annotations[svcctl.io/tls-secret.https]", "no name of a Secret", true},
		"ARN":             {[]string{"service.beta.kubernetes.io/aws-load-balancer-ssl-cert: arn:aws:acm:us-east-1:1:certificate/1", "service.beta.kubernetes.io/aws-load-balancer-ssl-ports: https"}, "spec.ports[0]", "name that in svcctl.io/tls-secret", true},
		"no Secret, AWS":  {[]string{"service.beta.kubernetes.io/aws-load-balancer-ssl-cert: secret:www", "service.beta.kubernetes.io/aws-load-balancer-ssl-ports: https"}, "metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-ssl-cert]", "it is not there", true},
		"no backend's CA": {[]string{"svcctl.io/backend-protocol.https: tls", "svcctl.io/backend-ca: ca"}, "metadata.annotations[svcctl.io/backend-ca]", "kubectl create secret generic ca --from-file=ca.crt=FILE", true},
		"bad protocol":    {[]string{"svcctl.io/backend-protocol.https: tsl"}, "metadata.annotations[svcctl.io/backend-protocol.https]", "no protocol", true},
		"UDP":             {[]string{"svcctl.io/tls-secret.https: www", "svcctl.io/tls-secret.dns: www"}, "metadata.annotations[svcctl.io/tls-secret.dns]", "neither TLS nor HTTP over UDP", false},
	} {
		b.rewrite("web.yaml", documents(tt.annotations...))
		b.each(t, func(t *testing.T, b *box, f family) {
			b.hasProblem(t, f.object("Service", web), "error", tt.field, tt.text)
			for _, to := range []netip.AddrPort{f.at(f.lb(4), 443), f.at(f.vip(41), 443), f.nodePort()} {
				b.refuses(t, b.EXT, "tcp", to)
			}
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
			if tt.udp {
				b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.L1)...)
			} else {
				// Flows from while it was served are forgotten after the rules have changed.
				eventually(t, syncTimeout, func() error { return b.tryRefuses(b.EXT, "udp", f.at(f.lb(4), 53)) })
			}
		})
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
}

func Test405_certificates_of_clients(t *testing.T) {
	ca, mine, foreign := newIssuer(t, "ca"), newIssuer(t, "clients"), newIssuer(t, "foreign")
	secrets := []string{secretDocument("www", ca.issue("www.example.com")), secretOf("clients", "Opaque", map[string]string{"ca.crt": mine.pem()})}
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www", "svcctl.io/tls-client-ca: clients"}, "9000", secrets...)
	check := func(without bool) {
		t.Helper()
		b.each(t, func(t *testing.T, b *box, f family) {
			at := f.at(f.lb(4), 443)
			for name, tt := range map[string]struct {
				pair *issued
				good bool
			}{"its own": {ptr(mine.issue("me")), true}, "a foreign one": {ptr(foreign.issue("me")), false}, "none": {nil, without}} {
				var opts []string
				if tt.pair != nil {
					cert, key := tt.pair.files(t)
					opts = []string{"--cert", cert, "--key", key}
				}
				if out, err := tryCurl(b.EXT, ca, "www.example.com", at, opts...); (err == nil) != tt.good {
					t.Errorf("a client with %s: %q, %v, want that it is served: %t", name, out, err, tt.good)
				}
			}
			b.noProblem(t, f.object("Service", "web"))
		})
	}
	check(false)
	b.rewrite("web.yaml", tlsDocuments(b, []string{"svcctl.io/tls-secret: www", "svcctl.io/tls-client-ca: clients", "svcctl.io/tls-client-auth: optional"}, "9000", secrets...))
	check(true)
}

func ptr[T any](v T) *T { return &v }

func Test406_TLS_towards_endpoints(t *testing.T) {
	ca, foreign := newIssuer(t, "ca"), newIssuer(t, "foreign")
	secrets := []string{secretDocument("www", ca.issue("www.example.com")), secretOf("backend", "Opaque", map[string]string{"ca.crt": ca.pem()}),
		secretOf("foreign", "Opaque", map[string]string{"ca.crt": foreign.pem()})}
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: tls", "svcctl.io/backend-ca: backend"}, "9443", secrets...)
	check := func(good bool, warns string) {
		t.Helper()
		b.each(t, func(t *testing.T, b *box, f family) {
			out, err := tryCurl(b.EXT, ca, "www.example.com", f.at(f.lb(4), 443))
			if (err == nil && strings.Contains(out, "scheme=https")) != good {
				t.Errorf("%q, %v, want that it is served: %t", out, err, good)
			}
			if warns == "" {
				b.noProblem(t, f.object("Service", "web"))
			} else {
				b.hasProblem(t, f.object("Service", "web"), "warning", "BackendUnchecked", warns)
			}
		})
	}
	check(true, "") // as NAME.NAMESPACE.svc
	for _, tt := range []struct {
		annotations []string
		good        bool
		warns       string
	}{
		{[]string{"svcctl.io/backend-protocol: tls", "svcctl.io/backend-ca: foreign"}, false, ""},
		{[]string{"svcctl.io/backend-protocol: tls", "svcctl.io/backend-ca: backend", "svcctl.io/backend-name: db.example.com"}, false, ""},
		{[]string{"svcctl.io/backend-protocol: tls"}, true, "metadata.annotations[svcctl.io/tls-secret]"},
		{[]string{"svcctl.io/backend-protocol: tls", "svcctl.io/backend-ca: none"}, true, ""},
		{[]string{"svcctl.io/backend-protocol: https", "svcctl.io/backend-ca: backend"}, true, ""},
		{[]string{"svcctl.io/backend-protocol: https", "svcctl.io/backend-ca: foreign"}, false, ""},
	} {
		b.rewrite("web.yaml", tlsDocuments(b, append([]string{"svcctl.io/tls-secret: www"}, tt.annotations...), "9443", secrets...))
		if check(tt.good, tt.warns); t.Failed() {
			t.Fatalf("with %v", tt.annotations)
		}
	}
}

func Test407_HTTP_names_the_client(t *testing.T) {
	ca := newIssuer(t, "ca")
	secret := secretDocument("www", ca.issue("www.example.com"))
	b := newBox(t, nil)
	b.echoes(t, ca.issue("x"), b.L1, b.R1)
	documents := func(hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.annotated("web", []string{"svcctl.io/tls-secret.https: www", "svcctl.io/backend-protocol: http"}, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
					"ports: [{name: https, port: 443, nodePort: "+f.port(30080)+"}, {name: http, port: 80, nodePort: "+f.port(30090)+"}]"),
				f.slice("web", "https: 9000, http: 9000", hosts...),
			}
		}
	}
	b.write("web.yaml", documents(b.L1, b.R1))
	b.svcctl.Manifests.Write("secret.yaml", secret)
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		at := f.at(f.lb(4), 443)
		want := fmt.Sprintf("scheme=http host=www.example.com for=%s proto=https port=443 secret= te= upgrade= uri=", f.of(b.EXT))
		for _, version := range []string{"--http1.1", "--http2"} {
			out := curl(t, b.EXT, ca, "www.example.com", at, version, "-w", " version=%{http_version}",
				"-H", "X-Forwarded-For: 1.2.3.4", "-H", "X-Forwarded-Proto: ftp", "-H", map[string]string{"--http1.1": "Connection: X-Secret", "--http2": "X-Other: 1"}[version],
				"-H", map[string]string{"--http1.1": "X-Secret: mine", "--http2": "X-Other: 1"}[version], "-H", "Upgrade: h2c")
			if wantVersion := map[string]string{"--http1.1": "1.1", "--http2": "2"}[version]; !strings.Contains(out, want) || !strings.Contains(out, "version="+wantVersion) {
				t.Errorf("%s: %s, want %s", version, out, want)
			}
		}
		// Without TLS the same, in the clear because that is what was asked.
		if body := get(t, b.EXT, f.at(f.lb(4), 80)); !strings.Contains(body, fmt.Sprintf("for=%s proto=http port=80", f.of(b.EXT))) {
			t.Error(body)
		}
		// Many requests at once over HTTP/2 and HTTP/1.1 go to both.
		for protocol, opts := range map[string][]string{"h2": {"-m10"}, "http/1.1": {"--h1"}} {
			out, errOut, err := b.EXT.Run("timeout", append([]string{"100", "h2load", "-n400", "-c8", "--connect-to=" + place(at)}, append(opts, "https://www.example.com/a?b")...)...)
			if err != nil || !strings.Contains(out, "400 succeeded, 0 failed, 0 errored") || !strings.Contains(out, "Application protocol: "+protocol+"\n") {
				t.Errorf("h2load %v: %v, want %s\n%s%s", opts, err, protocol, out, errOut)
			}
		}
		if out, errOut, err := b.EXT.Run("timeout", "100", "nghttp", "-v", "--no-dep", "https://"+place(at)+"/"); err != nil || !strings.Contains(out, "negotiated protocol: h2") || !strings.Contains(out, ":status: 200") {
			t.Errorf("nghttp: %v\n%s%s", err, out, errOut)
		}
		// A header that is too long is refused, and the connection of others goes on.
		if out, err := tryCurl(b.EXT, ca, "www.example.com", at, "--http1.1", "-o", "/dev/null", "-w", "%{http_code}", "-H", "X-Long: "+strings.Repeat("x", 100<<10)); out != "431" {
			t.Errorf("a header of 100 KiB: %q, %v, want 431", out, err)
		}
		b.noProblem(t, f.object("Service", "web"))
	})
	// A client that stays is served by those that are there.
	open := map[family]*tls.Conn{}
	for _, f := range families {
		c, err := secure(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443))
		if err != nil {
			t.Fatal(err)
		}
		open[f] = c
		ask(t, c)
	}
	for _, h := range []*netlab.Host{b.L1, b.R1} {
		b.rewrite("web.yaml", documents(h))
		for _, f := range families {
			if out := ask(t, open[f]); !strings.Contains(out, h.Name+" ") {
				t.Errorf("with %s alone: %s", h.Name, out)
			}
		}
	}
	b.rewrite("web.yaml", documents())
	for _, f := range families {
		if res, body := request(t, open[f]); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("without an endpoint: %s: %s, want 503", res.Status, body)
		}
	}
}

// upgrading serves WebSocket's handshake on L1, and then echoes what it gets.
func (b *box) upgrading(t *testing.T) {
	t.Helper()
	for _, f := range families {
		var listener net.Listener
		at := f.on(9001, b.L1)[0]
		err := b.L1.Do(func() (err error) { listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)); return err })
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
				http.Error(w, "no upgrade", http.StatusBadRequest)
				return
			}
			c, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err == nil {
				_, _ = io.Copy(c, buffered)
			}
		})}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
	}
}

// A client that drips its body is not waited for, what an endpoint sends unasked does not come into the log, and no header of a
// client can be taken for one of the relay.
func Test828_slow_and_forged_HTTP(t *testing.T) {
	b := newBox(t, nil)
	for _, f := range families {
		var l net.Listener
		if err := b.L1.Do(func() (err error) { l, err = net.Listen("tcp", f.on(9003, b.L1)[0].String()); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { // each request is answered with its headers, and with a line too many
					defer c.Close()
					r := bufio.NewReader(c)
					for {
						req, err := http.ReadRequest(r)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, req.Body)
						var head strings.Builder
						_ = req.Header.Write(&head)
						fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%sforged by the endpoint\n", head.Len(), head.String())
					}
				}()
			}
		}()
	}
	b.write("web.yaml", func(f family) []string {
		return []string{f.annotated("web", []string{"svcctl.io/backend-protocol: http"}, "clusterIP: "+f.vip(41), "ports: [{name: http, port: 80}]"), f.slice("web", "http: 9003", b.L1)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		at := f.at(f.vip(41), 80)
		out, errOut, err := b.IN.Run("timeout", "100", "curl", "-gsS", "-H", "X_Forwarded_For: 6.6.6.6", "-H", "x-forwarded_proto: 6.6.6.6", "-H", "X-FORWARDED-FOR: 6.6.6.6",
			"-H", "Forwarded: for=6.6.6.6", "-H", "X-Forwarded-Ssl: 6.6.6.6", "-H", "X-Mine: kept", "http://"+at.String()+"/")
		if err != nil || strings.Contains(out, "6.6.6.6") || !strings.Contains(out, "X-Mine: kept") || !strings.Contains(out, "X-Forwarded-For: "+f.of(b.IN).String()) {
			t.Errorf("%v: %s\nthe endpoint got\n%s", err, errOut, out)
		}
		for _, head := range []string{"X-Forwarded-For : 6.6.6.6", " X-Forwarded-For: 6.6.6.6", "X-Mine: a\\r\\n X-Forwarded-For: 6.6.6.6"} { // blanks and folds
			request := `exec 3<>/dev/tcp/$0/80; printf "GET / HTTP/1.1\r\nHost: a\r\n$1\r\nConnection: close\r\n\r\n" >&3; cat <&3`
			if out, _, _ := b.IN.Run("timeout", "100", "bash", "-c", request, at.Addr().String(), head); !strings.Contains(out, "HTTP/1.1 400") && strings.Contains(out, "\nX-Forwarded-For: 6.6.6.6") {
				t.Errorf("%q: the endpoint got\n%s", head, out)
			}
		}
		drip := `exec 3<>/dev/tcp/$0/80; printf 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n' >&3; while printf y >&3; do sleep 1; done 2>/dev/null & cat <&3; kill %1`
		if out, _, _ := b.IN.Run("timeout", "100", "bash", "-c", drip, at.Addr().String()); !strings.Contains(out, "HTTP/1.1 408") {
			t.Errorf("a body of a byte a second: %q, want 408", out)
		}
	})
	if log := b.svcctl.Log(); strings.Contains(log, "forged") {
		t.Errorf("the endpoint wrote into the log:\n%s", log)
	}
}

func Test408_WebSocket(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.upgrading(t)
	documents := func(hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{f.annotated("web", []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: http", "svcctl.io/drain-timeout: 1s"}, "clusterIP: "+f.vip(41), "ports: [{name: https, port: 443}]"),
				f.slice("web", "https: 9001", hosts...)}
		}
	}
	b.write("web.yaml", documents(b.L1))
	b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", ca.issue("www.example.com")))
	b.svcctl.Start()
	open := map[family]*tls.Conn{}
	for _, f := range families {
		c, err := secure(t, b.IN, ca, "www.example.com", f.at(f.vip(41), 443))
		if err != nil {
			t.Fatal(err)
		}
		open[f] = c
		if _, err := fmt.Fprintf(c, "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, %v, want 101", res, err)
		}
		for i := range 3 {
			text := fmt.Sprintf("message %d\n", i)
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			if got, err := r.ReadString('\n'); got != text || err != nil {
				t.Fatalf("%q, %v, want %q", got, err, text)
			}
		}
	}
	b.rewrite("web.yaml", documents(b.R1)) // drained, it ends
	for _, f := range families {
		if n, err := open[f].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes, %v, after the time to drain, want that it has ended", n, err)
		}
	}
}

func Test409_server_names_lead_to_Services(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.echoes(t, ca.issue("www.example.com"), b.L1)
	b.echoes(t, ca.issue("api.example.com", "x.apps.example.com"), b.R1)
	b.echoes(t, ca.issue("other.example.com"), b.L2)
	documents := func(www ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			names := "svcctl.io/tls-services: " + "www.example.com=" + f.name("www") + ", api.example.com=" + f.name("api") + ", '*.apps.example.com=" + f.name("api") + "', plain.example.com=" + f.name("ended")
			names = strings.ReplaceAll(names, "'", "")
			key, value, _ := strings.Cut(names, ": ")
			return []string{
				f.annotated("front", []string{key + ": '" + value + "'"}, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports: [{name: https, port: 443, nodePort: "+f.port(30080)+"}]"),
				f.slice("front", "https: 9443", b.L2),
				f.service("www", "clusterIP: "+f.vip(42), "ports: [{name: https, port: 443}]"), f.slice("www", "https: 9443", www...),
				f.service("api", "clusterIP: "+f.vip(43), "ports: [{name: tls, port: 8443}]"), f.slice("api", "tls: 9443", b.R1),
				f.annotated("ended", []string{"svcctl.io/tls-secret: plain", "svcctl.io/backend-protocol: http"}, "clusterIP: "+f.vip(44), "ports: [{name: https, port: 443}]"), f.slice("ended", "https: 9000", b.R1),
			}
		}
	}
	b.write("web.yaml", documents(b.L1))
	b.svcctl.Manifests.Write("secret.yaml", secretDocument("plain", ca.issue("plain.example.com")))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for name, want := range map[string]string{"www.example.com": "L1 ", "api.example.com": "R1 ", "x.apps.example.com": "R1 ", "other.example.com": "L2 ", "plain.example.com": "R1 "} {
			for _, to := range []netip.AddrPort{f.at(f.lb(4), 443), f.at(f.vip(41), 443), f.nodePort()} {
				// The certificate is the endpoint's own, which curl checks: nothing was decrypted on the way.
				if out := curl(t, b.EXT, ca, name, to); !strings.HasPrefix(out, want) || name != "plain.example.com" && !strings.Contains(out, "scheme=https") {
					t.Errorf("%s at %s: %s, want %s", name, to, out, want)
				}
			}
		}
		b.noProblem(t, f.object("Service", "front"))
	})
	b.rewrite("web.yaml", documents())
	b.each(t, func(t *testing.T, b *box, f family) {
		if out, err := tryCurl(b.EXT, ca, "www.example.com", f.at(f.lb(4), 443)); err == nil {
			t.Errorf("without an endpoint: %s", out)
		}
		if out := curl(t, b.EXT, ca, "api.example.com", f.at(f.lb(4), 443)); !strings.HasPrefix(out, "R1 ") {
			t.Error(out)
		}
	})
	// A Service that goes is named.
	b.rewrite("web.yaml", func(f family) []string { return documents()(f)[:2] })
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "front"), "error", "NamesNothing", "metadata.annotations[svcctl.io/tls-services]", "www.example.com are reset", "Service default/"+f.name("www"))
		if out := curl(t, b.EXT, ca, "other.example.com", f.at(f.lb(4), 443)); !strings.HasPrefix(out, "L2 ") {
			t.Error(out)
		}
	})
}

func Test417_server_names_without_endpoints_of_its_own(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.echoes(t, ca.issue("www.example.com"), b.L1)
	b.echoes(t, ca.issue("api.example.com"), b.R1)
	documents := func(spec ...string) func(f family) []string {
		return func(f family) []string {
			names := "svcctl.io/tls-services: 'www.example.com=" + f.name("www") + ", api.example.com=" + f.name("api") + "'"
			return []string{
				f.annotated("front", []string{names}, append(spec, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports: [{name: https, port: 443, nodePort: "+f.port(30080)+"}]")...),
				f.service("www", "clusterIP: "+f.vip(42), "ports: [{name: https, port: 443}]"), f.slice("www", "https: 9443", b.L1),
				f.service("api", "clusterIP: "+f.vip(43), "ports: [{name: https, port: 443}]"), f.slice("api", "https: 9443", b.R1),
			}
		}
	}
	b.write("web.yaml", documents())
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "front"))
		b.verbs(t).says(0, []string{"✓ port 443/TCP has no endpoint of its own"}, "explain", "svc/"+f.name("front"))
		for _, to := range []netip.AddrPort{f.at(f.lb(4), 443), f.at(f.vip(41), 443), f.nodePort()} {
			for name, want := range map[string]string{"www.example.com": "L1 ", "api.example.com": "R1 "} {
				if out := curl(t, b.EXT, ca, name, to); !strings.HasPrefix(out, want) {
					t.Errorf("%s at %s: %s, want %s", name, to, out, want)
				}
			}
			for _, name := range []string{"other.example.com", ""} {
				if certificate, err := certificateFor(t, b.EXT, to, name); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
					t.Errorf("%q at %s: %v, certificate %+v", name, to, err, certificate)
				}
			}
		}
	})
	// The policy counts for the endpoints of those that are named.
	b.rewrite("web.yaml", documents("externalTrafficPolicy: Local"))
	b.each(t, func(t *testing.T, b *box, f family) {
		if out := curl(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443)); !strings.HasPrefix(out, "L1 ") {
			t.Error(out)
		}
		if out, err := tryCurl(b.EXT, ca, "api.example.com", f.at(f.lb(4), 443)); err == nil {
			t.Errorf("an outside client got past the policy Local: %s", out)
		}
		if out := curl(t, b.IN, ca, "api.example.com", f.at(f.vip(41), 443)); !strings.HasPrefix(out, "R1 ") {
			t.Error(out)
		}
	})
}

// A pattern with two stars stands for one label or more, and names without a Service are reset.
func Test955_server_names_of_several_labels_and_of_nothing(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.echoes(t, ca.issue("*.example.com", "*.b.example.com", "private.example.com"), b.L1)
	b.write("web.yaml", func(f family) []string {
		names := "svcctl.io/tls-services: '**.example.com=" + f.name("www") + ", private.example.com=, *='"
		return []string{
			f.annotated("front", []string{names}, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports: [{name: https, port: 443}]"),
			f.service("www", "clusterIP: "+f.vip(42), "ports: [{name: https, port: 443}]"), f.slice("www", "https: 9443", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "front"))
		b.verbs(t).says(0, []string{"clients that ask for private.example.com by TLS are reset"}, "explain", "svc/"+f.name("front"))
		to := f.at(f.lb(4), 443)
		for _, name := range []string{"a.example.com", "a.b.example.com"} {
			if out := curl(t, b.EXT, ca, name, to); !strings.HasPrefix(out, "L1 ") {
				t.Errorf("%s: %s, want L1", name, out)
			}
		}
		for _, name := range []string{"private.example.com", "example.com", "example.org", ""} {
			if certificate, err := certificateFor(t, b.EXT, to, name); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%q: %v, want a reset; certificate %+v", name, err, certificate)
			}
		}
	})
}

// Test641_HTTP_1_0_over_TLS asks with curl --http1.0, which offers http/1.0 by ALPN and nothing else.
func Test641_HTTP_1_0_over_TLS(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := tlsBox(t, ca, []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: http"}, "9000", secretDocument("www", ca.issue("www.example.com")))
	b.each(t, func(t *testing.T, b *box, f family) {
		want := fmt.Sprintf("scheme=http host=www.example.com for=%s proto=https", f.of(b.EXT))
		for option, version := range map[string]string{"--http1.0": "1.0", "--http1.1": "1.1", "--no-alpn": "1.1", "--http2": "2"} {
			out := curl(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443), option, "-w", " version=%{http_version}.")
			if !strings.Contains(out, want) || !strings.HasSuffix(out, " version="+version+".") && !(version == "1.0" && strings.HasSuffix(out, " version=1.")) {
				t.Errorf("%s: %s, want %s", option, out, want)
			}
		}
	})
}
