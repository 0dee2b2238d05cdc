package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestTold holds what is told of objects of files, and of what is empty, against what an
// operator has to know of them.
func TestTold(t *testing.T) {
	b := newBox(t)
	const filed = "apiVersion: v1\nkind: Service\nmetadata: {name: filed}\nspec: {clusterIP: 10.96.0.30, ports: [{port: 80, targetPort: 8080}]}\n"
	b.declares("/etc/svcctl/filed.yaml", filed)
	b.file("changed.yaml", strings.ReplaceAll(filed, "8080", "9090"))
	b.file("empty.yaml", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: empty}\naddressType: IPv4\nendpoints: []\nports: []\n")
	b.file("lost.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: lost, namespace: nowhere}\nspec: {ports: [{port: 80}]}\n")
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"explain svc/filed", cli.ExitNo, "the Service exists, declared by a file of the appliance"},
		{"explain 10.96.0.30:80", cli.ExitNo, "the Service exists, declared by a file of the appliance"},
		{"explain svc/filed:80", cli.ExitUsage, "a port goes with an address, as 10.96.0.10:80"},
		{"describe svc/filed", cli.ExitDone, "Managed By:               a file of the appliance\n"},
		{"get svc/filed -o jsonpath={.metadata.managedFields[0].manager}", cli.ExitDone, "gitops"},
		{"apply -f changed.yaml", cli.ExitNo, `; the manager "gitops" is the file /etc/svcctl/filed.yaml:1: change it there`},
		{"apply -f lost.yaml", cli.ExitNo, `namespaces "nowhere" not found: apply a Namespace nowhere first`},
		{"apply -f empty.yaml", cli.ExitDone, "created"},
		{"describe endpointslices empty", cli.ExitDone, "\nEndpoints: <none>\nPorts: <none>\n"},
	} {
		if code := b.run(strings.Fields(c.line)...); code != c.code || !strings.Contains(b.out.String()+b.err.String(), c.want) {
			t.Errorf("svcctl %s: exit %d, want %d and %q:\n%s%s", c.line, code, c.code, c.want, b.out.String(), b.err.String())
		}
	}
}
