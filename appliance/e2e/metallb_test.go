package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// metallb is a document of one of MetalLB's kinds.
func metallb(kind, name, spec string) string {
	version := "v1beta1"
	if kind == "BGPPeer" {
		version = "v1beta2"
	}
	return fmt.Sprintf("---\napiVersion: metallb.io/%s\nkind: %s\nmetadata: {namespace: metallb-system, name: %s}\nspec: %s\n", version, kind, name, spec)
}

// segmentPool is a pool on the segment of the box and its router, in both families.
func segmentPool(name, more string) string {
	return metallb("IPAddressPool", name, "{addresses: [192.0.2.100-192.0.2.110, '2001:db8::100-2001:db8::110']"+more+"}")
}

// file is a file with a text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "apply.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// web is a load balancer that asks for no address.
func (b *box) web() string {
	return both(func(f family) []string {
		return []string{f.service("web", "type: LoadBalancer", "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1)}
	})
}

// given waits until a Service of a family has a load balancer IP, and returns it.
func (b *box) given(t *testing.T, f family, name string) (addr string) {
	t.Helper()
	_, object, _ := strings.Cut(f.object("Service", name), " ") // "default/web-4"
	namespace, service, _ := strings.Cut(object, "/")
	eventually(t, time.Minute, func() error {
		out, errOut, _ := b.svcctl.Svcctl("get", "-n", namespace, "svc/"+service, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if addr = strings.TrimSpace(out); addr == "" {
			return fmt.Errorf("%s has no address: %s", object, errOut)
		}
		return nil
	})
	return addr
}

// Pools, advertisements and peers of files give addresses, and announce them on segments and to a router with what
// they say; each change of them takes effect, and without flags.
func Test276_MetalLBs_kinds_in_files(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": nil, "metrics-listen": {metricsAddr}})
	b.svcctl.Manifests.Write("web.yaml", b.web())
	b.svcctl.Start()
	b.bird(t, "", "")
	announcer := b.svcctl.Announcer("--asn", "64999", "--peer", "unused=64999@192.0.2.99") // no segment by flags
	announcer.Launch()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "there is no load balancer pool")
	})
	b.svcctl.Manifests.Write("pool.yaml", segmentPool("lan", ""))
	vips := map[family]string{}
	for _, f := range families {
		vips[f] = b.given(t, f, "web")
		b.becomes(t, vips[f], "no L2Advertisement or BGPAdvertisement covers it")
	}
	b.svcctl.Manifests.Write("l2.yaml", metallb("L2Advertisement", "all", "{}"))
	ours := macInside(t, b.GW1, "ext0")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, vips[f], "l2 ext0 announced")
		b.isAnswered(t, "with an L2Advertisement", f, vips[f], ours)
		b.reaches(t, b.EXT, "tcp", f.at(vips[f], 80), masq, f.on(80, b.L1)...)
	})
	b.svcctl.Manifests.Write("l2.yaml", metallb("L2Advertisement", "all", "{interfaces: [nowhere0]}"))
	for _, f := range families {
		b.becomes(t, vips[f], "")
	}
	b.hasProblem(t, "", "nothing is announced on nowhere0: there is no such interface")
	b.svcctl.Manifests.Remove("l2.yaml")
	b.svcctl.Manifests.Write("bgp.yaml", metallb("BGPAdvertisement", "all", "{communities: ['64512:7'], localPref: 150}")+
		metallb("BGPPeer", "tor", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254, bfdProfile: none}"))
	b.hasProblem(t, "BGPPeer metallb-system/tor", "spec.bfdProfile", "there is no BFDProfile none")
	b.svcctl.Manifests.Write("bgp.yaml", metallb("BGPAdvertisement", "all", "{communities: ['64512:7'], localPref: 150}")+
		metallb("BGPPeer", "tor", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254}"))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, vips[f], "bgp tor announced")
		b.leads(t, f, vips[f])
	})
	b.svcctl.Stop() // a restart of both goes on without the objects
	announcer.Kill()
	announcer.Launch()
	b.each(t, func(t *testing.T, b *box, f family) { b.leads(t, f, vips[f]) })
	b.svcctl.Start()
	for _, f := range families {
		b.becomes(t, vips[f], "bgp tor announced")
		if again := b.given(t, f, "web"); again != vips[f] {
			t.Errorf("after a restart the Service has %s, before %s", again, vips[f])
		}
	}
	b.svcctl.Manifests.Write("bgp.yaml", metallb("BGPAdvertisement", "all", "{aggregationLength: 31, aggregationLengthV6: 127, ipAddressPools: [lan]}")+
		metallb("BGPPeer", "tor", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254}"))
	b.hasProblem(t, "BGPAdvertisement metallb-system/all", "prefixes of that length are larger than 192.0.2.100-192.0.2.110 of the pool metallb-system/lan")
	b.svcctl.Manifests.Remove("bgp.yaml")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, vips[f], "no L2Advertisement or BGPAdvertisement covers it")
		b.leadsNowhere(t, f, vips[f])
	})
}

// Pools over the API: who gets addresses of which pool, what is refused and why, and what becomes of addresses when a
// pool shrinks.
func Test277_pools_over_the_API(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": nil, "metrics-listen": {metricsAddr}})
	b.svcctl.Start()
	apply := func(documents ...string) {
		t.Helper()
		if out, errOut, code := b.svcctl.Svcctl("apply", "-f", file(t, strings.Join(documents, "")), "--wait"); code != 0 && !strings.Contains(errOut, "with what was applied") {
			t.Fatalf("apply: exit code %d: %s%s", code, out, errOut)
		}
	}
	service := func(name, annotations string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, annotations: {%s}}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n", name, annotations)
	}
	ip := func(name string) string {
		out, _, _ := b.svcctl.Svcctl("get", "svc/"+name, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		return strings.TrimSpace(out)
	}
	becomes := func(name, want string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if got := ip(name); got != want {
				return fmt.Errorf("%s has the address %q, want %q", name, got, want)
			}
			return nil
		})
	}
	apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: metallb-system}\n", service("web", ""), metallb("IPAddressPool", "asked", "{addresses: [198.51.100.1-198.51.100.1], autoAssign: false}"))
	b.hasProblem(t, "Service default/web", "no load balancer pool with IPv4 addresses is for the Service")
	apply(service("web", "metallb.io/address-pool: asked"))
	becomes("web", "198.51.100.1")
	apply(service("crowded", "metallb.io/address-pool: asked"))
	b.hasProblem(t, "Service default/crowded", "the pool asked (198.51.100.1-198.51.100.1, 1 address) is full: Service default/web has it")
	if out, _, code := b.svcctl.Svcctl("explain", "svc/crowded"); code != 1 || !strings.Contains(out, "it waits for a load balancer IP: the pool asked (198.51.100.1-198.51.100.1, 1 address) is full") || strings.Contains(out, "--load-balancer-pool") {
		t.Errorf("explain: exit code %d:\n%s", code, out)
	}
	if out, errOut, code := b.svcctl.Svcctl("delete", "svc", "crowded"); code != 0 {
		t.Fatalf("delete: exit code %d: %s%s", code, out, errOut)
	}
	apply(service("other", "metallb.io/address-pool: unknown"))
	b.hasProblem(t, "Service default/other", "there is no load balancer pool of the name unknown")
	apply(metallb("IPAddressPool", "ends", "{addresses: [198.51.100.254-198.51.101.1], avoidBuggyIPs: true, serviceAllocation: {priority: 1, namespaces: [default]}}"))
	apply(service("other", ""))
	eventually(t, time.Minute, func() error {
		if got := ip("other"); got != "198.51.100.254" && got != "198.51.101.1" { // not .255 and .0
			return fmt.Errorf("the other has %q", got)
		}
		return nil
	})
	apply(service("third", ""), service("fourth", ""))
	b.hasProblem(t, "Service default/fourth", "every IPv4 address of the load balancer pools")
	if third := ip("third"); third != "198.51.100.254" && third != "198.51.101.1" || third == ip("other") {
		t.Errorf("the third has %s, and the other %s", third, ip("other"))
	}
	apply(metallb("IPAddressPool", "twice", "{addresses: [198.51.100.0/30]}"))
	b.hasProblem(t, "IPAddressPool metallb-system/twice", "198.51.100.0/30 overlaps the IPAddressPool metallb-system/asked")
	if out, errOut, code := b.svcctl.Svcctl("delete", "-n", "metallb-system", "ipaddresspool/twice"); code != 0 {
		t.Fatalf("delete: exit code %d: %s%s", code, out, errOut)
	}
	if out, errOut, code := b.svcctl.Svcctl("apply", "-f", file(t, metallb("IPAddressPool", "bad", "{addresses: [198.51.100.7-198.51.100.3]}"))); code == 0 || !strings.Contains(errOut+out, "spec.addresses[0]") {
		t.Errorf("a range that is none is taken: %s%s", out, errOut)
	}
	if out, _, _ := b.svcctl.Svcctl("get", "ipaddresspools", "-A"); !strings.Contains(out, "198.51.100.1-198.51.100.1") || !strings.Contains(out, "asked") {
		t.Errorf("svcctl get ipaddresspools:\n%s", out)
	}
	apply(metallb("IPAddressPool", "asked", "{addresses: [203.0.113.9-203.0.113.9], autoAssign: false}"))
	b.hasProblem(t, "Service default/web", "198.51.100.1 lies in no load balancer pool")
	becomes("web", "198.51.100.1") // it keeps it
}

// MetalLB's kinds of status say what became of the others, as kubectl and svcctl read them.
func Test491_MetalLBs_kinds_of_status(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": nil})
	b.svcctl.Manifests.Write("web.yaml", b.web())
	b.svcctl.Manifests.Write("lan.yaml", segmentPool("lan", "")+metallb("L2Advertisement", "all", "{}")+metallb("BGPAdvertisement", "all", "{}")+
		metallb("BGPPeer", "tor", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254}"))
	b.svcctl.Start()
	b.bird(t, "", "")
	b.svcctl.Announcer("--asn", "64999", "--peer", "unused=64999@192.0.2.99").Launch()
	for _, f := range families {
		b.becomes(t, b.given(t, f, "web"), "l2 ext0 announced, bgp tor announced")
	}
	says := func(want string, args ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, errOut, _ := b.svcctl.Svcctl("get", append([]string{"-n", "metallb-system"}, args...)...)
			if strings.TrimSpace(out) != want {
				return fmt.Errorf("get %v says %q %s, want %q", args, out, errOut, want)
			}
			return nil
		})
	}
	const byService = "jsonpath={.items[*].status.serviceName}"
	for _, kind := range []string{"servicel2statuses", "servicebgpstatuses"} {
		for _, f := range families {
			says(f.name("web"), kind, "-l", "metallb.io/service-name="+f.name("web"), "-o", byService)
		}
	}
	says("gw1 ext0 gw1 ext0", "servicel2statuses", "-o", "jsonpath={range .items[*]}{.status.node} {.status.interfaces[*].name} {end}")
	says("gw1 tor gw1 tor", "servicebgpstatuses", "-o", "jsonpath={range .items[*]}{.status.node} {.status.peers[*]} {end}")
	says("1 1 10 16", "ipaddresspool/lan", "-o", "jsonpath={.status.assignedIPv4} {.status.assignedIPv6} {.status.availableIPv4} {.status.availableIPv6}")
	says("Valid Valid", "configurationstates", "-o", "jsonpath={.items[*].status.result}")

	b.svcctl.Manifests.Write("more.yaml", metallb("BGPPeer", "other", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.253, vrf: red}"))
	says("Invalid", "configurationstates", "-l", "metallb.io/node-name=gw1", "-o", "jsonpath={.items[*].status.result}")
	b.svcctl.Manifests.Remove("lan.yaml")
	says("", "servicel2statuses", "-o", byService)
	if out, _, _ := b.svcctl.Svcctl("get", "configurationstates", "-A"); !strings.Contains(out, "spec.vrf") || !strings.Contains(out, "ERRORSUMMARY") {
		t.Errorf("the table is\n%s", out)
	}
}
