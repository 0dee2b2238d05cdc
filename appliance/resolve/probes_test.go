package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// probedPod is a Pod with a container for each probe: a TCP port, or "exec".
func probedPod(judged bool, probes ...string) *object.Pod {
	pod := &object.Pod{Metadata: object.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	for _, text := range probes {
		probe := &object.Probe{Exec: &object.ExecAction{Command: []string{"true"}}}
		var port int32
		if n, _ := fmt.Sscan(text, &port); n == 1 {
			probe = &object.Probe{TCPSocket: &object.TCPSocketAction{Port: object.FromInt(port)}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, object.Container{ReadinessProbe: probe})
	}
	if judged {
		pod.Status.Conditions = []object.PodCondition{{Type: "Ready", Status: "True"}}
	}
	object.Default(pod)
	return pod
}

// podsOf are Pods of a namespace by name.
type podsOf map[string]*object.Pod

func (p podsOf) Pod(key string) *object.Pod {
	_, name, _ := strings.Cut(key, "/")
	return p[name]
}

// TestProbesOfPods: the endpoints l1 and r1 are the Pods p1 and p2.
func TestProbesOfPods(t *testing.T) {
	selecting := func(s *object.Service) { s.Spec.Selector = map[string]string{"app": "web"} }
	both := l1 + " " + r1
	twoPorts := func(judged bool) map[string]*object.Pod {
		return map[string]*object.Pod{"p1": probedPod(judged, "8080", "8081"), "p2": probedPod(judged, "8080")}
	}
	for _, test := range []struct {
		name  string
		svc   *object.Service
		pods  map[string]*object.Pod
		down  string // address:port
		serve string
		asked int
		// reasons of problems, Pods to watch besides those of the selector, Probed
		reasons, watch string
		probed         bool
	}{
		{"unasked", service(selecting), twoPorts(false), "", both, 3, "", "", true},
		{"all have to pass", service(selecting), twoPorts(false), l1 + ":8081", r1, 3, "EndpointDown", "", true},
		{"the other passes alone", service(selecting), twoPorts(false), r1 + ":8080", l1, 3, "EndpointDown", "", true},
		{"judged", service(selecting), twoPorts(true), l1 + ":8081", both, 0, "", "", true},
		{"judged, and asked for", service(selecting, checked("svcctl.io/health-check=probe")), twoPorts(true), l1 + ":8081", r1, 3, "EndpointDown", "", true},
		{"switched off", service(selecting, checked("svcctl.io/health-check=none")), twoPorts(false), l1 + ":8081", both, 0, "", "", false},
		{"another check", service(selecting, checked("svcctl.io/health-check=tcp")), twoPorts(false), l1 + ":8081", both, 2, "", "", false},
		{"no selector", service(checked("svcctl.io/health-check=probe")), twoPorts(false), "", both, 3, "", "p1 p2", true},
		{"no Pod", service(selecting), map[string]*object.Pod{"p2": probedPod(false, "80")}, r1 + ":80", l1, 1, "EndpointDown", "p1", true},
		{"without a probe", service(selecting, checked("svcctl.io/health-check=probe")), map[string]*object.Pod{"p1": probedPod(false), "p2": probedPod(false)}, "", both, 0, "", "", false},
		{"a program", service(selecting), map[string]*object.Pod{"p1": probedPod(false, "8081", "exec"), "p2": probedPod(false, "exec")}, l1 + ":8081", both, 0, "ProbeRefused ProbeRefused", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := slice(80, l1, r1)
			for i, name := range []string{"p1", "p2"} {
				s.Endpoints[i].TargetRef = &object.ObjectReference{Kind: object.KindPod, Name: name}
			}
			out := met(Input{Service: test.svc, Slices: []*object.EndpointSlice{s}, Pods: podsOf(test.pods)}, facts(), verdicts(func(at health.Target) health.Verdict {
				if at.Addr.String() == test.down {
					return health.Verdict{State: health.Down}
				}
				return health.Verdict{State: health.Up}
			}))
			slices.Sort(out.Pods)
			got := fmt.Sprint(hosts(out.Ports[0].Pools[nft.PoolCluster]), "|", len(out.Checked), "|", reasons(out.Problems), "|", strings.Join(out.Pods, " "), "|", out.Probed)
			if want := fmt.Sprint(test.serve, "|", test.asked, "|", test.reasons, "|", test.watch, "|", test.probed); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		})
	}
}
