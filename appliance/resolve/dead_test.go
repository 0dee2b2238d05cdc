package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// An endpoint without a check that accepts no connection is a problem, an error if it was the last one. With eject it
// is not used, unless that leaves none.
func TestBury(t *testing.T) {
	eject := func(value string) func(*object.Service) {
		return func(s *object.Service) { s.Metadata.Annotations = map[string]string{"svcctl.io/eject": value} }
	}
	headless := func(s *object.Service) { s.Spec.ClusterIPs, s.Spec.ClusterIP = []string{"None"}, "None" }
	udp := func(s *object.Service) { s.Spec.Ports[0].Protocol = object.ProtocolUDP }
	relayed := func(s *object.Service) { s.Metadata.Annotations["svcctl.io/proxy-mode"] = "userspace" }
	for _, test := range []struct {
		name           string
		svc            *object.Service
		refuse, silent []string
		used, problems string
		dead           int
	}{
		{"none is dead", service(eject("true")), nil, nil, "all", "", 0},
		{"one refuses", service(), []string{r1}, nil, "all", "EndpointRefuses warning", 1},
		{"one is silent", service(), nil, []string{r1}, "all", "EndpointSilent warning", 1},
		{"all are dead", service(), []string{l1, r1}, []string{r2}, "all", "EndpointRefuses error, EndpointSilent error", 3},
		{"one is out", service(eject("true")), []string{r1}, nil, l1 + " " + r2, "EndpointRefuses warning", 1},
		{"two are out", service(eject("true")), []string{r1}, []string{l1}, r2, "EndpointRefuses warning, EndpointSilent warning", 2},
		{"none is left", service(eject("true")), []string{l1, r1, r2}, nil, "all", "EndpointRefuses error, FailingOpen error", 3},
		{"it says false", service(eject("false")), []string{r1}, nil, "all", "EndpointRefuses warning", 1},
		{"a wrong value", service(eject("yes")), []string{r1}, nil, "all", "UnknownValue warning, EndpointRefuses warning", 1},
		{"a check asks", service(checked("svcctl.io/eject=true")), []string{r1}, nil, "all", "", 0},
		{"headless", service(eject("true"), headless), []string{r1}, nil, "none", "NotServed error, NoEffect warning, EndpointRefuses warning", 1},
		{"UDP alone", service(eject("true"), udp), []string{r1}, nil, "none", "NoEffect warning", 0},
		{"relayed", service(eject("true"), relayed), []string{r1}, nil, "none", "NoEffect warning, EndpointRefuses warning, NoRelay warning", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dead := map[netip.AddrPort]health.Dead{}
			for i, list := range [][]string{test.refuse, test.silent} {
				for _, at := range list {
					dead[netip.AddrPortFrom(netip.MustParseAddr(at), 80)] = health.Dead{Refuses: i == 0, Why: "because"}
				}
			}
			out := met(Input{Service: test.svc, Slices: []*object.EndpointSlice{slice(80, l1, r1, r2)}, Pods: podsOf{}, Observed: Observed{Dead: dead}}, facts(), judged(nil))
			var problems []string
			for _, p := range out.Problems {
				severity := "error"
				if p.Warning {
					severity = "warning"
				}
				problems = append(problems, p.Reason+" "+severity)
			}
			used := "none"
			if len(out.Ports) > 0 {
				if used = hosts(out.Ports[0].Pools[nft.PoolCluster]); used == l1+" "+r1+" "+r2 {
					used = "all"
				}
				if used == "" {
					used = "none"
				}
			}
			if got, want := fmt.Sprintf("%s: %s: %d", used, strings.Join(problems, ", "), len(out.Dead)), fmt.Sprintf("%s: %s: %d", test.used, test.problems, test.dead); got != want {
				t.Errorf("%s, want %s\n%v", got, want, out.Problems)
			}
		})
	}
}

// With balance destination-hash the kernel has one endpoint for each frontend. After a restart those that it would have passed over
// all the same are not taken for dead, and one that it would have preferred is.
func Test1129_destination_hash_after_a_restart(t *testing.T) {
	svc := service(func(s *object.Service) {
		s.Metadata.Annotations = map[string]string{object.AnnotationEject: "true", object.AnnotationBalance: "destination-hash"}
	})
	all := []string{l1, r1, r2}
	out := met(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, all...)}}, facts(), judged(nil))
	port := &out.Ports[0]
	first, ok := port.Choice(&port.Frontends[0], nft.PoolCluster)(netip.AddrPort{})
	if !ok || len(port.Pools[nft.PoolCluster]) != 3 {
		t.Fatalf("%v has no first choice of %v", first, port.Pools)
	}
	fe := Frontend{nft.IPv4, nft.TCP, netip.AddrPortFrom(port.Frontends[0].Addr, port.Frontends[0].Port)}
	for _, served := range port.Pools[nft.PoolCluster] {
		adopted := map[Frontend]*nft.ServicePort{fe: {Serving: []netip.AddrPort{served}, Pools: [nft.NumPools][]netip.AddrPort{nft.PoolCluster: {served}}}}
		after := met(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, all...)}, Observed: Observed{Adopted: adopted}}, facts(), judged(nil))
		dead := slices.ContainsFunc(after.Dead, func(d Dead) bool { return d.Endpoint == first && d.Assumed })
		switch got, _ := after.Ports[0].Choice(&after.Ports[0].Frontends[0], nft.PoolCluster)(netip.AddrPort{}); {
		case got != served:
			t.Errorf("the kernel had %v, and gets %v", served, got)
		case served == first && len(after.Dead) > 0:
			t.Errorf("%v was chosen before, and dead are %v", served, after.Dead)
		case served != first && !dead:
			t.Errorf("%v was chosen before, and %v is not taken for dead: %v", served, first, after.Dead)
		}
	}
}

// A pool of endpoints that no frontend leads to is not in the kernel: after a restart its endpoints are not taken for dead.
func Test1123_pools_that_no_frontend_leads_to_after_a_restart(t *testing.T) {
	local := object.PolicyLocal
	for name, c := range map[string]struct {
		policy *string
		all    []string
		dead   string // after the kernel had the first endpoint alone
	}{
		"everywhere": {nil, []string{r1, l1 + " n s t"}, ""},
		"local":      {&local, []string{l1, r1}, ""},
		"ejected":    {nil, []string{r1, r2}, r2},
	} {
		svc := service(func(s *object.Service) {
			s.Metadata.Annotations = map[string]string{object.AnnotationEject: "true"}
			s.Spec.InternalTrafficPolicy = c.policy
		})
		in := Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, c.all...)}}
		port := &met(in, facts(), judged(nil)).Ports[0]
		fe := &port.Frontends[0]
		had := &nft.ServicePort{Serving: []netip.AddrPort{netip.MustParseAddrPort(c.all[0] + ":80")}}
		had.Pools[fe.Internal.Pool] = had.Serving
		in.Observed.Adopted = map[Frontend]*nft.ServicePort{{nft.IPv4, nft.TCP, netip.AddrPortFrom(fe.Addr, fe.Port)}: had}
		dead := ""
		for _, d := range met(in, facts(), judged(nil)).Dead {
			dead += d.Endpoint.Addr().String()
		}
		if dead != c.dead {
			t.Errorf("%s: %q is taken for dead, want %q", name, dead, c.dead)
		}
	}
}
