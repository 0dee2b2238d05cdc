package object

import (
	"testing"
	"time"
)

func goodPod(changes ...func(*Pod)) *Pod {
	pod := &Pod{
		TypeMeta: TypeMeta{Kind: KindPod, APIVersion: APIVersionCore},
		Metadata: ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}},
		Status:   PodStatus{PodIP: "10.0.0.1"},
	}
	for _, change := range changes {
		change(pod)
	}
	Default(pod)
	return pod
}

func TestValidatePod(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Pod)
		want   []string
	}{
		{"three lines", func(*Pod) {}, nil},
		{"no address", func(p *Pod) { p.Status.PodIP = "" }, nil},
		{"two families", func(p *Pod) { p.Status.PodIPs = []PodIP{{"10.0.0.1"}, {"fd00::1"}} }, nil},
		{"podIPs alone", func(p *Pod) { p.Status.PodIP, p.Status.PodIPs = "", []PodIP{{"fd00::1"}} }, nil},
		{"two of one family", func(p *Pod) { p.Status.PodIPs = []PodIP{{"10.0.0.1"}, {"10.0.0.2"}} }, []string{
			`status.podIPs: Invalid value: "10.0.0.2": may specify no more than one IP for each IP family`}},
		{"podIP is not the first", func(p *Pod) { p.Status.PodIPs = []PodIP{{"fd00::1"}, {"10.0.0.1"}} }, []string{
			`status.podIP: Invalid value: "10.0.0.1": must be the first of status.podIPs`}},
		{"no address at all", func(p *Pod) { p.Status.PodIP = "web-1.example.com" }, []string{
			`status.podIP: Invalid value: "web-1.example.com": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		{"loopback", func(p *Pod) { p.Status.PodIP = "127.0.0.1" }, []string{
			`status.podIP: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`}},
		{"link-local", func(p *Pod) { p.Status.PodIP = "fe80::1" }, []string{
			`status.podIP: Invalid value: "fe80::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`}},
		{"link-local multicast", func(p *Pod) { p.Status.PodIP = "224.0.0.9" }, []string{
			`status.podIP: Invalid value: "224.0.0.9": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)`}},
		{"multicast", func(p *Pod) { p.Status.PodIPs = []PodIP{{"10.0.0.1"}, {"ff0e::1"}} }, []string{
			`status.podIPs[1].ip: Invalid value: "ff0e::1": may not be a multicast address (224.0.0.0/4, ff00::/8)`}},
		{"names", func(p *Pod) { p.Spec.NodeName, p.Spec.Hostname, p.Spec.Subdomain = "Node", "a.b", "-x" }, []string{
			`spec.nodeName: Invalid value: "Node": ` + subdomainDetail,
			`spec.hostname: Invalid value: "a.b": must not contain dots`,
			`spec.subdomain: Invalid value: "-x": ` + dns1123LabelText,
		}},
		{"ports", func(p *Pod) {
			p.Spec.InitContainers = []Container{{Ports: []ContainerPort{{ContainerPort: 0}}}}
			p.Spec.Containers = []Container{{}, {Ports: []ContainerPort{{ContainerPort: 80, Name: "web--1", Protocol: "ICMP"}}}}
		}, []string{
			`spec.initContainers[0].ports[0].containerPort: Invalid value: 0: must be between 1 and 65535, inclusive`,
			`spec.containers[1].ports[0].name: Invalid value: "web--1": must not contain consecutive hyphens`,
			`spec.containers[1].ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`,
		}},
		{"phase", func(p *Pod) { p.Status.Phase = "running" }, []string{
			`status.phase: Unsupported value: "running": supported values: "Failed", "Pending", "Running", "Succeeded", "Unknown"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantTexts(t, Validate(goodPod(tc.change), Options{}), tc.want...)
		})
	}
}

func TestPodKeepsLegacyAddresses(t *testing.T) {
	legacy := func(p *Pod) { p.Status.PodIP = "10.0.0.001" }
	wantTexts(t, Validate(goodPod(legacy), Options{}), `status.podIP: Invalid value: "10.0.0.001": must not have leading 0s`)
	wantTexts(t, ValidateUpdate(goodPod(legacy), goodPod(legacy), Options{}))
	pod := goodPod(legacy)
	NormalizeLegacyIPs(pod)
	wantTexts(t, Validate(pod, Options{}))
	if addr := pod.Addr(IPv4); addr.String() != "10.0.0.1" {
		t.Errorf("normalized to %s", addr)
	}
}

func TestPodIsReady(t *testing.T) {
	condition := func(kind, status string) PodCondition { return PodCondition{Type: kind, Status: status} }
	for _, tc := range []struct {
		status PodStatus
		want   bool
	}{
		{PodStatus{}, true},
		{PodStatus{Phase: PodRunning}, true},
		{PodStatus{Phase: PodPending}, false},
		{PodStatus{Phase: PodUnknown}, false},
		{PodStatus{Conditions: []PodCondition{condition("Ready", "True")}}, true},
		{PodStatus{Conditions: []PodCondition{condition("Ready", "False")}}, false},
		{PodStatus{Conditions: []PodCondition{condition("Ready", "Unknown")}}, false},
		{PodStatus{Phase: PodRunning, Conditions: []PodCondition{condition("PodScheduled", "True")}}, false},
		{PodStatus{Phase: PodPending, Conditions: []PodCondition{condition("PodScheduled", "True"), condition("Ready", "True")}}, true},
	} {
		pod := goodPod(func(p *Pod) { p.Status = tc.status })
		if pod.Ready() != tc.want {
			t.Errorf("%+v: ready %t, want %t", tc.status, pod.Ready(), tc.want)
		}
	}
	for phase, want := range map[string]bool{"": false, PodRunning: false, PodSucceeded: true, PodFailed: true} {
		if got := goodPod(func(p *Pod) { p.Status.Phase = phase }).Terminal(); got != want {
			t.Errorf("phase %q: terminal %t, want %t", phase, got, want)
		}
	}
	if goodPod().Terminating() || !goodPod(func(p *Pod) { p.Metadata.DeletionTimestamp = new(time.Time) }).Terminating() {
		t.Error("a Pod terminates when it has a deletionTimestamp, and only then")
	}
}

func TestPodTargetPort(t *testing.T) {
	always, never := "Always", "OnFailure"
	pod := goodPod(func(p *Pod) {
		port := func(name string, number int32, protocol string) []ContainerPort {
			return []ContainerPort{{Name: name, ContainerPort: number, Protocol: protocol}}
		}
		p.Spec.InitContainers = []Container{
			{Ports: port("setup", 1, "")},
			{Ports: port("setup", 2, ""), RestartPolicy: &never},
			{Ports: port("metrics", 3, ""), RestartPolicy: &always},
			{Ports: port("web", 4, ""), RestartPolicy: &always},
		}
		p.Spec.Containers = []Container{{Ports: port("dns", 53, "UDP")}, {Ports: port("web", 80, "")}, {Ports: port("web", 81, "")}}
	})
	for _, tc := range []struct {
		target   IntOrString
		protocol string
		want     int32
	}{
		{FromInt(8080), "TCP", 8080},
		{FromString("web"), "TCP", 80},
		{FromString("web"), "UDP", 0},
		{FromString("dns"), "UDP", 53},
		{FromString("dns"), "TCP", 0},
		{FromString("metrics"), "TCP", 3},
		{FromString("setup"), "TCP", 0},
	} {
		number, found := pod.TargetPort(&ServicePort{Protocol: tc.protocol, TargetPort: tc.target})
		if number != tc.want || found != (tc.want != 0) {
			t.Errorf("%s/%s: %d, %t; want %d", tc.target, tc.protocol, number, found, tc.want)
		}
	}
}

func TestPodWarnings(t *testing.T) {
	noIP := func(phase string) []string {
		return Warnings(goodPod(func(p *Pod) { p.Status = PodStatus{Phase: phase} }))
	}
	if got := noIP(""); len(got) != 1 || got[0] != "status.podIP: without an address the Pod is no endpoint of any Service" {
		t.Errorf("without an address: %q", got)
	}
	if got := append(noIP(PodPending), Warnings(goodPod())...); len(got) != 0 {
		t.Errorf("unexpected warnings %q", got)
	}
}
