package resolve

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

func addrsOf(texts string) (list []netip.Addr) {
	for _, text := range strings.Fields(strings.ReplaceAll(texts, "!", "")) {
		list = append(list, netip.MustParseAddr(text))
	}
	return sortedOnce(list)
}

// Endpoints leave with an address of their Service, in whatever state they are; where they do not, the reason is given.
func TestEgress(t *testing.T) {
	const one, two = "10.1.2.11", "10.1.2.12"
	for name, tt := range map[string]struct {
		value  string
		change func(*object.Service, *Facts)
		slices []*object.EndpointSlice
		want   string
		text   string // of the problem; "" for none
	}{
		"vip": {"vip", nil, []*object.EndpointSlice{slice(25, two, one)}, "198.51.100.4 10.1.2.11 10.1.2.12", ""},
		"whatever they are": {"vip", nil, []*object.EndpointSlice{slice(25, one+" n", two+" n s t", "10.1.2.13 n -s t")},
			"198.51.100.4 10.1.2.11 10.1.2.12 10.1.2.13", ""},
		"taken out": {"vip", func(s *object.Service, _ *Facts) { s.Metadata.Annotations["svcctl.io/out"] = one },
			[]*object.EndpointSlice{slice(25, one)}, "198.51.100.4 10.1.2.11", ""},
		"of another port": {"vip", nil, []*object.EndpointSlice{onPort(slice(25, one), "other")}, "198.51.100.4 10.1.2.11", ""},
		"external IP": {"vip", func(s *object.Service, _ *Facts) { s.Status.LoadBalancer.Ingress = nil }, []*object.EndpointSlice{slice(25, one)},
			"203.0.113.9 10.1.2.11", ""},
		"named":         {"203.0.113.9", nil, []*object.EndpointSlice{slice(25, one)}, "203.0.113.9 10.1.2.11", ""},
		"no annotation": {"", nil, []*object.EndpointSlice{slice(25, one)}, "", ""},
		"no slices":     {"vip", nil, nil, "", ""},
		"a pool": {"pool-a", nil, []*object.EndpointSlice{slice(25, one)}, "",
			`UnknownValue "pool-a" is neither vip nor an address of this Service; for an address of a pool write metallb.io/address-pool`},
		"no name":   {"VIP!", nil, []*object.EndpointSlice{slice(25, one)}, "", `UnknownValue "VIP!" is neither vip nor an address of this Service; for an address of a pool write metallb.io/address-pool`},
		"empty":     {" ", nil, []*object.EndpointSlice{slice(25, one)}, "", `UnknownValue "" is neither vip nor an address of this Service; for an address of a pool write metallb.io/address-pool`},
		"another's": {"198.51.100.77", nil, []*object.EndpointSlice{slice(25, one)}, "", "198.51.100.77 is no address of this Service, which has 198.51.100.4, 203.0.113.9: write vip, or one of its own"},
		"two":       {"198.51.100.4,203.0.113.9", nil, []*object.EndpointSlice{slice(25, one)}, "", "has two addresses of one family"},
		"outside": {"vip", nil, []*object.EndpointSlice{slice(25, one, "10.2.0.1")}, "198.51.100.4 10.1.2.11",
			"EgressNotAllowed 10.2.0.1 leaves with its own address: it lies in no --egress-from (10.1.0.0/16, fd00:1::/64)"},
		"many outside": {"vip", nil, []*object.EndpointSlice{slice(25, "10.2.0.1", "10.2.0.2", "10.2.0.3", "10.2.0.4", "10.2.0.5", "10.2.0.6", "10.2.0.7")}, "",
			"EgressNotAllowed 10.2.0.1, 10.2.0.2, 10.2.0.3, 10.2.0.4, 10.2.0.5 and 2 more leave with their own addresses: they lie in no --egress-from"},
		"the box": {"vip", func(_ *object.Service, f *Facts) { f.Local = map[netip.Addr]bool{netip.MustParseAddr(one): true} },
			[]*object.EndpointSlice{slice(25, one, two)}, "198.51.100.4 10.1.2.12", "EgressNotAllowed 10.1.2.11 is an address of this host, whose own connections keep their address"},
		"a gateway": {"vip", func(_ *object.Service, f *Facts) {
			f.Host = map[netip.Addr]string{netip.MustParseAddr(one): "a gateway of this host"}
		},
			[]*object.EndpointSlice{slice(25, one, two)}, "198.51.100.4 10.1.2.12", "EgressNotAllowed 10.1.2.11 is a gateway of this host"},
		"no flag": {"vip", func(_ *object.Service, f *Facts) { f.EgressFrom = nil }, []*object.EndpointSlice{slice(25, one)}, "", "EgressNotAllowed endpoints leave with their own addresses: there is no --egress-from"},
		"a fleet": {"vip", func(_ *object.Service, f *Facts) { f.Fleet = true }, []*object.EndpointSlice{slice(25, one)}, "", "ReplyPaths endpoints leave with their own addresses: the boxes of a fleet"},
		"no address": {"vip", func(s *object.Service, _ *Facts) { s.Status.LoadBalancer.Ingress, s.Spec.ExternalIPs = nil, nil }, []*object.EndpointSlice{slice(25, one)}, "",
			"NoAddress endpoints leave with their own addresses over IPv4: the Service has no load balancer IP and no external IP of that family"},
		"the other family": {"vip", nil, []*object.EndpointSlice{slice(25, one), slice(25, "fd00:1::1")}, "198.51.100.4 10.1.2.11", "NoAddress endpoints leave with their own addresses over IPv6"},
		"an address of a family that is not served": {"vip", func(s *object.Service, _ *Facts) { s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "2001:db8::9") },
			[]*object.EndpointSlice{slice(25, one), slice(25, "fd00:1::1")}, "198.51.100.4 10.1.2.11", "NoAddress endpoints leave with their own addresses over IPv6"},
		"both families": {"vip", func(s *object.Service, _ *Facts) {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::1")
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, object.LoadBalancerIngress{IP: "2001:db8::4"})
		}, []*object.EndpointSlice{slice(25, one), slice(25, "fd00:1::1")}, "198.51.100.4 10.1.2.11; 2001:db8::4 fd00:1::1", ""},
		"one family named": {"198.51.100.4", func(s *object.Service, _ *Facts) {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::1")
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, object.LoadBalancerIngress{IP: "2001:db8::4"})
		}, []*object.EndpointSlice{slice(25, one), slice(25, "fd00:1::1")}, "198.51.100.4 10.1.2.11", "over IPv6: the Service has no such address among those that the annotation names"},
		"headless": {"vip", func(s *object.Service, _ *Facts) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, []*object.EndpointSlice{slice(25, one)}, "", "the annotation has no effect"},
	} {
		annotations := map[string]string{}
		if tt.value != "" {
			annotations[object.AnnotationEgress] = tt.value
		}
		svc := exposed(object.TypeLoadBalancer, annotations)
		f := &Facts{}
		f.EgressFrom = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}
		if tt.change != nil {
			tt.change(svc, f)
		}
		out := Service(Input{Service: svc, Slices: tt.slices}, f)
		if text := problemText(&out, object.AnnotationEgress); !strings.Contains(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%s: the problem is %q, want %q", name, text, tt.text)
		}
		if got := egressText(out.Ports); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The destinations are source sets; without all of them, endpoints leave with their own addresses.
func TestEgressTo(t *testing.T) {
	const key = AnnotationEgressTo
	for _, tt := range []struct {
		value, want string // "": no egress
		text        string // of the problem; "" for none
		refused     bool   // when it is written
	}{
		{"partner", "198.51.100.4 to partner", "", false},
		{" partner , ! lab,lab2", "198.51.100.4 to lab2,partner,!lab", "", false},
		{"!lab", "198.51.100.4 to !lab", "", false},
		{"partner,partner", "198.51.100.4 to partner", "", false},
		{"partner,", "", `InvalidSourceSets "" is no name of a source set, so endpoints leave with their own addresses; write names with commas between them, like "partner,!lab"`, true},
		{"!", "", `InvalidSourceSets "!" is no name of a source set`, true},
		{"other", "", "UnknownSourceSet there is no --source-set other, so endpoints leave with their own addresses; start svcctl serve with --source-set other=FILE, or correct the name", false},
		{"partner,!unread", "", "UnknownSourceSet the file of --source-set unread could not be read yet, so endpoints leave with their own addresses; correct the file", false},
		{strings.Repeat("partner,", 8) + "lab", "", "InvalidSourceSets 9 source sets are named, so endpoints leave with their own addresses; at most 8 are possible: merge some of their files", true},
	} {
		svc := exposed(object.TypeLoadBalancer, map[string]string{object.AnnotationEgress: "vip", key: tt.value})
		svc.TypeMeta = object.TypeMeta{Kind: object.KindService, APIVersion: "v1"}
		f, in := &Facts{}, Input{Service: svc, Slices: []*object.EndpointSlice{slice(25, "10.1.2.11")}}
		f.EgressFrom = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		for _, name := range []string{"partner", "lab", "lab2"} {
			in.Observed.Answer(Need{Kind: NeedSourceSet, Name: name}, State{Set: nft.NewSourceSet(name, 1, nil)})
		}
		in.Observed.Answer(Need{Kind: NeedSourceSet, Name: "unread"}, State{Missing: true})
		out := Service(in, f)
		if text := problemText(&out, key); !strings.Contains(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%s: the problem is %q, want %q", tt.value, text, tt.text)
		}
		if slices.ContainsFunc(out.Problems, func(p Problem) bool { return strings.Contains(p.Field, key) && !p.Warning }) {
			t.Errorf("%s: there is an error, which is for clients that are not served: %+v", tt.value, out.Problems)
		}
		got := ""
		for _, p := range out.Ports {
			if len(p.Egress.Sources) > 0 {
				got += p.Egress.String()
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.value, got, tt.want)
		}
		rules, refused := &Rules{SourceSets: []string{"partner", "lab", "lab2", "unread"}}, false
		for _, remark := range rules.Remarks(svc) {
			refused = refused || remark.Refused && strings.Contains(remark.Field, key)
		}
		if refused != tt.refused {
			t.Errorf("%s: refused: %v, want %v", tt.value, refused, tt.refused)
		}
	}
	svc := exposed(object.TypeLoadBalancer, map[string]string{key: "partner"})
	out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{slice(25, "10.1.2.11")}}, &Facts{})
	if text := problemText(&out, key); text != "NoEffect has no effect: the Service has no svcctl.io/egress, whose destinations it is about" {
		t.Errorf("without svcctl.io/egress the problem is %q", text)
	}
}

// A Service whose hosts only go out, as is written, has no outage; one whose hosts a program found to be not ready has.
func TestHostsThatOnlyGoOut(t *testing.T) {
	const meant, outage = "NoEndpoints warning clients are refused, as is written", "NoReadyEndpoint error none of its"
	managed := func(s *object.EndpointSlice) *object.EndpointSlice {
		s.Metadata.Labels = map[string]string{object.LabelManagedBy: "discovery.example"}
		return s
	}
	for name, tt := range map[string]struct {
		egress string
		slices []*object.EndpointSlice
		want   string
	}{
		"all":                   {"vip", []*object.EndpointSlice{slice(25, "10.1.2.11 n", "10.1.2.12 n")}, meant},
		"no egress":             {"", []*object.EndpointSlice{slice(25, "10.1.2.11 n", "10.1.2.12 n")}, outage},
		"outside of the border": {"vip", []*object.EndpointSlice{slice(25, "10.2.2.11 n")}, outage},
		"one that drains":       {"vip", []*object.EndpointSlice{slice(25, "10.1.2.11 n", "10.1.2.12 n -s t")}, outage},
		"found by a program":    {"vip", []*object.EndpointSlice{managed(slice(25, "10.1.2.11 n"))}, outage},
		"one for clients":       {"vip", []*object.EndpointSlice{slice(25, "10.1.2.11", "10.1.2.12 n")}, ""},
	} {
		svc := exposed(object.TypeLoadBalancer, map[string]string{object.AnnotationEgress: tt.egress})
		if tt.egress == "" {
			svc.Metadata.Annotations = nil
		}
		f := &Facts{}
		f.EgressFrom = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		out, got := Service(Input{Service: svc, Slices: tt.slices}, f), ""
		for _, p := range out.Unserved {
			got += p.Reason + map[bool]string{true: " warning ", false: " error "}[p.Warning] + p.Message
			if _, message, found := strings.Cut(p.Message, ": "); found && p.Field != "" {
				got = p.Reason + " error " + message
			}
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Of two Services that give a source one address, but other destinations, the second one by name is warned.
func TestEgressToIsGrantedByName(t *testing.T) {
	set := nft.NewSourceSet("partner", 1, nil)
	of := func(to *nft.SourceSets) []nft.ServicePort {
		ports := portOf("198.51.100.1", "")
		ports[0].Egress = nft.Egress{Addr: netip.MustParseAddr("198.51.100.1"), Sources: addrsOf("10.1.2.11"), To: to}
		return ports
	}
	second := of(&nft.SourceSets{Allow: []*nft.SourceSet{set}})
	second[0].Frontends[0].Port = 81
	c := &Claims{}
	c.Set(nil, Claim{Service: "default/a", Ports: of(nil)}, Claim{Service: "default/b", Ports: second})
	grant := func() string {
		_, problems := c.Grant(object.Ref{Kind: object.KindService, Namespace: "default", Name: "b"}, second)
		var texts []string
		for _, p := range problems {
			texts = append(texts, p.Message)
		}
		return strings.Join(texts, "; ")
	}
	if got, want := grant(), "10.1.2.11 leaves with 198.51.100.1 of default/a, which comes first by name: give both Services one address and one svcctl.io/egress-to, or each its own hosts"; got != want {
		t.Errorf("the problem is %q, want %q", got, want)
	}
	if affected := c.Set(nil, Claim{Service: "default/a", Ports: of(second[0].Egress.To)}); !slices.Contains(affected, "default/b") {
		t.Errorf("other destinations of the first affect %q", affected)
	}
	if got := grant(); got != "" {
		t.Errorf("with one address and the same destinations the problem is %q", got)
	}
}

// A Service has no say about a source at an address that another one has, whatever their names, and a problem is about the address of the
// source's family.
func TestEgressAtAnAddressOfAnother(t *testing.T) {
	of := func(addr, source string, more ...nft.ServicePort) []nft.ServicePort {
		ports := portOf(addr, "")
		ports[0].Family = nft.FamilyOf(netip.MustParseAddr(addr))
		ports[0].Egress = nft.Egress{Addr: netip.MustParseAddr(addr), Sources: addrsOf(source)}
		return append(more, ports...)
	}
	grant := func(c *Claims, name string, ports []nft.ServicePort) (text string) {
		granted, problems := c.Grant(object.Ref{Kind: object.KindService, Namespace: "default", Name: name}, ports)
		for text = egressText(granted); len(problems) > 0; problems = problems[1:] {
			if problems[0].Reason == reasonSharedEndpoint {
				text += " " + problems[0].Message
			}
		}
		return text
	}
	c, a, b := &Claims{}, of("198.51.100.1", "10.1.2.11"), of("198.51.100.1", "10.1.2.11")
	c.Set(nil, Claim{Service: "default/b", Ports: b, Since: age(1)}, Claim{Service: "default/a", Ports: a, Since: age(2)})
	if got, want := grant(c, "a", a)+"|"+grant(c, "b", b), "|198.51.100.1 10.1.2.11"; got != want {
		t.Errorf("granted are %q, want %q", got, want)
	}
	c, a, b = &Claims{}, of("2001:db8::1", "fd00::11", of("198.51.100.1", "10.1.2.11")...), of("2001:db8::2", "fd00::11", of("198.51.100.2", "10.1.2.11")...)
	c.Set(nil, Claim{Service: "default/a", Ports: a}, Claim{Service: "default/b", Ports: b})
	got := grant(c, "b", b)
	for _, want := range []string{"10.1.2.11 leaves with 198.51.100.1 of default/a", "fd00::11 leaves with 2001:db8::1 of default/a"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q: %s", want, got)
		}
	}
}

func onPort(s *object.EndpointSlice, name string) *object.EndpointSlice {
	s.Ports[0].Name = &name
	return s
}

func egressText(ports []nft.ServicePort) string {
	var texts []string
	for _, p := range ports {
		if len(p.Egress.Sources) > 0 {
			texts = append(texts, strings.Trim(fmt.Sprint(append([]netip.Addr{p.Egress.Addr}, p.Egress.Sources...)), "[]"))
		}
	}
	return strings.Join(texts, "; ")
}

// What the object alone shows to be wrong is refused when it is written, and nothing that may be right: a balancer whose address is
// allocated, and an address that an annotation asks for.
func TestEgressIsRefusedWhenItIsWritten(t *testing.T) {
	for _, tt := range []struct {
		value   string
		change  func(*object.Service)
		refused bool
	}{
		{"vip", nil, false},
		{"pool-a", nil, true},
		{"198.51.100.4", nil, false},
		{"198.51.100.77", nil, true},
		{"198.51.100.77", func(s *object.Service) { s.Status.LoadBalancer.Ingress = nil }, false},
		{"198.51.100.77", func(s *object.Service) {
			s.Status.LoadBalancer.Ingress, s.Spec.LoadBalancerIP = nil, "198.51.100.5"
		}, true},
		{"198.51.100.77", func(s *object.Service) {
			s.Metadata.Annotations["metallb.io/loadBalancerIPs"] = "198.51.100.5, 198.51.100.77"
		}, false},
		{"198.51.100.4", func(s *object.Service) { s.Spec.Type = "ClusterIP" }, true},
		{"203.0.113.9", func(s *object.Service) { s.Spec.Type = "ClusterIP" }, false},
		{"198.51.100.4,2001:db8::4", nil, false},
	} {
		svc := exposed(object.TypeLoadBalancer, map[string]string{object.AnnotationEgress: tt.value})
		svc.TypeMeta = object.TypeMeta{Kind: object.KindService, APIVersion: "v1"}
		if tt.change != nil {
			tt.change(svc)
		}
		rules, refused := &Rules{}, false
		for _, remark := range rules.Remarks(svc) {
			if strings.Contains(remark.Field, object.AnnotationEgress) {
				refused = refused || remark.Refused
				if !remark.Refused {
					t.Errorf("%s: there is a remark %q", tt.value, remark.Text)
				}
			}
		}
		if refused != tt.refused {
			t.Errorf("%s: refused: %v, want %v", tt.value, refused, tt.refused)
		}
	}
}

// A source behind several Services is that of the first by name that has its address, whatever came first; those that gain or lose
// one are named.
func TestEgressIsGrantedByName(t *testing.T) {
	var shared, moved int
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 11))
		some := func(list string, n int) string {
			var chosen []string
			for _, a := range strings.Fields(list) {
				if r.IntN(n) == 0 {
					chosen = append(chosen, a)
				}
			}
			return strings.Join(chosen, " ")
		}
		asked, since, inForce := map[string][]nft.ServicePort{}, map[string]uint64{}, map[string]string{}
		grant := func(c *Claims, name string) string {
			_, short, _ := strings.Cut(name, "/")
			ports, problems := c.Grant(object.Ref{Kind: object.KindService, Namespace: "default", Name: short}, asked[name])
			text := egressText(ports)
			for _, p := range problems {
				if p.Reason == reasonSharedEndpoint {
					shared++
					text += " " + p.Message
				}
			}
			return text
		}
		c := &Claims{}
		for range 30 {
			name := fmt.Sprintf("default/s%d", r.IntN(5))
			ports := portOf(some("198.51.100.1 198.51.100.2 203.0.113.1", 2), "")
			if at := ports[0].Frontends; len(at) > 0 {
				ports[0].Egress = nft.Egress{Addr: at[r.IntN(len(at))].Addr, Sources: addrsOf(some("10.1.2.11 10.1.2.12 10.1.2.13", 2))}
			}
			asked[name] = ports
			if r.IntN(6) == 0 {
				delete(asked, name)
			}
			since[name] = r.Uint64N(4)
			before := inForce
			inForce = map[string]string{}
			affected := c.Set(nil, Claim{Service: name, Ports: asked[name], Since: age(since[name])})
			fresh := &Claims{}
			var all []Claim
			for of := range asked {
				all = append(all, Claim{Service: of, Ports: asked[of], Since: age(since[of])})
			}
			fresh.Set(nil, all...)
			holder := map[string]string{}
			for of := range asked {
				inForce[of] = grant(c, of)
				if want := grant(fresh, of); inForce[of] != want {
					t.Fatalf("seed %d: %s is granted %q, and by claims that come at once %q", seed, of, inForce[of], want)
				}
				if of != name && inForce[of] != before[of] {
					moved++
					if !slices.Contains(affected, of) {
						t.Fatalf("seed %d: %s is granted %q after %q, and affected are %q", seed, of, inForce[of], before[of], affected)
					}
				}
				_, short, _ := strings.Cut(of, "/")
				ports, _ := c.Grant(object.Ref{Kind: object.KindService, Namespace: "default", Name: short}, asked[of])
				for _, source := range ports[0].Egress.Sources {
					if other := holder[source.String()]; other != "" {
						t.Fatalf("seed %d: %s is %s's and %s's", seed, source, other, of)
					}
					holder[source.String()] = of
				}
			}
		}
		for of := range asked {
			before := slices.Clone(asked[of])
			grant(c, of)
			if !reflect.DeepEqual(before, asked[of]) {
				t.Fatalf("seed %d: the ports of %s were changed", seed, of)
			}
		}
	}
	if shared == 0 || moved == 0 {
		t.Errorf("nothing was tested: %d shared, %d moved", shared, moved)
	}
}
