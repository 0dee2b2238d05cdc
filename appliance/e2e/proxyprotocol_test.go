package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// Real servers that wait for a header say whom it named: nginx takes both versions, and so does haproxy.
const (
	nginxProxyConfig = `
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s proxy_protocol;
		listen %[3]s proxy_protocol;
		location / { return 200 "nginx $proxy_protocol_addr $proxy_protocol_server_addr $proxy_protocol_server_port"; }
	}
}
`
	haproxyProxyConfig = `
defaults
	mode http
	timeout client 1m
	timeout connect 1m
	timeout server 1m
frontend all
	bind %s accept-proxy
	bind %s accept-proxy
	http-request return status 200 content-type text/plain lf-string "haproxy %%[src] %%[dst] %%[dst_port]"
`
)

// Real balancers that send headers: haproxy both versions, at ports 8081 and 8082, nginx the first one, at 8083.
const (
	haproxySenderConfig = `
defaults
	mode tcp
	timeout client 1m
	timeout connect 1m
	timeout server 1m
listen one4
	bind %[1]s:8081
	server vip %[3]s send-proxy
listen two4
	bind %[1]s:8082
	server vip %[3]s send-proxy-v2
listen one6
	bind [%[2]s]:8081
	server vip %[4]s send-proxy
listen two6
	bind [%[2]s]:8082
	server vip %[4]s send-proxy-v2
`
	nginxSenderConfig = `
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
pid %[5]s/sender.pid;
error_log %[5]s/sender.log;
events {}
stream {
	proxy_protocol on;
	server { listen %[1]s:8083; proxy_pass %[3]s; }
	server { listen [%[2]s]:8083; proxy_pass %[4]s; }
}
`
)

// sending starts haproxy and nginx on EXT as balancers in front of a VIP.
func (b *box) sending(t *testing.T, v4, v6 netip.AddrPort) {
	t.Helper()
	dir := t.TempDir()
	config := func(name, text string) string {
		path := filepath.Join(dir, name)
		text, _, _ = strings.Cut(fmt.Sprintf(text, ipv4.of(b.EXT), ipv6.of(b.EXT), v4, v6, dir), "%!(EXTRA")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, p := range []*program{
		{host: b.EXT, pidFile: filepath.Join(dir, "sender.pid"), start: []string{"nginx", "-e", filepath.Join(dir, "sender.log"), "-c", config("nginx.conf", nginxSenderConfig)}},
		{host: b.EXT, pidFile: filepath.Join(dir, "haproxy.pid"), start: []string{"haproxy", "-D", "-p", filepath.Join(dir, "haproxy.pid"), "-f", config("haproxy.cfg", haproxySenderConfig)}},
	} {
		p.run(t)
		t.Cleanup(func() { p.signal(t, unix.SIGCONT); p.stop(t) })
	}
}

// headered starts nginx on L1 and haproxy on R1, which wait for headers at port 9000.
func (b *box) headered(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, p := range []*program{
		{host: b.L1, pidFile: filepath.Join(dir, "nginx.pid"), start: []string{"nginx", "-e", filepath.Join(dir, "nginx.log"), "-c",
			write("nginx.conf", fmt.Sprintf(nginxProxyConfig, dir, ipv4.on(9000, b.L1)[0], ipv6.on(9000, b.L1)[0]))}},
		{host: b.R1, pidFile: filepath.Join(dir, "haproxy.pid"), start: []string{"haproxy", "-D", "-p", filepath.Join(dir, "haproxy.pid"), "-f",
			write("haproxy.cfg", fmt.Sprintf(haproxyProxyConfig, ipv4.on(9000, b.R1)[0], ipv6.on(9000, b.R1)[0]))}},
	} {
		p.run(t)
		t.Cleanup(func() { p.signal(t, unix.SIGCONT); p.stop(t) })
	}
}

// dial connects, for at most two minutes.
func dial(t *testing.T, from *netlab.Host, to netip.AddrPort) net.Conn {
	t.Helper()
	return dialFrom(t, from, netip.Addr{}, to)
}

// dialFrom is dial from one of the host's addresses; the zero Addr: the kernel chooses.
func dialFrom(t *testing.T, from *netlab.Host, source netip.Addr, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := dialTCP(from, source, to)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dialTCP is dialFrom, and may fail.
func dialTCP(from *netlab.Host, source netip.Addr, to netip.AddrPort) (c net.Conn, err error) {
	err = from.Do(func() (err error) {
		dialer := net.Dialer{Timeout: time.Minute}
		if source.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		}
		if c, err = dialer.DialContext(context.Background(), "tcp", to.String()); err == nil {
			err = c.SetDeadline(time.Now().Add(2 * time.Minute))
		}
		return err
	})
	return c, err
}

// get is the body of the answer to a request over HTTP.
func get(t *testing.T, from *netlab.Host, to netip.AddrPort) string {
	t.Helper()
	return getFrom(t, from, netip.Addr{}, to)
}

// getFrom is get from one of the host's addresses.
func getFrom(t *testing.T, from *netlab.Host, source netip.Addr, to netip.AddrPort) string {
	t.Helper()
	c := dialFrom(t, from, source, to)
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	_, body, whole := strings.Cut(string(answer), "\r\n\r\n")
	if err != nil || !whole {
		t.Fatalf("%s to %s: %q, %v", from.Name, to, answer, err)
	}
	return body
}

func Test365_endpoints_get_the_client_by_the_PROXY_protocol(t *testing.T) {
	b := newBox(t, nil)
	b.headered(t)
	versions := map[string]string{
		"v1": "svcctl.io/proxy-protocol: v1", "v2": "svcctl.io/proxy-protocol: v2",
		"aws": "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol: \"*\"",
	}
	place := map[string]int{"v1": 1, "v2": 2, "aws": 3}
	b.write("web.yaml", func(f family) (docs []string) {
		for name, annotation := range versions {
			n := place[name]
			doc := f.service(name, "type: LoadBalancer", fmt.Sprintf("loadBalancerIP: %q", f.lb(n)), "clusterIP: "+f.vip(40+n),
				fmt.Sprintf("ports: [{name: p, port: 80, nodePort: %d}]", 30080+2*n+map[bool]int{true: 1}[f.v6]))
			docs = append(docs, strings.Replace(doc, "spec:\n", "  annotations: {"+annotation+"}\nspec:\n", 1), f.slice(name, "p: 9000", b.L1, b.R1))
		}
		return docs
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for name, n := range place {
			port := uint16(30080 + 2*n + map[bool]int{true: 1}[f.v6])
			for _, ask := range []struct {
				from *netlab.Host
				to   netip.AddrPort
			}{{b.EXT, f.at(f.lb(n), 80)}, {b.EXT, f.at(f.boxAddr(), port)}, {b.IN, f.at(f.vip(40+n), 80)}, {b.L1, f.at(f.vip(40+n), 80)}} {
				want := fmt.Sprintf(" %s %s %d", f.of(ask.from), ask.to.Addr(), ask.to.Port())
				servers := map[string]bool{}
				for range 4 {
					body := get(t, ask.from, ask.to)
					server, told, _ := strings.Cut(body, " ")
					if servers[server] = true; " "+told != want {
						t.Errorf("%s: %s to %s: the endpoint was told %q, want %q", name, ask.from.Name, ask.to, body, want)
					}
				}
				if !servers["nginx"] || !servers["haproxy"] {
					t.Errorf("%s: answers by %v, want both", name, servers)
				}
			}
			// The box itself keeps the address that it asks from.
			for _, source := range []string{f.boxAddr(), f.altAddr()} {
				for _, to := range []netip.AddrPort{f.at(f.vip(40+n), 80), f.at(f.lb(n), 80), f.at(f.boxAddr(), port)} {
					want := fmt.Sprintf(" %s %s %d", source, to.Addr(), to.Port())
					body := getFrom(t, b.GW1, netip.MustParseAddr(source), to)
					if _, told, _ := strings.Cut(body, " "); " "+told != want {
						t.Errorf("%s: the box at %s to %s: the endpoint was told %q, want %q", name, source, to, body, want)
					}
				}
			}
			b.noProblem(t, f.object("Service", name))
		}
	})
}

// UDP has no header: the kernel serves it, as it would without the annotation, while TCP of the same number has one.
func Test366_no_header_over_UDP(t *testing.T) {
	b := newBox(t, nil)
	b.headered(t)
	b.write("web.yaml", func(f family) []string {
		doc := f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: udp, port: 53, protocol: UDP}, {name: p, port: 53}]")
		return []string{strings.Replace(doc, "spec:\n", "  annotations: {svcctl.io/proxy-protocol: v2}\nspec:\n", 1), f.slice("web", "udp: 53/UDP, p: 9000", b.L1)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "NotRelayed", "spec.ports[0].protocol", "over UDP", "port 53", "without")
		at := f.at(f.vip(41), 53)
		_, told, _ := strings.Cut(get(t, b.IN, at), " ")
		if want := fmt.Sprintf("%s %s 53", f.of(b.IN), at.Addr()); told != want {
			t.Errorf("over TCP the endpoint was told %q, want %q", told, want)
		}
		b.reaches(t, b.IN, "udp", f.at(f.vip(41), 53), plain, f.on(53, b.L1)...)
	})
}

// The client that a balancer in front names is the client: for endpoints, and for session affinity.
func Test368_clients_behind_a_balancer_with_the_PROXY_protocol(t *testing.T) {
	b := newBox(t, nil)
	b.headered(t)
	b.write("web.yaml", func(f family) []string {
		doc := f.service("web", "type: LoadBalancer", fmt.Sprintf("loadBalancerIP: %q", f.lb(4)), "clusterIP: "+f.vip(41), "ports: [{name: p, port: 80}]")
		annotations := fmt.Sprintf("svcctl.io/proxy-protocol: v2, svcctl.io/proxy-protocol-from: '%s, 2001:db8:ffff::/64'", f.of(b.EXT))
		return []string{strings.Replace(doc, "spec:\n", "  annotations: {"+annotations+"}\nspec:\n", 1), f.slice("web", "p: 9000", b.L1, b.R1)}
	})
	b.svcctl.Start()
	b.sending(t, ipv4.at(ipv4.lb(4), 80), ipv6.at(ipv6.lb(4), 80))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "web"))
		for _, port := range []uint16{8081, 8082, 8083} {
			at := netip.AddrPortFrom(f.of(b.EXT), port)
			for range 4 {
				_, told, _ := strings.Cut(get(t, b.BLK, at), " ")
				if want := fmt.Sprintf("%s %s %d", f.of(b.BLK), at.Addr(), port); told != want {
					t.Errorf("by the balancer at port %d: the endpoint was told %q, want %q", port, told, want)
				}
			}
		}
		// Who is no balancer is a client like any other, and says nothing about others.
		at := f.at(f.lb(4), 80)
		_, told, _ := strings.Cut(get(t, b.IN, at), " ")
		if want := fmt.Sprintf("%s %s 80", f.of(b.IN), at.Addr()); told != want {
			t.Errorf("a client without a balancer: the endpoint was told %q, want %q", told, want)
		}
		// Who is one has to send a header.
		c := dial(t, b.EXT, at)
		defer c.Close()
		_, err := fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: a\r\n\r\n")
		if err == nil {
			_, err = io.ReadAll(c)
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a balancer without a header: %v, want a reset", err)
		}
		b.verbs(t).says(0, []string{"port 80/TCP is relayed", "svcctl.io/proxy-protocol", f.of(b.EXT).String(), "header of the PROXY protocol"}, "explain", "svc/"+f.name("web"))
	})
}
