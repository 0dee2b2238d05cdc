package bench

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// Each Gateway that stands by has so many listeners, each with a route to two Services.
const routesEach = 10

// gatewayAddr is the address of the i-th Gateway that stands by.
func gatewayAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// udpRoute is a route of a listener to Services, each "name weight".
func udpRoute(name, gateway, section string, backends ...string) string {
	refs := make([]string, len(backends))
	for i, b := range backends {
		service, weight, _ := strings.Cut(b, " ")
		namespace, service, _ := strings.Cut(service, "/")
		refs[i] = fmt.Sprintf("{namespace: %s, name: %s, port: 80, weight: %s}", namespace, service, weight)
	}
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {name: %s}\nspec:\n  parentRefs: [{name: %s, sectionName: %s}]\n  rules: [{backendRefs: [%s]}]\n",
		name, gateway, section, strings.Join(refs, ", "))
}

// udpGateway is a Gateway with listeners at port 80 and those behind it.
func udpGateway(name string, at netip.Addr, listeners int) string {
	doc := fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\nspec:\n  gatewayClassName: svcctl\n  addresses: [{value: %s}]\n  listeners:\n", name, at)
	for i := range listeners {
		doc += fmt.Sprintf("  - {name: u%d, port: %d, protocol: UDP}\n", i, 80+i)
	}
	return doc
}

// writeGateways writes Gateways that stand by, with their routes, to Services that stand by.
func writeGateways(d netlab.Dir, gateways, services int) {
	for i := range gateways {
		name := fmt.Sprintf("g%04d", i)
		docs := []string{udpGateway(name, gatewayAddr(i), routesEach)}
		for r := range routesEach {
			backend := func(n int) string { return fmt.Sprintf("default/s%05d", (i*routesEach+r+n)%services) }
			docs = append(docs, udpRoute(fmt.Sprintf("%s-%d", name, r), name, "u"+strconv.Itoa(r), backend(0)+" 9", backend(1)+" 1"))
		}
		d.Write(name+".yaml", strings.Join(docs, "---\n"))
	}
}

// The frontends that are measured: of a Gateway with a route to two Services, and of a Service with slices that have the
// same shares. Each has a blue and a green endpoint.
var (
	probeGateway, probeShares = netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("198.51.100.11:80")
	probeBlue, probeGreen     = []netip.Addr{netip.MustParseAddr("10.129.3.1")}, []netip.Addr{netip.MustParseAddr("10.129.3.2")}
)

const grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: routes, namespace: shop}\nspec:\n" +
	"  from: [{group: gateway.networking.k8s.io, kind: UDPRoute, namespace: default}]\n  to: [{group: \"\", kind: Service}]\n"

// share is a slice of the Service beside the Gateway, with a share.
func share(name string, weight int, endpoints []netip.Addr) string {
	doc := strings.Replace(slice(name, "UDP", endpoints), "kubernetes.io/service-name: "+name, "kubernetes.io/service-name: plain", 1)
	return strings.Replace(doc, "metadata:\n", fmt.Sprintf("metadata:\n  annotations: {svcctl.io/share: %s=%d}\n", name, weight), 1)
}

// writeRoute, writeShares, writeGreen write what changes. Without endpoints a slice is empty.
func (x *box) writeRoute(blue, green int) {
	x.Manifests.Write("probe-route.yaml", udpRoute("probe", "probe", "u0", fmt.Sprintf("default/blue %d", blue), fmt.Sprintf("shop/green %d", green)))
}

// Both sides have a Service with the green endpoint at an address of its own: a backend of the Gateway is one, and it changes too.
func (x *box) writeShares(blue, green int, endpoints, own []netip.Addr) {
	x.Manifests.Write("probe-shares.yaml", service("own", "", "UDP")+slice("own", "UDP", own)+share("plain-blue", blue, probeBlue)+share("plain-green", green, endpoints))
}

func (x *box) writeGreen(endpoints []netip.Addr) {
	x.Manifests.Write("probe-green.yaml", strings.ReplaceAll(service("green", "", "UDP")+slice("green", "UDP", endpoints), "metadata:\n", "metadata:\n  namespace: shop\n"))
}

// gatewayChanges are changes of a Gateway's objects, beside those of a Service with the same effect; even and odd steps undo
// each other.
var gatewayChanges = []struct {
	name           string
	gateway, plain func(x *box, odd bool)
}{
	{"a weight", func(x *box, odd bool) { x.writeRoute(9, ifOdd(odd, 5, 1)) }, func(x *box, odd bool) { x.writeShares(9, ifOdd(odd, 5, 1), probeGreen, probeGreen) }},
	{"an endpoint", func(x *box, odd bool) { x.writeGreen(ifOdd(odd, singleAt[:1], probeGreen)) }, func(x *box, odd bool) {
		x.writeShares(9, 1, ifOdd(odd, singleAt[:1], probeGreen), ifOdd(odd, singleAt[:1], probeGreen))
	}},
	{"a backend that is emptied, or has its endpoint again", func(x *box, odd bool) { x.writeGreen(ifOdd(odd, nil, probeGreen)) }, func(x *box, odd bool) { x.writeShares(9, 1, ifOdd(odd, nil, probeGreen), ifOdd(odd, nil, probeGreen)) }},
	{"a grant that goes, or comes", func(x *box, odd bool) {
		x.Manifests.Write("probe-grant.yaml", ifOdd(odd, strings.ReplaceAll(grant, "UDPRoute", "TCPRoute"), grant))
	}, func(x *box, odd bool) { x.writeShares(9, 1, ifOdd(odd, nil, probeGreen), probeGreen) }},
}

func ifOdd[T any](odd bool, then, otherwise T) T {
	if odd {
		return then
	}
	return otherwise
}

// BenchmarkGateways is what a change of one Gateway costs, beside the same change of a Service, in turns: on a box with no
// other Gateway, and on one with 1,000 of them and 10,000 routes.
func BenchmarkGateways(b *testing.B) {
	lab := netlab.New(b)
	const services = 1_000
	for _, gateways := range []int{0, 1_000} {
		x := newBoxOf(b, lab, func(d netlab.Dir) {
			writeServices(d, services)
			writeGateways(d, gateways, services)
			d.Write("probe.yaml", udpGateway("probe", probeGateway.Addr(), 1)+"---\n"+service("blue", "", "UDP")+slice("blue", "UDP", probeBlue)+"---\n"+
				service("plain", "type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  loadBalancerIP: "+probeShares.Addr().String(), "UDP"))
			d.Write("probe-grant.yaml", grant)
		}, "--load-balancer-pool=198.18.0.0/16")
		x.writeRoute(9, 1)
		x.writeGreen(probeGreen)
		x.writeShares(9, 1, probeGreen, probeGreen)
		x.Start()
		x.settle(b)
		x.watch(b)
		section := fmt.Sprintf("Change of a Gateway among %s others with %s routes, beside a Service", number(gateways), number(gateways*routesEach))
		for _, c := range gatewayChanges {
			var of [2]struct{ took, cpu []time.Duration }
			for step := range 2 * *rounds {
				for i, change := range []func(*box, bool){c.gateway, c.plain} {
					before := x.cpu(b)
					of[i].took = append(of[i].took, x.latency(b, func() { change(x, step%2 == 0) }))
					x.settle(b)
					time.Sleep(pause)
					of[i].cpu = append(of[i].cpu, x.cpu(b)-before)
				}
			}
			results.add(section, c.name+": to the kernel", fmt.Sprintf("p50 %s, p99 %s", ms(median(of[0].took)), ms(quantile(of[0].took, 0.99))),
				fmt.Sprintf("%.2fx of the Service", median(ratios(of[0].took, of[1].took))))
			results.add(section, c.name+": CPU of the process", ms(median(of[0].cpu)), fmt.Sprintf("%.2fx of the Service", median(ratios(of[0].cpu, of[1].cpu))))
		}
		var took [2][]time.Duration
		for step := range *rounds {
			odd := step%2 == 0
			at := ifOdd(odd, probeGreen[0], probeBlue[0])
			took[0] = append(took[0], x.packet(b, probeGateway, at, func() { x.writeRoute(ifOdd(odd, 0, 1), ifOdd(odd, 1, 0)) }))
			took[1] = append(took[1], x.packet(b, probeShares, at, func() { x.writeShares(ifOdd(odd, 0, 1), ifOdd(odd, 1, 0), probeGreen, probeGreen) }))
		}
		results.add(section, "all weight to another backend: to the first packet there", fmt.Sprintf("p50 %s, p99 %s", ms(median(took[0])), ms(quantile(took[0], 0.99))),
			fmt.Sprintf("%.2fx of the Service", median(ratios(took[0], took[1]))))
		if gateways > 0 {
			x.Stop()
			x.Start()
			x.settle(b)
			before := x.revision(b)
			x.Stop()
			began := time.Now()
			x.Start()
			x.settle(b)
			results.add(section, "a restart", ms(time.Since(began)), fmt.Sprintf("%d changes stored", x.revision(b)-before))
		}
		x.Stop()
	}
}

// revision is that of the store.
func (x *box) revision(b *testing.B) (revision int) {
	_, after, _ := strings.Cut(string(x.get(b, "/api/v1/services?limit=1")), `"resourceVersion":"`)
	if _, err := fmt.Sscanf(after, "%d", &revision); err != nil {
		b.Fatal(err)
	}
	return revision
}
