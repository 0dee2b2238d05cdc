package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

const webYAML = `apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels:
    app: web
    kubernetes.io/service-name: web
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [10.1.2.11]
  nodeName: gw1
- addresses: [10.1.2.12]
  conditions: {ready: false}
  targetRef: {kind: Pod, name: web-b}
`

const balancedYAML = `apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  loadBalancerIP: 198.51.100.4
  clusterIP: 10.96.0.20
  externalTrafficPolicy: Local
  healthCheckNodePort: 31000
  loadBalancerSourceRanges: [203.0.113.0/24]
  ports:
  - {name: http, port: 80, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP, nodePort: 30053}
`

func TestApply(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("dir/a.yaml", strings.ReplaceAll(webYAML, "targetPort: 8080", "targetPort: 8081"))
	b.file("dir/sub/b.json", `{"kind":"List","apiVersion":"v1","items":[{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"a":"1"}}]}`)
	b.file("dir/.hidden.yaml", "no")
	b.file("bad.yaml", `apiVersion: v1
kind: Service
metadata: {name: good}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: unknown}
spec:
  bogus: 1
---
apiVersion: v1
kind: Service
metadata: {name: invalid}
spec:
  ports:
  - port: 99999
    name: Http
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
---
apiVersion: v1
kind: Service
metadata: {name: lost, namespace: nowhere}
spec: {ports: [{port: 80}]}
---
kind: Service
---
apiVersion: v1
kind: Service
metadata: {name: ambiguous}
spec: {publishNotReadyAddresses: yes, clusterIP: 10.96.0.12, ports: [{port: 010}]}
`)
	b.In = strings.NewReader("{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"piped\"}}\n")
	b.session("apply",
		"apply -f web.yaml --dry-run",
		"get svc,endpointslices,cm",
		"apply -f web.yaml",
		"apply -f web.yaml --wait",
		"apply -f dir",
		"apply -f dir -R=false -o name",
		"apply -f -",
		"apply -f bad.yaml",
		"get svc",
		"apply -f web.yaml --field-manager other",
		"apply -f dir/a.yaml --field-manager other",
		"apply -f web.yaml --field-manager third --force-conflicts",
		"apply -f web.yaml -l app=other",
		"apply -f web.yaml -n shop",
		"apply -f dir/sub/b.json --dry-run -o jsonpath='{.metadata.name} {.data.a}'",
		"apply -f nowhere.yaml",
		"apply -f web.yaml --dry-run=client",
		"apply -f web.yaml --wait=soon",
		"apply web.yaml",
		"apply",
	)
}

// Namespaces come before what is in them, in whichever file they are, and go after it.
func TestApplyNamespaces(t *testing.T) {
	b := newBox(t)
	b.file("dir/a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}\n")
	b.file("dir/b.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n")
	b.session("apply-namespaces",
		"apply -f dir --dry-run",
		"diff -f dir",
		"apply -f dir",
		"apply -f dir",
		"delete -f dir",
	)
}

// What get has printed can be applied, again and again, and where it never was.
func TestApplyWhatGetPrints(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	if code := b.run("apply", "-f", "web.yaml"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	for _, form := range []string{"yaml", "json"} {
		if code := b.run("get", "svc,endpointslices", "-o", form, "--show-managed-fields"); code != cli.ExitDone {
			t.Fatal(b.err.String())
		}
		b.file("saved."+form, b.out.String())
		// The first time, the fields that were allocated become the document's.
		for _, want := range []string{"/", "unchanged", "created"} {
			if want == "created" {
				b.run("delete", "svc,endpointslices", "--all", "--yes")
			}
			if code := b.run("apply", "-f", "saved."+form); code != cli.ExitDone || strings.Count(b.out.String(), want) != 2 {
				t.Errorf("%s: want it %s, got:\n%s%s", form, want, b.out.String(), b.err.String())
			}
		}
		if code := b.run("diff", "-f", "saved."+form); code != cli.ExitDone {
			t.Errorf("diff: exit %d:\n%s%s", code, b.out.String(), b.err.String())
		}
	}
}

func TestPrune(t *testing.T) {
	b := newBox(t)
	b.file("a.yaml", webYAML)
	b.file("b.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, labels: {app: web}}\n")
	b.file("other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: others, labels: {app: web}}\n")
	b.file("bad.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, labels: {app: web}}\nbogus: 1\n")
	b.declares("/etc/svcctl/filed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: filed, labels: {app: web, svcctl.io/applyset: shop}}\nspec: {clusterIP: 10.96.0.30, ports: [{port: 80}]}\n")
	b.file("held.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n")
	b.session("prune",
		"apply -f a.yaml -f b.yaml --applyset shop",
		"apply -f other.yaml --applyset shop --field-manager somebody-else",
		"apply -f b.yaml --prune --applyset shop --dry-run",
		"apply -f bad.yaml --prune --applyset shop",
		"apply -f b.yaml --prune --applyset shop",
		"get svc,endpointslices,cm -L svcctl.io/applyset",
		"apply -f a.yaml",
		"apply -f b.yaml --prune -l app=web",
		"get svc,endpointslices,cm",
		"apply -f b.yaml --prune",
		"apply -f held.yaml --applyset held",
		"apply -f b.yaml --prune --applyset held",
	)
}

func TestGet(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("balanced.yaml", balancedYAML)
	b.declares("/etc/svcctl/filed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: filed, namespace: shop}\nspec: {clusterIP: 10.96.0.30, ports: [{port: 80}]}\n")
	b.session("get",
		"get services",
		"apply -f web.yaml -f balanced.yaml",
		"get svc",
		"get svc -A -o wide",
		"get services web balanced --show-labels",
		"get svc/web endpointslice/web-1",
		"get svc web -n ''",
		"get svc,endpointslices.discovery.k8s.io -l app=web -L app",
		"get svc web nope",
		"get svc nope --ignore-not-found",
		"get -f web.yaml",
		"get -f web.yaml -o name",
		"get -f web.yaml svc",
		"get svc --field-selector spec.type=LoadBalancer --no-headers",
		"get svc --sort-by=.spec.clusterIP -o custom-columns=NAME:.metadata.name,PORTS:.spec.ports[*].port,NONE:.spec.nope",
		"get svc web -o yaml",
		"get svc -l app=web -o yaml",
		"get cm -o yaml",
		"get svc -l app=web -o json",
		"get cm -o json",
		"get svc,endpointslices -o name",
		"get svc -o jsonpath='{range .items[*]}{.metadata.name}{\"\\t\"}{.spec.clusterIP}{\"\\n\"}{end}'",
		"get svc web -ojsonpath={.spec.ports[0].name}",
		"-n shop get svc",
		"get -nshop svc -oname",
		"get all -A",
		"get servicecidrs,ipaddresses",
		"get ns",
		"get frobs",
		"get servics",
		"get svc web -A",
		"get svc web -l a=b",
		"get svc -o frob",
		"get svc -o jsonpath={.a",
		"get svc -l 'a in'",
		"get svc --field-selector spec.nope=1",
		"get",
	)
}

func TestDescribe(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("balanced.yaml", balancedYAML)
	b.file("others.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {clusterIP: x, motd: \"a\\nb\"}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter22}\n")
	b.status.Problems = []wire.Problem{
		{Object: "Service default/balanced", File: "/etc/svcctl/b.yaml", Line: 7, Column: 3, Field: "spec.externalIPs[0]", Reason: "Conflict", Message: "it belongs to default/web", Severity: wire.SeverityError},
	}
	b.session("describe",
		"apply -f web.yaml -f balanced.yaml -f others.yaml",
		"describe svc web",
		"describe svc/balanced",
		"describe endpointslices",
		"describe cm c",
		"describe secret/s",
		"describe svc nope",
		"describe leases",
		"describe",
	)
}

func TestDelete(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.declares("/etc/svcctl/filed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: filed}\nspec: {clusterIP: 10.96.0.30, ports: [{port: 80}]}\n")
	b.file("held.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n")
	b.file("unheld.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held}\n")
	b.session("delete",
		"apply -f web.yaml",
		"delete svc web --dry-run",
		"delete svc web nope",
		"delete -f web.yaml",
		"delete -f web.yaml --ignore-not-found",
		"apply -f web.yaml -o name",
		"delete svc,endpointslices -l app=web -o name --yes",
		"delete svc --all",
		"delete svc --all --yes",
		"delete svc -l app=none",
		"delete svc",
		"delete svc web --all",
		"delete",
		"delete svc filed -i",
		"apply -f held.yaml",
		"delete cm held --timeout 50ms",
		"wait cm/held --for=delete --timeout 50ms",
		"delete cm held --wait=false",
		"apply -f unheld.yaml",
		"get cm held",
		"get svc nope -w",
	)
}

func TestDiff(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("changed.yaml", strings.ReplaceAll(webYAML, "port: 80\n", "port: 81\n"))
	b.file("bad.yaml", strings.ReplaceAll(webYAML, "port: 80\n", "port: 0\n"))
	b.session("diff",
		"diff -f web.yaml",
		"apply -f web.yaml",
		"diff -f web.yaml",
		"diff -f changed.yaml",
		"get svc",
		"diff -f bad.yaml",
		"diff",
	)
	b.Color = true
	b.session("diff-color", "diff -f changed.yaml")
}

func TestWaitForObjects(t *testing.T) {
	b := newBox(t)
	b.judged.Store(true)
	b.file("web.yaml", webYAML)
	b.file("alone.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: alone}\nspec: {ports: [{port: 80}]}\n")
	b.session("wait",
		"apply -f web.yaml -f alone.yaml",
		"wait svc/web",
		"wait svc/web --for=ready",
		"wait svc/alone --for=ready --timeout 50ms",
		"wait svc -l app=web --for=create",
		"wait svc/nope --for=create --timeout 50ms",
		"wait svc/nope --timeout 50ms",
		"wait svc/nope --for=delete",
		"wait svc/nope --for=ready",
		"wait svc/web --for=delete --timeout 50ms",
		"wait svc/web --for=jsonpath={.spec.clusterIP}=10.96.0.10",
		"wait svc/web --for=jsonpath='{.spec.ports[?(@.name==\"http\")].port}'=80",
		"wait svc/web --for=jsonpath={.spec.externalName} --timeout 50ms",
		"wait svc/web --for=condition=Programmed --timeout 50ms",
		"wait svc/web --for=frob",
		"wait svc -l app=none",
		"wait -f web.yaml --for=create",
	)
}

// TestWaitSeesChanges: what is waited for may come later.
func TestWaitSeesChanges(t *testing.T) {
	b := newBox(t)
	b.judged.Store(true)
	b.file("alone.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{name: http, port: 80}]}\n")
	b.file("web.yaml", webYAML)
	if code := b.run("apply", "-f", "alone.yaml"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	done := make(chan int)
	other := newBench()
	other.env = b.env
	go func() { done <- other.run("wait", "svc/web", "--for", "ready", "--timeout", "1m") }()
	if code := b.run("apply", "-f", "web.yaml", "--force-conflicts"); code != cli.ExitNo { // the cluster IP cannot change
		t.Fatal(b.err.String())
	}
	if code := <-done; code != cli.ExitDone || other.out.String() != "service/web condition met\n" {
		t.Errorf("exit %d: %s%s", code, other.out.String(), other.err.String())
	}
}

func TestExplainService(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("balanced.yaml", balancedYAML)
	b.declares("/etc/svcctl/filed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: filed}\nspec: {clusterIP: 10.96.0.30, selector: {app: filed}, ports: [{port: 80}]}\n")
	b.status.Problems = []wire.Problem{
		{Object: "Service default/refused", File: "/etc/svcctl/r.yaml", Line: 7, Column: 3, Field: "spec.type", Reason: "FieldValueNotSupported", Message: "Unsupported value", Severity: wire.SeverityError},
		{Reason: "Host", Message: "net.ipv4.ip_forward is 0", Severity: wire.SeverityWarning},
	}
	b.session("explain",
		"apply -f web.yaml -f balanced.yaml",
		"explain svc/web",
		"explain svc web",
		"explain 10.96.0.10:80",
		"explain 10.96.0.10:81",
		"explain :30080",
		"explain :30081/tcp",
		"explain 198.51.100.4",
		"explain svc/balanced",
		"explain svc/filed",
		"explain svc/refused",
		"explain svc/nope",
		"explain 10.96.0.99:80/tcp",
		"explain [fd00:10:96::1]:80",
		"explain 192.0.2.1",
		"explain 10.96.0.10:99999",
		"explain 10.96.0.10:80/icmp",
		"explain cm/c",
		"explain",
	)
}

func TestExplainField(t *testing.T) {
	b := newBox(t)
	b.session("explain-field",
		"explain service.spec.ports",
		"explain svc.spec.externalTrafficPolicy",
		"explain endpointslices.endpoints.conditions",
		"explain endpointslices.discovery.k8s.io --recursive",
		"explain svc.spec.prots",
		"explain svc.spec.type.more",
		"explain web",
	)
}

func TestAlloc(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("balanced.yaml", balancedYAML)
	b.session("alloc",
		"apply -f web.yaml -f balanced.yaml",
		"admin alloc",
		"admin alloc -o wide",
		"admin alloc -o yaml",
		"admin alloc check",
		"admin alloc check --repair -o json",
		"admin alloc --repair",
		"admin alloc frob",
	)
}
