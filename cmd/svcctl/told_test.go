package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/api"
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

// countedWriter counts the bytes of an answer.
type countedWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w countedWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// An address or a port is explained from the objects that have it, however many others there are.
func Test1081_explain_reads_the_objects_of_its_address(t *testing.T) {
	var read atomic.Int64
	b := newBox(t, func(cfg *api.Config) {
		objects := cfg.Objects
		cfg.Objects = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			objects.ServeHTTP(countedWriter{w, &read}, r)
		})
	})
	var all strings.Builder
	for i := range 200 {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%03d}\nspec: {type: NodePort, clusterIP: 10.96.1.%d, ports: [{port: 80, nodePort: %d}]}\n", i, i, 31000+i)
		fmt.Fprintf(&all, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%03d, labels: {kubernetes.io/service-name: s%03d}}\n"+
			"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.1.2.%d]}]\n", i, i, i)
	}
	b.declares("/etc/svcctl/all.yaml", all.String())
	for line, want := range map[string]string{
		"explain 10.96.1.7:80": "10.96.1.7:80 is Service default/s007",
		"explain 10.96.1.7":    "10.96.1.7 is Service default/s007",
		"explain :31007":       ":31007 is Service default/s007",
		"explain 10.1.2.7":     "10.1.2.7 is an endpoint of default/s007",
		"explain 10.9.9.9:80":  "no Service answers at 10.9.9.9",
		"get svc --field-selector svcctl.io/address=10.96.1.7 --no-headers": "s007 ",
	} {
		read.Store(0)
		b.run(strings.Fields(line)...)
		if n := read.Load(); n > 10_000 || !strings.Contains(b.out.String(), want) {
			t.Errorf("svcctl %s: %d bytes of objects were read; want %q:\n%s%s", line, n, want, b.out.String(), b.err.String())
		}
	}
}

// A Service whose endpoint has the port in another of its EndpointSlices is one of those with the port.
func TestExplainEndpointInSeveralSlices(t *testing.T) {
	b := newBox(t)
	var all strings.Builder
	for i, name := range []string{"one", "two"} {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.96.2.%d, ports: [{name: a, port: 80}, {name: b, port: 90}]}\n", name, i+1)
	}
	for _, slice := range []string{"one-1: {name: a, port: 9090}", "two-1: {name: a, port: 8080}", "two-2: {name: b, port: 9090}"} {
		name, port, _ := strings.Cut(slice, ": ")
		fmt.Fprintf(&all, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, labels: {kubernetes.io/service-name: %s}}\n"+
			"addressType: IPv4\nports: [%s]\nendpoints: [{addresses: [10.1.3.1]}]\n", name, name[:3], port)
	}
	b.declares("/etc/svcctl/all.yaml", all.String())
	for line, want := range map[string]string{
		"explain 10.1.3.1:9090": "10.1.3.1 is an endpoint of default/one and 1 other Service",
		"explain 10.1.3.1:8080": "10.1.3.1 is an endpoint of default/two:",
	} {
		if b.run(strings.Fields(line)...); !strings.Contains(b.out.String(), want) {
			t.Errorf("svcctl %s: want %q:\n%s%s", line, want, b.out.String(), b.err.String())
		}
	}
}
