package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// contradictions are specs that contradict themselves or the box, which has IPv4 alone,
// and a text that one of their problems has.
var contradictions = []struct {
	spec  string
	texts []string
}{
	{"externalTrafficPolicy: Local\nports: [{port: 80}]",
		[]string{"spec.externalTrafficPolicy", `Invalid value: "Local": may only be set for externally-accessible services`}},
	{"type: NodePort\nexternalTrafficPolicy: Nearby\nports: [{port: 80}]",
		[]string{"spec.externalTrafficPolicy", `Unsupported value: "Nearby"`, `"Cluster", "Local"`}},
	{"internalTrafficPolicy: Nearby\nports: [{port: 80}]",
		[]string{"spec.internalTrafficPolicy", `Unsupported value: "Nearby"`, `"Cluster", "Local"`}},
	{"trafficDistribution: Nearby\nports: [{port: 80}]",
		[]string{"spec.trafficDistribution", `Unsupported value: "Nearby"`, "PreferSameNode"}},
	{"type: NodePort\nloadBalancerSourceRanges: [10.0.0.0/8]\nports: [{port: 80}]",
		[]string{"spec.loadBalancerSourceRanges", "Forbidden: may only be used when `type` is 'LoadBalancer'"}},
	{"type: LoadBalancer\nloadBalancerSourceRanges: [10.0.0.0/33]\nports: [{port: 80}]",
		[]string{"spec.loadBalancerSourceRanges[0]", `Invalid value: "10.0.0.0/33"`, "must be a valid CIDR value"}},
	{"loadBalancerClass: example.com/other\nports: [{port: 80}]",
		[]string{"spec.loadBalancerClass", "Forbidden: may only be used when `type` is 'LoadBalancer'"}},
	{"allocateLoadBalancerNodePorts: true\nports: [{port: 80}]",
		[]string{"spec.allocateLoadBalancerNodePorts", "Forbidden: may only be used when `type` is 'LoadBalancer'"}},
	{"type: LoadBalancer\nhealthCheckNodePort: 31000\nports: [{port: 80}]",
		[]string{"spec.healthCheckNodePort", "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"}},
	{"ports: [{port: 80, nodePort: 30080}]",
		[]string{"spec.ports[0].nodePort", "Forbidden: may not be used when `type` is 'ClusterIP'"}},
	{"ipFamilies: [IPv6]\nports: [{port: 80}]",
		[]string{"spec.ipFamilies[0]", `Invalid value: "IPv6": not configured on this cluster`}},
	{"ipFamilyPolicy: RequireDualStack\nports: [{port: 80}]",
		[]string{"spec.ipFamilyPolicy", "this cluster is not configured for dual-stack services"}},
	{"ipFamilyPolicy: SingleStack\nipFamilies: [IPv4, IPv6]\nports: [{port: 80}]",
		[]string{"spec.ipFamilyPolicy", "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"}},
	{"clusterIP: 'fd00:172:30::41'\nports: [{port: 80}]",
		[]string{"spec.clusterIPs[0]", `Invalid value: ["fd00:172:30::41"]: IPv6 is not configured on this cluster`}},
	{"ipFamilies: [IPv4]\nclusterIP: 'fd00:172:30::41'\nports: [{port: 80}]",
		[]string{"spec.clusterIPs[0]", "expected an IPv4 value as indicated by `ipFamilies[0]`"}},
	{"clusterIP: 172.30.0.40\nclusterIPs: [172.30.0.41]\nports: [{port: 80}]",
		[]string{"spec.clusterIPs", "first value must match `clusterIP`"}},
	{"type: ExternalName\nexternalName: example.com\nipFamilies: [IPv4]",
		[]string{"spec.ipFamilies", "Forbidden: may not be set for ExternalName services"}},
}

// TestBadInput_contradictions: what Kubernetes refuses is refused in its words, and what
// stands beside it is served.
func TestBadInput_contradictions(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"172.30.0.0/16"}})
	name := func(i int) string { return fmt.Sprintf("refused%02d", i) }
	for i, c := range contradictions {
		b.svcctl.Manifests.Write(name(i)+".yaml", service(name(i), c.spec))
	}
	b.svcctl.Manifests.Write("web.yaml", strings.Join(b.webDocuments(b.L1)(ipv4), "---\n"))
	b.svcctl.Start()
	for i, c := range contradictions {
		var about []problem
		for _, p := range b.status().Problems {
			if p.Object == "Service default/"+name(i) {
				about = append(about, p)
			}
		}
		wantProblem(t, c.spec, about, c.texts...)
	}
	b.reaches(t, b.IN, "tcp", ipv4.cluster(), plain, ipv4.on(80, b.L1)...)
}

// A live Service whose new version contradicts itself stays what it was.
func TestBadInput_contradiction_on_a_live_service(t *testing.T) {
	b := policies(t, nil, l1r1, etpLocal)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: ClusterIP", "clusterIP: "+f.vip(41), etpLocal, f.ranges(extOnly), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1, b.R1),
		}
	})
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "spec.loadBalancerSourceRanges", "Forbidden")
		b.external(t, f, b.EXT, plain, b.L1)
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.R1)...)
	}
	b.rewrite("web.yaml", policyDocuments(l1r1(b)))
	for _, f := range families {
		b.noProblem(t, f.object("Service", "web"))
		b.external(t, f, b.EXT, masq, b.L1, b.R1)
	}
}

// The other Service of these tests, which nothing of what happens touches.
func (b *box) bystander(f family) []string {
	return []string{
		f.service("bystander", "clusterIP: "+f.vip(200), "ports: [{name: p80, port: 80}]"),
		f.slice("bystander", "p80: 80", b.R2),
	}
}

func (b *box) bystands(t *testing.T, f family) {
	t.Helper()
	b.reaches(t, b.IN, "tcp", f.at(f.vip(200), 80), plain, f.on(80, b.R2)...)
	b.noProblem(t, f.object("Service", "bystander"))
}

// An external IP that comes to the box stays the Service's: a failover program brings it there.
// What the box serves on all of its addresses is not reached at that port of it.
func TestImpossible_external_ip_comes_to_the_box(t *testing.T) {
	b := newBox(t, nil)
	addr := func(f family) string { return f.pick("192.0.2.77", "2001:db8::77") }
	b.write("web.yaml", func(f family) []string {
		return append(b.bystander(f),
			f.service("web", "clusterIP: "+f.vip(41), "externalIPs: ["+addr(f)+"]", "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1))
	})
	for _, f := range families { // who routes that address to the box
		b.RTR.Route(addr(f)+f.pick("/32", "/128"), f.boxAddr())
	}
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(addr(f), 80), masq, f.on(80, b.L1)...)
		b.GW1.AddAddr("ext0", addr(f)+f.pick("/24", "/64"))
	}
	b.GW1.Serve("tcp", 80)
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(addr(f), 80), masq, f.on(80, b.L1)...)
		// Until the address came, nothing answered for it in the network of the box; that finding ends at the next look.
		eventually(t, syncTimeout, func() error {
			for _, p := range b.status().Problems {
				if p.Object == f.object("Service", "web") {
					return errors.New(p.String())
				}
			}
			return nil
		})
		if reply := answers(t, b.EXT, "tcp", f.at(f.boxAddr(), 80)); reply.Server != b.GW1.Name {
			t.Errorf("answered by %s, want the box itself", reply)
		}
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...) // its other address
		b.bystands(t, f)
		b.GW1.RemoveAddr("ext0", addr(f)+f.pick("/24", "/64"))
	}
	for _, f := range families {
		eventually(t, syncTimeout, func() error {
			return b.tryReaches(b.EXT, "tcp", f.at(addr(f), 80), masq, f.on(80, b.L1)...)
		})
		b.hasProblem(t, f.object("Service", "web"), "NotAdvertised", addr(f)+" is announced nowhere", "nothing answers for it there")
	}
}

// Ranges that move leave stored objects behind that could not be made any more.
func TestImpossible_after_the_ranges_moved(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return append(b.bystander(f),
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
			f.service("routed", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"),
			f.slice("routed", "p80: 80", b.R1, b.L2))
	})
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.R1, b.L2)...)
	}
	b.svcctl.Stop()
	// The new range is over a network of the box with an endpoint in it, and has no cluster IP
	// that was given; and IPv6 is gone.
	b.flags["service-cluster-ip-range"] = []string{"10.181.0.0/16"}
	moved := b.GW1.Appliance(binary, b.flags.args()...)
	moved.Data, moved.Manifests = b.svcctl.Data, b.svcctl.Manifests
	b.svcctl = moved
	b.svcctl.Start()
	b.hasProblem(t, ipv4.object("Service", "web"), "warning", "spec.clusterIPs[0]", ipv4.vip(41), "outside")
	b.hasProblem(t, ipv6.object("Service", "web"), "spec.ipFamilies[0]", `Invalid value: "IPv6": not configured on this cluster`)
	b.hasProblem(t, "", "error", "Host", "the service range 10.181.0.0/16 overlaps")
	for _, f := range families { // who has an address keeps it
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...)
	}
	b.reaches(t, b.IN, "tcp", ipv4.at(ipv4.vip(42), 80), plain, ipv4.on(80, b.R1, b.L2)...)
}

// An object that another one displaces by being older keeps what is left to it.
func TestImpossible_address_of_somebody_else(t *testing.T) {
	b := newBox(t, nil)
	docs := func(name string, host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service(name, "externalIPs: ["+f.external(99)+"]", "ports: [{name: p80, port: 80}]"),
				f.slice(name, "p80: 80", host),
			}
		}
	}
	b.write("0.yaml", b.bystander)
	b.write("1.yaml", docs("first", b.L1))
	b.svcctl.Start()
	b.rewrite("2.yaml", func(f family) []string { // a cluster IP and an external IP of its own besides
		return append(docs("second", b.R1)(f)[1:],
			f.service("second", "clusterIP: "+f.vip(42), "externalIPs: ["+f.external(98)+", "+f.external(99)+"]", "ports: [{name: p80, port: 80}]"))
	})
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "second"), "Conflict", f.external(99), f.name("first"))
		b.reaches(t, b.EXT, "tcp", f.at(f.external(99), 80), masq, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.external(98), 80), masq, f.on(80, b.R1)...)
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.R1)...)
		b.bystands(t, f)
	}
	if !slices.ContainsFunc(b.status().Problems, func(p problem) bool { return p.Reason == "PortConflict" }) {
		t.Error("no conflict in the status")
	}
}
