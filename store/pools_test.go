package store

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/alloc"
)

// poolLines are pools as lines.
func poolLines(pools []Pool) string {
	var b strings.Builder
	for _, p := range pools {
		fmt.Fprintf(&b, "%s %s %s %d/%d:", p.Kind, p.Family, p.Range, p.Used, p.Size)
		for _, h := range p.Holders {
			outside := ""
			if h.Outside {
				outside = "!"
			}
			fmt.Fprintf(&b, " %s%s=%s", outside, h.Value, strings.Join(h.Services, ","))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestPools(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.4"), Last: netip.MustParseAddr("198.51.100.5")}}
	})
	b.apply("web.yaml", yamlOf("web {type: LoadBalancer, clusterIP: 172.30.0.7}\nshared {type: NodePort, clusterIP: 172.30.0.3}"))
	web, shared := b.service("web"), b.service("shared")
	ingress := web.Status.LoadBalancer.Ingress[0].IP
	got := poolLines(b.s.Pools(math.MaxInt))
	for _, want := range []string{
		"clusterIP IPv4 172.30.0.0/24 2/254: 172.30.0.3=default/shared 172.30.0.7=default/web\n",
		"nodePort  30000-32767 2/2768:",
		fmt.Sprintf(" TCP %d=default/shared", shared.Spec.Ports[0].NodePort),
		fmt.Sprintf("loadBalancer IPv4 198.51.100.4-198.51.100.5 1/2: %s=default/web\n", ingress),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestPoolSizes has the sizes at the ends of what there is.
func TestPoolSizes(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("10.0.0.0/30")}
		c.Pools = []alloc.Pool{
			{First: netip.MustParseAddr("fd01::"), Last: netip.MustParseAddr("fd01::ffff:ffff:ffff:ffff")},
			{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.1")},
		}
	})
	var sizes []string
	for _, p := range b.s.Pools(math.MaxInt) {
		sizes = append(sizes, fmt.Sprint(p.Family, p.Size))
	}
	if got := strings.Join(sizes, " "); got != "IPv618446744073709551615 IPv42 2768 IPv618446744073709551615 IPv41" {
		t.Error(got)
	}
}

// TestCheckPools breaks the allocator in every way and has it repaired.
func TestCheckPools(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.4"), Last: netip.MustParseAddr("198.51.100.5")}}
	})
	b.apply("web.yaml", yamlOf("web {type: LoadBalancer, clusterIP: 172.30.0.7, loadBalancerIP: 198.51.100.4}"))
	if found := b.s.CheckPools(false); found != nil {
		t.Fatalf("a sound allocator: %+v", found)
	}
	port := alloc.Port{Protocol: "TCP", Number: uint16(b.service("web").Spec.Ports[0].NodePort)}
	before := poolLines(b.s.Pools(math.MaxInt))
	l, web := b.s.allocator, "default/web"
	l.release(clusterIP(netip.MustParseAddr("172.30.0.7")), web)
	l.release(nodePort(port), web)
	l.release(loadBalancerIP(netip.MustParseAddr("198.51.100.4")), web)
	for _, err := range []error{
		l.hold(clusterIP(netip.MustParseAddr("172.30.0.9")), alloc.Request{Owner: "default/gone"}),
		l.hold(clusterIP(netip.MustParseAddr("172.30.0.10")), alloc.Request{Owner: web}),
		l.hold(nodePort(alloc.Port{Protocol: "UDP", Number: 30001}), alloc.Request{Owner: "default/gone"}),
		l.hold(loadBalancerIP(netip.MustParseAddr("198.51.100.5")), alloc.Request{Owner: web}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := fmt.Sprintf(`clusterIP 172.30.0.10 default/web: it is held, and the Service does not have it
clusterIP 172.30.0.7 default/web: the Service has it, and does not hold it
clusterIP 172.30.0.9 default/gone: it is held by a Service that does not exist
loadBalancer 198.51.100.4 default/web: the Service has it, and does not hold it
loadBalancer 198.51.100.5 default/web: it is held, and the Service does not have it
nodePort TCP %d default/web: the Service has it, and does not hold it
nodePort UDP 30001 default/gone: it is held by a Service that does not exist
`, port.Number)
	for _, repair := range []bool{false, true} {
		var got strings.Builder
		for _, d := range b.s.CheckPools(repair) {
			fmt.Fprintf(&got, "%s %s %s: %s\n", d.Kind, d.Value, d.Service, d.Problem)
			if d.Repaired != repair {
				t.Errorf("repaired is %v: %+v", d.Repaired, d)
			}
		}
		if got.String() != want {
			t.Errorf("got\n%swant\n%s", got.String(), want)
		}
	}
	if found := b.s.CheckPools(false); found != nil {
		t.Errorf("after the repair: %+v", found)
	}
	if after := poolLines(b.s.Pools(math.MaxInt)); after != before {
		t.Errorf("after the repair\n%sbefore it broke\n%s", after, before)
	}
}
