package resolve

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// A Service is fast where that breaks nothing that it is promised. One that asks in vain has the reason in a warning.
func Test1073_who_is_fast(t *testing.T) {
	const fastKey = object.AnnotationFastPath
	asked, all := FastPath{Asked: true}, FastPath{All: true}
	for name, tt := range map[string]struct {
		box         FastPath
		annotations map[string]string
		protocol    string
		fast        bool
		why         string // words of the reason
		warns       string // the reason of the warning
	}{
		"off":                      {FastPath{}, nil, "TCP", false, "--fast-path off", ""},
		"off, and asked":           {FastPath{}, map[string]string{fastKey: "true"}, "TCP", false, "--fast-path off", ReasonFastPathUnused},
		"services, not asked":      {asked, nil, "TCP", false, "does not ask", ""},
		"services, asked":          {asked, map[string]string{fastKey: "true"}, "TCP", true, "", ""},
		"services, asked, UDP":     {asked, map[string]string{fastKey: "true"}, "UDP", true, "", ""},
		"all":                      {all, nil, "TCP", true, "", ""},
		"all, and declined":        {all, map[string]string{fastKey: "false"}, "TCP", false, `"false"`, ""},
		"a wrong value":            {all, map[string]string{fastKey: "yes"}, "TCP", false, "wrong", reasonUnknownValue},
		"no kernel":                {FastPath{All: true, Lacks: "no flowtables"}, nil, "TCP", false, "no flowtables", ""},
		"no kernel, and asked":     {FastPath{Asked: true, Lacks: "no flowtables"}, map[string]string{fastKey: "true"}, "TCP", false, "no flowtables", ReasonFastPathUnused},
		"idle timeout":             {all, map[string]string{AnnotationIdle: "60s"}, "TCP", false, "idle-timeout does not apply", ""},
		"idle timeout, and asked":  {asked, map[string]string{AnnotationIdle: "60s", fastKey: "true"}, "TCP", false, "idle-timeout does not apply", ReasonFastPathUnused},
		"affinity by every answer": {asked, map[string]string{object.AnnotationAffinityRefresh: "packets", fastKey: "true"}, "TCP", false, "affinity-refresh: packets", ReasonFastPathUnused},
		"relayed, and asked":       {asked, map[string]string{annotation.ProxyMode: "userspace", fastKey: "true"}, "TCP", false, "end at the relay", ReasonFastPathUnused},
		"SCTP, and asked":          {asked, map[string]string{fastKey: "true"}, "SCTP", false, "not SCTP", ReasonFastPathUnused},
	} {
		t.Run(name, func(t *testing.T) {
			svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}}
			svc.Metadata = object.ObjectMeta{Namespace: "default", Name: "web", Annotations: tt.annotations}
			svc.Spec = object.ServiceSpec{ClusterIPs: []string{"172.30.0.1"}, SessionAffinity: object.AffinityClientIP, Ports: []object.ServicePort{{Port: 80, Protocol: tt.protocol}}}
			f := facts()
			f.FastPath = tt.box
			out := met(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1)}}, f, func(*Demand, *Observed) {})
			if len(out.Ports) != 1 || out.Ports[0].Fast != tt.fast {
				t.Fatalf("ports %+v, want one that is fast: %v", out.Ports, tt.fast)
			}
			if slow := out.Ports[0].Slow; !strings.Contains(slow, tt.why) || (slow == "") != (tt.why == "") {
				t.Errorf("it is slow because %q, want %q", slow, tt.why)
			}
			warned := ""
			for _, p := range out.Problems {
				if p.Reason == ReasonFastPathUnused || p.Field == annotation.Field(fastKey) {
					warned = p.Reason
					if !p.Warning || tt.warns == ReasonFastPathUnused && !strings.Contains(p.Message, tt.why) {
						t.Errorf("problem %+v, want a warning with %q", p, tt.why)
					}
				}
			}
			if warned != tt.warns {
				t.Errorf("warned of %q, want %q: %+v", warned, tt.warns, out.Problems)
			}
		})
	}
}
