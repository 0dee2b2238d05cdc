package fleet_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/store/fleet"
)

// keptLog keeps what is logged.
type keptLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *keptLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *keptLog) has(texts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range texts {
		if !strings.Contains(l.text.String(), text) {
			return false
		}
	}
	return true
}

// Test620_a_new_box_that_cannot_reach_etcd_says_why: which endpoint, which file, what TLS says of it, and what to do, at its start and
// in the words of `svcctl fleet`.
func Test620_a_new_box_that_cannot_reach_etcd_says_why(t *testing.T) {
	c, ca, client := startMutualTLS(t)
	made := c.config("init")
	made.TLS = clientTLS(t, ca, client)
	eventually(t, "the fleet is made", func() bool {
		_, err := fleet.Init(t.Context(), made, "")
		return err == nil || errors.Is(err, fleet.ErrExists)
	})
	otherCA, _, other := makeCertificates(t, t.TempDir())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	nobody := fmt.Sprintf("https://127.0.0.1:%d", freePorts(t, 1)[0])
	gone := clientTLS(t, ca, "")
	gone.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(client+".gone", client+".key")
		return &pair, err
	}
	all := fleet.Files{CA: "/etc/ca.crt", Cert: "/etc/box.crt"}
	for name, test := range map[string]struct {
		urls  []string
		tls   *tls.Config
		files fleet.Files
		want  []string
	}{
		"no certificate":         {c.urls, clientTLS(t, ca, ""), fleet.Files{CA: "/etc/ca.crt"}, []string{"it asks for a certificate", "give --etcd-cert and --etcd-key"}},
		"one of another CA":      {c.urls, clientTLS(t, ca, other), all, []string{"it refuses the certificate in --etcd-cert /etc/box.crt", "--trusted-ca-file"}},
		"one that is gone":       {c.urls, gone, all, []string{client + ".gone", "no such file", "put the file there"}},
		"another CA of etcd":     {c.urls, clientTLS(t, otherCA, client), all, []string{"not of the CA in --etcd-cacert /etc/ca.crt", "x509", "give the one that has signed"}},
		"no CA of etcd":          {c.urls, &tls.Config{}, fleet.Files{}, []string{"of no CA that this host trusts", "--etcd-cacert"}},
		"no TLS":                 {[]string{strings.Replace(c.urls[0], "https", "http", 1)}, nil, fleet.Files{}, []string{"write https:// in --etcd"}},
		"nothing listens":        {[]string{nobody}, clientTLS(t, ca, client), all, []string{nobody, "connection refused", "start etcd, or correct --etcd"}},
		"something else listens": {[]string{"http://" + silent.Addr().String()}, nil, fleet.Files{}, []string{"something else listens there"}},
		"no such host":           {[]string{"https://etcd.invalid:2379"}, clientTLS(t, ca, client), all, []string{"lookup etcd.invalid", "correct the name in --etcd"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var kept keptLog
			cfg := c.config("new")
			cfg.Dir = t.TempDir()
			cfg.Endpoints, cfg.TLS, cfg.Files, cfg.Log = test.urls, test.tls, test.files, slog.New(slog.NewTextHandler(&kept, nil))
			ctx, cancel := context.WithCancel(t.Context())
			opened := make(chan error, 1)
			go func() {
				e, err := fleet.Joined(ctx, cfg)
				if err == nil {
					err = errors.Join(errors.New("it joined"), e.Close())
				}
				opened <- err
			}()
			eventually(t, fmt.Sprintf("the log has %q", test.want), func() bool { return kept.has(test.want...) })
			if !kept.has(test.urls[0], "what the kernel has stays in force") || kept.has("context deadline exceeded") {
				t.Errorf("the log has %s", kept.text.String())
			}
			cancel()
			if err := <-opened; !errors.Is(err, context.Canceled) {
				t.Errorf("the start ended with %v", err)
			}
			if text := cfg.Unreached(t.Context()); !strings.Contains(text, test.want[0]) {
				t.Errorf("`svcctl fleet` says %s", text)
			}
			if os.Getenv("SVCCTL_TEST_LOG") != "" {
				t.Log(kept.text.String())
			}
		})
	}
}

// TestEndpointsWithOneReason: what is so of several endpoints is said once.
func TestEndpointsWithOneReason(t *testing.T) {
	ports := freePorts(t, 2)
	a, b := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	cfg := fleet.Config{Endpoints: []string{a, b}}
	if text := cfg.Unreached(t.Context()); !strings.HasPrefix(text, a+", "+b+": connection refused") || strings.Count(text, "refused") != 1 {
		t.Errorf("it says %s", text)
	}
}
