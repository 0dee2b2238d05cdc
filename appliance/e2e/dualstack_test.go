package e2e

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file have one Service of both families where others have one of each.

// dual is the document of such a Service with slices of both families on L1 and R1.
func (b *box) dual(spec ...string) string {
	return service("web", append([]string{"type: LoadBalancer", nodePorts(ipv4, 30080)}, spec...)...) + dualSlices(b, "web")
}

func Test136_upgrade_and_downgrade(t *testing.T) {
	b := newBox(t, nil)
	write := func(spec ...string) { b.svcctl.Manifests.Write("web.yaml", b.dual(spec...)) }
	write("ipFamilyPolicy: SingleStack")
	b.svcctl.Start()
	cluster, balancer := b.clusterIPOf(t, ipv4, 80), b.balancerOf(t, ipv4, 80)
	old, err := b.EXT.Dial(ipv4.at(balancer, 80), patiently)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	// served asserts that a family is served under every kind of address, or not at all.
	served := func(when string, f family, want bool) {
		t.Helper()
		nodePort := f.at(f.boxAddr(), 30080)
		if !want {
			if addrs := b.clusterIPs(t, f); len(addrs) != 0 {
				t.Errorf("%s: %s addresses %v, want none", when, f, addrs)
			}
			b.isHosts(t, nodePort)
			return
		}
		b.reaches(t, b.EXT, "tcp", nodePort, masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "tcp", f.at(b.balancerOf(t, f, 80), 80), masq, f.on(80, b.L1, b.R1)...)
		for _, e := range b.table(t, f)["services"] {
			b.reaches(t, b.EXT, "tcp", f.at(e.Key[0], 80), masq, f.on(80, b.L1, b.R1)...)
		}
	}
	primary := func(when string) {
		t.Helper()
		addrs := map[string]bool{}
		for _, e := range b.table(t, ipv4)["services"] {
			addrs[e.Key[0]] = true
		}
		if len(addrs) != 2 || !addrs[cluster] || !addrs[balancer] {
			t.Errorf("%s: IPv4 addresses %v, want %s and %s as before", when, addrs, cluster, balancer)
		}
		if err := old.Echo(when, patiently); err != nil {
			t.Errorf("%s: an old connection: %v", when, err)
		}
	}
	served("single stack", ipv4, true)
	served("single stack", ipv6, false)

	b.change(func() { write("ipFamilyPolicy: PreferDualStack") })
	primary("upgraded")
	served("upgraded", ipv4, true)
	served("upgraded", ipv6, true)
	second := b.balancerOf(t, ipv6, 80)

	b.change(func() { write("ipFamilyPolicy: RequireDualStack", "ipFamilies: [IPv4, IPv6]") })
	primary("required")
	if now := b.balancerOf(t, ipv6, 80); now != second {
		t.Errorf("required: the IPv6 load balancer IP was %s and is %s", second, now)
	}

	b.change(func() { write("ipFamilyPolicy: SingleStack") })
	primary("downgraded")
	served("downgraded", ipv4, true)
	served("downgraded", ipv6, false)
}

func Test136_families_that_do_not_change(t *testing.T) {
	b := newBox(t, nil)
	write := func(spec ...string) { b.svcctl.Manifests.Write("web.yaml", b.dual(spec...)) }
	write("ipFamilyPolicy: RequireDualStack")
	b.svcctl.Start()
	want := [2]string{b.balancerOf(t, ipv4, 80), b.balancerOf(t, ipv6, 80)}
	for _, refused := range []struct{ spec, field, text string }{
		{"ipFamilyPolicy: RequireDualStack\nipFamilies: [IPv6, IPv4]", "spec.ipFamilies[0]", "may not change once set"},
		{"ipFamilies: [IPv4]", "spec.ipFamilyPolicy", "must be 'SingleStack' to release the secondary IP family"},
		{"ipFamilyPolicy: SingleStack\nipFamilies: [IPv6]", "spec.ipFamilies[0]", "may not change once set"},
	} {
		write(refused.spec)
		b.hasProblem(t, "Service default/web", refused.field, refused.text)
		for i, f := range families { // as before
			b.reaches(t, b.EXT, "tcp", f.at(want[i], 80), masq, f.on(80, b.L1, b.R1)...)
		}
	}
}

func replaceFirst(doc, old, text string) string { return strings.Replace(doc, old, text, 1) }

// A policy Local is decided in each family by its own endpoints.
func Test136_policies_of_each_family(t *testing.T) {
	b := newBox(t, nil)
	slices := func(f family, hosts ...*netlab.Host) string {
		return "---\n" + f.namedSlice("web", "", "p80: 80", hosts...)
	}
	label := func(doc string) string {
		return replaceFirst(doc, "labels: {}", "labels: {kubernetes.io/service-name: web}")
	}
	b.svcctl.Manifests.Write("web.yaml",
		service("web", "type: LoadBalancer", "ipFamilyPolicy: RequireDualStack", etpLocal, itpLocal, "ports: [{name: p80, port: 80}]")+
			label(slices(ipv4, b.L1, b.R1))+label(slices(ipv6, b.R1, b.R2)))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		balancer := f.at(b.balancerOf(t, f, 80), 80)
		if f == ipv4 {
			b.reaches(t, b.EXT, "tcp", balancer, plain, f.on(80, b.L1)...)
			b.reaches(t, b.IN, "tcp", balancer, plain, f.on(80, b.L1, b.R1)...)
			return
		}
		b.reaches(t, b.IN, "tcp", balancer, plain, f.on(80, b.R1, b.R2)...)
		b.silent(t, b.EXT, balancer)
		for _, e := range b.table(t, f)["services"] {
			if to := f.at(e.Key[0], 80); to != balancer {
				b.silent(t, b.IN, to)
			}
		}
	})
}

// Endpoints of one family alone leave the other family without any.
func Test136_endpoints_of_one_family(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Manifests.Write("web.yaml",
		service("web", "ipFamilyPolicy: RequireDualStack", "ports: [{name: p80, port: 80}]")+"---\n"+
			replaceFirst(ipv4.namedSlice("web", "", "p80: 80", b.L1), "labels: {}", "labels: {kubernetes.io/service-name: web}"))
	b.svcctl.Start()
	b.reaches(t, b.IN, "tcp", ipv4.at(b.clusterIPOf(t, ipv4, 80), 80), plain, ipv4.on(80, b.L1)...)
	b.refuses(t, b.IN, "tcp", ipv6.at(b.clusterIPOf(t, ipv6, 80), 80))
}

func Test136_affinity_of_each_family(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Manifests.Write("web.yaml",
		service("web", "ipFamilyPolicy: RequireDualStack", "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]")+dualSlices(b, "web"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(b.clusterIPOf(t, f, 80), 80)
		chosen := b.choose(t, f, "tcp", to)
		b.same(t, fmt.Sprint(f), chosen, b.choose(t, f, "tcp", to))
		if chosen.distinct() != 2 {
			t.Errorf("%d clients have %d endpoints, want 2", clients, chosen.distinct())
		}
	})
}
