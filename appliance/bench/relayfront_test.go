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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/pki"
)

// frontBench is a box with two programs that end TLS and pass requests on to the same endpoints: an appliance and haproxy.
type frontBench struct {
	client *netlab.Host
	ca     *tls.Certificate
	relay  relayBench // serves at the endpoint
	ways   []*frontWay
}

// frontWay is one of the two: with TLS, and with HTTP.
type frontWay struct {
	name, pid             string
	tls, http             netip.AddrPort
	short, bulk, requests []time.Duration
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
	lab := netlab.New(b)
	gw, client, server := lab.Host("gw"), lab.Host("client"), lab.Host("server")
	lab.Segment("out").Attach(gw, "out0", "10.9.1.1/24").Attach(client, "eth0", "10.9.1.2/24")
	lab.Segment("in").Attach(gw, "in0", "10.9.2.1/24").Attach(server, "eth0", "10.9.2.2/24")
	client.Route("10.96.0.0/12", "10.9.1.1")
	x := &frontBench{client: client, relay: relayBench{client: client, server: server}}
	x.relay.serve(b)
	x.serveHTTP(b, server)

	now := time.Now()
	x.ca = pki.Issue(b, nil, now.Add(-time.Hour), now.Add(1000*time.Hour), "ca")
	cert, key := pki.PEM(b, pki.Issue(b, x.ca, now.Add(-time.Hour), now.Add(500*time.Hour), "www.example.com"))
	svcctl := gw.Appliance(*program, boxFlags...)
	svcctl.Manifests.Write("relayed.yaml", fmt.Sprintf(frontedService, base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key)))
	svcctl.Start()

	dir := b.TempDir()
	config, pidFile, pair := filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "haproxy.pid"), filepath.Join(dir, "pair.pem")
	for path, text := range map[string][]byte{pair: append(cert, key...), config: fmt.Appendf(nil, haproxyFront, pair)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if _, errOut, err := gw.Run("haproxy", "-D", "-p", pidFile, "-f", config); err != nil {
		b.Fatalf("haproxy: %v: %s", err, errOut)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		b.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	x.ways = []*frontWay{
		{name: "haproxy", pid: strconv.Itoa(pid), tls: netip.MustParseAddrPort("10.9.1.1:9443"), http: netip.MustParseAddrPort("10.9.1.1:9080")},
		{name: "svcctl", pid: strconv.Itoa(svcctl.PID()), tls: netip.AddrPortFrom(vip.Addr(), 443), http: netip.AddrPortFrom(vip.Addr(), 80)},
	}
	return x
}

func (x *frontBench) serveHTTP(b *testing.B, server *netlab.Host) {
	b.Helper()
	var l net.Listener
	if err := server.Do(func() (err error) { l, err = net.Listen("tcp4", "10.9.2.2:8081"); return err }); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, shortBytes)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body) // the client sees what is missing
	})}
	go func() { _ = s.Serve(l) }()
	b.Cleanup(func() { _ = s.Close() })
}

func (x *frontBench) dial(to netip.AddrPort) (c net.Conn, err error) {
	err = x.client.Do(func() error {
		c, err = net.DialTimeout("tcp4", to.String(), patience)
		return err
	})
	return c, err
}

// ask takes so many bytes over a new connection with TLS, with a whole handshake.
func (x *frontBench) ask(to netip.AddrPort, what byte, want int64) error {
	plain, err := x.dial(to)
	if err != nil {
		return err
	}
	c := tls.Client(plain, &tls.Config{RootCAs: pki.Pool(x.ca), ServerName: "www.example.com"})
	defer c.Close()
	question := make([]byte, 100)
	question[0] = what
	if _, err = c.Write(question); err != nil {
		return err
	}
	_, err = io.CopyN(io.Discard, c, want)
	return err
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
	for round := range *rounds + 1 {
		for _, w := range x.ways {
			measured := &relayWay{pid: w.pid}
			short := measured.cpu(b, func() { x.shorts(b, w.tls) })
			bulk := measured.cpu(b, func() {
				if err := x.ask(w.tls, askBulk, bulkBytes); err != nil {
					b.Fatal(err)
				}
			})
			requests := measured.cpu(b, func() { x.requests(b, w.http) })
			if round > 0 { // the first one warms up
				w.short, w.bulk, w.requests = append(w.short, short/frontShorts), append(w.bulk, bulk), append(w.requests, requests/frontAsks)
			}
		}
	}
	const section = "Relayed TLS and HTTP: CPU of the process"
	first := x.ways[0]
	for _, w := range x.ways {
		results.add(section, w.name+": a short connection with TLS", ms(median(w.short)), fmt.Sprintf("%.2fx haproxy", median(ratios(w.short, first.short))))
	}
	for _, w := range x.ways {
		each := float64(median(w.bulk)) / (bulkBytes >> 20)
		results.add(section, w.name+": a MiB in bulk with TLS", ms(time.Duration(each)), fmt.Sprintf("%.2fx haproxy", median(ratios(w.bulk, first.bulk))))
	}
	for _, w := range x.ways {
		results.add(section, w.name+": a request over HTTP", ms(median(w.requests)), fmt.Sprintf("%.2fx haproxy", median(ratios(w.requests, first.requests))))
	}
}

// shorts makes the short connections of a turn.
func (x *frontBench) shorts(b *testing.B, to netip.AddrPort) {
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for range frontShorts / together {
				if err := x.ask(to, askShort, shortBytes); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
