package coredns

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/miekg/dns"

	"svcctl.io/svcctl/api/conformance/served"
)

const (
	server = "127.0.0.1:1053"
	// corefile is CoreDNS' configuration; %s is the kubeconfig.
	corefile = `.:1053 {
	bind 127.0.0.1
	errors
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig %s
		pods verified
		ttl 0
	}
}
`
	// within bounds the time from a change to its DNS names.
	within = time.Minute
)

func TestMain(m *testing.M) { served.Main(m) }

// manifests are those served at first.
const manifests = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 172.30.0.80
  clusterIPs: [172.30.0.80, "fd00:172:30::80"]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.180.0.1]}]
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: None
  ports: [{name: pg, port: 5432}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
endpoints:
- {addresses: [10.180.0.1], hostname: one}
- {addresses: [10.180.0.2]}
- {addresses: [10.180.0.3], conditions: {ready: false}}
ports: [{name: pg, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: shop}
spec: {containers: [{name: c, image: none}]}
status: {phase: Running, podIP: 10.180.0.9, podIPs: [{ip: 10.180.0.9}]}
`

// answers has the queries with the expected results: the data of all records of the answer,
// sorted, or the name of an error.
var answers = []struct {
	name string
	kind uint16
	want string
}{
	{"web.shop.svc.cluster.local.", dns.TypeA, "172.30.0.80"},
	{"WEB.Shop.SVC.cluster.local.", dns.TypeA, "172.30.0.80"},
	{"web.shop.svc.cluster.local.", dns.TypeAAAA, "fd00:172:30::80"},
	{"_http._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, "0 50 80 web.shop.svc.cluster.local."},
	{"_dns._udp.web.shop.svc.cluster.local.", dns.TypeSRV, "0 50 53 web.shop.svc.cluster.local."},
	{"80.0.30.172.in-addr.arpa.", dns.TypePTR, "web.shop.svc.cluster.local."},
	{"0.8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.0.0.2.7.1.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "web.shop.svc.cluster.local."},
	{"db.shop.svc.cluster.local.", dns.TypeA, "10.180.0.1, 10.180.0.2"},
	{"db.shop.svc.cluster.local.", dns.TypeAAAA, ""},
	{"one.db.shop.svc.cluster.local.", dns.TypeA, "10.180.0.1"},
	{"10-180-0-2.db.shop.svc.cluster.local.", dns.TypeA, "10.180.0.2"},
	{"_pg._tcp.db.shop.svc.cluster.local.", dns.TypeSRV, "0 50 5432 10-180-0-2.db.shop.svc.cluster.local., 0 50 5432 one.db.shop.svc.cluster.local."},
	{"2.0.180.10.in-addr.arpa.", dns.TypePTR, "10-180-0-2.db.shop.svc.cluster.local."},
	{"alias.shop.svc.cluster.local.", dns.TypeCNAME, "web.shop.svc.cluster.local."},
	{"alias.shop.svc.cluster.local.", dns.TypeA, "172.30.0.80, web.shop.svc.cluster.local."},
	{"10-180-0-9.shop.pod.cluster.local.", dns.TypeA, "10.180.0.9"},
	{"10-180-0-8.shop.pod.cluster.local.", dns.TypeA, "NXDOMAIN"},
	{"nobody.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	{"web.nowhere.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	{"shop.svc.cluster.local.", dns.TypeA, ""},
	{"nowhere.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
	{"dns-version.cluster.local.", dns.TypeTXT, `"1.1.0"`},
}

func TestNames(t *testing.T) {
	a := served.New(t, "--allow-mass-removal")
	write(t, a, "shop.yaml", manifests)
	a.Start()
	start(t, a.Kubeconfig)
	for _, q := range answers {
		eventually(t, q.name, q.kind, q.want)
	}

	t.Run("changes", func(t *testing.T) {
		write(t, a, "shop.yaml", strings.ReplaceAll(manifests, "10.180.0.2]", "10.180.0.22]"))
		eventually(t, "db.shop.svc.cluster.local.", dns.TypeA, "10.180.0.1, 10.180.0.22")
		write(t, a, "more.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: new, namespace: late}\nspec: {clusterIP: 172.30.0.90, ports: [{port: 1}]}\n")
		eventually(t, "new.late.svc.cluster.local.", dns.TypeA, "172.30.0.90")
	})
	t.Run("restart", func(t *testing.T) {
		a.Kill()
		eventually(t, "web.shop.svc.cluster.local.", dns.TypeA, "172.30.0.80")
		a.Start()
		write(t, a, "more.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: newer, namespace: late}\nspec: {clusterIP: 172.30.0.91, ports: [{port: 1}]}\n")
		eventually(t, "newer.late.svc.cluster.local.", dns.TypeA, "172.30.0.91")
		eventually(t, "new.late.svc.cluster.local.", dns.TypeA, "NXDOMAIN")
	})
	t.Run("removal", func(t *testing.T) {
		if err := os.Remove(filepath.Join(a.Manifests, "shop.yaml")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN")
		eventually(t, "80.0.30.172.in-addr.arpa.", dns.TypePTR, "NXDOMAIN")
	})
}

// write replaces a manifest, by rename.
func write(t *testing.T, a *served.Appliance, name, content string) {
	t.Helper()
	temporary := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(a.Manifests, name)); err != nil {
		t.Fatal(err)
	}
}

// start starts CoreDNS in this process; it ends with the test.
func start(t *testing.T, kubeconfig string) {
	t.Helper()
	dnsserver.Quiet = true
	instance, err := caddy.Start(caddy.CaddyfileInput{
		Filepath: "Corefile", Contents: fmt.Appendf(nil, corefile, kubeconfig), ServerTypeName: "dns",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := instance.Stop(); err != nil {
			t.Errorf("stop CoreDNS: %v", err)
		}
	})
}

// eventually asks until the answer is the wanted one.
func eventually(t *testing.T, name string, kind uint16, want string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		got := ask(name, kind)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s %s: %q, want %q", name, dns.TypeToString[kind], got, want)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ask is the data of the records of the answer, sorted, or the name of an error.
func ask(name string, kind uint16) string {
	q := new(dns.Msg).SetQuestion(name, kind)
	answer, _, err := new(dns.Client).Exchange(q, server)
	if err != nil {
		return err.Error()
	}
	if answer.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[answer.Rcode]
	}
	var data []string
	for _, rr := range answer.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(data)
	return strings.Join(data, ", ")
}
