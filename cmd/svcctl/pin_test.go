package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

const pinFiles = `# a comment
apiVersion: v1
kind: Service
metadata: {name: block}   # stays
spec:
  type: NodePort
  ports:
    - port: 80
      name: http
    -   name: https
        port: 443
        nodePort: 31443
---
apiVersion: v1
kind: Service
metadata: {name: flow, namespace: shop}
spec: {ports: [{port: 80}], type: LoadBalancer, externalTrafficPolicy: Local}
---
apiVersion: v1
kind: Service
metadata:
  name: dual
spec:
  ipFamilyPolicy: RequireDualStack
  allocateLoadBalancerNodePorts: false
  type: LoadBalancer
  ports: [{port: 80}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: two, annotations: {note: "ä"}}
  spec:
    clusterIP: ""
    ipFamilyPolicy: RequireDualStack
    ports: [{port: 53, protocol: UDP}]
- apiVersion: v1
  kind: Service
  metadata: {name: none}
  spec:
    clusterIP: None
    ports: [{port: 53}]
`

const pinJSON = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}, "spec": {"ports": [{"port": 80}]}}`

// Files that were pinned name all values, change no more, and give the same on boxes that give none, whatever
// else those have.
func Test477_pinned_files_mean_the_same_everywhere(t *testing.T) {
	b := newBox(t)
	b.Env.Plan = appliance.Plan
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": pinFiles, "b.json": pinJSON} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	flags := []string{"--service-cluster-ip-range", "10.96.0.0/16,fd00:10:96::/112", "--load-balancer-pool", "198.51.100.0/28,2001:db8::/120"}
	run := func(verb string, more ...string) int {
		return b.run(append(append(append(strings.Fields(verb), "-f", dir), flags...), more...)...)
	}
	if code := run("plan", "--allocate", "never"); code != cli.ExitNo || strings.Count(b.err.String(), "(--allocate never)") != 11 || !strings.Contains(b.err.String(), "svcctl admin pin") {
		t.Fatalf("plan --allocate never of files without values: exit %d: %s", code, b.err.String())
	}
	if code := run("admin pin", "--dry-run"); code != cli.ExitDone || read("a.yaml") != pinFiles {
		t.Fatalf("pin --dry-run: exit %d: %s", code, b.err.String())
	}
	said := b.out.String()
	if code := run("admin pin"); code != cli.ExitDone || b.out.String() != said {
		t.Fatalf("pin: exit %d: %s\n%s, said before: %s", code, b.err.String(), b.out.String(), said)
	}
	yaml, json := read("a.yaml"), read("b.json")
	for _, want := range []string{
		`^# a comment\n`, `metadata: \{name: block\}   # stays\nspec:\n  clusterIP: "10\.96\.[0-9.]+"\n  type: NodePort\n`,
		`\n    - nodePort: 3[0-9]+\n      port: 80\n      name: http\n    -   name: https\n        port: 443\n        nodePort: 31443\n---`,
		`spec: \{clusterIP: "10\.96\.[0-9.]+", loadBalancerIP: "198\.51\.100\.[0-9]+", healthCheckNodePort: 3[0-9]+, ports: \[\{nodePort: 3[0-9]+, port: 80\}\], type`,
		`\n    clusterIPs: \["10\.96\.[0-9.]+", "fd00:10:96::[0-9a-f]+"\]\n    clusterIP: "10\.96\.[0-9.]+"\n    ipFamilyPolicy`,
		`\n    clusterIP: None\n`, `\nmetadata:\n  annotations: \{"[a-z./-]+": "198\.51\.100\.[0-9]+,2001:db8::[0-9a-f]+"\}\n  name: dual\n`,
	} {
		if !regexp.MustCompile(want).MatchString(yaml) {
			t.Errorf("a.yaml has nothing like %s:\n%s", want, yaml)
		}
	}
	if !regexp.MustCompile(`"spec": \{"clusterIP": "10\.96\.[0-9.]+", "ports"`).MatchString(json) {
		t.Errorf("b.json: %s", json)
	}
	if info, err := os.Stat(filepath.Join(dir, "a.yaml")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the permissions of the file: %v, %v", info.Mode(), err)
	}
	if code := run("plan", "--allocate", "never"); code != cli.ExitDone {
		t.Errorf("plan --allocate never of pinned files: exit %d: %s", code, b.err.String())
	}
	if code := run("admin pin"); code != cli.ExitDone || b.out.Len() > 0 || read("a.yaml") != yaml {
		t.Errorf("pin of pinned files: exit %d: %s%s", code, b.out.String(), b.err.String())
	}
	// A file whose values cannot be written is left as it is, and named.
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: 192.0.2.1, ports: [{port: 99999}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run("admin pin"); code != cli.ExitNo || !strings.Contains(b.err.String(), "c.yaml") {
		t.Errorf("pin of a Service that is refused: exit %d: %s", code, b.err.String())
	}
}

func TestPinLive(t *testing.T) {
	b := newBox(t)
	path := filepath.Join(t.TempDir(), "a.yaml")
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := b.run("admin", "pin", "-f", path, "--live"); code != cli.ExitNo || !strings.Contains(b.err.String(), "default/web") {
		t.Errorf("pin --live of what the appliance does not have: exit %d: %s", code, b.err.String())
	}
	if code := b.run("apply", "-f", path); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	if code := b.run("get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	ip := strings.TrimSpace(b.out.String())
	if code := b.run("admin", "pin", "-f", path, "--live"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	if now, _ := os.ReadFile(path); string(now) != strings.Replace(text, "{ports", `{clusterIP: "`+ip+`", ports`, 1) {
		t.Errorf("pinned: %s", now)
	}
}
