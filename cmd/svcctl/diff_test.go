package main

import (
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// A watched file is compared as a file: what its edit would change on this box, with what is
// allocated here and what clients have added.
func TestDiffOfWatchedFiles(t *testing.T) {
	b := newBox(t)
	text := `apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
spec:
  type: NodePort
  ports:
  - name: http
    port: 80
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [10.1.2.11]
`
	dir, err := filepath.EvalSymlinks(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "watched/web.yaml")
	b.file("watched/web.yaml", text)
	b.declares(path, text)
	b.status.Sources = []wire.Source{{Dir: filepath.Join(dir, "watched"), State: wire.SourceOK, Files: 1}}
	edited := strings.NewReplacer("port: 80\n", "port: 81\n", "{app: web}", "{}", "10.1.2.11", "10.1.2.12").Replace(text)
	added := "---\napiVersion: v1\nkind: Service\nmetadata: {name: new, namespace: shop}\nspec: {ports: [{port: 80}]}\n"
	b.file("branch/web.yaml", edited+added)
	b.file("client.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: clients}\nspec: {ports: [{port: 80}]}\n")
	b.session("diff-watched",
		"diff -f watched",
		"diff -f branch/web.yaml --field-manager gitops",
		"get svc,endpointslices -A",
		"apply -f client.yaml",
		"diff -f client.yaml --field-manager gitops",
	)
	if code := b.run("diff", "-f", "branch"); code != cli.ExitUsage || !strings.Contains(b.err.String(), "--field-manager gitops` shows what") {
		t.Errorf("exit %d, stderr %q", code, b.err.String())
	}
	b.file("watched/web.yaml", edited)
	if code := b.run("diff", "-f", "watched"); code != cli.ExitNo || !strings.Contains(b.out.String(), "\n+  - 10.1.2.12\n") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
}
