package e2e

import (
	"fmt"
	"strings"
	"testing"
)

func Test132_defaults(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		slice := f.rawSlice("web", "web", "[{port: 80}]", f.nodeless(b.L1), f.nodeless(b.R1))
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{port: 80}]"),
			slice,
			f.service("balanced", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{port: 80}]"),
			strings.ReplaceAll(slice, f.name("web"), f.name("balanced")),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		// Type ClusterIP, protocol TCP, the target port is the port, no affinity, both
		// policies Cluster, absent conditions mean ready.
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
		b.refuses(t, b.IN, "udp", f.at(f.vip(41), 80))
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1, b.R1)...)
		if ports := b.nodePortsInUse(t, f); len(ports) != 1 {
			t.Errorf("node ports %v, want one, of the Service of type LoadBalancer", ports)
		}
	})
}

// refusals are specs of Services and a text that each of their problems has.
var refusals = []struct {
	spec  string
	texts []string
}{
	{"type: ClusterIP", []string{"spec.ports", "Required value"}},
	{"ports: [{port: 80}, {name: b, port: 81}]", []string{"spec.ports[0].name", "Required value"}},
	{"ports: [{name: a, port: 80}, {name: a, port: 81}]", []string{"spec.ports[1].name", "Duplicate value"}},
	{"ports: [{name: a, port: 80}, {name: b, port: 80}]", []string{"spec.ports[1]", "Duplicate value"}},
	{"ports: [{name: a, port: 0}]", []string{"spec.ports[0].port", "must be between 1 and 65535, inclusive"}},
	{"ports: [{name: a, port: 65536}]", []string{"spec.ports[0].port", "must be between 1 and 65535, inclusive"}},
	{"ports: [{name: a, port: 80, targetPort: sixteen-letters-}]", []string{"spec.ports[0].targetPort"}},
	{"ports: [{name: a, port: 80, targetPort: '80-90'}]", []string{"spec.ports[0].targetPort", "must contain at least one letter"}},
	{"ports: [{name: a, port: 80, targetPort: HTTP}]", []string{"spec.ports[0].targetPort"}},
	{"ports: [{name: a, port: 80, protocol: ICMP}]", []string{"spec.ports[0].protocol", `supported values: "SCTP", "TCP", "UDP"`}},
	{"ports: [{name: 123_abc, port: 80}]", []string{"spec.ports[0].name", "Invalid value"}},
	{"ports: [{name: -web, port: 80}]", []string{"spec.ports[0].name", "Invalid value"}},
	{"ports: [{port: 80}]\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}", []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds"}},
	{"ports: [{port: 80}]\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}", []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds"}},
	{"ports: [{port: 80}]\nexternalTrafficPolicy: Local", []string{"spec.externalTrafficPolicy"}},
	{"ports: [{port: 80}]\ntype: NodePort\nclusterIP: None", []string{"spec.clusterIPs[0]", "may not be set to 'None'"}},
	{"ports: [{port: 80}]\ntype: LoadBalancer\nclusterIP: None", []string{"spec.clusterIPs[0]", "may not be set to 'None'"}},
	{"ports: [{port: 80}]\nloadBalancerSourceRanges: [10.0.0.0/8]", []string{"Forbidden: may only be used when `type` is 'LoadBalancer'"}},
	{"type: ExternalName", []string{"spec.externalName", "Required value"}},
	{"type: ExternalName\nexternalName: example.com\nclusterIP: 172.30.0.40", []string{"spec.clusterIPs"}},
	{"type: ExternalName\nexternalName: " + strings.Repeat("a.", 128), []string{"spec.externalName"}},
	{"ports: [{port: 80}]\nexternalIPs: [127.0.0.1]", []string{"spec.externalIPs[0]", "127.0.0.1", "loopback"}},
	{"ports: [{port: 80}]\nexternalIPs: [169.254.1.1]", []string{"spec.externalIPs[0]", "169.254.1.1", "link-local"}},
	{"ports: [{port: 80}]\nexternalIPs: [224.0.0.7]", []string{"spec.externalIPs[0]", "224.0.0.7", "multicast"}},
	{"ports: [{port: 80}]\nexternalIPs: [0.0.0.0]", []string{"spec.externalIPs[0]", "0.0.0.0", "unspecified"}},
}

// accepted are specs of Services that have no problem.
var accepted = []string{
	"ports: [{name: 123-abc, port: 80}, {name: web, port: 81}]",
	"type: ExternalName\nexternalName: 1.2.3.4",
	"type: ExternalName\nexternalName: example.com.",
	"clusterIP: None",
	"type: ExternalName\nexternalName: example.com\nports: [{port: 80}]",
	"ports: [{port: 80}]\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 86400}}",
}

func Test133_refused_services(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	for i, r := range refusals {
		b.svcctl.Manifests.Write(fmt.Sprintf("refused%02d.yaml", i), service(fmt.Sprintf("refused%02d", i), r.spec))
	}
	for i, spec := range accepted {
		b.svcctl.Manifests.Write(fmt.Sprintf("accepted%02d.yaml", i), service(fmt.Sprintf("accepted%02d", i), spec))
	}
	b.svcctl.Manifests.Write("name.yaml", service("1abc", "ports: [{port: 80}]"))
	b.svcctl.Manifests.Write("several.yaml", service("several", "ports: [{port: 0, protocol: ICMP}]\nsessionAffinity: Never"))
	b.svcctl.Manifests.Write("dropped.yaml", service("dropped", "ports: [{port: 80}]\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}"))
	b.svcctl.Start()
	problems := b.status().Problems
	about := func(object string) []problem {
		var list []problem
		for _, p := range problems {
			if p.Object == object {
				list = append(list, p)
			}
		}
		return list
	}
	for i, r := range refusals {
		wantProblem(t, r.spec, about(fmt.Sprintf("Service default/refused%02d", i)), r.texts...)
	}
	for i, spec := range accepted {
		if got := about(fmt.Sprintf("Service default/accepted%02d", i)); len(got) != 0 {
			t.Errorf("%s: problems:\n%s", spec, list(got))
		}
	}
	wantProblem(t, "a name that is no RFC 1035 label", about("Service default/1abc"), "metadata.name", "1035")
	for _, field := range []string{"spec.ports[0].port", "spec.ports[0].protocol", "spec.sessionAffinity"} {
		wantProblem(t, "several errors at once", about("Service default/several"), field)
	}
	wantProblem(t, "a field without effect", about("Service default/dropped"), "spec.sessionAffinityConfig", "it is dropped")
	for _, f := range families { // nothing of it disturbs the others
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
}

// wantProblem asserts that one of the problems has every text, a file and a line.
func wantProblem(t *testing.T, what string, problems []problem, texts ...string) {
	t.Helper()
	for _, p := range problems {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(p.String(), text)
		}
		if all {
			if p.File == "" || p.Line == 0 {
				t.Errorf("%s: no file and line in %s", what, p)
			}
			return
		}
	}
	t.Errorf("%s: no problem with %q in:\n%s", what, texts, list(problems))
}

func Test134_endpoint_addresses(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	bad := map[family]map[string]string{
		ipv4: {"127.0.0.1": "loopback", "169.254.0.9": "link-local", "224.0.0.5": "multicast", "0.0.0.0": "unspecified"},
		ipv6: {"::1": "loopback", "fe80::9": "link-local", "ff02::5": "multicast", "::": "unspecified"},
	}
	name := func(i int) string { return fmt.Sprintf("bad%d", i) }
	for f, addrs := range bad {
		i := 0
		for addr := range addrs {
			b.svcctl.Manifests.Write(f.name(name(i))+".yaml",
				f.rawSlice(name(i), "web", "p80: 80", fmt.Sprintf("{addresses: [%q]}", addr)))
			i++
		}
	}
	b.svcctl.Start()
	problems := b.status().Problems
	for f, addrs := range bad {
		for addr, word := range addrs {
			wantProblem(t, addr, problems, "EndpointSlice default/bad", "endpoints[0].addresses[0]", `"`+addr+`"`, word)
		}
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
}

func Test135_refused_slices(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	repeat := func(n int, each func(i int) string) []string {
		var all []string
		for i := range n {
			all = append(all, each(i))
		}
		return all
	}
	number := func(i int) string { return fmt.Sprintf("10.181.%d.%d", 10+i/250, 1+i%250) }
	endpoint := func(i int) string { return fmt.Sprintf("{addresses: [%s]}", number(i)) }
	tests := []struct {
		name  string
		slice string
		texts []string
	}{
		{"endpoints", ipv4.rawSlice("endpoints", "web", "p80: 80", repeat(1001, endpoint)...), []string{"endpoints", "Too many", "1000"}},
		{"addresses", ipv4.rawSlice("addresses", "web", "p80: 80", "{addresses: ["+strings.Join(repeat(101, number), ", ")+"]}"),
			[]string{"endpoints[0].addresses", "Too many", "100"}},
		{"hints", ipv4.rawSlice("hints", "web", "p80: 80", "{addresses: [10.181.9.9], hints: {forZones: ["+
			strings.Join(repeat(9, func(i int) string { return fmt.Sprintf("{name: zone-%d}", i) }), ", ")+"]}}"),
			[]string{"endpoints[0].hints.forZones", "Too many", "8"}},
		{"ports", ipv4.rawSlice("ports", "web", "p80: 80, p80: 81", endpoint(0)), []string{"ports[1].name", "Duplicate value"}},
		{"text", ipv4.rawSlice("text", "web", "p80: 80", "{addresses: ['fd00:10:181::1']}"), []string{"endpoints[0].addresses[0]", "IPv4"}},
	}
	for _, tt := range tests {
		b.svcctl.Manifests.Write(tt.name+".yaml", tt.slice)
	}
	b.write("kept.yaml", func(f family) []string { return []string{f.namedSlice("kept", "web", "p80: 80", b.L1)} })
	b.svcctl.Start()
	for _, tt := range tests {
		b.hasProblem(t, ipv4.object("EndpointSlice", tt.name), tt.texts...)
	}
	b.svcctl.Manifests.Write("kept.yaml", strings.Replace(ipv6.namedSlice("kept", "web", "p80: 80", b.R1), ipv6.name("kept"), ipv4.name("kept"), 1))
	b.hasProblem(t, ipv4.object("EndpointSlice", "kept"), "addressType", "immutable")
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
}

func Test136_dual_stack(t *testing.T) {
	b := newBox(t, nil)
	ports := func(n int) string { return fmt.Sprintf("ports: [{name: p80, port: %d}]", n) }
	write := func(name string, spec ...string) {
		b.svcctl.Manifests.Write(name+".yaml", service(name, spec...)+dualSlices(b, name))
	}
	write("prefer", "ipFamilyPolicy: PreferDualStack", ports(1001))
	write("reversed", "ipFamilyPolicy: RequireDualStack", "ipFamilies: [IPv6, IPv4]", ports(1002))
	write("single", ports(1003))
	write("sixth", "ipFamilies: [IPv6]", ports(1004))
	write("same-family", "ipFamilyPolicy: RequireDualStack", "clusterIPs: [172.30.0.50, 172.30.0.51]", "clusterIP: 172.30.0.50", ports(1005))
	write("one-policy", "ipFamilyPolicy: SingleStack", "clusterIPs: [172.30.0.52, 'fd00:172:30::52']", "clusterIP: 172.30.0.52", ports(1006))
	b.svcctl.Start()
	want := map[family]map[int]bool{
		ipv4: {1001: true, 1002: true, 1003: true, 1004: false, 1005: false, 1006: false},
		ipv6: {1001: true, 1002: true, 1003: false, 1004: true, 1005: false, 1006: false},
	}
	for f, byPort := range want {
		for port, served := range byPort {
			addr := b.clusterIPOf(t, f, port)
			if (addr != "") != served {
				t.Errorf("%s: port %d has the cluster IP %q, want one: %t", f, port, addr, served)
			} else if served {
				b.reaches(t, b.IN, "tcp", f.at(addr, uint16(port)), plain, f.on(80, b.L1, b.R1)...)
			}
		}
	}
	b.hasProblem(t, "Service default/same-family", "may specify no more than one IP for each IP family")
	b.hasProblem(t, "Service default/one-policy", "spec.ipFamilyPolicy")

	first := b.clusterIPOf(t, ipv4, 1001)
	b.change(func() { write("prefer", "ipFamilyPolicy: SingleStack", ports(1001)) })
	if now := b.clusterIPOf(t, ipv4, 1001); now != first {
		t.Errorf("the primary cluster IP was %s and is %s", first, now)
	}
	if now := b.clusterIPOf(t, ipv6, 1001); now != "" {
		t.Errorf("the second cluster IP is still %s", now)
	}
}

func Test136_single_stack_box(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"172.30.0.0/16"}})
	b.svcctl.Manifests.Write("require.yaml", service("require", "ipFamilyPolicy: RequireDualStack", "ports: [{name: p80, port: 1001}]"))
	b.svcctl.Manifests.Write("prefer.yaml", service("prefer", "ipFamilyPolicy: PreferDualStack", "ports: [{name: p80, port: 1002}]")+dualSlices(b, "prefer"))
	b.svcctl.Start()
	b.hasProblem(t, "Service default/require", "this cluster is not configured for dual-stack services")
	if addr := b.clusterIPOf(t, ipv4, 1002); addr == "" {
		t.Error("a Service that prefers two families got none")
	}
}
