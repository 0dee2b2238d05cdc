package store

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/annotation"
)

// asking is a Service that asks for load balancer IPs in its annotation.
func asking(name, ips, spec string) string {
	doc := yamlOf(name + " {type: LoadBalancer" + spec + "}")
	return strings.Replace(doc, "namespace: default", "namespace: default, annotations: {"+annotation.LoadBalancerIPs+": '"+ips+"'}", 1)
}

func TestSeveralLoadBalancerIPs(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", asking("a", "198.51.100.5, 198.51.100.4,198.51.100.5", ", loadBalancerIP: 198.51.100.6"))
	b.wantProblems()
	if got := b.ingress("a"); got != "198.51.100.6 198.51.100.5 198.51.100.4" {
		t.Errorf("a has %q, want what it asks for, once and in that order", got)
	}
	b.apply("b.yaml", asking("b", "198.51.100.4, 198.51.100.7", ""))
	b.wantProblems("Service default/b: metadata.annotations[" + annotation.LoadBalancerIPs + "]: 198.51.100.4 cannot be given: provided IP is already allocated to Service default/a")
	if got := b.ingress("b"); got != "198.51.100.7" {
		t.Errorf("b has %q, want the one that is free", got)
	}
	for range 2 { // over a restart too
		b.restart()
		b.sync()
		if a, other := b.ingress("a"), b.ingress("b"); a != "198.51.100.6 198.51.100.5 198.51.100.4" || other != "198.51.100.7" {
			t.Errorf("after a restart a has %q, b has %q", a, other)
		}
	}
	// What one gives up, the other one waits for.
	b.apply("a.yaml", asking("a", "198.51.100.5", ""))
	b.wantProblems()
	if a, other := b.ingress("a"), b.ingress("b"); a != "198.51.100.5" || other != "198.51.100.4 198.51.100.7" {
		t.Errorf("a has %q, b has %q", a, other)
	}
	// Who asks for none any more keeps one.
	b.apply("b.yaml", "b {type: LoadBalancer}")
	if got := b.ingress("b"); got != "198.51.100.4" {
		t.Errorf("b has %q, want the first one of before", got)
	}
}

func TestSeveralLoadBalancerIPsOfTwoFamilies(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = append(c.Pools, pool("2001:db8:198::", "2001:db8:198::f")) })
	const dual = ", ipFamilyPolicy: RequireDualStack"
	b.apply("a.yaml", strings.Join([]string{
		asking("a", "2001:db8:198::4, 198.51.100.4, 2001:db8:198::5", dual),
		asking("b", "198.51.100.7, 198.51.100.8", dual),
		asking("c", "2001:db8:198::9", ""),
		asking("d", "198.51.100.1, somewhere", ""),
	}, "\n"))
	b.wantProblems(
		"Service default/c: metadata.annotations[" + annotation.LoadBalancerIPs + "]: 2001:db8:198::9 is not of the Service's family, [IPv4]",
	) // of "somewhere" warn the rules of annotations (Config.Rules)
	if got := b.ingress("a"); got != "198.51.100.4 2001:db8:198::4 2001:db8:198::5" {
		t.Errorf("a has %q", got)
	}
	if got := strings.Fields(b.ingress("b")); len(got) != 3 || got[0] != "198.51.100.7" || got[1] != "198.51.100.8" {
		t.Errorf("b has %q, want the two that it asks for, and any of the other family", got)
	}
	if got := b.ingress("c"); got != "" {
		t.Errorf("c has %q, want none", got)
	}
	if got := b.ingress("d"); got != "198.51.100.1" {
		t.Errorf("d has %q", got)
	}
}

// Two Services that both ask for several IPs share those that both ask for.
func TestSharingOneOfSeveralLoadBalancerIPs(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", asking("web", "198.51.100.4, 198.51.100.5", "")+
		asking("tls", "198.51.100.5, 198.51.100.6", ", ports: [{port: 443}]")+
		asking("clash", "198.51.100.5, 198.51.100.7", ", ports: [{port: 443}]"))
	b.wantProblems("198.51.100.5 cannot be given: provided IP is already allocated to Service default/")
	if got := b.ingress("web"); got != "198.51.100.4 198.51.100.5" {
		t.Errorf("web has %q", got)
	}
	if got := b.ingress("tls") + " " + b.ingress("clash"); strings.Count(got, "198.51.100.5") != 1 {
		t.Errorf("tls and clash have %q: one of them has to wait", got)
	}
}
