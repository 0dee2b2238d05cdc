package resolve

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// TestWhoMayConnect reads the annotations about clients: which frontends ask for what, and what is
// told of values that make no sense.
func TestWhoMayConnect(t *testing.T) {
	sets := map[string]*nft.SourceSet{
		"office": nft.NewSourceSet("office", 1, nil), "bots": nft.NewSourceSet("bots", 1, nil), "unread": nil,
	}
	const ours, extra, groups = AnnotationSourceSets, AnnotationELBExtraGroups, AnnotationELBGroups
	const ranges = "lb [192.0.2.0/24] -; "
	for _, tt := range []struct {
		name        string
		kind        string
		annotations map[string]string
		ranges      []string
		want        string // lb, ext and node: ranges, sets
		problem     string // part of it, or ""
	}{
		{"nothing", "LoadBalancer", nil, nil, "lb open -; ext open -; node open -", ""},
		{"ranges", "LoadBalancer", nil, []string{"192.0.2.0/24"}, ranges + "ext open -; node open -", ""},
		{"ranges everywhere", "LoadBalancer", map[string]string{AnnotationSourceRangesApply: "all"}, []string{"192.0.2.0/24"}, ranges + "ext [192.0.2.0/24] -; node [192.0.2.0/24] -", ""},
		{"NLB", "LoadBalancer", map[string]string{"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"}, []string{"192.0.2.0/24"}, ranges + "ext [192.0.2.0/24] -; node [192.0.2.0/24] -", ""},
		{"NLB as on a box", "LoadBalancer", map[string]string{"service.beta.kubernetes.io/aws-load-balancer-type": "nlb", AnnotationSourceRangesApply: "load-balancer"}, []string{"192.0.2.0/24"}, ranges + "ext open -; node open -", ""},
		{"no NLB", "LoadBalancer", map[string]string{"service.beta.kubernetes.io/aws-load-balancer-type": "classic"}, []string{"192.0.2.0/24"}, ranges + "ext open -; node open -", "classic"},
		{"no word", "LoadBalancer", map[string]string{AnnotationSourceRangesApply: "All"}, []string{"192.0.2.0/24"}, ranges + "ext [192.0.2.0/24] -; node [192.0.2.0/24] -", `metadata.annotations[svcctl.io/source-ranges-apply] UnknownValue "All" is neither`},
		{"no ranges", "LoadBalancer", map[string]string{AnnotationSourceRangesApply: "all"}, nil, "lb open -; ext open -; node open -", "NoEffect has no effect: the Service has neither"},
		{"sets", "LoadBalancer", map[string]string{ours: "office, !bots"}, nil, "lb open office!bots; ext open -; node open -", ""},
		{"sets and ranges", "LoadBalancer", map[string]string{extra: "office"}, []string{"192.0.2.0/24"}, "lb [192.0.2.0/24] office; ext open -; node open -", ""},
		{"sets instead of ranges", "LoadBalancer", map[string]string{groups: "office"}, []string{"192.0.2.0/24"}, "lb open office; ext open -; node open -", ""},
		{"everybody but some", "LoadBalancer", map[string]string{ours: "office,!bots"}, []string{"0.0.0.0/0"}, "lb open !bots; ext open -; node open -", ""},
		{"node ports", "NodePort", map[string]string{ours: "!bots"}, nil, "ext open !bots; node open !bots", ""},
		{"AWS without a load balancer", "NodePort", map[string]string{extra: "office"}, nil, "ext open -; node open -", ""},
		{"unknown", "LoadBalancer", map[string]string{ours: "office,ofice"}, nil, "lb [] -; ext open -; node open -", "metadata.annotations[svcctl.io/source-sets] UnknownSourceSet there is no --source-set ofice"},
		{"unknown that is shut out", "NodePort", map[string]string{ours: "!ofice"}, nil, "ext [] -; node [] -", "UnknownSourceSet there is no --source-set ofice"},
		{"never read", "NodePort", map[string]string{ours: "unread"}, nil, "ext [] -; node [] -", "UnknownSourceSet the file of --source-set unread"},
		{"no name", "LoadBalancer", map[string]string{ours: "office,,!"}, nil, "lb [] -; ext open -; node open -", `InvalidSourceSets "" is no name`},
		{"AWS shuts nobody out", "LoadBalancer", map[string]string{extra: "!bots"}, nil, "lb [] -; ext open -; node open -", `metadata.annotations[` + extra + `] InvalidSourceSets "!bots" is no name`},
		{"too many", "LoadBalancer", map[string]string{ours: "office,bots,a,b,c,d,e,f,g"}, nil, "lb [] -; ext open -; node open -", "InvalidSourceSets 9 source sets are named"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := exposed(tt.kind, tt.annotations)
			svc.Spec.LoadBalancerSourceRanges = tt.ranges
			out := met(Input{Service: svc}, &Facts{}, func(d *Demand, o *Observed) {
				for _, n := range d.Needs {
					if set, known := sets[n.Name]; known {
						o.Answer(n, State{Set: set, Missing: set == nil})
					}
				}
			})
			var got []string
			for _, fe := range out.Ports[0].Frontends {
				if kind := map[nft.FrontendKind]string{nft.LoadBalancerIP: "lb", nft.ExternalIP: "ext", nft.NodePort: "node"}[fe.Kind]; kind != "" {
					got = append(got, kind+" "+clientsText(&fe))
				} else if fe.Sources != nil || fe.Sets != nil {
					t.Errorf("the cluster IP asks for %s", clientsText(&fe))
				}
			}
			if got := strings.Join(got, "; "); got != tt.want {
				t.Errorf("clients are\n%s\nwant\n%s", got, tt.want)
			}
			sameProblem(t, out.Problems, tt.problem)
		})
	}
}

func TestIdleTimeout(t *testing.T) {
	for _, tt := range []struct {
		kind, key, value string
		want             time.Duration
		problem          string
	}{
		{"NodePort", AnnotationIdle, "60s", time.Minute, ""},
		{"NodePort", AnnotationIdle, " 60 ", time.Minute, ""},
		{"NodePort", AnnotationIdle, "168h", 168 * time.Hour, ""},
		{"NodePort", AnnotationIdle, "169h", 0, `metadata.annotations[svcctl.io/idle-timeout] InvalidAnnotation "169h" is no time from 1s to 168h0m0s`},
		{"NodePort", AnnotationIdle, "1500ms", 0, "InvalidAnnotation"},
		{"NodePort", AnnotationIdle, "0", 0, "InvalidAnnotation"},
		{"NodePort", AnnotationIdle, "-1s", 0, "InvalidAnnotation"},
		{"NodePort", AnnotationIdle, "soon", 0, "InvalidAnnotation"},
		{"LoadBalancer", AnnotationELBIdle, "4000", 4000 * time.Second, ""},
		{"LoadBalancer", AnnotationELBIdle, "4001", 0, "write seconds, from 1 to 4000"},
		{"LoadBalancer", AnnotationELBIdle, "60s", 0, "write seconds, from 1 to 4000"},
		{"NodePort", AnnotationELBIdle, "60", 0, ""}, // which annotation.Unserved names
	} {
		out := Service(Input{Service: exposed(tt.kind, map[string]string{tt.key: tt.value})}, &Facts{})
		if got := out.Ports[0].Idle; got != tt.want {
			t.Errorf("%s: %q is %v, want %v", tt.key, tt.value, got, tt.want)
		}
		sameProblem(t, out.Problems, tt.problem)
	}
	both := exposed("LoadBalancer", map[string]string{AnnotationELBIdle: "60", AnnotationIdle: "2m"})
	if out := Service(Input{Service: both}, &Facts{}); out.Ports[0].Idle != 2*time.Minute {
		t.Errorf("of both annotations %v is taken, want ours", out.Ports[0].Idle)
	}
	out := Service(Input{Service: both}, &Facts{NoTimeouts: true})
	if out.Ports[0].Idle != 0 {
		t.Error("a kernel without timeouts is asked for one")
	}
	sameProblem(t, out.Problems, "NotSupported")
	both.Spec.Ports[0].Protocol = "SCTP"
	sameProblem(t, Service(Input{Service: both}, &Facts{}).Problems, "NoEffect has no effect on ports of SCTP")
}

// exposed is a Service with an address of every kind that its type has.
func exposed(kind string, annotations map[string]string) *object.Service {
	svc := &object.Service{}
	svc.Metadata.Namespace, svc.Metadata.Name, svc.Metadata.Annotations = "default", "web", annotations
	svc.Spec.Type, svc.Spec.ClusterIPs, svc.Spec.ExternalIPs = kind, []string{"10.96.0.1"}, []string{"203.0.113.9"}
	svc.Spec.Ports = []object.ServicePort{{Port: 80, NodePort: 30080, Protocol: "TCP"}}
	if kind == "LoadBalancer" {
		svc.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: "198.51.100.4"}}
	}
	return svc
}

func clientsText(fe *nft.Frontend) string {
	text := "open"
	if fe.Sources != nil {
		text = fmt.Sprint(append([]netip.Prefix{}, fe.Sources...))
	}
	if fe.Sets == nil {
		return text + " -"
	}
	text += " "
	for _, s := range fe.Sets.Allow {
		text += s.Name
	}
	for _, s := range fe.Sets.Deny {
		text += "!" + s.Name
	}
	return text
}

// sameProblem asserts that there is a problem with a text, or with "" none.
func sameProblem(t *testing.T, problems []Problem, want string) {
	t.Helper()
	var all strings.Builder
	for _, p := range problems {
		fmt.Fprintf(&all, "%s %s %s\n", p.Field, p.Reason, p.Message)
	}
	if got := all.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
		t.Errorf("problems are\n%swant %q", got, want)
	}
}
