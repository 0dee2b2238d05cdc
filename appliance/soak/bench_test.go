package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft/kernel"
)

// The Services that the load goes to, in both families: some whose connections stay, and
// some for new ones. Whatever an update does, each of them has an endpoint that serves.
const (
	lasting = 4 // Services of lasting connections: 10.96.1.n
	fresh   = 8 // Services of new connections: 10.96.2.n
)

// bench is a network with an appliance that serves the load's Services.
type bench struct {
	*netlab.Standard
	svcctl *netlab.Appliance
	random *rand.Rand
	relays bool         // all Services are relayed
	kernel *kernel.Conn // of GW1, in tests that read its ruleset
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, false)
}

// newBenchOf is newBench with Services that are relayed, or not.
func newBenchOf(t *testing.T, relays bool) *bench {
	t.Helper()
	s := netlab.NewStandard(t)
	for _, h := range []*netlab.Host{s.IN, s.EXT} {
		h.Sysctl("net.ipv4.tcp_tw_reuse", "1") // a thousand connections a second need ports
		h.Sysctl("net.ipv4.ip_local_port_range", "10000 65000")
	}
	b := &bench{Standard: s, relays: relays, random: rand.New(rand.NewPCG(1, 2))}
	b.svcctl = s.GW1.Appliance(binary, "--node-name=gw1", "--cluster-cidr=10.0.0.0/8,fd00:10::/32",
		"--service-cluster-ip-range=172.30.0.0/16,fd00:172:30::/112")
	for i := range lasting {
		b.writeLasting(i)
	}
	for i := range fresh {
		b.writeFresh(i)
	}
	return b
}

// vip is the address of the n-th Service of a group in a family.
func vip(group, n int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:172:30::%x%02x", group, n))
	}
	return netip.MustParseAddr(fmt.Sprintf("172.30.%d.%d", group, n))
}

// service is a dual-stack Service with TCP and UDP on port 80, and its endpoints.
func service(name string, group, n int, spec string, hosts ...*netlab.Host) string {
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  ipFamilyPolicy: RequireDualStack
  clusterIP: %[2]s
  clusterIPs: ["%[2]s", "%[3]s"]
  ports: [{name: t, port: 80, protocol: TCP}, {name: u, port: 80, protocol: UDP}]
%[4]s`, name, vip(group, n, false), vip(group, n, true), spec)
	for _, v6 := range []bool{false, true} {
		family, list := "IPv4", ""
		if v6 {
			family = "IPv6"
		}
		for _, h := range hosts {
			addr := h.Addr4()
			if v6 {
				addr = h.Addr6()
			}
			list += fmt.Sprintf("- addresses: [%q]\n", addr)
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: t, port: 80, protocol: TCP}, {name: u, port: 80, protocol: UDP}]
endpoints:
%[4]s`, name, strings.ToLower(family), family, list)
	}
	return text
}

// write writes a file with a Service.
func (b *bench) write(name, text string) {
	if b.relays {
		text = strings.Replace(text, "}\nspec:", ", annotations: {svcctl.io/proxy-mode: userspace, svcctl.io/connect-timeout: 1m}}\nspec:", 1)
	}
	b.svcctl.Manifests.Write(name, text)
}

// writeLasting writes a Service whose first two endpoints always stay.
func (b *bench) writeLasting(i int) {
	hosts := []*netlab.Host{b.L1, b.R1}
	for _, h := range []*netlab.Host{b.L2, b.R2} {
		if b.svcctl.Running() && b.random.IntN(2) == 0 {
			hosts = append(hosts, h)
		}
	}
	b.random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	b.write(fmt.Sprintf("lasting%d.yaml", i), service(fmt.Sprintf("lasting%d", i), 1, i+1, "", hosts...))
}

// writeFresh writes a Service with any endpoints, and now and then another property.
func (b *bench) writeFresh(i int) {
	hosts := b.Endpoints()
	b.random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	spec := []string{"", "  sessionAffinity: ClientIP\n", "  type: NodePort\n", "  externalIPs: [\"198.51.100." + fmt.Sprint(100+i) + "\"]\n"}[b.random.IntN(4)]
	b.write(fmt.Sprintf("fresh%d.yaml", i), service(fmt.Sprintf("fresh%d", i), 2, i+1, spec, hosts[:1+b.random.IntN(4)]...))
}

// update changes something: endpoints, a Service's properties, or Services beside those
// of the load.
func (b *bench) update() {
	switch n := b.random.IntN(10); {
	case n < 3:
		b.writeLasting(b.random.IntN(lasting))
	case n < 7:
		b.writeFresh(b.random.IntN(fresh))
	default:
		i := b.random.IntN(20)
		name := fmt.Sprintf("other%d", i)
		if b.random.IntN(3) == 0 {
			b.svcctl.Manifests.Write(name+".yaml", "# away for now\n")
			return
		}
		b.write(name+".yaml", service(name, 3, i+1, "", b.Endpoints()[:b.random.IntN(5)]...))
	}
}

// pause waits a random time up to the longest.
func (b *bench) pause(longest time.Duration) {
	time.Sleep(time.Duration(b.random.Int64N(int64(longest))))
}

// state has the fields of `svcctl status -o json` that these tests read.
type state struct {
	Synced   bool
	Revision struct{ Accepted, Programmed uint64 }
	Problems []struct{ Reason, Message, Severity string }
}

func (b *bench) state(t *testing.T) state {
	t.Helper()
	out, stderr, code := b.svcctl.Svcctl("status", "-o", "json")
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("svcctl status: exit code %d, %v: %s", code, err, stderr)
	}
	return s
}

// converged asserts that everything that was written is in force, without an error.
func (b *bench) converged(t *testing.T) {
	t.Helper()
	if _, stderr, code := b.svcctl.Svcctl("wait", "--for", "synced", "--timeout", "1m"); code != 0 {
		t.Fatalf("svcctl wait --for synced: exit code %d: %s", code, stderr)
	}
	for _, p := range b.state(t).Problems {
		if p.Severity == "error" {
			t.Errorf("problem %s: %s", p.Reason, p.Message)
		}
	}
}
