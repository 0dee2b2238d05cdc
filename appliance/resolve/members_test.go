package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

func TestMembers(t *testing.T) {
	headless := func(ports ...object.ServicePort) *object.Service {
		return &object.Service{Metadata: object.ObjectMeta{Namespace: "default", Name: "db"},
			Spec: object.ServiceSpec{ClusterIPs: []string{"None"}, Ports: ports}}
	}
	named := func(s *object.EndpointSlice, port string, hostnames ...string) *object.EndpointSlice {
		s.Ports[0].Name = &port
		for i, name := range hostnames {
			if name != "" {
				s.Endpoints[i].Hostname = &name
			}
		}
		return s
	}
	without := func(s *object.EndpointSlice) *object.EndpointSlice {
		s.Ports = nil
		return s
	}
	http := object.ServicePort{Name: "http", Protocol: "TCP", Port: 80}
	for _, tt := range []struct {
		name string
		in   Input
		want []string
	}{
		{"none", Input{Service: headless(http)}, nil},
		{"order and readiness",
			Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, r1, l2+" n", l1, l3+" n s t"), "http")}},
			[]string{l1 + " ready http/TCP:8080", l2 + " http/TCP:8080", l3 + " http/TCP:8080", r1 + " ready http/TCP:8080"}},
		{"host names", Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, l1, l2), "http", "a", "")}},
			[]string{l1 + " a ready http/TCP:8080", l2 + " ready http/TCP:8080"}},
		{"without ports", Input{Service: headless(), Slices: []*object.EndpointSlice{without(slice(0, l1))}}, []string{l1 + " ready"}},
		{"a port that the Service has not", Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, l1), "other")}},
			[]string{l1 + " ready"}},
		{"an unnamed port", Input{Service: headless(object.ServicePort{Protocol: "TCP", Port: 80}), Slices: []*object.EndpointSlice{slice(8080, l1)}},
			[]string{l1 + " ready"}},
		{"the better state holds",
			Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, l1+" n"), "http"), named(slice(8080, l1), "http"), named(slice(8081, l1+" n"), "http")}},
			[]string{l1 + " ready http/TCP:8080 http/TCP:8081"}},
		{"addresses that are no endpoints", Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, "172.30.0.9", "127.0.0.1", l1), "http")}},
			[]string{l1 + " ready http/TCP:8080"}},
		{"both families", Input{Service: headless(http), Slices: []*object.EndpointSlice{named(slice(8080, "fd00::1"), "http", "a"), named(slice(8080, l1), "http", "a")}},
			[]string{l1 + " a ready http/TCP:8080", "fd00::1 a ready http/TCP:8080"}},
	} {
		var got []string
		for _, m := range Members(tt.in, facts()) {
			parts := []string{m.Addr.String()}
			if m.Hostname != "" {
				parts = append(parts, m.Hostname)
			}
			if m.Ready {
				parts = append(parts, "ready")
			}
			for _, p := range m.Ports {
				parts = append(parts, fmt.Sprintf("%s/%s:%d", p.Name, p.Protocol, p.Port))
			}
			got = append(got, strings.Join(parts, " "))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

// TestHeadlessProblems: endpoints that a name does not lead to are told of.
func TestHeadlessProblems(t *testing.T) {
	in := Input{Service: service(func(s *object.Service) {
		s.Spec.Type, s.Spec.ClusterIPs, s.Spec.ExternalIPs = "ClusterIP", []string{"None"}, nil
	}), Slices: []*object.EndpointSlice{slice(80, l1, "172.30.0.9")}}
	out := Service(in, facts())
	if len(out.Problems) != 1 || out.Problems[0].Reason != "BadEndpointAddress" || len(out.Ports) != 0 {
		t.Errorf("%+v", out)
	}
}

// TestMembersAreTheEndpoints: what a name of a headless Service stands for is what a
// cluster IP of the same Service would be balanced over.
func TestMembersAreTheEndpoints(t *testing.T) {
	in := Input{Service: &object.Service{
		Metadata: object.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:     object.ServiceSpec{Type: "ClusterIP", ClusterIPs: []string{"172.30.0.41"}, Ports: []object.ServicePort{{Protocol: "TCP", Port: 80}}},
	}, Slices: []*object.EndpointSlice{slice(80, l1, l2+" n", r1, l3+" n s t", "172.30.0.9", "224.0.0.1", "169.254.0.1"), slice(80, l2+" n", r1+" n")}}
	var members, balanced []netip.Addr
	for _, m := range Members(in, facts()) {
		if m.Ready {
			members = append(members, m.Addr)
		}
	}
	for _, e := range Service(in, facts()).Ports[0].Pools[0] {
		balanced = append(balanced, e.Addr())
	}
	if !slices.Equal(members, balanced) || len(members) != 2 {
		t.Errorf("the names stand for %v, the cluster IP for %v", members, balanced)
	}
}
