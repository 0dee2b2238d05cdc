package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// pod is the document of a Pod on a host, with both of its addresses: labels, more lines
// of metadata, spec and status in YAML's flow style.
type pod struct {
	host           *netlab.Host
	name, app      string
	metadata, spec string
	status         string
}

func (p pod) document() string {
	name := p.name
	if name == "" {
		name = strings.ToLower(p.host.Name)
	}
	app := p.app
	if app == "" {
		app = "web"
	}
	addresses := ""
	if p.host != nil {
		addresses = fmt.Sprintf("podIPs: [{ip: %s}, {ip: %q}]", p.host.Addr4(), p.host.Addr6())
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}%s}\nspec: {%s}\nstatus: {%s%s}\n",
		name, app, p.metadata, p.spec, addresses, p.status)
}

func pods(all ...pod) string {
	var documents []string
	for _, p := range all {
		documents = append(documents, p.document())
	}
	return strings.Join(documents, "---\n")
}

// What the status of a Pod says.
const (
	unready = `, conditions: [{type: Ready, status: "False"}]`
	ended   = ", phase: Succeeded"
)

const ending = `, deletionTimestamp: "2026-01-01T00:00:00Z"`

// selectingService is web, port 80, with a selector; target is its targetPort.
func (f family) selectingService(target string, more ...string) string {
	return f.service("web", append([]string{
		"clusterIP: " + f.vip(41), "selector: {app: web}", "ports: [{name: p80, port: 80, targetPort: " + target + "}]",
	}, more...)...)
}

func (b *box) writeSelecting(target string, more ...string) {
	b.write("web.yaml", func(f family) []string { return []string{f.selectingService(target, more...)} })
}

func (b *box) writePods(all ...pod) { b.svcctl.Manifests.Write("pods.yaml", pods(all...)) }

func Test109_pods_are_endpoints(t *testing.T) {
	b := newBox(t, nil)
	b.writeSelecting("8080")
	nowhere := pod{name: "nowhere", status: "phase: Pending"}
	b.writePods(pod{host: b.L1}, pod{host: b.L2, status: unready}, pod{host: b.R1, status: ended}, pod{host: b.R2, metadata: ending},
		nowhere, pod{host: b.R1, name: "other", app: "other"})
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1)...)
	}
	// Refusals are asked for by EXT: what IN has asked is remembered for a while.
	// Without a ready one, the one that is serving and terminating; then none.
	b.change(func() { b.writePods(pod{host: b.L1, status: unready}, pod{host: b.R2, metadata: ending}) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.R2)...)
	}
	b.change(func() { b.writePods(pod{host: b.L1, status: unready}, nowhere) })
	for _, f := range families {
		b.refuses(t, b.EXT, "tcp", f.at(f.vip(41), 80))
	}
	b.change(func() { b.writePods(pod{host: b.L1}, nowhere) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1)...)
	}
	b.noProblem(t, ipv4.object("Service", "web"))
}

// A Pod leaves the traffic within a sync when its document says that it is not ready, and
// when its labels do not match any more.
func Test109_pods_come_and_go(t *testing.T) {
	b := newBox(t, nil)
	b.writeSelecting("8080")
	b.writePods(pod{host: b.L1}, pod{host: b.R1}, pod{host: b.R2})
	b.svcctl.Start()
	b.change(func() { b.writePods(pod{host: b.L1}, pod{host: b.R1, status: unready}, pod{host: b.R2}) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1, b.R2)...)
	}
	b.change(func() { b.writePods(pod{host: b.L1}, pod{host: b.R1}, pod{host: b.R2, app: "canary"}) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1, b.R1)...)
	}

	// Nothing changes over a restart, and what was written then counts.
	before := b.status().Revision.Accepted
	b.svcctl.Kill()
	b.svcctl.Start()
	if after := b.status().Revision.Accepted; after != before {
		t.Errorf("a restart has accepted revision %d, it was %d", after, before)
	}
	b.change(func() { b.writePods(pod{host: b.R1}) })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.R1)...)
	}
	b.change(func() { b.svcctl.Manifests.Remove("pods.yaml") })
	for _, f := range families {
		b.refuses(t, b.EXT, "tcp", f.at(f.vip(41), 80))
		b.hasProblem(t, f.object("Service", "web"), "no Pod with an address matches the selector")
	}
}

func Test110_named_ports_of_pods(t *testing.T) {
	b := newBox(t, nil)
	b.writeSelecting("http-web-svc")
	port := func(number int, protocol string) string {
		return fmt.Sprintf("containers: [{name: web, image: web, ports: [{name: http-web-svc, containerPort: %d, protocol: %s}]}]", number, protocol)
	}
	b.writePods(pod{host: b.L1, spec: port(80, "TCP")}, pod{host: b.R1, spec: port(8080, "TCP")}, pod{host: b.R2, spec: port(80, "UDP")}, pod{host: b.L2})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, append(f.on(80, b.L1), f.on(8080, b.R1)...)...)
		b.hasProblem(t, f.object("Service", "web"), "2 of its Pods have no container port for a targetPort", "the first is l2, which lacks http-web-svc/TCP")
	})
}

func Test111_more_than_a_hundred_pods(t *testing.T) {
	b := newBox(t, nil)
	b.L1.Own("10.180.7.0/24")
	b.writeSelecting("8080")
	many := func(from, to int) string {
		var documents []string
		for i := from; i <= to; i++ {
			documents = append(documents, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d, labels: {app: web}}\nstatus: {podIP: 10.180.7.%d}\n", i, i))
		}
		return strings.Join(documents, "---\n")
	}
	b.svcctl.Manifests.Write("pods.yaml", many(1, 101))
	b.svcctl.Start()
	// 2,000 questions leave out one of 101 endpoints with a chance of 2 in 10⁷.
	answering := func(want int) {
		t.Helper()
		tally := b.IN.AskMany(2000, "tcp", ipv4.at(ipv4.vip(41), 80), patiently)
		if len(tally.Failures) > 0 || len(tally.At) != want {
			t.Errorf("%d endpoints answer, want %d; failures: %v", len(tally.At), want, tally.Failures)
		}
	}
	answering(101)
	b.change(func() { b.svcctl.Manifests.Write("pods.yaml", many(51, 101)) })
	answering(51)
}

func Test067_pods_that_are_published_unready(t *testing.T) {
	b := newBox(t, nil)
	b.writeSelecting("8080", "publishNotReadyAddresses: true")
	b.writePods(pod{host: b.L1, status: unready}, pod{host: b.R1, metadata: ending}, pod{host: b.R2, status: ended})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1, b.R1)...)
	})
}

func Test075_pods_near_the_box(t *testing.T) {
	b := newBox(t, flags{"zone": {"zone-a"}})
	b.writeSelecting("8080", "trafficDistribution: PreferSameZone")
	here, there := "nodeName: gw1", "nodeName: other"
	zone := pod{host: b.R1, spec: there, metadata: ""}.document()
	zone = strings.Replace(zone, "labels: {app: web}", "labels: {app: web, topology.kubernetes.io/zone: zone-b}", 1)
	b.svcctl.Manifests.Write("pods.yaml", pods(pod{host: b.L1, spec: here}, pod{host: b.L2, spec: here, status: unready})+"---\n"+zone)
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1)...)
	}
	b.change(func() { b.writeSelecting("8080") })
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, b.L1, b.R1)...)
	}
}

func Test112_deleted_service_takes_its_slices(t *testing.T) {
	b := newBox(t, nil)
	b.writeSelecting("8080")
	b.writePods(pod{host: b.L1})
	b.svcctl.Start()
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	for _, f := range families {
		b.drops(t, b.EXT, "tcp", f.at(f.vip(41), 80))
	}
	// A Service of that name that has no selector has none of its endpoints.
	b.rewrite("web.yaml", func(f family) []string {
		return []string{f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]")}
	})
	for _, f := range families {
		b.refuses(t, b.EXT, "tcp", f.at(f.vip(41), 80))
	}
}

func Test116_mirrored_endpoints_follow(t *testing.T) {
	b := newBox(t, nil)
	web := func(labels, spec string, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			var addresses []string
			for _, h := range hosts {
				addresses = append(addresses, fmt.Sprintf("{ip: %q}", f.of(h)))
			}
			return []string{
				f.service("web", "clusterIP: "+f.vip(41), spec+"ports: [{port: 80, targetPort: 9376}]"),
				fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: %s, labels: {%s}}\nsubsets: [{addresses: [%s], ports: [{port: 9376}]}]\n",
					f.name("web"), labels, strings.Join(addresses, ", ")),
			}
		}
	}
	b.write("web.yaml", web("", "", b.L1, b.R1))
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(9376, b.L1, b.R1)...)
	}
	b.rewrite("web.yaml", web("", "", b.R2))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(9376, b.R2)...)
	}
	b.rewrite("web.yaml", web(`endpointslice.kubernetes.io/skip-mirror: "true"`, "", b.R2))
	for _, f := range families {
		b.refuses(t, b.EXT, "tcp", f.at(f.vip(41), 80))
	}
	b.rewrite("web.yaml", web("", "selector: {app: nobody}\n", b.R2))
	for _, f := range families {
		b.refuses(t, b.EXT, "tcp", f.at(f.vip(41), 80))
		b.hasProblem(t, f.object("Endpoints", "web"), "Endpoints are only used for a Service without a selector")
	}
}

func Test140_environment(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Manifests.Write("all.yaml", strings.Join([]string{
		service("redis-primary", "clusterIP: 172.30.0.11", "ports: [{port: 6379}]"),
		service("headless", "clusterIP: None", "ports: [{port: 80}]"),
		service("external", "type: ExternalName", "externalName: db.example.com"),
		strings.Replace(service("other", "clusterIP: 172.30.0.12", "ports: [{port: 80}]"), "name: other", "name: other\n  namespace: shop", 1),
		service("v6", "clusterIP: 'fd00:172:30::13'", "ports: [{name: dns-udp, port: 53, protocol: UDP}]"),
	}, "---\n"))
	b.svcctl.Start()
	run := func(args ...string) []string {
		t.Helper()
		out, errOut, code := b.svcctl.Svcctl("admin", append([]string{"env"}, args...)...)
		if code != 0 {
			t.Fatalf("svcctl admin env %q: exit code %d: %s", args, code, errOut)
		}
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	want := []string{
		"REDIS_PRIMARY_SERVICE_HOST=172.30.0.11",
		"REDIS_PRIMARY_SERVICE_PORT=6379",
		"REDIS_PRIMARY_PORT=tcp://172.30.0.11:6379",
		"REDIS_PRIMARY_PORT_6379_TCP=tcp://172.30.0.11:6379",
		"REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp",
		"REDIS_PRIMARY_PORT_6379_TCP_PORT=6379",
		"REDIS_PRIMARY_PORT_6379_TCP_ADDR=172.30.0.11",
		"V6_SERVICE_HOST=fd00:172:30::13",
		"V6_SERVICE_PORT=53",
		"V6_SERVICE_PORT_DNS_UDP=53",
		"V6_PORT=udp://[fd00:172:30::13]:53",
		"V6_PORT_53_UDP=udp://[fd00:172:30::13]:53",
		"V6_PORT_53_UDP_PROTO=udp",
		"V6_PORT_53_UDP_PORT=53",
		"V6_PORT_53_UDP_ADDR=fd00:172:30::13",
	}
	if got := run("-o", "dotenv"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := run("-n", "shop", "-o", "dotenv"); got[0] != "OTHER_SERVICE_HOST=172.30.0.12" || len(got) != 7 {
		t.Errorf("namespace shop: %s", strings.Join(got, "\n"))
	}
	if got := run("--", "sh", "-c", "echo $REDIS_PRIMARY_PORT $V6_SERVICE_PORT_DNS_UDP"); got[0] != "tcp://172.30.0.11:6379 53" {
		t.Errorf("a command sees %s", got)
	}
	if _, _, code := b.svcctl.Svcctl("admin", "env", "--", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("a command that exits with 7: %d", code)
	}
}
