package resolve

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// portion is a slice of a backend with a share.
func portion(name, share string, specs ...string) *object.EndpointSlice {
	s := slice(8080, append(specs, "10.1.9.9")...)
	s.Endpoints = s.Endpoints[:len(specs)]
	return shared(s, name, object.AnnotationShare, share)
}

// weighed are the endpoints of a pool with their weights, and the refused one: "10.1.0.1=3 10.1.0.2=1 refused=4".
func weighed(p *nft.ServicePort, pool nft.Pool) string {
	var list []string
	for _, ap := range p.Pools[pool] {
		list = append(list, fmt.Sprintf("%s=%d", ap.Addr(), p.Weight(pool, ap)))
	}
	if n := p.Refused[pool]; n > 0 {
		list = append(list, fmt.Sprintf("refused=%d", n))
	}
	return strings.Join(list, " ")
}

// The share of a backend is divided among its usable endpoints, and refused while it has none. Nothing of it goes to others.
func TestShares(t *testing.T) {
	const weight, priority = object.AnnotationWeight, object.AnnotationPriority
	with := func(s *object.EndpointSlice, pairs ...string) *object.EndpointSlice {
		for key, value := range pairsOf(pairs) {
			s.Metadata.Annotations[key] = value
		}
		return s
	}
	before := portion("a-1", "a=0", l1) // with a port of which the backend has no share
	before.Ports = append([]object.EndpointPort{{Name: new("other"), Protocol: before.Ports[0].Protocol, Port: new(int32(9000))}}, before.Ports...)
	blue, green := portion("blue", "9", l1, l2, l3), portion("green", "1", r1)
	for _, c := range []struct {
		name    string
		slices  []*object.EndpointSlice
		want    string
		problem string
	}{
		{"of one backend", []*object.EndpointSlice{blue}, "L1=1 L2=1 L3=1", ""},
		{"9 to 1", []*object.EndpointSlice{blue, green}, "L1=3 L2=3 L3=3 R1=1", ""},
		{"equal shares of as many endpoints", []*object.EndpointSlice{portion("a", "5", l1, l2), portion("b", "5", r1, r2)}, "L1=1 L2=1 R1=1 R2=1", ""},
		{"equal shares", []*object.EndpointSlice{portion("a", "1", l1, l2, l3), portion("b", "1", r1, r2)}, "L1=2 L2=2 L3=2 R1=3 R2=3", ""},
		{"one is down", []*object.EndpointSlice{portion("a", "1", l1, l2, l3+" n"), portion("b", "1", r1)}, "L1=1 L2=1 R1=2", ""},
		{"a backend has none", []*object.EndpointSlice{blue, portion("green", "1")}, "L1=3 L2=3 L3=3 refused=1",
			"ShareRefused spec.ports[0] port 80: 10 % of new connections are refused: backend green has no usable endpoint"},
		{"a backend has none left", []*object.EndpointSlice{portion("blue", "1", l1), portion("green", "2", r1+" n", r2+" n")}, "L1=1 refused=2",
			"66.7 % of new connections are refused: backend green has no usable endpoint"},
		{"two have none", []*object.EndpointSlice{portion("a", "2", l1), portion("b", "1"), portion("c", "1")}, "L1=1 refused=1",
			"50 % of new connections are refused: backends b, c have no usable endpoint"},
		{"none is left", []*object.EndpointSlice{portion("a", "2", l1+" n"), portion("b", "1")}, "", "NoReadyEndpoint spec.ports[0] port 80: no backend has a usable endpoint: a, b"},
		{"share 0", []*object.EndpointSlice{portion("a", "2", l1), portion("b", "0", r1)}, "L1=1", ""},
		{"share 0 of nothing", []*object.EndpointSlice{portion("a", "2", l1), portion("b", "0")}, "L1=1", ""},
		{"two slices are one backend", []*object.EndpointSlice{portion("a-1", "a=6", l1), portion("a-2", "a=6", l2), portion("b", "3", r1)}, "L1=1 L2=1 R1=1", ""},
		{"the larger share applies", []*object.EndpointSlice{portion("a-1", "a=0", l1), portion("a-2", "a=6", l2), portion("b", "3", r1)}, "L1=1 L2=1 R1=1", ""},
		{"the larger share of a port applies", []*object.EndpointSlice{before, portion("a-2", "a=6", l2), portion("b", "3", r1)}, "L1=1 L2=1 R1=1", ""},
		{"one slice of two is empty", []*object.EndpointSlice{portion("a-1", "a=6", l1), portion("a-2", "a=6"), portion("b", "3", r1)}, "L1=2 R1=1", ""},
		{"an endpoint of two backends", []*object.EndpointSlice{portion("a", "1", l1, l2), portion("b", "1", l1)}, "L1=3 L2=1", ""},
		{"weights within", []*object.EndpointSlice{with(portion("a-1", "a=8", l1), weight, "3"), portion("a-2", "a=8", l2), portion("b", "2", r1)}, "L1=3 L2=1 R1=1", ""},
		{"priorities within", []*object.EndpointSlice{with(portion("a-1", "a=4", l1), priority, "2"), portion("a-2", "a=4", l2), with(portion("b", "2", r1), priority, "9")}, "L2=2 R1=1", ""},
		{"drain within", []*object.EndpointSlice{portion("a", "4", l1, l2+" n s t"), portion("b", "4", r1+" n s t")}, "L1=1 R1=1", ""},
		{"without a share", []*object.EndpointSlice{slice(8080, l1), portion("b", "3", r1)}, "L1=1 R1=3", ""},
		{"many", []*object.EndpointSlice{portion("a", "1000000", l1, l2, l3), portion("b", "1", r1)}, "L1=65535 L2=65535 L3=65535 R1=1", ""},
	} {
		out := Service(Input{Service: service(), Slices: c.slices}, facts())
		want := strings.NewReplacer("L1", l1, "L2", l2, "L3", l3, "R1", r1, "R2", r2).Replace(c.want)
		if got := weighed(&out.Ports[0], nft.PoolCluster); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
		out.Problems = append(out.Problems, out.Unserved...)
		wantProblem(t, c.name, out, c.problem)
	}
}

// The local pool has shares of its own: a backend without a local endpoint is refused where clients are limited to these.
func TestSharesOfLocalEndpoints(t *testing.T) {
	out := Service(Input{Service: service(etpLocal), Slices: []*object.EndpointSlice{portion("blue", "9", l1, r1, r2), portion("green", "1", r1)}}, facts())
	p := &out.Ports[0]
	if got, want := weighed(p, nft.PoolCluster)+"; "+weighed(p, nft.PoolLocal), l1+"=3 "+r1+"=4 "+r2+"=3; "+l1+"=9 refused=1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	wantProblem(t, "one box", out, "10 % of new connections are refused: backend green has no usable endpoint on this box")
	fleet := facts()
	fleet.Fleet = true
	wantProblem(t, "of a fleet", Service(Input{Service: service(etpLocal), Slices: []*object.EndpointSlice{portion("blue", "9", l1, r1), portion("green", "1", r1)}}, fleet), "")
}

// A backend whose endpoints are all down fails open by itself, and takes nothing from others; one that is new is up as if its
// Service were.
func TestSharesFailOpenInsideABackend(t *testing.T) {
	in := Input{Service: service(annotate("svcctl.io/health-check", "tcp")), Slices: []*object.EndpointSlice{portion("blue", "2", l1, l2), portion("green", "1", r1)}}
	out := Service(in, facts())
	if got, want := weighed(&out.Ports[0], nft.PoolCluster), l1+"=1 "+l2+"=1 "+r1+"=1"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	down := func(addrs ...string) Output {
		in.Previous = Previous{Ports: out.Ports, Checked: out.Checked}
		in.Observed = Observed{}
		for i := range out.Checked {
			c := &out.Checked[i]
			v := Verdict{Target: &c.Target, Known: true}
			v.State = health.Up
			for _, a := range addrs {
				if c.Endpoint.Addr() == netip.MustParseAddr(a) {
					v.State = health.Down
				}
			}
			in.Observed.Verdicts = append(in.Observed.Verdicts, v)
		}
		return Service(in, facts())
	}
	for _, c := range []struct {
		down         []string
		want, reason string
	}{
		{[]string{l1}, l2 + "=2 " + r1 + "=1", "EndpointDown port 80, backend blue: 1 of 2 endpoints is down"},
		{[]string{r1}, l1 + "=1 " + l2 + "=1 " + r1 + "=1", "FailingOpen port 80, backend green: its only endpoint is down, so traffic still goes to it"},
		{[]string{l1, r1}, l2 + "=2 " + r1 + "=1", "FailingOpen port 80, backend green"},
	} {
		got := down(c.down...)
		var problems string
		for _, p := range got.Problems {
			problems += p.Reason + " " + p.Message + "\n"
		}
		if text := weighed(&got.Ports[0], nft.PoolCluster); text != c.want || !strings.Contains(problems, c.reason) {
			t.Errorf("%v down: %s, want %s; problems:\n%swant %s", c.down, text, c.want, problems, c.reason)
		}
	}
	in.Slices = append(in.Slices, portion("red", "3", r2))
	if got, want := weighed(&down().Ports[0], nft.PoolCluster), l1+"=1 "+l2+"=1 "+r1+"=1 "+r2+"=3"; got != want {
		t.Errorf("with a new backend: %s, want %s", got, want)
	}
}

// With destination-hash shares have no effect, and a warning.
func TestSharesOfDestinationHash(t *testing.T) {
	out := Service(Input{Service: service(annotate(object.AnnotationBalance, "dh")), Slices: []*object.EndpointSlice{portion("a", "2", l1), portion("b", "1")}}, facts())
	if p := &out.Ports[0]; p.Refused != [nft.NumPools]uint16{} || p.Weights[nft.PoolCluster] != nil {
		t.Errorf("refused %v, weights %v", p.Refused, p.Weights)
	}
	wantProblem(t, "destination-hash", out, "WeightsUnused")
}
