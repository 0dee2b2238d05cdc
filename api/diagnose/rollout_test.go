package diagnose

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// In a rollout the box says which versions it serves, also of a Service that the API does not have any more, and judges by the
// objects of the API only when it serves these.
func TestRollout(t *testing.T) {
	ports := []wire.PortState{{Name: "http", Protocol: "TCP", Family: "ipv4", Frontends: []string{"10.96.0.10:80"}, Endpoints: []string{"10.1.0.1:80"}}}
	svc := &object.Service{Metadata: object.ObjectMeta{Namespace: "default", Name: "web"}, Spec: object.ServiceSpec{Type: object.TypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}}}
	for what, c := range map[string]struct {
		rollout wire.ServiceRollout
		svc     *object.Service
		ports   []wire.PortState
		want    []string
		level   Level
	}{
		"before":                 {wire.ServiceRollout{ID: "r", Phase: "Baking", Step: 1, Of: 2}, svc, ports, []string{"serves the version before rollout r, which is baking in step 1 of 2", "10.96.0.10:80 to 10.1.0.1:80"}, Good},
		"before, deleted":        {wire.ServiceRollout{ID: "r", Phase: "Baking", Step: 1, Of: 2}, nil, ports, []string{"serves the version before rollout r", "10.96.0.10:80 to 10.1.0.1:80"}, Good},
		"before, not there":      {wire.ServiceRollout{ID: "r", Phase: "Baking", Step: 1, Of: 2}, svc, nil, []string{"before the rollout nothing was served"}, Good},
		"before, stopped":        {wire.ServiceRollout{ID: "r", Phase: "Stopped", Step: 1, Of: 2, Why: "box b fails"}, svc, ports, []string{"it stopped: box b fails", "svcctl fleet rollout undo"}, Doubt},
		"the new one":            {wire.ServiceRollout{ID: "r", Phase: "Baking", Step: 1, Of: 2, New: true}, svc, ports, []string{"serves the new version of rollout r", "the Service exists"}, Bad},
		"the new one is no more": {wire.ServiceRollout{ID: "r", Phase: "Baking", Step: 1, Of: 2, New: true}, nil, nil, []string{"serves the new version of rollout r", "there is no Service web"}, Bad},
	} {
		findings := Service(Facts{Namespace: "default", Name: "web", Service: c.svc, Status: &wire.Status{Ready: true, Synced: true}, State: &wire.ServiceState{Ports: c.ports, Rollout: &c.rollout}})
		text := ""
		for _, f := range findings {
			text += f.Text + "\n" + strings.Join(f.Details, "\n") + "\n" + f.Next + "\n"
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: nothing of %q in:\n%s", what, want, text)
			}
		}
		if got := Worst(findings); c.level != Bad && got != c.level {
			t.Errorf("%s: level %d, want %d:\n%s", what, got, c.level, text)
		}
		if strings.Contains(text, "the Service exists") && !c.rollout.New {
			t.Errorf("%s: it judges by the new version:\n%s", what, text)
		}
	}
}
