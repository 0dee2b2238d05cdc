package bench

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"
)

// apiProbe is the frontend of a Service that belongs to the API.
var apiProbe = netip.MustParseAddrPort("10.96.0.12:80")

const (
	servicesPath = "/api/v1/namespaces/default/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

	asJSON  = "application/json"
	asMerge = "application/merge-patch+json"
)

// serviceJSON and sliceJSON are the documents of a Service with one endpoint.
func serviceJSON(name string, at netip.Addr) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":{"clusterIP":%q,`+
		`"ports":[{"name":"p80","port":80,"protocol":"UDP","targetPort":8080}]}}`, name, at)
}

func sliceJSON(name string, endpoint netip.Addr) string {
	return fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"%[1]s-1",`+
		`"labels":{"kubernetes.io/service-name":%[1]q}},"addressType":"IPv4",`+
		`"ports":[{"name":"p80","port":8080,"protocol":"UDP"}],"endpoints":[{"addresses":[%[2]q]}]}`, name, endpoint)
}

// createProbe makes the Service of apiProbe.
func (x *box) createProbe(b *testing.B) {
	b.Helper()
	x.ask(b, http.MethodPost, servicesPath, asJSON, serviceJSON("api", apiProbe.Addr()))
	x.ask(b, http.MethodPost, slicesPath, asJSON, sliceJSON("api", singleAt[0]))
}

// replaceProbe replaces its endpoint.
func (x *box) replaceProbe(b *testing.B, endpoint netip.Addr) {
	b.Helper()
	x.ask(b, http.MethodPatch, slicesPath+"/api-1", asMerge, fmt.Sprintf(`{"endpoints":[{"addresses":[%q]}]}`, endpoint))
}

// overAPI measures changes over the API until they are in the kernel.
func overAPI(b *testing.B, boxes []*box) {
	const section = "Change: from the API to the kernel"
	steps := []struct {
		name string
		step func(x *box, step int)
	}{
		{"replace an endpoint", func(x *box, step int) { x.replaceProbe(b, singleAt[(step+*rounds)%2]) }},
		{"add a Service", func(x *box, step int) {
			x.ask(b, http.MethodPost, servicesPath, asJSON, serviceJSON("api"+strconv.Itoa(step), netip.AddrFrom4([4]byte{10, 96, 220, byte(step)})))
		}},
		{"delete a Service", func(x *box, step int) {
			x.ask(b, http.MethodDelete, servicesPath+"/api"+strconv.Itoa(step), "", "")
		}},
	}
	for _, s := range steps {
		took := make([][]time.Duration, len(boxes))
		for step := range *rounds {
			for i, x := range boxes {
				took[i] = append(took[i], x.latency(b, func() { s.step(x, step+1) }))
			}
		}
		for i, samples := range took {
			latencies(section, s.name, sizes[i], samples, took[0])
		}
	}
}
