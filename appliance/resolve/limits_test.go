package resolve

import (
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Limits are those of every port; what the kernel lacks is named, and the others hold.
func TestLimits(t *testing.T) {
	in := func() Input {
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}}
		svc.Metadata = object.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{
			object.AnnotationRateLimit: "10/s", object.AnnotationClientRateLimit: "60/m", object.AnnotationClientConnections: "5",
		}}
		svc.Spec = object.ServiceSpec{ClusterIPs: []string{"172.30.0.1"}, Ports: []object.ServicePort{{Port: 80, Protocol: "TCP"}}}
		return Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1)}}
	}
	want := nft.Limits{Rate: nft.Rate{Count: 10, Per: time.Second}, ClientRate: nft.Rate{Count: 60, Per: time.Minute}, ClientConnections: 5}
	out := Service(in(), facts())
	if len(out.Ports) != 1 || out.Ports[0].Limits != want || len(out.Problems) != 0 {
		t.Errorf("got %+v, want %+v and no problem", out, want)
	}
	for _, c := range []struct {
		lacks func(*Facts)
		want  nft.Limits
		names string
		warns int
	}{
		{func(f *Facts) { f.NoRates = true }, nft.Limits{ClientConnections: 5}, "CONFIG_NFT_LIMIT", 2},
		{func(f *Facts) { f.NoConnectionCounts = true }, nft.Limits{Rate: want.Rate, ClientRate: want.ClientRate}, "CONFIG_NFT_CONNLIMIT", 1},
	} {
		f := facts()
		c.lacks(f)
		out := Service(in(), f)
		if out.Ports[0].Limits != c.want || len(out.Problems) != c.warns || !strings.Contains(out.Problems[0].Message, c.names) || !strings.HasPrefix(out.Problems[0].Field, "metadata.annotations[svcctl.io/") {
			t.Errorf("without %s: limits %+v, problems %+v", c.names, out.Ports[0].Limits, out.Problems)
		}
	}
}

// Full endpoints leave the pools and stay among those that serve; with ranges of ports addresses are asked for.
func TestFullEndpointsLeave(t *testing.T) {
	for _, ranges := range []string{"", "80-90"} {
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}}
		svc.Metadata = object.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{object.AnnotationEndpointConnections: "5"}}
		if ranges != "" {
			svc.Metadata.Annotations[object.AnnotationPortRanges] = ranges
		}
		svc.Spec = object.ServiceSpec{ClusterIPs: []string{"172.30.0.1"}, Ports: []object.ServicePort{{Port: 80, Protocol: "TCP"}}}
		out := met(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1, r1)}}, facts(), func(d *Demand, o *Observed) {
			for _, limited := range d.Limited {
				for _, endpoint := range limited.Endpoints {
					if (endpoint.Port() == 0) != (ranges != "") || limited.Port.Service != "default/web" || len(limited.Frontends) != 1 {
						t.Errorf("asked for %s of %+v", endpoint, limited)
					}
					o.Count(limited.Port, endpoint, Fullness{Full: endpoint.Addr().String() == l1, Counted: true})
				}
			}
		})
		for _, p := range out.Ports {
			if pool := p.Pools[nft.PoolCluster]; len(pool) != 1 || pool[0].Addr().String() != r1 || len(p.Serving) != 2 {
				t.Errorf("%s: new connections go to %v, %v serve; want %s of both", p.ID, pool, p.Serving, r1)
			}
		}
		if out.EndpointConnections != 5 || len(out.Problems) != 1 || !strings.HasPrefix(out.Problems[0].Message, "endpoint "+l1+" is left out") {
			t.Errorf("limit %d, problems %+v", out.EndpointConnections, out.Problems)
		}
	}
}

// Until connections are counted, who is full is who the kernel was left without. A policy passes others over,
// and clients without a local endpoint get no answer rather than a refusal; who is full may bring a lower tier in.
func TestPassedOverIsNotFull(t *testing.T) {
	for name, tt := range map[string]struct {
		policy, full string
		second       string // the endpoint of a lower tier
		want         string
		otherwise    nft.Refusal // of policy Local
	}{
		"policy Local":          {policy: object.PolicyLocal, full: r1, want: r1, otherwise: nft.Blackhole},
		"it was used":           {policy: object.PolicyCluster, full: r1},
		"the lower tier serves": {policy: object.PolicyCluster, full: r1, second: l1, want: l1},
		"both tiers are full":   {policy: object.PolicyCluster, full: r1 + " " + l1, second: l1},
		"who waits in a tier":   {policy: object.PolicyCluster, full: l1, second: l1, want: r1},
	} {
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}}
		svc.Metadata = object.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{object.AnnotationEndpointConnections: "5"}}
		svc.Spec = object.ServiceSpec{ClusterIPs: []string{"172.30.0.1"}, InternalTrafficPolicy: &tt.policy, Ports: []object.ServicePort{{Port: 80, Protocol: "TCP"}}}
		f := facts()
		f.NodelessLocal = false
		slices := []*object.EndpointSlice{slice(80, r1)}
		if tt.second != "" {
			lower := slice(80, tt.second)
			lower.Metadata.Name, lower.Metadata.Annotations = "lower", map[string]string{object.AnnotationPriority: "1"}
			slices = append(slices, lower)
		}
		p := met(Input{Service: svc, Slices: slices}, f, func(d *Demand, o *Observed) {
			for _, limited := range d.Limited {
				for _, endpoint := range limited.Endpoints {
					o.Count(limited.Port, endpoint, Fullness{Full: strings.Contains(tt.full, endpoint.Addr().String())})
				}
			}
		}).Ports[0]
		var got []string
		for _, ap := range p.Pools[nft.PoolCluster] {
			got = append(got, ap.Addr().String())
		}
		if strings.Join(got, " ") != tt.want || len(p.Serving) != len(slices) {
			t.Errorf("%s: new connections go to %q of %v, want %q", name, got, p.Serving, tt.want)
		}
		if at := p.Frontends[0].Internal; tt.policy == object.PolicyLocal && at.Fallback != tt.otherwise {
			t.Errorf("%s: clients without a local endpoint get answer %v, want %v", name, at.Fallback, tt.otherwise)
		}
	}
}
