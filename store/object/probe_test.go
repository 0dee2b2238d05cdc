package object

import (
	"reflect"
	"slices"
	"testing"
)

func TestValidateProbe(t *testing.T) {
	const at = "spec.containers[0].readinessProbe"
	for _, tc := range []struct {
		name  string
		probe Probe
		want  []string
	}{
		{"http", Probe{HTTPGet: &HTTPGetAction{Port: FromInt(8080), HTTPHeaders: []HTTPHeader{{"Host", "a.example"}}}}, nil},
		{"tcp by name", Probe{TCPSocket: &TCPSocketAction{Port: FromString("web")}}, nil},
		{"grpc", Probe{GRPC: &GRPCAction{Port: 9090}}, nil},
		{"exec", Probe{Exec: &ExecAction{Command: []string{"true"}}}, nil},
		{"nothing", Probe{}, []string{at + ": Required value: must specify a handler type"}},
		{"two", Probe{HTTPGet: &HTTPGetAction{Port: FromInt(80)}, GRPC: &GRPCAction{Port: 1}}, []string{
			at + ".grpc: Forbidden: may not specify more than 1 handler type"}},
		{"exec of nothing", Probe{Exec: &ExecAction{}}, []string{at + ".exec.command: Required value"}},
		{"numbers", Probe{GRPC: &GRPCAction{}, PeriodSeconds: -1, FailureThreshold: -2}, []string{
			at + ".periodSeconds: Invalid value: -1: must be greater than or equal to 0",
			at + ".failureThreshold: Invalid value: -2: must be greater than or equal to 0",
			at + ".grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive"}},
		{"http of nonsense", Probe{HTTPGet: &HTTPGetAction{Port: FromString("a--b"), Scheme: "ftp", HTTPHeaders: []HTTPHeader{{"a b", ""}}}}, []string{
			at + `.httpGet.port: Invalid value: "a--b": must not contain consecutive hyphens`,
			at + `.httpGet.scheme: Unsupported value: "ftp": supported values: "HTTP", "HTTPS"`,
			at + `.httpGet.httpHeaders[0].name: Invalid value: "a b": ` + headerNameText}},
		{"no port", Probe{TCPSocket: &TCPSocketAction{}}, []string{at + ".tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantTexts(t, Validate(goodPod(func(p *Pod) { p.Spec.Containers = []Container{{ReadinessProbe: &tc.probe}} }), Options{}), tc.want...)
		})
	}
}

func TestDefaultProbe(t *testing.T) {
	empty := ""
	got := goodPod(func(p *Pod) {
		p.Spec.Containers = []Container{
			{ReadinessProbe: &Probe{HTTPGet: &HTTPGetAction{Port: FromInt(80)}}},
			{ReadinessProbe: &Probe{GRPC: &GRPCAction{Port: 80}, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 4, FailureThreshold: 5}},
		}
	}).Spec.Containers
	want := []Container{
		{ReadinessProbe: &Probe{HTTPGet: &HTTPGetAction{Path: "/", Port: FromInt(80), Scheme: "HTTP"}, TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}},
		{ReadinessProbe: &Probe{GRPC: &GRPCAction{Port: 80, Service: &empty}, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 4, FailureThreshold: 5}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s, want %s", toJSON(t, goodPod(func(p *Pod) { p.Spec.Containers = got })), toJSON(t, goodPod(func(p *Pod) { p.Spec.Containers = want })))
	}
}

// Init containers count if they keep running; a Pod is judged by a condition Ready, whatever it says.
func TestPodIsProbed(t *testing.T) {
	always := "Always"
	probe := &Probe{TCPSocket: &TCPSocketAction{Port: FromInt(80)}}
	pod := goodPod(func(p *Pod) {
		p.Spec.InitContainers = []Container{{Name: "once", ReadinessProbe: probe}, {Name: "sidecar", RestartPolicy: &always}}
		p.Spec.Containers = []Container{{Name: "main"}}
	})
	var fields []string
	for field, c := range pod.Running() {
		fields = append(fields, field+" "+c.Name)
	}
	if want := []string{"spec.initContainers[1] sidecar", "spec.containers[0] main"}; !slices.Equal(fields, want) || pod.Probed() {
		t.Errorf("%v run, want %v; probed %t", fields, want, pod.Probed())
	}
	pod.Spec.InitContainers[1].ReadinessProbe = probe
	if !pod.Probed() || pod.Judged() {
		t.Errorf("probed %t, judged %t", pod.Probed(), pod.Judged())
	}
	pod.Status.Conditions = []PodCondition{{Type: "PodScheduled", Status: "True"}, {Type: "Ready", Status: "Unknown"}}
	if !pod.Judged() {
		t.Error("a condition Ready is no judgment")
	}
}
