package resolve

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// checked asks for a check of all ports, and for more.
func checked(annotations ...string) func(*object.Service) {
	return func(s *object.Service) {
		s.Metadata.Annotations = map[string]string{"svcctl.io/health-check": "tcp"}
		for _, a := range annotations {
			key, value, _ := strings.Cut(a, "=")
			s.Metadata.Annotations[key] = value
		}
	}
}

// met resolves a Service as the planner does: with the answers to what it needs.
func met(in Input, facts *Facts, meet func(*Demand, *Observed)) Output {
	for {
		out := Service(in, facts)
		if meet(&out.Demand, &in.Observed); !in.Observed.Differs() {
			return out
		}
	}
}

// verdicts answers with the verdicts of a function.
func verdicts(of func(health.Target) health.Verdict) func(*Demand, *Observed) {
	return func(d *Demand, o *Observed) {
		for _, t := range d.Targets {
			o.Judge(Verdict{t, of(*t), true})
		}
	}
}

// judged answers with verdicts by address; an endpoint that has none is up.
func judged(states map[string]health.State) func(*Demand, *Observed) {
	return verdicts(func(t health.Target) health.Verdict {
		state, given := states[t.Addr.Addr().String()]
		if !given {
			state = health.Up
		}
		v := health.Verdict{State: state}
		if state == health.Down {
			v.Why = "connection refused"
		}
		return v
	})
}

// reasons are the reasons of problems, in their order.
func reasons(list []Problem) string {
	var all []string
	for _, p := range list {
		all = append(all, p.Reason)
	}
	return strings.Join(all, " ")
}

func TestJudge(t *testing.T) {
	type states = map[string]health.State
	const up, down, isNew = health.Up, health.Down, health.New
	zones := distribute("PreferSameZone")
	for _, test := range []struct {
		name                             string
		svc                              *object.Service
		endpoints                        []string
		states                           states
		cluster, local, serving, reasons string
		localUp                          int
	}{
		{"all up", service(checked()), []string{l1, r1}, nil, l1 + " " + r1, l1, l1 + " " + r1, "", 1},
		{"one down", service(checked()), []string{l1, r1, r2}, states{r1: down}, l1 + " " + r2, l1, l1 + " " + r2, "EndpointDown", 1},
		{"one new", service(checked()), []string{l1, r1}, states{r1: isNew}, l1, l1, l1, "", 1},
		{"all down", service(checked()), []string{l1, r1}, states{l1: down, r1: down}, l1 + " " + r1, l1, l1 + " " + r1, "EndpointDown FailingOpen", 0},
		{"all new", service(checked()), []string{l1, r1}, states{l1: isNew, r1: isNew}, l1 + " " + r1, l1, l1 + " " + r1, "", 0},
		{"failing open leaves out who is not ready", service(checked()), []string{l1, r1 + " n"}, states{l1: down, r1: down}, l1, l1, l1, "EndpointDown FailingOpen", 0},
		{"terminating before failing open", service(checked()), []string{l1, r1 + " n t s"}, states{l1: down}, r1, "", r1, "EndpointDown", 0},
		{"terminating and down", service(checked()), []string{l1, r1 + " n t s"}, states{l1: down, r1: down}, l1, l1, l1 + " " + r1, "EndpointDown FailingOpen", 0},
		{"Local does not fail open for others", service(checked(), etpLocal), []string{l1, r1}, states{l1: down}, r1, "", r1, "EndpointDown", 0},
		{"Local fails open with all", service(checked(), etpLocal), []string{l1, r1}, states{l1: down, r1: down}, l1 + " " + r1, l1, l1 + " " + r1, "EndpointDown FailingOpen", 0},
		{"too few", service(checked("svcctl.io/health-check-min-healthy=50")), []string{l1, r1, r2}, states{l1: down, r1: down}, l1 + " " + r1 + " " + r2, l1, l1 + " " + r1 + " " + r2, "EndpointDown FailingOpen", 0},
		{"enough", service(checked("svcctl.io/health-check-min-healthy=50")), []string{l1, r1}, states{l1: down}, r1, "", r1, "EndpointDown", 0},
		{"near", service(checked(), zones), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, nil, l1, l1, l1 + " " + r1, "", 1},
		{"near and down", service(checked(), zones), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, states{l1: down}, r1, "", r1, "EndpointDown", 0},
		{"taken out", service(checked("svcctl.io/out=" + l1)), []string{l1, r1}, nil, r1, "", r1, "", 0},
		{"taken out, and the other down", service(checked("svcctl.io/out=" + l1)), []string{l1, r1}, states{r1: down}, r1, "", r1, "EndpointDown FailingOpen", 0},
		{"all taken out", service(checked("svcctl.io/out=" + l1 + "," + r1)), []string{l1, r1}, nil, "", "", "", "", 0},
		{"who has weight 0 serves nobody", service(checked("svcctl.io/weights=" + l1 + "=0")), []string{l1, r1}, states{r1: down}, r1, "", l1 + " " + r1, "EndpointDown FailingOpen", 0},
		{"all have weight 0", service(checked("svcctl.io/weights=" + l1 + "=0," + r1 + "=0")), []string{l1, r1}, states{r1: down}, "", "", l1, "EndpointDown", 0},
		{"refused annotation", service(checked("svcctl.io/health-check-interval=soon")), []string{l1, r1}, states{r1: down}, l1 + " " + r1, l1, l1 + " " + r1, "InvalidAnnotation", 1},
		{"publishNotReadyAddresses", service(checked(), func(s *object.Service) { s.Spec.PublishNotReadyAddresses = true }), []string{l1, r1}, states{r1: down}, l1 + " " + r1, l1, l1 + " " + r1, "NoEffect", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.svc.Spec.HealthCheckNodePort = 0
			if test.svc.Spec.ExternalTrafficPolicy == "Local" {
				test.svc.Spec.HealthCheckNodePort = 32000
			}
			out := met(Input{Service: test.svc, Slices: []*object.EndpointSlice{slice(80, test.endpoints...)}}, facts(), judged(test.states))
			p := out.Ports[0]
			got := fmt.Sprintf("%s | %s | %s | %s", hosts(p.Pools[nft.PoolCluster]), hosts(p.Pools[nft.PoolLocal]), hosts(p.Serving), reasons(out.Problems))
			if want := fmt.Sprintf("%s | %s | %s | %s", test.cluster, test.local, test.serving, test.reasons); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
			if out.LocalEndpoints != nil && out.LocalEndpoints.Count != test.localUp {
				t.Errorf("%d local endpoints are up, want %d", out.LocalEndpoints.Count, test.localUp)
			}
		})
	}
}

// TestJudgeOrder compares which endpoints are used with the rule of the manual, for random
// endpoints without topology.
func TestJudgeOrder(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 2))
		states := map[string]health.State{}
		var specs []string
		var rank [4][]string // ready and up; terminating, serving and up; ready; terminating and serving
		for i := range 1 + random.IntN(5) {
			addr := fmt.Sprintf("10.181.2.%d", i)
			states[addr] = health.State(random.IntN(3))
			isUp := states[addr] == health.Up
			switch random.IntN(3) {
			case 0:
				specs = append(specs, addr)
				rank[2] = append(rank[2], addr)
				if isUp {
					rank[0] = append(rank[0], addr)
				}
			case 1:
				specs = append(specs, addr+" n t s")
				rank[3] = append(rank[3], addr)
				if isUp {
					rank[1] = append(rank[1], addr)
				}
			default:
				specs = append(specs, addr+" n")
			}
		}
		var want []string
		for _, list := range rank {
			if want = list; len(want) > 0 {
				break
			}
		}
		out := met(Input{Service: service(checked()), Slices: []*object.EndpointSlice{slice(80, specs...)}}, facts(), judged(states))
		if got := hosts(out.Ports[0].Pools[nft.PoolCluster]); got != strings.Join(want, " ") {
			t.Errorf("seed %d, %q with %v: %q, want %q", seed, specs, states, got, want)
		}
	}
}

// TestStart: what endpoints begin with follows from who was used before.
func TestStart(t *testing.T) {
	at := func(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 80) }
	for _, test := range []struct {
		name    string
		before  []netip.AddrPort
		missing health.State
		change  func(*object.Service)
		want    map[string]health.State
	}{
		{"nobody before", nil, health.Down, nil, map[string]health.State{l1: health.Up, r1: health.Up}},
		{"in the kernel", []netip.AddrPort{at(l1)}, health.Down, nil, map[string]health.State{l1: health.Up, r1: health.Down}},
		{"far from the box, not in the kernel", []netip.AddrPort{at(l1)}, health.Down, distribute("PreferSameZone"), map[string]health.State{l1: health.Up, r1: health.Up}},
		{"planned before", []netip.AddrPort{at(l1)}, health.New, nil, map[string]health.State{l1: health.Up, r1: health.New}},
	} {
		svc := service(checked())
		if test.change != nil {
			test.change(svc)
		}
		for _, frontend := range []netip.AddrPort{netip.MustParseAddrPort("172.30.0.41:80"), netip.MustParseAddrPort("198.51.100.4:80"), netip.AddrPortFrom(netip.Addr{}, 30080)} {
			in := Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1+" zone=zone-a", r1+" zone=zone-b")}}
			port := nft.ServicePort{ID: "default/web", Family: nft.IPv4, Protocol: nft.TCP, Serving: test.before, Pools: [nft.NumPools][]netip.AddrPort{test.before}}
			if test.missing == health.New {
				in.Previous.Ports = []nft.ServicePort{port}
			}
			out := met(in, facts(), func(d *Demand, o *Observed) {
				if d.Adopted && test.missing == health.Down && o.Adopted == nil {
					o.Adopt(map[Frontend]*nft.ServicePort{{nft.IPv4, nft.TCP, frontend}: &port, {nft.IPv4, nft.UDP, frontend}: {Serving: []netip.AddrPort{at(r1)}}})
				}
			})
			got := map[string]health.State{}
			for _, c := range out.Checked {
				got[c.Endpoint.Addr().String()] = c.Start
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("%s, %s: %v, want %v", test.name, frontend, got, test.want)
			}
		}
	}
	headless := service(checked(), func(s *object.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} })
	in := Input{Service: headless, Slices: []*object.EndpointSlice{slice(80, l1, r1)}}
	in.Previous.Checked = []Checked{{Port: Port{"default/web", "", "TCP", nft.IPv4}, Endpoint: at(l1)}}
	if out := Service(in, facts()); len(out.Checked) != 2 || out.Checked[0].Start != health.Up || out.Checked[1].Start != health.New {
		t.Errorf("headless, planned before with %s: %+v", l1, out.Checked)
	}
}

// TestAssumed: after a restart who falls stays in use until it is known whether another is up.
func TestAssumed(t *testing.T) {
	for _, test := range []struct {
		name        string
		l1, r1      health.Verdict
		want, tells string
	}{
		{"one fell, the other was not asked", health.Verdict{State: health.Down, Assumed: true}, health.Verdict{State: health.Up, Assumed: true}, l1 + " " + r1, "EndpointDown"},
		{"one fell, the other is up", health.Verdict{State: health.Down, Assumed: true}, health.Verdict{State: health.Up}, r1, "EndpointDown"},
		{"both fell", health.Verdict{State: health.Down, Assumed: true}, health.Verdict{State: health.Down, Assumed: true}, l1 + " " + r1, "EndpointDown FailingOpen"},
		{"one was down before", health.Verdict{State: health.Down}, health.Verdict{State: health.Up, Assumed: true}, r1, "EndpointDown"},
	} {
		out := met(Input{Service: service(checked()), Slices: []*object.EndpointSlice{slice(80, l1, r1)}}, facts(), verdicts(func(target health.Target) health.Verdict {
			if target.Addr.Addr().String() == l1 {
				return test.l1
			}
			return test.r1
		}))
		if got := hosts(out.Ports[0].Pools[nft.PoolCluster]); got != test.want || reasons(out.Problems) != test.tells {
			t.Errorf("%s: %s, %s; want %s, %s", test.name, got, reasons(out.Problems), test.want, test.tells)
		}
	}
}

// TestAssumedBesideProven: as soon as one is known to be up, the others are not awaited.
func TestAssumedBesideProven(t *testing.T) {
	out := met(Input{Service: service(checked()), Slices: []*object.EndpointSlice{slice(80, l1, r1, r2)}}, facts(), verdicts(func(target health.Target) health.Verdict {
		return map[string]health.Verdict{
			l1: {State: health.Down, Assumed: true}, r1: {State: health.Up}, r2: {State: health.Up, Assumed: true},
		}[target.Addr.Addr().String()]
	}))
	if got := hosts(out.Ports[0].Pools[nft.PoolCluster]); got != r1+" "+r2 || out.Waiting {
		t.Errorf("%s, waiting %t; want %s %s", got, out.Waiting, r1, r2)
	}
}

// TestTarget: who is asked at which port.
func TestTarget(t *testing.T) {
	ends := slice(8080, l1)
	ends.Ports = append(ends.Ports, object.EndpointPort{Name: ptr("metrics"), Protocol: ptr("TCP"), Port: ptr(int32(9090))})
	for check, want := range map[string]string{
		"tcp": l1 + ":8080", "http:8081/": l1 + ":8081", "http:metrics/": l1 + ":9090", "icmp": l1 + ":0",
		"http:nosuch/": "", // and says so
	} {
		svc := service(checked("svcctl.io/health-check=" + check))
		out := met(Input{Service: svc, Slices: []*object.EndpointSlice{ends}}, facts(), judged(nil))
		got := ""
		if len(out.Checked) > 0 {
			got = out.Checked[0].Target.Addr.String()
		}
		if got != want || want == "" && reasons(out.Problems) != "InvalidAnnotation" {
			t.Errorf("%s asks %q, want %q; %v", check, got, want, out.Problems)
		}
	}
}

// TestMembersDemoted: names lead to endpoints that are up, and to the ports that are.
func TestMembersDemoted(t *testing.T) {
	svc := service(checked(), func(s *object.Service) {
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = "ClusterIP", "None", []string{"None"}
		s.Spec.ExternalIPs, s.Status = nil, object.ServiceStatus{}
		s.Spec.Ports = []object.ServicePort{{Name: "a", Protocol: "TCP", Port: 80}, {Name: "b", Protocol: "TCP", Port: 81}}
	})
	ends := slice(80, l1, r1, r2)
	ends.Ports = []object.EndpointPort{{Name: ptr("a"), Port: ptr(int32(80))}, {Name: ptr("b"), Port: ptr(int32(81))}}
	in := Input{Service: svc, Slices: []*object.EndpointSlice{ends}}
	in.Demoted = met(in, facts(), verdicts(func(t health.Target) health.Verdict {
		if t.Addr.String() == r1+":81" || t.Addr.Addr().String() == r2 {
			return health.Verdict{State: health.Down}
		}
		return health.Verdict{State: health.Up}
	})).Demoted
	var got []string
	for _, m := range Members(in, facts()) {
		for _, p := range m.Ports {
			if m.Ready {
				got = append(got, fmt.Sprintf("%s:%s", m.Addr, p.Name))
			}
		}
	}
	if want := []string{l1 + ":a", l1 + ":b", r1 + ":a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
