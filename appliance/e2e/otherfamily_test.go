package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// other is the other family.
func (f family) other() family { return family{!f.v6} }

// foreignSlice is a slice of the Service of this family with endpoints of the other family.
func (f family) foreignSlice(service, ports string, hosts ...*netlab.Host) string {
	return strings.ReplaceAll(f.other().slice(service, ports, hosts...), f.other().name(service), f.name(service))
}

// A relayed Service whose endpoints are all of the other family serves clients at every address, over TCP and UDP. An endpoint of its
// own family is used alone, ready or not. Ranges, which are not relayed, are refused.
func Test907_relayed_to_the_other_family(t *testing.T) {
	b := newBox(t, nil)
	documents := func(f family) []string {
		return []string{
			f.userspace("web", "", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), f.relayedPorts()),
			f.foreignSlice("web", "p80: 80, udp: 53/UDP", b.L1, b.R1),
			f.annotated("ranged", []string{"svcctl.io/proxy-mode: userspace", "svcctl.io/port-ranges: 7000-7010/TCP"}, "clusterIP: "+f.vip(42), "ports: [{port: 80}]"),
			f.foreignSlice("ranged", "\"\": 80", b.L1, b.R1),
		}
	}
	b.write("web.yaml", documents)
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			at := f.other().on(port, b.L1, b.R1)
			b.reaches(t, b.IN, network, f.at(f.vip(41), port), masq, at...)
			b.reaches(t, b.EXT, network, f.at(f.lb(4), port), masq, at...)
			b.reaches(t, b.EXT, network, f.nodePort(), masq, at...)
			b.reaches(t, b.GW1, network, f.at(f.vip(41), port), masq, at...)
		}
		b.noProblem(t, f.object("Service", "web"))
		b.verbs(t).says(0, []string{"endpoints of the other family", "the relay connects to either"}, "explain", "svc/"+f.name("web"))
		// The kernel cannot translate a range, which is not relayed, to the other family.
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), masq, f.other().on(80, b.L1, b.R1)...)
		if reply, err := b.IN.Ask("tcp", f.at(f.vip(42), 7005), patiently); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %s, %v, want a refusal", f, reply, err)
		}
		b.hasProblem(t, f.object("Service", "ranged"), "RangeNotServed", "svcctl.io/port-ranges", "has no "+f.String()+" endpoint")
	})
	// One that is not ready is there: the others are not used.
	b.rewrite("web.yaml", func(f family) []string {
		own := f.rawSlice("own", "web", "p80: 80, udp: 53/UDP", fmt.Sprintf("{addresses: [%q], conditions: {ready: false}}", f.of(b.L1)))
		return append(documents(f), own)
	})
	for _, f := range families {
		if reply, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %s, %v, want a refusal", f, reply, err)
		}
	}
}

// haproxyHTTP is a real server behind the relay: haproxy over HTTP at port 9000 and over TLS at 9443, which answers with the client
// that the headers name.
const haproxyHTTP = `
defaults
	mode http
	timeout client 1m
	timeout connect 1m
	timeout server 1m
frontend all
	bind %[1]s
	bind %[2]s
	bind %[3]s ssl crt %[5]s
	bind %[4]s ssl crt %[5]s
	http-request return status 200 content-type text/plain lf-string "haproxy tls=%%[ssl_fc] host=%%[req.hdr(host)] for=%%[req.hdr(x-forwarded-for)] proto=%%[req.hdr(x-forwarded-proto)] port=%%[req.hdr(x-forwarded-port)]"
`

// haproxy starts haproxy with haproxyHTTP on a host.
func (b *box) haproxy(t *testing.T, pair issued, h *netlab.Host) {
	t.Helper()
	dir := t.TempDir()
	crt, cfg := filepath.Join(dir, "both.pem"), filepath.Join(dir, "haproxy.cfg")
	for path, text := range map[string]string{
		crt: pair.cert + pair.key,
		cfg: fmt.Sprintf(haproxyHTTP, ipv4.on(9000, h)[0], ipv6.on(9000, h)[0], ipv4.on(9443, h)[0], ipv6.on(9443, h)[0], crt),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &program{host: h, pidFile: filepath.Join(dir, "haproxy.pid"), start: []string{"haproxy", "-D", "-p", filepath.Join(dir, "haproxy.pid"), "-f", cfg}}
	p.run(t)
	t.Cleanup(func() { p.signal(t, unix.SIGCONT); p.stop(t) })
}

// The header of the PROXY protocol, TLS and the headers of HTTP name the client and the address that it connected to, in their family,
// with haproxy behind the relay.
func Test908_the_client_of_the_other_family(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.headered(t)
	b.haproxy(t, ca.issue("behind.example.com"), b.L2)
	b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", ca.issue("www.example.com"))+"---\n"+secretOf("ca", "Opaque", map[string]string{"ca.crt": ca.pem()}))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.annotated("v1", []string{"svcctl.io/proxy-protocol: v1"}, "clusterIP: "+f.vip(41), "ports: [{port: 80}]"), f.foreignSlice("v1", "\"\": 9000", b.L1, b.R1),
			f.annotated("v2", []string{"svcctl.io/proxy-protocol: v2", "svcctl.io/transparent-source: \"true\""}, "clusterIP: "+f.vip(42), "ports: [{port: 80}]"),
			f.foreignSlice("v2", "\"\": 9000", b.L1, b.R1),
			f.annotated("https", []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: http"}, "clusterIP: "+f.vip(43), "ports: [{port: 443}]"),
			f.foreignSlice("https", "\"\": 9000", b.L2),
			f.annotated("again", []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: https", "svcctl.io/backend-ca: ca", "svcctl.io/backend-name: behind.example.com"},
				"clusterIP: "+f.vip(44), "ports: [{port: 443}]"),
			f.foreignSlice("again", "\"\": 9443", b.L2),
			f.userspace("through", "", "clusterIP: "+f.vip(45), "ports: [{port: 443}]"), // TLS from end to end
			f.foreignSlice("through", "\"\": 9443", b.L2),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for n, name := range map[int]string{41: "v1", 42: "v2"} {
			at := f.at(f.vip(n), 80)
			want := fmt.Sprintf("%s %s 80", f.of(b.IN), at.Addr())
			servers := map[string]bool{}
			for range 4 {
				server, told, _ := strings.Cut(get(t, b.IN, at), " ")
				if servers[server] = true; told != want {
					t.Errorf("%s: %s got %q, want %q", name, server, told, want)
				}
			}
			if !servers["nginx"] || !servers["haproxy"] {
				t.Errorf("%s: answers by %v, want both", name, servers)
			}
		}
		b.noProblem(t, f.object("Service", "v1"))
		b.hasProblem(t, f.object("Service", "v2"), "NoEffect", "svcctl.io/transparent-source", "the address of the box", f.other().String())
		client := fmt.Sprintf("host=www.example.com for=%s proto=https port=443", f.of(b.IN))
		for n, want := range map[int]string{43: "haproxy tls=0 " + client, 44: "haproxy tls=1 " + client} {
			if out := curl(t, b.IN, ca, "www.example.com", f.at(f.vip(n), 443)); out != want {
				t.Errorf("VIP %d, over TLS: %s, want %s", n, out, want)
			}
		}
		if out, want := curl(t, b.IN, ca, "behind.example.com", f.at(f.vip(45), 443)), "haproxy tls=1 host=behind.example.com for= proto= port="; out != want {
			t.Errorf("TLS through the relay: %s, want %s", out, want)
		}
	})
}
