package bench

import (
	"fmt"
	"net/netip"
	"strings"

	"svcctl.io/svcctl/appliance/netlab"
)

// endpointsEach is how many endpoints a Service has that stands by.
const endpointsEach = 5

// boxFlags are the flags of a measured appliance.
var boxFlags = []string{
	"--service-cluster-ip-range=10.96.0.0/12", "--cluster-cidr=100.64.0.0/11", "--load-balancer-pool=198.51.100.0/24",
	"--node-name=gw", "--allow-mass-removal",
}

// serviceAddr is the cluster IP of the i-th Service that stands by.
func serviceAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 97 + byte(i>>16), byte(i >> 8), byte(i)})
}

// standbys are the frontends of the Services that stand by.
func standbys(services int) []netip.AddrPort {
	all := make([]netip.AddrPort, services)
	for i := range all {
		all[i] = netip.AddrPortFrom(serviceAddr(i), 80)
	}
	return all
}

// endpointAddr is an endpoint of the i-th Service.
func endpointAddr(i, e int) netip.Addr {
	n := 256 + i*endpointsEach + e
	return netip.AddrFrom4([4]byte{10, 130 + byte(n>>16), byte(n >> 8), byte(n)})
}

// service and slice are documents.
func service(name, spec, protocol string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  ports:
    - name: p80
      port: 80
      protocol: %s
      targetPort: 8080
  %s
`, name, protocol, spec)
}

func slice(name, protocol string, endpoints []netip.Addr) string {
	var s strings.Builder
	fmt.Fprintf(&s, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-1
  labels:
    kubernetes.io/service-name: %s
addressType: IPv4
ports:
  - name: p80
    port: 8080
    protocol: %s
endpoints:
`, name, name, protocol)
	for _, e := range endpoints {
		fmt.Fprintf(&s, "  - addresses: [%s]\n", e)
	}
	return s.String()
}

// standby is the i-th Service that stands by, with its slice.
func standby(i int) string {
	name := fmt.Sprintf("s%05d", i)
	endpoints := make([]netip.Addr, endpointsEach)
	for e := range endpoints {
		endpoints[e] = endpointAddr(i, e)
	}
	return service(name, "clusterIP: "+serviceAddr(i).String(), "UDP") + slice(name, "UDP", endpoints)
}

// perFile is how many Services are in one file.
const perFile = 100

// writeServices writes Services that stand by.
func writeServices(d netlab.Dir, services int) {
	for first := 0; first < services; first += perFile {
		var docs []string
		for i := first; i < min(first+perFile, services); i++ {
			docs = append(docs, standby(i))
		}
		d.Write(fmt.Sprintf("many%05d.yaml", first), strings.Join(docs, "---\n"))
	}
}

// probe is the Service that is measured.
func probe(at netip.AddrPort, endpoints int, spec string) string {
	all := make([]netip.Addr, endpoints)
	for e := range all {
		all[e] = netip.AddrFrom4([4]byte{10, 129, byte(e >> 8), byte(e)})
	}
	return service("probe", "clusterIP: "+at.Addr().String()+"\n  "+spec, "UDP") + slice("probe", "UDP", all)
}

// everyFeature has a Service of each kind, so that a ruleset has every rule there is.
var everyFeature = strings.Join([]string{
	service("f-nodeport", "type: NodePort", "TCP") + slice("f-nodeport", "TCP", []netip.Addr{endpointAddr(60_000, 0)}),
	service("f-local", "type: LoadBalancer\n  externalTrafficPolicy: Local\n  externalIPs: [198.51.100.200]", "TCP") +
		slice("f-local", "TCP", []netip.Addr{endpointAddr(60_000, 1)}),
	service("f-ranges", "type: LoadBalancer\n  loadBalancerSourceRanges: [203.0.113.0/24]", "UDP") +
		slice("f-ranges", "UDP", []netip.Addr{endpointAddr(60_000, 2)}),
	service("f-sticky", "sessionAffinity: ClientIP", "SCTP") + slice("f-sticky", "SCTP", []netip.Addr{endpointAddr(60_000, 3)}),
	service("f-none", "type: LoadBalancer", "UDP"),
}, "---\n")
