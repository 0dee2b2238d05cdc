package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/store/object"
)

// A Service is judged in each family of its addresses, by the endpoints of that family alone.
func Test837_each_family_is_served(t *testing.T) {
	const six = "fd00:10:180::1"
	dual := func(s *object.Service) {
		s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{"172.30.0.41", "fd00:172:30::29"}, []string{"IPv4", "IPv6"}
		s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress = nil, nil
	}
	required := func(s *object.Service) { dual(s); s.Spec.IPFamilyPolicy = ptr(object.RequireDualStack) }
	headless := func(s *object.Service) {
		s.Spec.Type, s.Spec.ClusterIPs, s.Spec.ClusterIP, s.Spec.ExternalIPs = "ClusterIP", []string{"None"}, "None", nil
	}
	checked := func(s *object.Service) { s.Metadata.Annotations = map[string]string{"svcctl.io/health-check": "tcp"} }
	named := func(s *object.EndpointSlice, name string) *object.EndpointSlice { s.Ports[0].Name = &name; return s }
	for _, test := range []struct {
		name   string
		change []func(*object.Service)
		slices []*object.EndpointSlice
		want   string
	}{
		{"both families", []func(*object.Service){dual}, []*object.EndpointSlice{slice(80, l1), slice(80, six)}, ""},
		{"IPv4 alone", []func(*object.Service){required}, []*object.EndpointSlice{slice(80, l1)}, "OtherFamily: the 1 endpoint is IPv4, so every client of its IPv6 addresses is refused: name IPv6 endpoints, or set"},
		{"IPv4 alone, and both preferred", []func(*object.Service){dual}, []*object.EndpointSlice{slice(80, l1)}, ""},
		{"none ready over IPv6", []func(*object.Service){dual}, []*object.EndpointSlice{slice(80, l1), slice(80, six+" n")}, "NoReadyEndpoint: port 80 over IPv6: none of its 1 endpoint"},
		{"another name over IPv6", []func(*object.Service){dual}, []*object.EndpointSlice{slice(80, l1), named(slice(80, six), "www")}, `PortMismatch: port 80 over IPv6: no endpoint has a port named "" of TCP; they have "www"/TCP`},
		{"none local over IPv6", []func(*object.Service){dual, etpLocal}, []*object.EndpointSlice{slice(80, l1), slice(80, six)}, "NoLocalEndpoint: port 80 over IPv6: externalTrafficPolicy is Local, and none of its 1 endpoint has nodeName gw1"},
		{"the local one is not ready", []func(*object.Service){etpLocal}, []*object.EndpointSlice{slice(80, l1+" n", r1)}, "NoLocalEndpoint: port 80: externalTrafficPolicy is Local, and none of its 1 endpoint on this box takes new connections"},
		{"a dead endpoint of the family that it does not have", []func(*object.Service){checked}, []*object.EndpointSlice{slice(80, l1), slice(80, six)}, ""},
		{"the only one of this box is down", []func(*object.Service){checked, etpLocal, func(s *object.Service) { s.Metadata.Annotations["svcctl.io/health-check-min-healthy"] = "100%" }}, []*object.EndpointSlice{slice(80, "10.180.0.9", r1)},
			"FailingOpen: port 80: those of its endpoints that are near clients, by policy or zone, are all down"},
		{"the dead one has weight 0, the other one is not ready", []func(*object.Service){checked, func(s *object.Service) { s.Metadata.Annotations["svcctl.io/weights"] = "10.180.0.9=0" }}, []*object.EndpointSlice{slice(80, "10.180.0.9", r1+" n")},
			"NoReadyEndpoint: port 80: none of its 2 endpoints takes new connections"},
		{"a headless Service without endpoints", []func(*object.Service){headless}, nil, "NoEndpoints: it has no endpoint"},
		{"a headless Service", []func(*object.Service){headless}, []*object.EndpointSlice{slice(80, l1)}, ""},
		{"an external IP that is its load balancer IP", []func(*object.Service){func(s *object.Service) { s.Spec.ExternalIPs = []string{"198.51.100.4"} }}, []*object.EndpointSlice{slice(80, l1)}, ""},
		{"source sets of cluster IPs", []func(*object.Service){func(s *object.Service) {
			s.Spec.Type, s.Spec.ExternalIPs, s.Spec.Ports[0].NodePort, s.Spec.ExternalTrafficPolicy = "ClusterIP", nil, 0, ""
			s.Metadata.Annotations = map[string]string{AnnotationSourceSets: "nowhere", AnnotationSourceRangesApply: "everywhere"}
		}}, []*object.EndpointSlice{slice(80, l1)}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := facts()
			f.NodelessLocal = false
			f.ExternalIPRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.96/27")}
			for _, s := range test.slices {
				for i := range s.Endpoints {
					if s.Endpoints[i].NodeName == nil && !strings.Contains(test.name, "none local") {
						s.Endpoints[i].NodeName = ptr("gw1")
					}
				}
			}
			out := met(Input{Service: service(test.change...), Slices: test.slices}, f, verdicts(func(target health.Target) health.Verdict {
				if target.Addr.Addr().Is6() || target.Addr.Addr().String() == "10.180.0.9" {
					return health.Verdict{State: health.Down}
				}
				return health.Verdict{State: health.Up}
			}))
			var errors []string
			for _, p := range slices.Concat(out.Problems, out.Unserved) {
				if !p.Warning {
					errors = append(errors, fmt.Sprintf("%s: %s", p.Reason, p.Message))
				}
			}
			if len(errors) > 1 || (test.want == "") != (len(errors) == 0) || test.want != "" && !strings.HasPrefix(errors[0], test.want) {
				t.Errorf("%q, want %q", errors, test.want)
			}
		})
	}
}
