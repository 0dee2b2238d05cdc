package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

func Test041_external_ip(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "externalIPs: ["+f.external(99)+"]", "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1, b.R1),
			f.service("headless", "clusterIP: None", "externalIPs: ["+f.external(98)+"]", "ports: [{name: p80, port: 80}]"),
			f.slice("headless", "p80: 80", b.L1),
			service(f.name("named"), "type: ExternalName", "externalName: example.com", "externalIPs: ["+f.external(97)+"]"),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.external(99), 80), masq, f.on(80, b.L1, b.R1)...)
		for n, name := range map[int]string{98: "headless", 97: "named"} {
			if err := b.notListed(t, f, f.at(f.external(n), 0).Addr()); err != nil {
				t.Error(err)
			}
			b.hasProblem(t, f.object("Service", name), "error", "externalIPs")
		}
	})
}

// external has a Service with a load balancer IP and an external IP.
func external(t *testing.T, hosts func(b *box) []*netlab.Host) *box {
	t.Helper()
	b := newBox(t, setAside(nil))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "externalIPs: ["+f.external(99)+"]",
				"ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", hosts(b)...),
		}
	})
	b.svcctl.Start()
	return b
}

func Test043_undefined_external_port(t *testing.T) {
	b := external(t, l1)
	for _, f := range families { // as announcing it does
		b.GW1.AddAddr("lo", f.lb(4)+f.pick("/32", "/128"))
	}
	b.GW1.Serve("tcp", 8080)
	b.GW1.Serve("udp", 8080)
	b.each(t, func(t *testing.T, b *box, f family) {
		router := b.RTR.Capture("box")
		for _, vip := range []string{f.lb(4), f.external(99)} {
			answers(t, b.EXT, "tcp", f.at(vip, 80))
			for _, network := range []string{"tcp", "udp"} {
				for _, from := range []*netlab.Host{b.EXT, b.IN} {
					b.refuses(t, from, network, f.at(vip, 8080))
				}
			}
			returned := router.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.To.Addr() == f.at(vip, 0).Addr() })
			if len(returned) != 0 {
				t.Errorf("packets to %s left by the default route: %v", vip, returned)
			}
		}
	})
}

func Test043_undefined_external_port_from_the_box(t *testing.T) {
	b := external(t, l1)
	for _, f := range families {
		b.GW1.AddAddr("lo", f.lb(4)+f.pick("/32", "/128"))
	}
	b.GW1.Serve("tcp", 8080)
	b.GW1.Serve("udp", 8080)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, vip := range []string{f.external(99), f.lb(4)} {
			for _, network := range []string{"tcp", "udp"} {
				b.refuses(t, b.GW1, network, f.at(vip, 8080))
			}
		}
	})
}

func Test044_two_services_one_external_ip(t *testing.T) {
	b := newBox(t, nil)
	claim := func(name string, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service(name, "externalIPs: ["+f.external(99)+"]", "ports: [{name: p80, port: 80}]"),
				f.slice(name, "p80: 80", hosts...),
			}
		}
	}
	owned := func(when string, owner *netlab.Host, loser string) {
		t.Helper()
		for _, f := range families {
			if err := b.tryReaches(b.EXT, "tcp", f.at(f.external(99), 80), masq, f.on(80, owner)...); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			b.hasProblem(t, f.object("Service", loser), "PortConflict", f.external(99))
		}
	}
	b.write("1.yaml", claim("second", b.L1))
	b.svcctl.Start()
	b.rewrite("2.yaml", claim("first", b.R1)) // an earlier name, but a later Service, mostly of the same second
	owned("at first", b.L1, "first")
	b.svcctl.Kill()
	b.svcctl.Start()
	owned("after a restart", b.L1, "first")

	b.rewrite("3.yaml", func(f family) []string {
		return []string{
			f.service("more", "externalIPs: ["+f.external(99)+"]",
				"ports: [{name: udp, port: 80, protocol: UDP}, {name: other, port: 443}]"),
			f.slice("more", "udp: 80/UDP, other: 443", b.R2),
		}
	})
	for _, f := range families {
		b.noProblem(t, f.object("Service", "more"))
		b.reaches(t, b.EXT, "udp", f.at(f.external(99), 80), masq, f.on(80, b.R2)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.external(99), 443), masq, f.on(443, b.R2)...)
	}

	b.change(func() { b.svcctl.Manifests.Remove("1.yaml") })
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(f.external(99), 80), masq, f.on(80, b.R1)...)
		b.noProblem(t, f.object("Service", "first"))
	}
}

func Test045_external_ip_of_the_box(t *testing.T) {
	b := newBox(t, nil)
	b.GW1.Serve("tcp", 22)
	b.write("ssh.yaml", func(f family) []string {
		return []string{
			f.service("ssh", "externalIPs: ["+f.boxAddr()+"]", "ports: [{name: ssh, port: 22}]"),
			f.slice("ssh", "ssh: 80", b.L1),
			f.service("gateway", "externalIPs: ["+f.pick("192.0.2.254", "2001:db8::fe")+"]", "ports: [{name: ssh, port: 22}]"),
			f.slice("gateway", "ssh: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.boxAddr(), 22)
		if reply := answers(t, b.EXT, "tcp", to); reply.Server != b.GW1.Name {
			t.Errorf("EXT to %s: answered by %s, want the box itself", to, reply)
		}
		b.hasProblem(t, f.object("Service", "ssh"), "externalIPs", f.boxAddr())
		b.hasProblem(t, f.object("Service", "gateway"), "externalIPs", f.pick("192.0.2.254", "2001:db8::fe"))
		// Who asks through the API is told at once.
		manifest := filepath.Join(t.TempDir(), "asked.yaml")
		if err := os.WriteFile(manifest, []byte(f.service("asked", "externalIPs: ["+f.boxAddr()+"]", "ports: [{name: p80, port: 80}]")), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stderr, code := b.svcctl.Svcctl("apply", "-f", manifest); code != 1 || !strings.Contains(stderr, "spec.externalIPs[0]: Invalid value") || !strings.Contains(stderr, "an address of this host") {
			t.Errorf("svcctl apply: exit %d: %s", code, stderr)
		}
	})
}

func Test045_external_ip_of_the_box_on_purpose(t *testing.T) {
	b := newBox(t, nil)
	b.GW1.Serve("tcp", 22)
	b.write("web.yaml", func(f family) []string {
		doc := f.service("web", "externalIPs: ["+f.boxAddr()+"]", "ports: [{name: p80, port: 80}]")
		return []string{
			strings.Replace(doc, "spec:", "  annotations: {svcctl.io/allow-host-address: 'true'}\nspec:", 1),
			f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), 80), masq, f.on(80, b.L1)...)
		if reply := answers(t, b.EXT, "tcp", f.at(f.boxAddr(), 22)); reply.Server != b.GW1.Name {
			t.Errorf("another port of the address: answered by %s, want the box itself", reply)
		}
	})
}

func Test046_legacy_addresses(t *testing.T) {
	legacy := func(b *box) string {
		return service("old", "clusterIP: 172.30.0.041", "ports: [{name: p80, port: 80}]") + "---\n" +
			strings.Replace(strings.ReplaceAll(ipv4.slice("old", "p80: 80", b.L1), "old-4", "old"), "10.180.0.1", "10.180.0.001", 1)
	}
	t.Run("refuse", func(t *testing.T) {
		b := newBox(t, nil)
		b.svcctl.Manifests.Write("old.yaml", legacy(b))
		b.write("web.yaml", b.webDocuments(b.L1))
		b.svcctl.Start()
		b.hasProblem(t, "Service default/old", "172.30.0.041")
	})
	t.Run("accept", func(t *testing.T) {
		b := newBox(t, flags{"legacy-ip": {"accept"}})
		b.svcctl.Manifests.Write("old.yaml", legacy(b))
		b.svcctl.Start()
		b.reaches(t, b.IN, "tcp", ipv4.at("172.30.0.41", 80), plain, ipv4.on(80, b.L1)...)
	})
}
