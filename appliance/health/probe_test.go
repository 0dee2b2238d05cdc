package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

func podOf(probes ...*object.Probe) *object.Pod {
	pod := new(object.Pod)
	for i, probe := range probes {
		pod.Spec.Containers = append(pod.Spec.Containers, object.Container{
			Name: fmt.Sprint("c", i), ReadinessProbe: probe,
			Ports: []object.ContainerPort{{Name: "web", ContainerPort: 53, Protocol: "UDP"}, {Name: "web", ContainerPort: int32(8080 + i), Protocol: "TCP"}},
		})
	}
	object.Default(pod)
	return pod
}

func TestProbes(t *testing.T) {
	header := func(name, value string) []object.HTTPHeader { return []object.HTTPHeader{{Name: name, Value: value}} }
	service := "shop.Cart"
	get := &object.Probe{HTTPGet: &object.HTTPGetAction{
		Path: "up?x=1", Port: object.FromString("web"), Scheme: "HTTPS",
		HTTPHeaders: append(header("host", "shop.example"), header("X-Token", "a: b")...),
	}, PeriodSeconds: 7, TimeoutSeconds: 9, SuccessThreshold: 2, FailureThreshold: 11}
	got, refused := Probes(podOf(get, nil,
		&object.Probe{TCPSocket: &object.TCPSocketAction{Port: object.FromInt(443)}},
		&object.Probe{GRPC: &object.GRPCAction{Port: 9090, Service: &service}}))
	want := []Probe{
		{Check{Kind: HTTPS, Path: "/up?x=1", Status: "200-399", Host: "shop.example", Headers: "X-Token: a: b\n",
			Interval: 7 * time.Second, Timeout: 9 * time.Second, Rise: 2, Fall: 11}, 8080, "https:8080/up?x=1"},
		{Check{Kind: TCP, Interval: 10 * time.Second, Timeout: time.Second, Rise: 1, Fall: 3}, 443, "tcp:443"},
		{Check{Kind: GRPC, Name: "shop.Cart", Interval: 10 * time.Second, Timeout: time.Second, Rise: 1, Fall: 3}, 9090, "grpc:9090/shop.Cart"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || refused != nil {
		t.Errorf("got  %+v %v\nwant %+v", got, refused, want)
	}
	if got, refused := Probes(podOf(nil)); got != nil || refused != nil {
		t.Errorf("of a Pod without: %v %v", got, refused)
	}

	const at = "spec.containers[0].readinessProbe."
	web := object.FromString("web")
	for name, c := range map[string]struct {
		probe *object.Probe
		want  string
	}{
		"exec": {&object.Probe{Exec: &object.ExecAction{Command: []string{"true"}}},
			at + "exec: readinessProbe.exec: no program is run for a check; serve the answer over HTTP, or let the program write it into the document (ready: false)"},
		"host": {&object.Probe{HTTPGet: &object.HTTPGetAction{Port: web, Host: "169.254.169.254"}},
			at + "httpGet.host: readinessProbe.httpGet.host: a check goes to the endpoint itself; name the virtual host in the header Host"},
		"host of tcp": {&object.Probe{TCPSocket: &object.TCPSocketAction{Port: web, Host: "10.0.0.1"}},
			at + "tcpSocket.host: readinessProbe.tcpSocket.host: a check goes to the endpoint itself; leave it out"},
		"no such port": {&object.Probe{TCPSocket: &object.TCPSocketAction{Port: object.FromString("db")}},
			at + `tcpSocket.port: readinessProbe.tcpSocket.port: the container has no TCP port named "db"`},
		"a header that is not its to set": {&object.Probe{HTTPGet: &object.HTTPGetAction{Port: web, HTTPHeaders: header("Transfer-Encoding", "chunked")}},
			at + "httpGet.httpHeaders: readinessProbe.httpGet.httpHeaders: Transfer-Encoding is not a probe's to set: a check is one GET request and one answer"},
		"two lines in one": {&object.Probe{HTTPGet: &object.HTTPGetAction{Port: web, HTTPHeaders: header("X-A", "b\r\nHost: c")}},
			at + `httpGet.httpHeaders: readinessProbe.httpGet.httpHeaders: the value of "X-A" has a control character`},
		"a path of nonsense": {&object.Probe{HTTPGet: &object.HTTPGetAction{Port: web, Path: "/a b"}},
			at + "httpGet.path: readinessProbe.httpGet.path: the path has to be of at most 1024 printable ASCII characters, without spaces and #: write others as %20"},
		"times": {&object.Probe{TCPSocket: &object.TCPSocketAction{Port: web}, PeriodSeconds: 3601, TimeoutSeconds: 61},
			at + "periodSeconds: readinessProbe.periodSeconds: 3601 is not a number from 1 to 3600 seconds; " + at + "timeoutSeconds: readinessProbe.timeoutSeconds: 61 is not a number from 1 to 60 seconds"},
	} {
		got, refused := Probes(podOf(c.probe, get)) // the second one is good, and not followed alone
		var words []string
		for _, r := range refused {
			words = append(words, r.Field+": "+r.Text)
		}
		if text := strings.Join(words, "; "); text != c.want || got != nil {
			t.Errorf("%s: %s\nwant %s", name, text, c.want)
		}
	}
}

// Whose author says something of checks, or wants all used, is not checked unasked.
func TestUnasked(t *testing.T) {
	type annotations = map[string]string
	for _, c := range []struct {
		kind        string
		annotations annotations
		want        bool
	}{
		{"ClusterIP", nil, true},
		{"ClusterIP", annotations{"svcctl.io/out": "10.0.0.1"}, true},
		{"ClusterIP", annotations{"svcctl.io/health-check": "none"}, false},
		{"ClusterIP", annotations{"svcctl.io/health-check-interval": "x"}, false},
		{"ClusterIP", annotations{aws + "interval": "10"}, true},
		{"LoadBalancer", annotations{aws + "interval": "10"}, false},
	} {
		svc := service(c.kind, "a/TCP b/UDP", c.annotations)
		if got := Unasked(svc); (got != nil) != c.want || got != nil && summary(got) != "probe|probe" {
			t.Errorf("%+v: %+v", c, got)
		}
		svc.Spec.PublishNotReadyAddresses = true
		if Unasked(svc) != nil {
			t.Error("publishNotReadyAddresses is checked")
		}
	}
}
