package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestExpose: flags become manifests that the product accepts.
func TestExpose(t *testing.T) {
	for name, line := range map[string]string{
		"one":      "web --port 80 --to 10.1.2.11:8080 --to 10.1.2.12:8080",
		"ports":    "web --port 80 --port 443:8443/tcp --port 443/udp --to 10.1.2.11 -n shop",
		"families": "web --port 80 --to 10.1.2.11 --to 2001:db8::11 --type LoadBalancer --load-balancer-ip 203.0.113.80",
		"six":      "web --port 80 --to [2001:db8::11]:8080 --type NodePort",
		"weights":  "web --port 80 --to 10.1.2.11 --to 10.1.2.12:8080 --weight 10.1.2.11=3 --health-check http:8080/healthz",
		"twice":    "web --port 80 --to 10.1.2.11:81 --to 10.1.2.11:82 --weight 10.1.2.11=0",
	} {
		b := newBench()
		b.Env.Plan = appliance.Plan
		if code := b.run(append([]string{"expose"}, strings.Fields(line)...)...); code != cli.ExitDone || b.err.Len() > 0 {
			t.Errorf("expose %s: exit %d, stderr %q", line, code, b.err.String())
		}
		golden(t, "expose/"+name+".yaml", b.out.String())
	}
}

// TestExposeRefuses: what is wrong is said, and nothing is printed.
func TestExposeRefuses(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"", cli.ExitUsage, "expose as what?"},
		{"web", cli.ExitUsage, "at which port? Give --port"},
		{"web --port 80", cli.ExitUsage, "web has no server: give one with --to"},
		{"web web2 --port 80 --to 10.1.2.11", cli.ExitUsage, `"web2" is a second name`},
		{"web --port 0 --to 10.1.2.11", cli.ExitUsage, `--port "0": "0" is no port: want a number from 1 to 65535`},
		{"web --port 80:http --to 10.1.2.11", cli.ExitUsage, `"http" is no port`},
		{"web --port 80 --to 127.0.0.1:8080", cli.ExitUsage, `--to "127.0.0.1:8080": clients do not reach a loopback address: have the server listen at an address of its box, as `},
		{"web --port 80 --to ::1", cli.ExitUsage, "clients do not reach a loopback address"},
		{"web --port 80/icmp --to 10.1.2.11", cli.ExitUsage, `the protocol "icmp" is unknown: use tcp, udp or sctp`},
		{"web --port 80/ --to 10.1.2.11", cli.ExitUsage, `the protocol "" is unknown`},
		{"web --port 80 --to web.example.org", cli.ExitUsage, "names are not looked up"},
		{"web --port 80 --to 2001:db8::1:80000", cli.ExitUsage, "want an address"},
		{"web --port 80 --to 10.1.2.11 --to 10.1.2.11", cli.ExitUsage, "is given twice"},
		{"web --port 80 --port 81 --to 10.1.2.11:8080", cli.ExitUsage, "write --port PORT:TARGET"},
		{"web --port 80 --to 10.1.2.11 --weight 10.1.2.12=1", cli.ExitUsage, "no --to has the address 10.1.2.12"},
		{"web --port 80 --to 10.1.2.11 --weight 10.1.2.11=x", cli.ExitUsage, "the weight must be an integer from 0 to 65535"},
		{"web --port 80 --to 10.1.2.11 --load-balancer-ip 198.51.100.1", cli.ExitUsage, "add --type LoadBalancer"},
		{"web --port 80 --to 10.1.2.11 --type ExternalName", cli.ExitUsage, "want one of ClusterIP, NodePort, LoadBalancer"},
		{"Web --port 80 --to 10.1.2.11", cli.ExitNo, "a DNS-1035 label"},
		{"web --port 80 --port 80 --to 10.1.2.11", cli.ExitNo, "Duplicate value"},
		{"web --port 80 --to 10.1.2.11 --from dns:a.example.com", cli.ExitUsage, "leave one of them out"},
		{"web --port 80 --from web", cli.ExitNo, `"web" is no source of endpoints`},
		{"web --port 80 --from exec:/bin/list", cli.ExitNo, "no command is run"},
		{"web --port 80 --to 10.1.2.11 --health-check htp", cli.ExitNo, `"htp" is no check`},
	} {
		b := newBench()
		b.Env.Plan = appliance.Plan
		if code := b.run(append([]string{"expose"}, strings.Fields(tt.args)...)...); code != tt.code || !strings.Contains(b.err.String(), tt.want) || b.out.Len() > 0 {
			t.Errorf("expose %s: exit %d, stdout %q, stderr %q, want %q", tt.args, code, b.out.String(), b.err.String(), tt.want)
		}
	}
}

// TestExposeApplies: --apply makes the objects, and says what became of each.
func TestExposeApplies(t *testing.T) {
	b := newBox(t)
	b.Env.Plan = appliance.Plan
	expose := func(want string) {
		t.Helper()
		if code := b.run("expose", "web", "--port", "80", "--to", "10.1.2.11:8080", "--apply"); code != cli.ExitDone || b.out.String() != want {
			t.Errorf("exit %d, stdout %q, want %q, stderr %q", code, b.out.String(), want, b.err.String())
		}
	}
	expose("service/web created\nendpointslice.discovery.k8s.io/web-ipv4 created\n")
	if code := b.run("expose", "api", "--port", "80:8080", "--from", "dns:app.example.com", "--from", "consul:api?tag=prod", "--apply"); code != cli.ExitDone || b.out.String() != "service/api created\n" {
		t.Errorf("--from: exit %d, stdout %q, stderr %q", code, b.out.String(), b.err.String())
	}
	if b.run("get", "service", "api", "-o", "yaml"); !strings.Contains(b.out.String(), "svcctl.io/endpoints-from: dns:app.example.com consul:api?tag=prod") {
		t.Errorf("the Service is %q", b.out.String())
	}
	expose("service/web unchanged\nendpointslice.discovery.k8s.io/web-ipv4 unchanged\n")
	if b.run("get", "endpointslice", "web-ipv4", "-o", "jsonpath={.endpoints[0].addresses[0]}:{.ports[0].port}"); !strings.Contains(b.out.String(), "10.1.2.11:8080") {
		t.Errorf("the slice has %q", b.out.String())
	}
}
