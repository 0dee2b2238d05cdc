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

// The topology of these tests: this box is gw1 in zone-a; L1 and L2 are local, R1 and
// R2 are not.
const (
	l1 = "10.180.0.1"
	l2 = "10.180.0.2"
	l3 = "10.180.0.3"
	r1 = "10.181.1.1"
	r2 = "10.181.1.2"
)

func facts() *Facts {
	return &Facts{
		NodeName: "gw1", Zone: "zone-a", NodelessLocal: true,
		Networks: Networks{
			ServiceRanges: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")},
			Host:          map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "an address of this host"},
		},
	}
}

func ptr[T any](v T) *T { return &v }

// slice parses endpoints: "addr[@node][/zone][ flags]"; flags: t terminating, s serving, n not
// ready, z=a,b zone hints, h=x node hints.
func slice(port int32, specs ...string) *object.EndpointSlice {
	s := &object.EndpointSlice{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice}, Metadata: object.ObjectMeta{Namespace: "default", Name: "web-1"},
		AddressType: "IPv4", Ports: []object.EndpointPort{{Name: ptr(""), Protocol: ptr("TCP"), Port: ptr(port)}},
	}
	if strings.Contains(specs[0], ":") {
		s.AddressType = "IPv6"
	}
	for _, spec := range specs {
		words := strings.Fields(spec)
		e := object.Endpoint{Addresses: []string{words[0]}}
		switch words[0] {
		case l1, l2, l3:
			e.NodeName = ptr("gw1")
		case r1, r2:
			e.NodeName = ptr("other")
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			switch key {
			case "t":
				e.Conditions.Terminating = ptr(true)
			case "s":
				e.Conditions.Serving = ptr(true)
			case "-s":
				e.Conditions.Serving = ptr(false)
			case "n":
				e.Conditions.Ready = ptr(false)
			case "zone":
				e.Zone = &value
			case "z":
				e.Hints = &object.EndpointHints{}
				for _, z := range strings.Split(value, ",") {
					e.Hints.ForZones = append(e.Hints.ForZones, object.ForZone{Name: z})
				}
			case "h":
				if e.Hints == nil {
					e.Hints = &object.EndpointHints{}
				}
				e.Hints.ForNodes = append(e.Hints.ForNodes, object.ForNode{Name: value})
			default:
				panic("no such flag: " + w)
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func service(change ...func(*object.Service)) *object.Service {
	svc := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: "v1"},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: object.ServiceSpec{
			Type: "LoadBalancer", ClusterIP: "172.30.0.41", ClusterIPs: []string{"172.30.0.41"}, IPFamilies: []string{"IPv4"},
			Ports:       []object.ServicePort{{Protocol: "TCP", Port: 80, TargetPort: object.FromInt(80), NodePort: 30080}},
			ExternalIPs: []string{"198.51.100.99"}, InternalTrafficPolicy: ptr("Cluster"), ExternalTrafficPolicy: "Cluster",
		},
		Status: object.ServiceStatus{LoadBalancer: object.LoadBalancerStatus{Ingress: []object.LoadBalancerIngress{{IP: "198.51.100.4", IPMode: ptr("VIP")}}}},
	}
	for _, c := range change {
		c(svc)
	}
	return svc
}

func etpLocal(s *object.Service) { s.Spec.ExternalTrafficPolicy = "Local" }
func itpLocal(s *object.Service) { s.Spec.InternalTrafficPolicy = ptr("Local") }
func crossZone(how string) func(*object.Service) {
	return func(s *object.Service) {
		s.Metadata.Annotations = map[string]string{"service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled": how}
	}
}
func distribute(how string) func(*object.Service) {
	return func(s *object.Service) { s.Spec.TrafficDistribution = &how }
}

func hosts(list []netip.AddrPort) string {
	var out []string
	for _, ap := range list {
		out = append(out, ap.Addr().String())
	}
	return strings.Join(out, " ")
}

func TestPools(t *testing.T) {
	join := func(s ...string) string { return strings.Join(s, " ") }
	for _, c := range []struct {
		name           string
		svc            func(*object.Service)
		slice          []string
		cluster, local string
		noLocal        nft.Refusal
	}{
		{"ready ones, local ones among them", etpLocal, []string{l1, l2, l3 + " n s t", r1}, join(l1, l2, r1), join(l1, l2), nft.Blackhole},
		{"only terminating ones that do not serve: nobody", etpLocal, []string{l1 + " n -s t", r1 + " n -s t"}, "", "", nft.Refuse},
		{"none ready: those that serve while terminating", etpLocal, []string{l1 + " n t", r1 + " n t", r2 + " n -s t"}, join(l1, r1), l1, nft.Blackhole},
		{"each pool falls back by itself", etpLocal, []string{l1 + " n t", r1}, r1, l1, nft.Blackhole},
		{"not ready and not terminating is never used", etpLocal, []string{l1 + " n", r1 + " n s"}, "", "", nft.Refuse},
		{"remote only", etpLocal, []string{r1, r2}, join(r1, r2), "", nft.Blackhole},
		{"no nodeName counts as local", etpLocal, []string{"10.180.9.9"}, "10.180.9.9", "10.180.9.9", nft.Blackhole},

		{"zone hints", nil, []string{l1 + " z=zone-a", r1 + " z=zone-b", r2 + " z=zone-b,zone-a"}, join(l1, r2), l1, nft.Blackhole},
		{"zone hints, one ready endpoint without", nil, []string{l1 + " z=zone-a", r1}, join(l1, r1), l1, nft.Blackhole},
		{"zone hints, one unready endpoint without", nil, []string{l1 + " z=zone-a", r1 + " z=zone-b", r2 + " n"}, l1, l1, nft.Blackhole},
		{"zone hints, none for this zone", nil, []string{l1 + " z=zone-c", r1 + " z=zone-b"}, join(l1, r1), l1, nft.Blackhole},
		{"cross-zone off", crossZone("false"), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, l1, l1, nft.Blackhole},
		{"cross-zone on", crossZone("true"), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, join(l1, r1), l1, nft.Blackhole},
		{"cross-zone off, nobody in the zone", crossZone("false"), []string{l1 + " zone=zone-c", r1 + " zone=zone-b"}, join(l1, r1), l1, nft.Blackhole},
		{"cross-zone off, hints win", crossZone("false"), []string{l1 + " zone=zone-a z=zone-b", r1 + " zone=zone-b z=zone-a"}, r1, l1, nft.Blackhole},
		{"cross-zone off, trafficDistribution wins", func(s *object.Service) { crossZone("false")(s); distribute("PreferSameNode")(s) }, []string{l1 + " zone=zone-a", r1 + " zone=zone-a"}, l1, l1, nft.Blackhole},
		{"node hints", nil, []string{l1 + " z=zone-a h=gw1", r1 + " z=zone-a h=other"}, l1, l1, nft.Blackhole},
		{"node hints, none for this node: by zone", nil, []string{r1 + " z=zone-a h=n1", r2 + " z=zone-b h=n2"}, r1, "", nft.Blackhole},
		{"node hints not on all: by zone", nil, []string{l1 + " z=zone-a h=gw1", r1 + " z=zone-a"}, join(l1, r1), l1, nft.Blackhole},

		{"PreferSameZone without hints", distribute("PreferSameZone"), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, l1, l1, nft.Blackhole},
		{"PreferClose is the same", distribute("PreferClose"), []string{l1 + " zone=zone-a", r1 + " zone=zone-b"}, l1, l1, nft.Blackhole},
		{"PreferSameNode", distribute("PreferSameNode"), []string{l1 + " zone=zone-a", r1 + " zone=zone-a"}, l1, l1, nft.Blackhole},
		{"PreferSameNode, none here: by zone", distribute("PreferSameNode"), []string{r1 + " zone=zone-a", r2 + " zone=zone-b"}, r1, "", nft.Blackhole},
		{"written hints win over trafficDistribution", distribute("PreferSameZone"), []string{l1 + " zone=zone-a z=zone-b", r1 + " zone=zone-b z=zone-a"}, r1, l1, nft.Blackhole},
		{"an endpoint without zone disables it", distribute("PreferSameZone"), []string{l1 + " zone=zone-a", r1}, join(l1, r1), l1, nft.Blackhole},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := service()
			if c.svc != nil {
				c.svc(svc)
			}
			out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, c.slice...)}}, facts())
			p := out.Ports[0]
			if got := hosts(p.Pools[nft.PoolCluster]); got != c.cluster {
				t.Errorf("cluster pool %q, want %q", got, c.cluster)
			}
			if got := hosts(p.Pools[nft.PoolLocal]); got != c.local {
				t.Errorf("local pool %q, want %q", got, c.local)
			}
			if fe := p.Frontends[1]; fe.External.Pool == nft.PoolLocal && fe.External.Fallback != c.noLocal {
				t.Errorf("without a local endpoint: %v, want %v", fe.External.Fallback, c.noLocal)
			}
		})
	}
}

func TestAnswerWithoutLocalEndpoints(t *testing.T) {
	for _, c := range []struct {
		annotation string
		slice      []string
		want       nft.Refusal
		warned     bool
	}{
		{"drop", []string{r1}, nft.Blackhole, false},
		{"reject", []string{r1}, nft.Refuse, false},
		{"reject", []string{r1 + " n t"}, nft.Refuse, false},
		{"drop", []string{r1 + " n -s t"}, nft.Refuse, false}, // no endpoint anywhere
		{"Reject", []string{r1}, nft.Blackhole, true},
		{"", []string{r1}, nft.Blackhole, true},
	} {
		svc := service(etpLocal, itpLocal, func(s *object.Service) { s.Metadata.Annotations = map[string]string{annotationNoLocal: c.annotation} })
		out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, c.slice...)}}, facts())
		cluster, balancer := out.Ports[0].Frontends[0], out.Ports[0].Frontends[1]
		if cluster.Internal.Fallback != c.want || balancer.External.Fallback != c.want {
			t.Errorf("%q, %v: cluster IP %v, load balancer IP %v, want %v", c.annotation, c.slice, cluster.Internal.Fallback, balancer.External.Fallback, c.want)
		}
		if warned := len(out.Problems) == 1 && out.Problems[0].Warning; warned != c.warned {
			t.Errorf("%q: problems %v, want a warning: %t", c.annotation, out.Problems, c.warned)
		}
	}
}

func TestPortsThatProgramsHave(t *testing.T) {
	hosts := func(s *object.Service) {
		s.Spec.ExternalIPs = []string{"192.0.2.1"}
		s.Metadata.Annotations = map[string]string{AnnotationHostAddress: "true"}
	}
	nodePort := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }
	for _, c := range []struct {
		name         string
		at           netip.AddrPort
		svc          func(*object.Service)
		field, where string
		served       int
	}{
		{"a node port", nodePort(30080), nil, "spec.ports[0].nodePort", "node port 30080/tcp", 3},
		{"another port", nodePort(30081), nil, "", "", 4},
		{"a VIP is nobody else's", netip.MustParseAddrPort("198.51.100.99:80"), nil, "", "", 4},
		{"the host's own address", netip.MustParseAddrPort("192.0.2.1:80"), hosts, "spec.ports[0].port", "192.0.2.1 port 80/tcp", 3},
	} {
		svc := service()
		if c.svc != nil {
			c.svc(svc)
		}
		out := met(Input{Service: svc}, facts(), func(d *Demand, o *Observed) {
			for _, n := range d.Needs {
				if n.Kind == NeedHostPort && n.At == c.at && n.Protocol == nft.TCP {
					o.Answer(n, State{Wrong: "nginx (pid 812) listens on tcp 0.0.0.0:80"})
				}
			}
		})
		if n := len(out.Ports[0].Frontends); n != c.served {
			t.Errorf("%s: %d frontends, want %d", c.name, n, c.served)
		}
		switch {
		case c.field == "" && len(out.Problems) != 0:
			t.Errorf("%s: problems %v", c.name, out.Problems)
		case c.field != "" && (len(out.Problems) != 1 || out.Problems[0].Field != c.field || out.Problems[0].Warning ||
			!strings.HasPrefix(out.Problems[0].Message, c.where+" is not served: nginx (pid 812) listens")):
			t.Errorf("%s: problems %v", c.name, out.Problems)
		}
	}
}

// render is a frontend in a line: address, pool for inside and outside, masquerading, ranges.
func render(fe nft.Frontend) string {
	where := fmt.Sprintf("nodeport:%d", fe.Port)
	if fe.Addr.IsValid() {
		where = fmt.Sprintf("%s:%d", fe.Addr, fe.Port)
	}
	pool := func(r nft.Route) string { return []string{"cluster", "local"}[r.Pool] }
	s := fmt.Sprintf("%s %s/%s snat-%s", where, pool(fe.Internal), pool(fe.External), []string{"never", "outside", "self", "always"}[fe.SNAT])
	if fe.Sources != nil {
		s += fmt.Sprint(" from ", fe.Sources)
	}
	return s
}

func TestFrontends(t *testing.T) {
	ranges := func(r ...string) func(*object.Service) {
		return func(s *object.Service) { s.Spec.LoadBalancerSourceRanges = r }
	}
	all := []string{
		"172.30.0.41:80 cluster/cluster snat-outside",
		"198.51.100.4:80 cluster/cluster snat-always",
		"198.51.100.99:80 cluster/cluster snat-always",
		"nodeport:30080 cluster/cluster snat-always",
	}
	for _, c := range []struct {
		name  string
		svc   func(*object.Service)
		facts func(*Facts)
		want  []string
	}{
		{"cluster policies", nil, nil, all},
		{"externalTrafficPolicy Local", etpLocal, nil, []string{
			"172.30.0.41:80 cluster/cluster snat-outside",
			"198.51.100.4:80 cluster/local snat-self",
			"198.51.100.99:80 cluster/local snat-self",
			"nodeport:30080 cluster/local snat-self",
		}},
		{"internalTrafficPolicy Local", itpLocal, nil, append([]string{"172.30.0.41:80 local/local snat-outside"}, all[1:]...)},
		{"masquerade all", etpLocal, func(f *Facts) { f.MasqueradeAll = true }, []string{
			"172.30.0.41:80 cluster/cluster snat-always",
			"198.51.100.4:80 cluster/local snat-self",
			"198.51.100.99:80 cluster/local snat-self",
			"nodeport:30080 cluster/local snat-self",
		}},
		{"source ranges hold on the balancer IP", ranges("192.0.2.0/24", " 203.0.113.0/25"), nil, []string{
			all[0], all[1] + " from [192.0.2.0/24 203.0.113.0/25]", all[2], all[3],
		}},
		{"source ranges hold everywhere but on the cluster IP", ranges("192.0.2.0/24"), func(f *Facts) { f.SourceRangesApplyToAll = true }, []string{
			all[0], all[1] + " from [192.0.2.0/24]", all[2] + " from [192.0.2.0/24]", all[3] + " from [192.0.2.0/24]",
		}},
		{"a range for everybody is no range", ranges("192.0.2.0/24", "0.0.0.0/0"), nil, all},
		{"ranges of the other family only: nobody", ranges("2001:db8::/32"), nil, []string{all[0], all[1] + " from []", all[2], all[3]}},
		{"a balancer IP of ipMode Proxy is not ours", func(s *object.Service) { s.Status.LoadBalancer.Ingress[0].IPMode = ptr("Proxy") }, nil,
			[]string{all[0], all[2], all[3]}},
		{"the host's address is not taken", func(s *object.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }, nil, []string{all[0], all[1], all[3]}},
		{"unless told so", func(s *object.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
			s.Metadata.Annotations = map[string]string{AnnotationHostAddress: "true"}
		}, nil, []string{all[0], all[1], "192.0.2.1:80 cluster/cluster snat-always", all[3]}},
		{"external IP ranges", nil, func(f *Facts) { f.ExternalIPRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} }, []string{all[0], all[1], all[3]}},
		{"headless", func(s *object.Service) { s.Spec.ClusterIPs = []string{"None"} }, nil, nil},
		{"ExternalName", func(s *object.Service) { s.Spec.Type = "ExternalName" }, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc, f := service(), facts()
			if c.svc != nil {
				c.svc(svc)
			}
			if c.facts != nil {
				c.facts(f)
			}
			var got []string
			for _, p := range Service(Input{Service: svc}, f).Ports {
				for _, fe := range p.Frontends {
					got = append(got, render(fe))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
		})
	}
}

func TestSlicesMerge(t *testing.T) {
	a, b := slice(80, l1+" n", l2), slice(80, l1, r1)
	b.Ports = append(b.Ports, object.EndpointPort{Name: ptr(""), Protocol: ptr("TCP")}, object.EndpointPort{Name: ptr("other"), Port: ptr(int32(81))})
	b.Endpoints[1].Addresses = append(b.Endpoints[1].Addresses, r2)
	six := slice(80, "fd00:10:180::1")
	fqdn := slice(80, "www.example.com")
	fqdn.AddressType = "FQDN"
	out := Service(Input{Service: service(), Slices: []*object.EndpointSlice{a, b, six, fqdn}}, facts())
	if got, want := hosts(out.Ports[0].Pools[nft.PoolCluster]), l1+" "+l2+" "+r1; got != want || len(out.Ports) != 1 {
		t.Errorf("pools %q of %d ports, want %q of one", got, len(out.Ports), want)
	}
	if len(out.Problems) != 1 || out.Problems[0].Reason != "NotServed" {
		t.Errorf("problems %v, want one about the FQDN slice", out.Problems)
	}
}

func TestHealthCountsLocalReadyAddresses(t *testing.T) {
	svc := service(etpLocal, func(s *object.Service) { s.Spec.HealthCheckNodePort = 32000 })
	ends := slice(80, l1, l2, l3+" n t", r1)
	ends.Ports = append(ends.Ports, object.EndpointPort{Name: ptr("b"), Port: ptr(int32(81))})
	if h := Service(Input{Service: svc, Slices: []*object.EndpointSlice{ends}}, facts()).LocalEndpoints; h == nil || *h != (LocalEndpoints{32000, 2}) {
		t.Errorf("health %+v, want port 32000 and 2 endpoints", h)
	}
	svc.Spec.ExternalTrafficPolicy = "Cluster"
	if h := Service(Input{Service: svc}, facts()).LocalEndpoints; h != nil {
		t.Errorf("without the policy Local: %+v", h)
	}
}

func TestDualStackKeepsFamiliesApart(t *testing.T) {
	svc := service(func(s *object.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:172:30::41") })
	out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1), slice(8080, "fd00:10:180::1")}}, facts())
	if len(out.Ports) != 2 || out.Ports[0].Family != nft.IPv4 || out.Ports[1].Family != nft.IPv6 {
		t.Fatalf("ports %+v, want one a family", out.Ports)
	}
	if got := fmt.Sprint(out.Ports[1].Pools[nft.PoolCluster]); got != "[[fd00:10:180::1]:8080]" {
		t.Errorf("IPv6 pool %s", got)
	}
	if got := len(out.Ports[1].Frontends); got != 2 {
		t.Errorf("%d IPv6 frontends, want cluster IP and node port", got)
	}
}

// An address that no packet may be sent to is left out, although validation let it through.
func TestAddressesThatAreNoEndpoints(t *testing.T) {
	out := Service(Input{Service: service(), Slices: []*object.EndpointSlice{slice(9376, "1.2.3.4", "127.0.0.1", "172.30.0.9", "239.1.1.1", "1.2.3.5 n")}}, facts())
	if got := fmt.Sprint(out.Ports[0].Pools[nft.PoolCluster]); got != "[1.2.3.4:9376]" {
		t.Errorf("pool %s, want the ready address alone", got)
	}
	if len(out.Problems) != 3 {
		t.Errorf("problems %v, want one for each address that is left out", out.Problems)
	}
}

func TestClaims(t *testing.T) {
	ref := func(name string) object.Ref { return object.Ref{Kind: "Service", Namespace: "default", Name: name} }
	port := func(vips ...string) []nft.ServicePort {
		p := nft.ServicePort{Family: nft.IPv4, Protocol: nft.TCP}
		for _, v := range vips {
			p.Frontends = append(p.Frontends, nft.Frontend{Addr: netip.MustParseAddr(v), Port: 80})
		}
		return []nft.ServicePort{p}
	}
	set := func(c *Claims, name string, since uint64, ports []nft.ServicePort) []string {
		return c.Set(nil, Claim{Service: name, Ports: ports, Since: age(since)})
	}
	served := func(c *Claims, name string, ports []nft.ServicePort) string {
		granted, problems := c.Grant(ref(name), ports)
		var out []string
		for _, fe := range granted[0].Frontends {
			out = append(out, fe.Addr.String())
		}
		if len(out)+len(problems) != len(ports[0].Frontends) {
			t.Errorf("%s: %d served and %d problems for %d frontends", name, len(out), len(problems), len(ports[0].Frontends))
		}
		return strings.Join(out, " ")
	}
	const shared, own = "198.51.100.99", "198.51.100.1"
	var c Claims
	if got := set(&c, "default/young", 2, port(shared, own)); got != nil {
		t.Errorf("first claim affects %v", got)
	}
	if got := set(&c, "default/old", 1, port(shared)); !slices.Equal(got, []string{"default/young"}) {
		t.Errorf("an older claim affects %v, want the younger Service", got)
	}
	if got := served(&c, "young", port(shared, own)); got != own {
		t.Errorf("the younger Service serves %q, want %q", got, own)
	}
	if got := served(&c, "old", port(shared)); got != shared {
		t.Errorf("the older Service serves %q", got)
	}
	if got := set(&c, "default/a-youngest", 2, port(shared)); got != nil {
		t.Errorf("a claim that loses affects %v", got)
	}
	if got := set(&c, "default/old", 1, nil); !slices.Equal(got, []string{"default/a-youngest"}) {
		t.Errorf("of two of one age the first by name follows; affected: %v", got)
	}
	if got := set(&c, "default/a-youngest", 2, nil); !slices.Equal(got, []string{"default/young"}) {
		t.Errorf("affected: %v", got)
	}
	if got := served(&c, "young", port(shared, own)); got != shared+" "+own {
		t.Errorf("the last Service serves %q", got)
	}
}
