package health

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

// service is a Service with ports such as "http/TCP dns/UDP", and annotations.
func service(kind, ports string, annotations map[string]string) *object.Service {
	svc := &object.Service{Metadata: object.ObjectMeta{Name: "web", Namespace: "shop", Annotations: annotations}}
	svc.Spec.Type = kind
	for i, word := range strings.Fields(ports) {
		name, protocol, _ := strings.Cut(word, "/")
		svc.Spec.Ports = append(svc.Spec.Ports, object.ServicePort{Name: name, Protocol: protocol, Port: int32(80 + i)})
	}
	return svc
}

// summary is a Plan as "TEXT|TEXT", with - for a port that is not checked.
func summary(p *Plan) string {
	if p == nil {
		return "not checked"
	}
	words := make([]string, len(p.Ports))
	for i, s := range p.Ports {
		words[i] = "-"
		if s != nil {
			words[i] = s.Text
		}
	}
	return strings.Join(words, "|")
}

func TestParse(t *testing.T) {
	type annotations = map[string]string
	for _, test := range []struct {
		name, kind, ports string
		annotations       annotations
		want              string // or the refusals
	}{
		{"nothing", "ClusterIP", "/TCP", nil, "not checked"},
		{"none", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "none"}, "not checked"},
		{"ports of the protocol", "ClusterIP", "a/TCP b/UDP c/TCP d/SCTP", annotations{"svcctl.io/health-check": "tcp"}, "tcp|-|tcp|-"},
		{"a port holds for all", "ClusterIP", "a/TCP b/UDP d/SCTP", annotations{"svcctl.io/health-check": "http:8080/healthz"},
			"http:8080/healthz|http:8080/healthz|http:8080/healthz"},
		{"icmp holds for all", "ClusterIP", "a/TCP b/UDP", annotations{"svcctl.io/health-check": "icmp"}, "icmp|icmp"},
		{"own wins", "ClusterIP", "web/TCP dns/UDP", annotations{"svcctl.io/health-check": "http", "svcctl.io/health-check.dns": "dns/example.org"}, "http|dns/example.org"},
		{"own none", "ClusterIP", "web/TCP admin/TCP", annotations{"svcctl.io/health-check": "http", "svcctl.io/health-check.admin": "none"}, "http|-"},
		{"all of their own", "ClusterIP", "a/UDP", annotations{"svcctl.io/health-check": "tcp", "svcctl.io/health-check.a": "udp"}, "udp"},
		{"unknown port", "ClusterIP", "web/TCP", annotations{"svcctl.io/health-check.wbe": "tcp"},
			`metadata.annotations[svcctl.io/health-check.wbe]: the Service has no port named "wbe": it has web`},
		{"nonsense", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "htp:80"},
			`metadata.annotations[svcctl.io/health-check]: "htp:80" is no check: write tcp, tls, http, https, grpc, dns, udp, icmp or probe, with port and path, as http:8080/healthz`},
		{"empty", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": ""},
			`metadata.annotations[svcctl.io/health-check]: "" is no check: write tcp, tls, http, https, grpc, dns, udp, icmp or probe, with port and path, as http:8080/healthz`},
		{"SCTP", "ClusterIP", "sctp/SCTP", annotations{"svcctl.io/health-check": "tcp"},
			"metadata.annotations[svcctl.io/health-check]: port sctp: SCTP is not checked; name a TCP port of the server, as tcp:8080"},
		{"SCTP beside", "ClusterIP", "a/TCP sctp/SCTP", annotations{"svcctl.io/health-check.sctp": "tcp"},
			"metadata.annotations[svcctl.io/health-check.sctp]: port sctp: SCTP is not checked; name a TCP port of the server, as tcp:8080"},
		{"no port of the protocol", "ClusterIP", "dns/UDP", annotations{"svcctl.io/health-check": "http"},
			"metadata.annotations[svcctl.io/health-check]: port dns: http asks a TCP port, and this is none; name the port of the server that answers, as http:8080"},
		{"a setting without a check", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check-interval": "1s"},
			"metadata.annotations[svcctl.io/health-check-interval]: there is no check that it is a setting of: add the annotation svcctl.io/health-check, as http:8080/healthz"},
		{"an unknown setting", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "tcp", "svcctl.io/health-check-intervall": "1s"},
			"metadata.annotations[svcctl.io/health-check-intervall]: there is no such setting: they are interval, timeout, healthy-threshold, unhealthy-threshold, status, host, send, expect, verify, min-healthy, on-down"},
		{"a setting of others", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "tcp", "svcctl.io/health-check-status": "200"},
			"metadata.annotations[svcctl.io/health-check-status]: none of the Service's checks has this setting: it is one of http, https"},
		{"a range exceeded", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "tcp", "svcctl.io/health-check-interval": "100ms", "svcctl.io/health-check-healthy-threshold": "11"},
			`metadata.annotations[svcctl.io/health-check-healthy-threshold]: "11" is not a number from 1 to 10; metadata.annotations[svcctl.io/health-check-interval]: "100ms" is not a time between 200ms and 1h0m0s; write it like "5s", or in seconds`},
		{"udp too often", "ClusterIP", "/UDP", annotations{"svcctl.io/health-check": "udp", "svcctl.io/health-check-interval": "200ms"},
			"metadata.annotations[svcctl.io/health-check-interval]: 200ms is too short for udp: a closed port is reported once a second at most (net.ipv4.icmp_ratelimit); write 1s or more"},
		{"verify whom", "ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "https", "svcctl.io/health-check-verify": "true"},
			"metadata.annotations[svcctl.io/health-check-verify]: a certificate is of a name, not of an address: give it with svcctl.io/health-check-host"},
		{"probes", "ClusterIP", "a/TCP b/UDP s/SCTP", annotations{"svcctl.io/health-check": "probe", "svcctl.io/health-check-min-healthy": "50"}, "probe|probe|probe"},
		{"probes beside others", "ClusterIP", "a/TCP dns/UDP", annotations{"svcctl.io/health-check": "probe", "svcctl.io/health-check.dns": "dns/a.example", "svcctl.io/health-check-interval": "1s"}, "probe|dns/a.example"},
		{"times of probes", "ClusterIP", "a/TCP", annotations{"svcctl.io/health-check": "probe", "svcctl.io/health-check-interval": "1s"},
			"metadata.annotations[svcctl.io/health-check-interval]: readiness probes have their own: write it in the Pods, as periodSeconds, timeoutSeconds, successThreshold, failureThreshold"},
		{"a port of probes", "ClusterIP", "a/TCP", annotations{"svcctl.io/health-check": "probe:8080"},
			`metadata.annotations[svcctl.io/health-check]: "probe:8080": the port and the path are the probe's own; write probe`},
		{"AWS", "LoadBalancer", "a/TCP b/UDP", annotations{aws + "healthy-threshold": "", aws + "unhealthy-threshold": "3", aws + "interval": "20", aws + "timeout": "5"}, "tcp|-"},
		{"AWS elsewhere", "ClusterIP", "a/TCP", annotations{aws + "interval": "20"}, "not checked"},
		{"AWS over HTTP", "LoadBalancer", "a/TCP b/UDP", annotations{aws + "protocol": "http", aws + "port": "8080", aws + "path": "/up", aws + "success-codes": "200"}, "http:8080/up|http:8080/up"},
		{"AWS switched off by ours", "LoadBalancer", "a/TCP", annotations{aws + "interval": "20", "svcctl.io/health-check": "none"}, "not checked"},
		{"AWS exceeded", "LoadBalancer", "a/TCP", annotations{aws + "interval": "10", aws + "timeout": "20", aws + "unhealthy-threshold": "11"},
			"metadata.annotations[" + aws + "timeout]: 20 is not below the interval of 10; the load balancers of AWS refuse it too; " +
				"metadata.annotations[" + aws + `unhealthy-threshold]: "11" is not a number from 2 to 10, which is what AWS takes`},
		{"AWS path of tcp", "LoadBalancer", "a/TCP", annotations{aws + "path": "/up"},
			"metadata.annotations[" + aws + "path]: a check over TCP has none: set " + aws + "protocol to HTTP or HTTPS"},
		{"AWS unknown", "LoadBalancer", "a/TCP", annotations{aws + "grace": "1"},
			"metadata.annotations[" + aws + "grace]: there is no such setting: they are healthy-threshold, unhealthy-threshold, interval, timeout, protocol, port, path, success-codes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan, refused := Parse(service(test.kind, test.ports, test.annotations))
			got := summary(plan)
			if len(refused) > 0 {
				var words []string
				for _, r := range refused {
					words = append(words, r.Field+": "+r.Text)
				}
				got = strings.Join(words, "; ")
				if plan != nil {
					t.Error("refused, and checked in part")
				}
			}
			if got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
	svc := service("ClusterIP", "/TCP", annotations{"svcctl.io/health-check": "tcp"})
	svc.Spec.PublishNotReadyAddresses = true
	if plan, refused := Parse(svc); plan != nil || len(refused) != 1 || !refused[0].Idle {
		t.Errorf("publishNotReadyAddresses: %v, %v", plan, refused)
	}
}

// TestParseSettings: each setting arrives, with the defaults of ours and of AWS.
func TestParseSettings(t *testing.T) {
	parse := func(kind, ports string, annotations map[string]string) Plan {
		t.Helper()
		plan, refused := Parse(service(kind, ports, annotations))
		if plan == nil || refused != nil {
			t.Fatalf("%v, %v", plan, refused)
		}
		return *plan
	}
	second := time.Second
	for _, test := range []struct {
		name string
		got  Plan
		want Plan
	}{
		{"defaults", parse("ClusterIP", "/TCP", map[string]string{"svcctl.io/health-check": "tcp"}),
			Plan{Ports: []*Spec{{Text: "tcp", Check: Check{Kind: TCP, Interval: 5 * second, Timeout: 2 * second, Rise: 2, Fall: 3}}}}},
		{"all of http", parse("ClusterIP", "/TCP", map[string]string{
			"svcctl.io/health-check": "https:web/x?y=1", "svcctl.io/health-check-interval": "1", "svcctl.io/health-check-timeout": "500ms",
			"svcctl.io/health-check-healthy-threshold": "1", "svcctl.io/health-check-unhealthy-threshold": "10", "svcctl.io/health-check-status": "200, 301-302",
			"svcctl.io/health-check-host": "www.example.org", "svcctl.io/health-check-expect": "ok", "svcctl.io/health-check-verify": "true",
			"svcctl.io/health-check-min-healthy": "50%", "svcctl.io/health-check-on-down": "reset"}),
			Plan{MinHealthy: 50, Reset: true, Ports: []*Spec{{Text: "https:web/x?y=1", PortName: "web", Check: Check{
				Kind: HTTPS, Path: "/x?y=1", Host: "www.example.org", Status: "200,301-302", Expect: "ok", Verify: true,
				Interval: second, Timeout: second / 2, Rise: 1, Fall: 10}}}}},
		{"udp", parse("ClusterIP", "/UDP", map[string]string{"svcctl.io/health-check": "udp", "svcctl.io/health-check-send": "hex:00ff 0a", "svcctl.io/health-check-expect": "pong"}),
			Plan{Ports: []*Spec{{Text: "udp", Check: Check{Kind: UDP, Send: "\x00\xff\n", Expect: "pong", Interval: 5 * second, Timeout: 2 * second, Rise: 2, Fall: 3}}}}},
		{"dns", parse("ClusterIP", "/UDP", map[string]string{"svcctl.io/health-check": "dns:5353/example.org"}),
			Plan{Ports: []*Spec{{Text: "dns:5353/example.org", Port: 5353, Check: Check{Kind: DNS, Name: "example.org.", Interval: 5 * second, Timeout: 2 * second, Rise: 2, Fall: 3}}}}},
		{"grpc", parse("ClusterIP", "/TCP", map[string]string{"svcctl.io/health-check": "grpc/shop.Cart"}),
			Plan{Ports: []*Spec{{Text: "grpc/shop.Cart", Check: Check{Kind: GRPC, Name: "shop.Cart", Interval: 5 * second, Timeout: 2 * second, Rise: 2, Fall: 3}}}}},
		{"the seeds' sample", parse("LoadBalancer", "/TCP", map[string]string{aws + "healthy-threshold": "", aws + "unhealthy-threshold": "3", aws + "interval": "20", aws + "timeout": "5"}),
			Plan{Ports: []*Spec{{Text: "tcp", Check: Check{Kind: TCP, Interval: 20 * second, Timeout: 5 * second, Rise: 2, Fall: 3}}}}},
		{"AWS' defaults", parse("LoadBalancer", "/TCP", map[string]string{aws + "protocol": "HTTP"}),
			Plan{Ports: []*Spec{{Text: "http/", Check: Check{Kind: HTTP, Path: "/", Status: "200-399", Interval: 10 * second, Timeout: 5 * second, Rise: 2, Fall: 6}}}}},
	} {
		if !reflect.DeepEqual(test.got, test.want) {
			t.Errorf("%s: %+v %+v\nwant %+v %+v", test.name, test.got, test.got.Ports[0], test.want, test.want.Ports[0])
		}
	}
}

func TestOut(t *testing.T) {
	svc := service("ClusterIP", "/TCP", map[string]string{AnnotationOut: "10.1.0.1, 2001:db8::1"})
	out, refused := Out(svc)
	if want := map[netip.Addr]bool{netip.MustParseAddr("10.1.0.1"): true, netip.MustParseAddr("2001:db8::1"): true}; refused != nil || !reflect.DeepEqual(out, want) {
		t.Errorf("%v, %v", out, refused)
	}
	svc.Metadata.Annotations[AnnotationOut] = "10.1.0.1,web-2"
	if out, refused = Out(svc); out != nil || refused == nil || !strings.HasPrefix(refused.Text, `"web-2" is no address`) {
		t.Errorf("%v, %v", out, refused)
	}
}

// FuzzParseCheck: what is taken can be sent, and no text panics.
func FuzzParseCheck(f *testing.F) {
	for _, text := range []string{"none", "tcp", "tcp:80", "http:8080/healthz", "https:web/", "grpc:1/a.B", "dns/example.org", "udp:53", "icmp", "tls", "http:/", "dns/", "tcp:0", "http/\r\nX: y", "tcp:080", "icmp:1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := ParseCheck(text)
		if err != nil {
			if spec != nil {
				t.Error("refused, and taken")
			}
			return
		}
		if spec == nil {
			if text != "none" {
				t.Errorf("%q is none", text)
			}
			return
		}
		c := spec.Check
		for _, sent := range []string{c.Path, c.Name} {
			if strings.ContainsFunc(sent, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("%q sends %q", text, sent)
			}
		}
		if (c.Kind == HTTP || c.Kind == HTTPS) != strings.HasPrefix(c.Path, "/") {
			t.Errorf("%q has the path %q", text, c.Path)
		}
		if spec.Port != 0 && spec.PortName != "" {
			t.Errorf("%q has two ports", text)
		}
		again, err := ParseCheck(spec.Text)
		if err != nil || !reflect.DeepEqual(again, spec) {
			t.Errorf("%q is read as %+v, then as %+v, %v", text, spec, again, err)
		}
	})
}
