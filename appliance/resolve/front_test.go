package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

func TestFrontedPorts(t *testing.T) {
	const secret, backend = "svcctl.io/tls-secret", "svcctl.io/backend-protocol"
	keys := func(d *Demand, o *Observed) {
		for _, n := range d.Needs {
			switch {
			case n.Kind != NeedKeyPair && n.Kind != NeedAuthority, n.Name == "default/good" && n.Kind == NeedKeyPair, n.Name == "default/ca" && n.Kind == NeedAuthority:
				o.Answer(n, State{})
			case n.Name == "default/ended", n.Name == "default/kept":
				o.Answer(n, State{Wrong: "data[tls.crt] is empty; the certificate before stays in use", Serves: n.Name == "default/kept"})
			case n.Name == "default/soon":
				o.Answer(n, State{Soon: "its certificate ends"})
			default:
				o.Answer(n, State{Missing: true, Wrong: "it is not there"})
			}
		}
	}
	for name, tt := range map[string]struct {
		annotations map[string]string
		http, https string // kernel, relayed, refuses or none
		secrets     string
		problems    []string // reason, severity, field, text
	}{
		"one port":       {map[string]string{secret + ".https": "good"}, "kernel", "relayed", "[default/good]", nil},
		"missing":        {map[string]string{secret + ".https": "none-such"}, "kernel", "refuses", "[default/none-such]", []string{"SecretUnusable error metadata.annotations[svcctl.io/tls-secret.https] Secret default/none-such: it is not there; until then clients are refused"}},
		"one of two":     {map[string]string{secret + ".https": "none-such,good"}, "kernel", "relayed", "[default/good default/none-such]", []string{"SecretUnusable error metadata.annotations[svcctl.io/tls-secret.https] Secret default/none-such"}},
		"kept":           {map[string]string{secret + ".https": "kept"}, "kernel", "relayed", "[default/kept]", []string{"SecretNotInForce error metadata.annotations[svcctl.io/tls-secret.https] Secret default/kept: data[tls.crt] is empty; the certificate before stays in use"}},
		"kept and ended": {map[string]string{secret + ".https": "ended"}, "kernel", "relayed", "[default/ended]", []string{"SecretUnusable error metadata.annotations[svcctl.io/tls-secret.https] Secret default/ended: data[tls.crt] is empty; the certificate before stays in use"}},
		"soon":           {map[string]string{secret + ".https": "soon"}, "kernel", "relayed", "[default/soon]", []string{"CertificateExpires warning metadata.annotations[svcctl.io/tls-secret.https] Secret default/soon: its certificate ends"}},
		"no CA":          {map[string]string{secret + ".https": "good", "svcctl.io/tls-client-ca": "none-such"}, "kernel", "refuses", "[default/good default/none-such]", []string{"SecretUnusable error metadata.annotations[svcctl.io/tls-client-ca]"}},
		"backend's CA":   {map[string]string{backend + ".http": "https", "svcctl.io/backend-ca": "ca"}, "relayed", "kernel", "[default/ca]", nil},
		"unchecked":      {map[string]string{backend: "https"}, "relayed", "relayed", "[]", []string{"BackendUnchecked warning metadata.annotations[svcctl.io/backend-protocol]"}},
		"bad":            {map[string]string{secret + ".https": "a/b"}, "kernel", "none", "[]", []string{"TLSNotTerminated error metadata.annotations[svcctl.io/tls-secret.https] port 443/TCP is not served, rather than passed through as it is"}},
		"bad protocol":   {map[string]string{backend + ".https": "x"}, "kernel", "none", "[]", []string{"InvalidAnnotation error metadata.annotations[svcctl.io/backend-protocol.https] port 443/TCP is not served"}},
		"all, but mode":  {map[string]string{secret + ".https": "good", "svcctl.io/proxy-mode": "userspace"}, "relayed", "relayed", "[default/good]", nil},
		"both want TLS":  {map[string]string{secret: "none-such"}, "refuses", "refuses", "[default/none-such]", []string{"SecretUnusable error metadata.annotations[svcctl.io/tls-secret] Secret default/none-such"}},
		"in the kernel":  {map[string]string{secret + ".https": "good", "svcctl.io/proxy-mode": "kernel"}, "kernel", "none", "[default/good]", []string{"InvalidAnnotation error metadata.annotations[svcctl.io/proxy-mode] port 443/TCP is not served: the kernel is to serve it, and svcctl.io/tls-secret.https needs a relay"}},
		"PROXY, kernel":  {map[string]string{"svcctl.io/proxy-protocol": "v2", "svcctl.io/proxy-mode": "kernel"}, "none", "none", "[]", []string{"InvalidAnnotation error metadata.annotations[svcctl.io/proxy-mode] port 80/TCP is not served", "InvalidAnnotation error metadata.annotations[svcctl.io/proxy-mode] port 443/TCP is not served"}},
		"in another one": {map[string]string{secret + ".https": "good", backend + ".https": "http"}, "kernel", "relayed", "[default/good]", nil},
	} {
		svc := service(func(s *object.Service) {
			s.Metadata.Annotations = tt.annotations
			s.Spec.Ports = []object.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "https", Port: 443, Protocol: "TCP"}}
		})
		out := met(Input{Service: svc, Slices: []*object.EndpointSlice{frontSlice()}}, relayFacts(), keys)
		var secrets []string
		for _, n := range out.Needs {
			if n.Name != "" {
				secrets = append(secrets, n.Name)
			}
		}
		slices.Sort(secrets)
		have := map[string]string{"http": "none", "https": "none"}
		for _, p := range out.Ports {
			port := strings.TrimPrefix(p.ID, "default/web/")
			switch {
			case p.Relayed():
				have[port] = "relayed"
			case len(p.Pools[nft.PoolCluster]) == 0:
				have[port] = "refuses"
			default:
				have[port] = "kernel"
			}
			if front := out.Relay; front != nil && (front.Fronts[p.ID] != nil) != (tt.annotations[secret] != "" || tt.annotations[backend] != "" || tt.annotations[secret+"."+port] != "" || tt.annotations[backend+"."+port] != "") {
				t.Errorf("%s: fronts %v", name, front.Fronts)
			}
		}
		if have["http"] != tt.http || have["https"] != tt.https || fmt.Sprint(secrets) != tt.secrets {
			t.Errorf("%s: %v, Secrets %v, want %s, %s, %s", name, have, secrets, tt.http, tt.https, tt.secrets)
		}
		var problems []string
		for _, p := range out.Problems {
			severity := map[bool]string{true: "warning", false: "error"}[p.Warning]
			problems = append(problems, fmt.Sprintf("%s %s %s %s", p.Reason, severity, p.Field, p.Message))
		}
		if len(problems) != len(tt.problems) {
			t.Errorf("%s: %q, want %q", name, problems, tt.problems)
			continue
		}
		for i, want := range tt.problems {
			if !strings.HasPrefix(problems[i], want) {
				t.Errorf("%s: %q, want %q", name, problems[i], want)
			}
		}
	}
}

// frontSlice has endpoints for the ports http and https.
func frontSlice() *object.EndpointSlice {
	s := slice(80, l1, r1)
	s.Ports = []object.EndpointPort{{Name: ptr("http"), Protocol: ptr("TCP"), Port: ptr[int32](8080)}, {Name: ptr("https"), Protocol: ptr("TCP"), Port: ptr[int32](8443)}}
	return s
}
