package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

func annotate(pairs ...string) func(*object.Service) {
	return func(s *object.Service) { s.Metadata.Annotations = pairsOf(pairs) }
}

func pairsOf(pairs []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func shared(s *object.EndpointSlice, name string, pairs ...string) *object.EndpointSlice {
	s.Metadata.Name, s.Metadata.Annotations = name, pairsOf(pairs)
	return s
}

func TestBalanceOfAService(t *testing.T) {
	const ours, cilium = object.AnnotationBalance, object.AnnotationCiliumBalance
	for _, c := range []struct {
		name        string
		annotations []string
		want        nft.Balance
		problem     string
	}{
		{"none: the default", nil, nft.SourceHash, ""},
		{"a name", []string{ours, "maglev"}, nft.Maglev, ""},
		{"an alias", []string{ours, "dh"}, nft.DestinationHash, ""},
		{"Cilium's", []string{cilium, "maglev"}, nft.Maglev, ""},
		{"ours before Cilium's", []string{ours, "random", cilium, "maglev"}, nft.Random, ""},
		{"an unknown one of Cilium", []string{cilium, "least-request"}, nft.SourceHash, `UnknownValue metadata.annotations[service.cilium.io/lb-algorithm] Unsupported value: "least-request"`},
		{"IPVS' of open connections", []string{ours, "wlc"}, nft.LeastConnection, ""},
		{"one of an older object", []string{ours, "rond-robin"}, nft.SourceHash, `UnknownValue metadata.annotations[svcctl.io/balance] Unsupported value: "rond-robin"`},
	} {
		f := facts()
		f.Balance = nft.SourceHash
		out := Service(Input{Service: service(annotate(c.annotations...)), Slices: []*object.EndpointSlice{slice(80, l1, l2)}}, f)
		if got := out.Ports[0].Balance; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, BalanceName(got), BalanceName(c.want))
		}
		wantProblem(t, c.name, out, c.problem)
	}
}

// wantProblem holds the problems of an output against "Reason field text"; "": none.
func wantProblem(t *testing.T, name string, out Output, want string) {
	t.Helper()
	var got []string
	for _, p := range out.Problems {
		got = append(got, p.Reason+" "+p.Field+" "+p.Message)
	}
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		t.Errorf("%s: problems %q, want %q", name, got, want)
	}
}

// problemText joins the problems of fields with an annotation, each "Reason message"; "": there is none.
func problemText(out *Output, annotation string) (text string) {
	for _, p := range out.Problems {
		if strings.Contains(p.Field, annotation) {
			text += p.Reason + " " + p.Message
		}
	}
	return text
}

func TestWeightsAndTiers(t *testing.T) {
	const weight, weights, priority, cilium = object.AnnotationWeight, object.AnnotationWeights, object.AnnotationPriority, object.AnnotationCiliumWeight
	for _, c := range []struct {
		name           string
		annotations    []string
		slices         []*object.EndpointSlice
		cluster, local string
		weights        string
	}{
		{"none", nil, []*object.EndpointSlice{slice(80, l1, r1)}, l1 + " " + r1, l1, ""},
		{"of a slice", nil, []*object.EndpointSlice{shared(slice(80, l1), "a", weight, "3"), shared(slice(80, r1), "b")}, l1 + " " + r1, l1, l1 + "=3"},
		{"Cilium's", nil, []*object.EndpointSlice{shared(slice(80, l1), "a", cilium, "3"), shared(slice(80, r1), "b", cilium, "9", weight, "2")}, l1 + " " + r1, l1, l1 + "=3 " + r1 + "=2"},
		{"of the Service", []string{weights, l1 + "=7"}, []*object.EndpointSlice{shared(slice(80, l1, r1), "a", weight, "3")}, l1 + " " + r1, l1, l1 + "=7 " + r1 + "=3"},
		{"zero", []string{weights, l1 + "=0"}, []*object.EndpointSlice{slice(80, l1, r1)}, r1, "", ""},
		{"zero, and one that drains", []string{weights, l1 + "=0"}, []*object.EndpointSlice{slice(80, l1, r1+" n s t")}, r1, "", ""},
		{"twice: the larger weight", nil, []*object.EndpointSlice{shared(slice(80, l1), "a", weight, "3"), shared(slice(80, l1), "b", weight, "2")}, l1, l1, l1 + "=3"},
		{"twice: the lower tier first", nil, []*object.EndpointSlice{shared(slice(80, l1), "a", weight, "3", priority, "2"), shared(slice(80, l1), "b", weight, "2")}, l1, l1, l1 + "=2"},
		{"twice: the better state first", nil, []*object.EndpointSlice{shared(slice(80, l1+" n"), "a", weight, "3"), shared(slice(80, l1), "b", weight, "2")}, l1, l1, l1 + "=2"},
		{"a sorry server waits", nil, []*object.EndpointSlice{slice(80, l1), shared(slice(80, r1, l2), "b", priority, "9")}, l1, l1, ""},
		{"a ready one of a higher tier before one that drains", nil, []*object.EndpointSlice{slice(80, l1+" n s t"), shared(slice(80, r1), "b", priority, "9")}, r1, l1, ""},
		{"draining ones by tier", nil, []*object.EndpointSlice{shared(slice(80, l1+" n s t"), "a", priority, "2"), shared(slice(80, r1+" n s t"), "b", priority, "1")}, r1, l1, ""},
		{"topology inside the tier", nil, []*object.EndpointSlice{slice(80, l1+" z=zone-b", l2+" z=zone-a"), shared(slice(80, r1), "b", priority, "9")}, l2, l1 + " " + l2, ""},
	} {
		out := Service(Input{Service: service(etpLocal, annotate(c.annotations...)), Slices: c.slices}, facts())
		p := out.Ports[0]
		var got []string
		for _, ap := range p.Serving {
			if w, differs := p.Weights[nft.PoolCluster][ap]; differs {
				got = append(got, fmt.Sprintf("%s=%d", ap.Addr(), w))
			}
		}
		slices.Sort(got)
		if cluster, local := hosts(p.Pools[nft.PoolCluster]), hosts(p.Pools[nft.PoolLocal]); cluster != c.cluster || local != c.local || strings.Join(got, " ") != c.weights {
			t.Errorf("%s: cluster %q, local %q, weights %q; want %q, %q, %q", c.name, cluster, local, got, c.cluster, c.local, c.weights)
		}
		wantProblem(t, c.name, out, "")
	}
}

func TestBalanceWarnings(t *testing.T) {
	const balance, weights = object.AnnotationBalance, object.AnnotationWeights
	sticky := func(s *object.Service) { s.Spec.SessionAffinity = "ClientIP" }
	headless := func(s *object.Service) {
		s.Spec.Type, s.Spec.ClusterIPs, s.Spec.ExternalIPs = "ClusterIP", []string{"None"}, nil
	}
	for _, c := range []struct {
		name string
		svc  *object.Service
		want string
	}{
		{"nobody's weight", service(annotate(weights, "10.9.9.9=3,"+l1+"=1")), "WeightOfNobody metadata.annotations[svcctl.io/weights] 10.9.9.9 is no endpoint"},
		{"weights that do not count", service(annotate(balance, "dh", weights, l1+"=3")), "WeightsUnused"},
		{"sticky twice", service(sticky, annotate(balance, "sh")), "StickyTwice spec.sessionAffinity"},
		{"sticky by weight", service(sticky, annotate(weights, l1+"=3")), ""},
		{"a slow start that no weight has", service(annotate(balance, "dh", object.AnnotationSlowStart, "30s")), "NoEffect metadata.annotations[svcctl.io/slow-start] has no effect with destination-hash"},
		{"a slow start of turns", service(annotate("svcctl.io/proxy-mode", "userspace", object.AnnotationSlowStart, "30s")), ""},
		{"a slow start of an older object", service(annotate(object.AnnotationSlowStart, "1h")), "UnknownValue metadata.annotations[svcctl.io/slow-start] must be a time from 1s to 15m"},
		{"a slow start of a headless Service", service(headless, annotate(object.AnnotationSlowStart, "30s")), "NotServed metadata.annotations[svcctl.io/slow-start]"},
		{"headless", service(headless, annotate(balance, "sh")), "NotServed metadata.annotations[svcctl.io/balance]"},
	} {
		f := facts()
		f.Relays = map[nft.Family][nft.NumPools]netip.AddrPort{nft.IPv4: {netip.MustParseAddrPort("192.0.2.1:10001"), netip.MustParseAddrPort("192.0.2.1:10002")}}
		wantProblem(t, c.name, Service(Input{Service: c.svc, Slices: []*object.EndpointSlice{slice(80, l1, l2)}}, f), c.want)
	}
	var many []*object.EndpointSlice
	for i := range 5 {
		var all []string
		for n := range 1000 {
			all = append(all, netip.AddrFrom4([4]byte{10, 1, byte(i*4 + n/256), byte(n)}).String())
		}
		many = append(many, shared(slice(80, all...), fmt.Sprint("web-", i)))
	}
	out := Service(Input{Service: service(annotate(balance, "sh")), Slices: many}, facts())
	wantProblem(t, "too many", out, "TooManyEndpoints spec.ports[0] 5000 endpoints are more than the 4096")
	if out.Ports[0].Balance != nft.Random {
		t.Error("a pool that is too large is hashed")
	}
}
