package resolve

import (
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Connections are adopted at external addresses of TCP where another box picks the same endpoint, and a Service that asks for
// it where that is not so is told why.
func TestAdopt(t *testing.T) {
	for name, tt := range map[string]struct {
		value  string
		change func(*object.Service)
		want   bool
		text   string // of the problem; "" for none
	}{
		"all is well": {"true", nil, true, ""},
		"by address":  {"true", func(s *object.Service) { s.Metadata.Annotations[object.AnnotationBalance] = "source-hash" }, true, ""},
		"not":         {"false", nil, false, ""},
		"maybe":       {"yes", nil, false, `UnknownValue must be "true" or "false"`},
		"by chance":   {"true", func(s *object.Service) { delete(s.Metadata.Annotations, object.AnnotationBalance) }, false, "with random another box picks another endpoint: write svcctl.io/balance: maglev"},
		"in turns":    {"true", func(s *object.Service) { s.Metadata.Annotations[object.AnnotationBalance] = "rr" }, false, "with round-robin"},
		"masqueraded": {"true", func(s *object.Service) { s.Spec.ExternalTrafficPolicy = object.PolicyCluster }, false, "externalTrafficPolicy Cluster"},
		"affinity":    {"true", func(s *object.Service) { s.Spec.SessionAffinity = object.AffinityClientIP }, false, "session affinity is the memory of one box"},
		"idle":        {"true", func(s *object.Service) { s.Metadata.Annotations[AnnotationIdle] = "60s" }, false, "only a SYN gets to an endpoint"},
		"UDP":         {"true", func(s *object.Service) { s.Spec.Ports[0].Protocol = object.ProtocolUDP }, false, "no port of TCP"},
		"inside":      {"true", func(s *object.Service) { s.Spec.Type, s.Spec.ExternalIPs = object.TypeClusterIP, nil }, false, "no load balancer IP and no external IP"},
		"limits":      {"true", func(s *object.Service) { s.Metadata.Annotations[object.AnnotationEndpointConnections] = "5" }, true, "BoxesDiffer"},
		"headless":    {"true", func(s *object.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, false, "the annotation has no effect"},
		"relayed":     {"true", func(s *object.Service) { s.Metadata.Annotations[annotation.ProxyMode] = "userspace" }, false, "connections end with the program"},
	} {
		svc := exposed(object.TypeLoadBalancer, map[string]string{object.AnnotationAdopt: tt.value, object.AnnotationBalance: "maglev"})
		svc.Spec.ExternalTrafficPolicy = object.PolicyLocal
		if tt.change != nil {
			tt.change(svc)
		}
		out := Service(Input{Service: svc}, &Facts{})
		text := problemText(&out, object.AnnotationAdopt)
		adopted := false
		for _, p := range out.Ports {
			for _, fe := range p.Frontends {
				adopted = adopted || fe.Adopt
				if fe.Adopt && (fe.Kind != nft.LoadBalancerIP && fe.Kind != nft.ExternalIP || p.Protocol != nft.TCP) {
					t.Errorf("%s: adopted is %+v of %s", name, fe, p.Protocol)
				}
			}
		}
		if adopted != tt.want || !strings.Contains(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%s: adopted %t, problem %q; want %t, %q", name, adopted, text, tt.want, tt.text)
		}
		if tt.want && !slices.ContainsFunc(out.Ports[0].Frontends, func(fe nft.Frontend) bool { return !fe.Adopt }) {
			t.Errorf("%s: the cluster IP is adopted too", name)
		}
	}
}
