package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// many are n Services with automatic cluster IPs, each with a port of its own (1001 and
// on) and an endpoint, so that the kernel's tables tell the Services apart.
func (b *box) many(f family, first, n int) []string {
	var docs []string
	for i := first; i < first+n; i++ {
		name := fmt.Sprintf("s%03d", i)
		docs = append(docs,
			f.service(name, fmt.Sprintf("ports: [{name: p, port: %d}]", 1000+i)),
			f.slice(name, "p: 80", b.L1))
	}
	return docs
}

func Test117_cluster_ip_bands(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"172.30.0.0/24"}})
	docs := func(n int) string { return strings.Join(b.many(ipv4, 1, n), "---\n") }
	last := func(addr string) int { return int(netip.MustParseAddr(addr).As4()[3]) }
	b.svcctl.Manifests.Write("many.yaml", docs(238)) // as many as are not in the static band
	b.svcctl.Start()
	before := b.clusterIPs(t, ipv4)
	if len(before) != 238 {
		t.Fatalf("%d Services have a cluster IP, want 238", len(before))
	}
	for port, addr := range before {
		if n := last(addr); n < 17 || n > 254 {
			t.Errorf("port %s got %s, which is not between .17 and .254", port, addr)
		}
	}
	b.change(func() { b.svcctl.Manifests.Write("many.yaml", docs(255)) })
	after := b.clusterIPs(t, ipv4)
	if len(after) != 254 {
		t.Errorf("%d Services have a cluster IP, want 254", len(after))
	}
	for port, addr := range after {
		if before[port] != "" && before[port] != addr {
			t.Errorf("port %s had %s and has %s", port, before[port], addr)
		}
		if n := last(addr); before[port] == "" && (n < 1 || n > 16) {
			t.Errorf("port %s got %s, when only .1 to .16 were left", port, addr)
		}
	}
	left := ""
	for i := 1; i <= 255; i++ {
		if after[fmt.Sprint(1000+i)] == "" {
			left = fmt.Sprintf("s%03d-4", i)
		}
	}
	b.hasProblem(t, "Service default/"+left, `failed to allocate a serviceIP for Service "`+left+`": range is full`)
}

func Test117_smallest_ranges(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"172.30.0.0/28,fd00:172:30::/124"}})
	b.write("many.yaml", func(f family) []string { return b.many(f, 1, 16) })
	b.svcctl.Start()
	for _, f := range families {
		var addrs []string
		for _, addr := range b.clusterIPs(t, f) {
			addrs = append(addrs, addr)
		}
		// IPv4: without the first and the last one. IPv6: without the first one.
		if want := map[family]int{ipv4: 14, ipv6: 15}[f]; len(addrs) != want {
			t.Errorf("%s: %d addresses were given, want %d: %v", f, len(addrs), want, addrs)
		}
		for _, never := range []string{f.pick("172.30.0.0", "fd00:172:30::"), f.pick("172.30.0.15", "")} {
			if never != "" && slices.Contains(addrs, never) {
				t.Errorf("%s was given", never)
			}
		}
	}
}

func Test118_requested_cluster_ip(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"172.30.0.0/24"}})
	ports := "ports: [{name: p80, port: 80}]"
	b.svcctl.Manifests.Write("a.yaml", service("holder", "clusterIP: 172.30.0.41", ports))
	b.svcctl.Manifests.Write("b.yaml", service("outside", "clusterIP: 10.0.0.1", ports))
	b.svcctl.Manifests.Write("c.yaml", service("second", "clusterIP: 172.30.0.41", ports))
	b.svcctl.Manifests.Write("d.yaml", service("text", "clusterIP: banana", ports))
	b.svcctl.Start()
	b.noProblem(t, "Service default/holder")
	b.hasProblem(t, "Service default/outside", "spec.clusterIPs",
		`Invalid value: ["10.0.0.1"]: failed to allocate IP 10.0.0.1: the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 172.30.0.0/24`)
	b.hasProblem(t, "Service default/second", "spec.clusterIPs", "provided IP is already allocated", "default/holder")
	b.hasProblem(t, "Service default/text", "must be a valid IP address")
}

func Test119_applying_again_keeps_everything(t *testing.T) {
	b := newBox(t, nil)
	docs := func(label string, ports ...string) func(f family) []string {
		return func(f family) []string {
			doc := f.service("web", "type: NodePort", "ports: ["+strings.Join(ports, ", ")+"]")
			doc = strings.Replace(doc, "spec:", "  labels: {edited: "+label+"}\nspec:", 1)
			return []string{doc, f.slice("web", "one: 80, two: 8080", b.L1)}
		}
	}
	one, two := "{name: one, port: 1001}", "{name: two, port: 1002}"
	b.write("web.yaml", docs("a", one, two))
	b.svcctl.Start()
	type allocated struct {
		ips   map[string]string
		ports []string
	}
	look := func(f family) allocated {
		a := allocated{b.clusterIPs(t, f), b.nodePortsInUse(t, f)}
		slices.Sort(a.ports)
		return a
	}
	before := map[family]allocated{ipv4: look(ipv4), ipv6: look(ipv6)}
	same := func(when string) {
		t.Helper()
		for _, f := range families {
			if now := look(f); fmt.Sprint(now) != fmt.Sprint(before[f]) || len(now.ports) != 2 {
				t.Errorf("%s: %s has %v, had %v", when, f, now, before[f])
			}
			b.noProblem(t, f.object("Service", "web"))
		}
	}
	b.rewrite("web.yaml", docs("b", one, two))
	same("a label changed")
	var portOfTwo [2]string
	for i, f := range families {
		portOfTwo[i] = b.nodePortTo(t, f, b.L1, 8080)
	}
	b.rewrite("web.yaml", docs("b", two, one))
	same("the ports' order changed")
	for i, f := range families {
		if now := b.nodePortTo(t, f, b.L1, 8080); now != portOfTwo[i] {
			t.Errorf("%s: port two had node port %s and has %s", f, portOfTwo[i], now)
		}
	}
	b.svcctl.Kill()
	b.svcctl.Start()
	same("after a restart")
}

// nodePortTo is the node port that leads to an endpoint's port.
func (b *box) nodePortTo(t *testing.T, f family, endpoint *netlab.Host, port int) string {
	t.Helper()
	want := fmt.Sprintf(`{"concat": ["%s", %d]}`, f.of(endpoint), port)
	for _, e := range b.table(t, f)["nodeport-backends"] {
		if strings.ReplaceAll(e.Value, " ", "") == strings.ReplaceAll(want, " ", "") {
			return e.Key[1]
		}
	}
	t.Fatalf("%s: no node port leads to %s port %d", f, endpoint.Name, port)
	return ""
}

func Test120_refused_services_hold_nothing(t *testing.T) {
	b := newBox(t, nil)
	b.write("a.yaml", func(f family) []string {
		return []string{f.service("refused", "type: NodePort", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80, nodePort: 99}]")}
	})
	b.write("b.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "refused"), "provided port is not in the valid range")
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
	b.change(func() { b.svcctl.Manifests.Remove("b.yaml") })
	b.rewrite("c.yaml", func(f family) []string {
		return []string{
			f.service("again", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("again", "p80: 80", b.R1),
		}
	})
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.R1)...)
	}
}

func Test121_type_changes(t *testing.T) {
	b := newBox(t, nil)
	docs := func(spec ...string) func(f family) []string {
		return func(f family) []string {
			var lines []string
			for _, line := range spec {
				lines = append(lines, strings.ReplaceAll(line, "VIP", f.vip(41)))
			}
			return []string{f.service("web", lines...), f.slice("web", "p80: 80", b.L1)}
		}
	}
	ports := "ports: [{name: p80, port: 80}]"
	b.write("web.yaml", docs("clusterIP: VIP", ports))
	b.svcctl.Start()
	served := func(host *netlab.Host) {
		t.Helper()
		for _, f := range families {
			b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, host)...)
		}
	}
	served(b.L1)

	b.rewrite("web.yaml", func(f family) []string {
		return []string{service(f.name("web"), "type: ExternalName", "externalName: example.com")}
	})
	b.rewrite("other.yaml", func(f family) []string { // the address is free
		return []string{f.service("other", "clusterIP: "+f.vip(41), ports), f.slice("other", "p80: 80", b.R1)}
	})
	served(b.R1)
	b.rewrite("web.yaml", docs("ports: [{name: p80, port: 1001}]"))
	for _, f := range families {
		if addr := b.clusterIPOf(t, f, 1001); addr == "" || addr == f.vip(41) {
			t.Errorf("%s: the Service that has a type with cluster IPs again got %q", f, addr)
		}
	}
	b.write("other.yaml", func(f family) []string {
		return []string{f.service("other", "clusterIP: None", ports), f.slice("other", "p80: 80", b.R1)}
	})
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "other"), "may not change once set")
	}
	served(b.R1) // as before
}

func Test122_cluster_ip_is_immutable(t *testing.T) {
	b := newBox(t, nil)
	docs := func(n int) func(f family) []string {
		return func(f family) []string {
			ip := ""
			if n > 0 {
				ip = "clusterIP: " + f.vip(n)
			}
			return []string{f.service("web", ip, "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1)}
		}
	}
	b.write("web.yaml", docs(41))
	b.svcctl.Start()
	b.write("web.yaml", docs(42))
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "spec.clusterIPs[0]", "may not change once set", f.vip(42))
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
	b.write("web.yaml", docs(0))
	eventually(t, syncTimeout, func() error {
		if problems := b.status().Problems; len(problems) != 0 {
			return fmt.Errorf("problems with no cluster IP in the file:\n%s", list(problems))
		}
		return nil
	})
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
}

func Test123_two_objects_one_cluster_ip(t *testing.T) {
	b := newBox(t, nil)
	claim := func(name string, host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{f.service(name, "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), f.slice(name, "p80: 80", host)}
		}
	}
	b.write("1.yaml", claim("older", b.L1))
	b.svcctl.Start()
	b.svcctl.Stop()
	b.write("0.yaml", claim("a-younger-one", b.R1)) // the first in every order but that of age
	for range 2 {
		b.svcctl.Start()
		for _, f := range families {
			b.hasProblem(t, f.object("Service", "a-younger-one"), "already allocated", "default/"+f.name("older"))
			b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
		}
		b.svcctl.Kill()
	}
}
