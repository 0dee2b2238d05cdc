package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/pki"
)

// browser is a client of HTTPS on a host, which keeps its connections.
func browser(t *testing.T, ca *issuer, from *netlab.Host, at netip.AddrPort, http2 bool) *http.Client {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pki.Pool(ca.cert), ServerName: "www.example.com"},
		ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			var dialer net.Dialer
			err = from.Do(func() error {
				c, err = dialer.DialContext(ctx, "tcp", at.String())
				return err
			})
			return c, err
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// askOver asks for a path and gives the answer, which has to come by the version.
func askOver(client *http.Client, path string, major int) (string, error) {
	answer, err := client.Get("https://www.example.com" + path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode != http.StatusOK || answer.ProtoMajor != major:
		return "", fmt.Errorf("%s by %s: %s", answer.Status, answer.Proto, body)
	}
	return string(body), nil
}

// holding serves HTTP at port 9000 of a host: "/held" is answered in two parts, the second one when release is closed.
func holding(t *testing.T, h *netlab.Host, held chan<- struct{}, release <-chan struct{}) {
	t.Helper()
	var listeners []net.Listener
	err := h.Do(func() error {
		for _, f := range families {
			l, err := net.Listen("tcp", f.on(9000, h)[0].String())
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first ")
		if r.URL.Path == "/held" {
			_ = http.NewResponseController(w).Flush()
			held <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "last")
	})}
	for _, l := range listeners {
		go func() { _ = server.Serve(l) }()
	}
	t.Cleanup(func() { server.Close() })
}

// Requests that are under way at a hand-over are answered, and no other one fails: clients are told to make another
// connection.
func Test418_requests_over_an_upgrade(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	held, release := make(chan struct{}), make(chan struct{})
	holding(t, b.L1, held, release)
	b.write("web.yaml", func(f family) []string {
		docs := []string{
			f.annotated("web", []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: http"}, "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
				"ports: [{name: https, port: 443}]"),
			f.slice("web", "https: 9000", b.L1),
		}
		if !f.v6 {
			docs = append(docs, secretDocument("www", ca.issue("www.example.com")))
		}
		return docs
	})
	b.svcctl.Start()
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	var asked, resets atomic.Int64
	underWay := make(chan error, 4)
	for _, f := range families {
		for major, http2 := range map[int]bool{1: false, 2: true} {
			at := f.at(f.lb(4), 443)
			asking.Go(func() {
				client := browser(t, ca, b.EXT, at, http2)
				for ctx.Err() == nil {
					body, err := askOver(client, "/", major)
					if errors.Is(err, unix.ECONNRESET) { // on a busy machine one may take longer than a hand-over waits
						resets.Add(1)
						continue
					}
					if err != nil || body != "first last" {
						t.Errorf("%s, HTTP/%d: request %d: %q, %v", f, major, asked.Load(), body, err)
						return
					}
					asked.Add(1)
				}
			})
			go func() {
				body, err := askOver(browser(t, ca, b.EXT, at, http2), "/held", major)
				if err == nil && body != "first last" {
					err = errors.New("only " + body)
				}
				underWay <- err
			}()
			<-held
		}
	}
	pid := b.svcctl.PID()
	b.svcctl.Signal(unix.SIGUSR2)
	eventually(t, time.Minute, func() error {
		if !strings.Contains(b.svcctl.Log(), "waiting for connections with TLS or HTTP to end") {
			return errors.New("no word of waiting in the log")
		}
		return nil
	})
	close(release)
	for range 2 * len(families) {
		if err := <-underWay; err != nil {
			t.Errorf("a request that was under way: %v", err)
		}
	}
	eventually(t, time.Minute, func() error {
		if !strings.Contains(b.svcctl.Log(), "handed over to the new program") {
			return errors.New("it was not handed over")
		}
		return nil
	})
	before := asked.Load()
	eventually(t, time.Minute, func() error {
		if t.Failed() || asked.Load() > before+20 {
			return nil
		}
		return errors.New("no requests are answered after the hand-over")
	})
	for range 2 {
		b.svcctl.HandOver()
	}
	stop()
	asking.Wait()
	if b.svcctl.PID() != pid {
		t.Error("it was restarted")
	}
	t.Logf("%d requests, %d reset", asked.Load(), resets.Load())
}
