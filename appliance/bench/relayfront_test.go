package bench

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
)

// frontBench is a box with two programs that end TLS and pass requests on to the same endpoints: an appliance and haproxy.
type frontBench struct {
	*relayBench
	ca *tls.Certificate
}

const (
	haproxyFront = `
global
	maxconn 4000
	ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
	timeout connect 5s
	timeout client 1h
	timeout server 1h
listen tls
	mode tcp
	bind 10.9.1.1:9443 ssl crt %s
	server one 10.9.2.2:8080
listen http
	mode http
	option forwardfor
	bind 10.9.1.1:9080
	server one 10.9.2.2:8081
`
	frontedService = `
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: www}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: v1
kind: Service
metadata: {name: relayed, annotations: {svcctl.io/tls-secret.tls: www, svcctl.io/backend-protocol.http: http}}
spec: {clusterIP: 10.96.0.10, ports: [{name: tls, port: 443}, {name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: relayed, labels: {kubernetes.io/service-name: relayed}}
addressType: IPv4
ports: [{name: tls, port: 8080, protocol: TCP}, {name: http, port: 8081, protocol: TCP}]
endpoints: [{addresses: [10.9.2.2]}]
`
)

const (
	frontShorts = 400  // TLS connections of a turn
	frontAsks   = 4000 // requests of a turn
)

func newFrontBench(b *testing.B) *frontBench {
	b.Helper()
	now := time.Now()
	x := &frontBench{newRelayLab(b), pki.Issue(b, nil, now.Add(-time.Hour), now.Add(1000*time.Hour), "ca")}
	x.serveHTTP(b)
	cert, key := pki.PEM(b, pki.Issue(b, x.ca, now.Add(-time.Hour), now.Add(500*time.Hour), "www.example.com"))
	pair := filepath.Join(b.TempDir(), "pair.pem")
	if err := os.WriteFile(pair, append(cert, key...), 0o600); err != nil {
		b.Fatal(err)
	}
	svcctl := x.appliance(b, fmt.Sprintf(frontedService, base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key)))
	x.addWay("haproxy", x.haproxy(b, fmt.Sprintf(haproxyFront, pair)), netip.MustParseAddrPort("10.9.1.1:9443"), netip.MustParseAddrPort("10.9.1.1:9080"))
	x.addWay("svcctl", svcctl, netip.AddrPortFrom(vip.Addr(), 443), netip.AddrPortFrom(vip.Addr(), 80))
	return x
}

func (x *frontBench) serveHTTP(b *testing.B) {
	b.Helper()
	var l net.Listener
	if err := x.server.Do(func() (err error) { l, err = net.Listen("tcp4", "10.9.2.2:8081"); return err }); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, shortBytes)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body) // the client sees what is missing
	})}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
}

// askTLS takes so many bytes over a new connection with TLS, with a whole handshake.
func (x *frontBench) askTLS(to netip.AddrPort, what byte, want int64) error {
	plain, err := x.dial(to)
	if err != nil {
		return err
	}
	c := tls.Client(plain, &tls.Config{RootCAs: pki.Pool(x.ca), ServerName: "www.example.com"})
	defer c.Close()
	return take(c, what, want)
}

// requests makes the requests of a turn, over a few connections that stay open.
func (x *frontBench) requests(b *testing.B, to netip.AddrPort) {
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return x.dial(to) }}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for range frontAsks / together {
				answer, err := client.Get("http://www.example.com/")
				if err != nil {
					b.Error(err)
					return
				}
				n, err := io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if err != nil || n != shortBytes || answer.StatusCode != http.StatusOK {
					b.Errorf("%s with %d bytes, %v", answer.Status, n, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkRelayFronts compares what TLS and HTTP cost the process with what they cost haproxy.
func BenchmarkRelayFronts(b *testing.B) {
	x := newFrontBench(b)
	const aShort, aMiB, aRequest = "a short connection with TLS", "a MiB in bulk with TLS", "a request over HTTP"
	x.compare("Relayed TLS and HTTP: CPU of the process", func(w *relayWay) {
		w.measure(b, aShort, frontShorts, func() {
			parallel(b, frontShorts, func() error { return x.askTLS(w.to, askShort, shortBytes) })
		})
		w.measure(b, aMiB, bulkMiBs, func() {
			if err := x.askTLS(w.to, askBulk, bulkBytes); err != nil {
				b.Fatal(err)
			}
		})
		w.measure(b, aRequest, frontAsks, func() { x.requests(b, w.http) })
	}, aShort, aMiB, aRequest)
}
