package env

import (
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

func service(name, ip string, ports ...object.ServicePort) *object.Service {
	return &object.Service{
		Metadata: object.ObjectMeta{Name: name, Namespace: "default"},
		Spec:     object.ServiceSpec{Type: object.TypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: ports},
	}
}

func port(name string, number int32, protocol string) object.ServicePort {
	return object.ServicePort{Name: name, Port: number, Protocol: protocol}
}

func TestVariables(t *testing.T) {
	redis := service("redis-primary", "10.0.0.11", port("", 6379, "TCP"))
	external := service("ext", "10.0.0.9", port("", 80, "TCP"))
	external.Spec.Type = object.TypeExternalName
	for name, tc := range map[string]struct {
		services []*object.Service
		want     string
	}{
		// As the documentation of Kubernetes prints them.
		"one port": {[]*object.Service{redis}, `
REDIS_PRIMARY_SERVICE_HOST=10.0.0.11
REDIS_PRIMARY_SERVICE_PORT=6379
REDIS_PRIMARY_PORT=tcp://10.0.0.11:6379
REDIS_PRIMARY_PORT_6379_TCP=tcp://10.0.0.11:6379
REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp
REDIS_PRIMARY_PORT_6379_TCP_PORT=6379
REDIS_PRIMARY_PORT_6379_TCP_ADDR=10.0.0.11`},
		"named ports, IPv6": {[]*object.Service{service("dns", "fd00::1", port("dns-tcp", 53, "TCP"), port("dns", 5353, "UDP"))}, `
DNS_SERVICE_HOST=fd00::1
DNS_SERVICE_PORT=53
DNS_SERVICE_PORT_DNS_TCP=53
DNS_SERVICE_PORT_DNS=5353
DNS_PORT=tcp://[fd00::1]:53
DNS_PORT_53_TCP=tcp://[fd00::1]:53
DNS_PORT_53_TCP_PROTO=tcp
DNS_PORT_53_TCP_PORT=53
DNS_PORT_53_TCP_ADDR=fd00::1
DNS_PORT_5353_UDP=udp://[fd00::1]:5353
DNS_PORT_5353_UDP_PROTO=udp
DNS_PORT_5353_UDP_PORT=5353
DNS_PORT_5353_UDP_ADDR=fd00::1`},
		"none": {[]*object.Service{
			service("headless", object.ClusterIPNone, port("", 80, "TCP")), service("unallocated", "", port("", 80, "TCP")),
			service("portless", "10.0.0.3"), external,
		}, ""},
	} {
		if got, want := text(Of(tc.services)), strings.TrimPrefix(tc.want, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

func text(all []Variable) string {
	var lines []string
	for _, v := range all {
		lines = append(lines, v.Name+"="+v.Value)
	}
	return strings.Join(lines, "\n")
}

func TestOrderAndCollisions(t *testing.T) {
	// WEB_PORT_80_TCP_PORT is made by both.
	a, b := service("web", "10.0.0.1", port("", 80, "TCP")), service("web-port-80-tcp", "10.0.0.2", port("", 443, "TCP"))
	got := Of([]*object.Service{b, a})
	if other := Of([]*object.Service{a, b}); !slices.Equal(got, other) {
		t.Errorf("the order of the Services matters:\n%s\n%s", text(got), text(other))
	}
	seen := map[string]string{}
	for _, v := range got {
		if _, twice := seen[v.Name]; twice {
			t.Errorf("%s comes twice", v.Name)
		}
		seen[v.Name] = v.Value
	}
	if seen["WEB_PORT_80_TCP_PORT"] != "tcp://10.0.0.2:443" || seen["WEB_SERVICE_HOST"] != "10.0.0.1" {
		t.Errorf("%s", text(got))
	}
}
