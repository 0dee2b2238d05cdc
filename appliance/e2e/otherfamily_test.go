package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

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

// The header of the PROXY protocol, TLS and the headers of HTTP name the client and the address that it connected to, in their family.
func Test908_the_client_of_the_other_family(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.headered(t)
	b.echoes(t, ca.issue("x"), b.L2)
	b.svcctl.Manifests.Write("secret.yaml", secretDocument("www", ca.issue("www.example.com")))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.annotated("v1", []string{"svcctl.io/proxy-protocol: v1"}, "clusterIP: "+f.vip(41), "ports: [{port: 80}]"), f.foreignSlice("v1", "\"\": 9000", b.L1, b.R1),
			f.annotated("v2", []string{"svcctl.io/proxy-protocol: v2", "svcctl.io/transparent-source: \"true\""}, "clusterIP: "+f.vip(42), "ports: [{port: 80}]"),
			f.foreignSlice("v2", "\"\": 9000", b.L1, b.R1),
			f.annotated("https", []string{"svcctl.io/tls-secret: www", "svcctl.io/backend-protocol: http"}, "clusterIP: "+f.vip(43), "ports: [{port: 443}]"),
			f.foreignSlice("https", "\"\": 9000", b.L2),
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
		want := fmt.Sprintf("host=www.example.com for=%s proto=https port=443", f.of(b.IN))
		if out := curl(t, b.IN, ca, "www.example.com", f.at(f.vip(43), 443)); !strings.Contains(out, want) {
			t.Errorf("over TLS: %s, want %s", out, want)
		}
	})
}
