package bench

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// mail is a Service with hosts that leave with its address.
const mail = `apiVersion: v1
kind: Service
metadata: {name: mail, namespace: default, annotations: {svcctl.io/egress: vip}}
spec: {type: LoadBalancer, clusterIP: 10.96.255.1, loadBalancerIP: 198.51.100.4, ports: [{port: 25}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: mail, namespace: default, labels: {kubernetes.io/service-name: mail}}
addressType: IPv4
ports: [{port: 25}]
endpoints: [{addresses: [10.1.2.11]}, {addresses: [10.1.2.12]}]
`

// plainMail is the same Service without the annotation.
var plainMail = strings.Replace(mail, "svcctl.io/egress: vip", "", 1)

// BenchmarkEgress measures what egress costs those that do not leave by it: clients of Services and routed packets, with it against
// without, in turns, on boxes that differ in nothing else. The same ruleset twice gives how steady that is.
func BenchmarkEgress(b *testing.B) {
	lab := netlab.New(b)
	all, endpoint := standbys(1_000), []netip.AddrPort{netip.MustParseAddrPort("10.128.0.2:8080")}
	box := func(name, annotated string) *way {
		return balancedWith(b, lab, name, []string{"--egress-from=10.1.0.0/16"}, func(d netlab.Dir) {
			writeServices(d, 1_000)
			d.Write("mail.yaml", annotated)
		}, all...)
	}
	without := box("without", plainMail)
	ways := []*way{without, box("without, another box", plainMail), box("with two hosts", mail)}
	for _, load := range []struct {
		what string
		to   []netip.AddrPort
		turn func(w *way)
	}{
		{"first packet that is routed", endpoint, func(w *way) { w.turn(b) }},
		{"first packet of a client", all, func(w *way) { w.turn(b) }},
		{"established, routed", endpoint, func(w *way) { w.followingTurn(b) }},
		{"established, of a client", all, func(w *way) { w.followingTurn(b) }},
	} {
		for _, w := range ways {
			w.to, w.took = load.to, nil
		}
		for range *rounds {
			for _, w := range ways {
				load.turn(w)
			}
		}
		for _, w := range ways {
			results.add("What egress costs others", load.what+", "+w.name, ms(median(w.took)), fmt.Sprintf("%.3fx without", median(ratios(w.took, without.took))))
		}
	}
}
