package resolve

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// relayFacts are facts of a box with listeners for IPv4.
func relayFacts() *Facts {
	f := facts()
	f.Relays = map[nft.Family][nft.NumPools]netip.AddrPort{
		nft.IPv4: {netip.MustParseAddrPort("192.0.2.1:10270"), netip.MustParseAddrPort("192.0.2.1:10271")},
	}
	return f
}

func annotated(pairs ...string) func(*object.Service) {
	return func(s *object.Service) {
		s.Metadata.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			s.Metadata.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func TestRelay(t *testing.T) {
	userspace := annotated("svcctl.io/proxy-mode", "userspace")
	proxied := annotated("svcctl.io/proxy-protocol", "v2")
	sticky := func(s *object.Service) { userspace(s); s.Spec.SessionAffinity = "ClientIP" }
	protocol := func(p string, also func(*object.Service)) func(*object.Service) {
		return func(s *object.Service) { also(s); s.Spec.Ports[0].Protocol = p }
	}
	noIPv4 := relayFacts()
	noIPv4.Relays = map[nft.Family][nft.NumPools]netip.AddrPort{}
	for name, tt := range map[string]struct {
		svc     func(*object.Service)
		facts   *Facts
		relayed bool
		how     *Relay
		problem string // "reason message" has all of it; "": none
		refuses bool   // the port has no endpoints
	}{
		"kernel":    {func(*object.Service) {}, relayFacts(), false, nil, "", false},
		"userspace": {userspace, relayFacts(), true, &Relay{ConnectTimeout: 2 * time.Second, ConnectRetries: 3}, "", false},
		"affinity":  {sticky, relayFacts(), true, &Relay{Affinity: 3 * time.Hour, ConnectTimeout: 2 * time.Second, ConnectRetries: 3}, "", false},
		"PROXY":     {proxied, relayFacts(), true, &Relay{ConnectTimeout: 2 * time.Second, ConnectRetries: 3, ProxyProtocol: 2}, "", false},
		"hashed": {annotated("svcctl.io/proxy-mode", "userspace", "svcctl.io/balance", "maglev"), relayFacts(), true, &Relay{ConnectTimeout: 2 * time.Second, ConnectRetries: 3},
			"", false},
		"retry after": {annotated("svcctl.io/tls-secret", "www", "svcctl.io/retry-after", "2s"), relayFacts(), true, nil, "NoEffect metadata.annotations[svcctl.io/retry-after] connect-retries", false},
		"affinity of all ports": {func(s *object.Service) {
			annotated("svcctl.io/tls-secret", "www", "svcctl.io/affinity-scope", "service")(s)
			s.Spec.SessionAffinity = "ClientIP"
		}, relayFacts(), true, nil, "NoEffect metadata.annotations[svcctl.io/affinity-scope] relayed", false},
		"idle": {annotated("svcctl.io/proxy-mode", "userspace", "svcctl.io/idle-timeout", "60s"), relayFacts(), true,
			&Relay{ConnectTimeout: 2 * time.Second, ConnectRetries: 3, IdleTimeout: time.Minute}, "", false},
		"PROXY from a balancer": {annotated("svcctl.io/proxy-protocol-from", "192.0.2.7, 2001:db8::/32"), relayFacts(), true,
			&Relay{ConnectTimeout: 2 * time.Second, ConnectRetries: 3, ProxyFrom: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32")}}, "", false},
		"PROXY from nowhere":             {annotated("svcctl.io/proxy-protocol-from", "balancer.example"), relayFacts(), false, nil, "InvalidAnnotation metadata.annotations[svcctl.io/proxy-protocol-from]", false},
		"PROXY from a balancer over UDP": {protocol("UDP", annotated("svcctl.io/proxy-protocol-from", "192.0.2.7")), relayFacts(), false, nil, "NotRelayed spec.ports[0].protocol", false},
		"PROXY over UDP":                 {protocol("UDP", proxied), relayFacts(), false, nil, "NotRelayed spec.ports[0].protocol", false},
		"SCTP":                           {protocol("SCTP", userspace), relayFacts(), false, nil, "NotRelayed spec.ports[0].protocol", false},
		"listener not open":              {userspace, relayFacts(), false, nil, "NoRelay spec.ports[0] nginx has it", true},
		"no address":                     {userspace, noIPv4, false, nil, "NoRelay spec.ports[0] no IPv4 address", true},
		"an unknown box":                 {userspace, facts(), false, nil, "NoRelay spec.ports[0] not known here", true},
		"another mode":                   {annotated("svcctl.io/proxy-mode", "ipvs"), relayFacts(), false, nil, "InvalidAnnotation metadata.annotations[svcctl.io/proxy-mode]", false},
		"retries for nothing":            {annotated("svcctl.io/connect-retries", "1"), relayFacts(), false, nil, "NoEffect has no effect", false},
		"headless":                       {func(s *object.Service) { userspace(s); s.Spec.ClusterIPs = []string{"None"}; s.Spec.ExternalIPs = nil }, relayFacts(), false, nil, "NotRelayed metadata.annotations[svcctl.io/proxy-mode]", false},
	} {
		svc := service(tt.svc)
		s := slice(80, l1, r1)
		s.Ports[0].Protocol = &svc.Spec.Ports[0].Protocol
		out := met(Input{Service: svc, Slices: []*object.EndpointSlice{s}}, tt.facts, func(d *Demand, o *Observed) {
			for _, n := range d.Needs {
				if n.Kind != NeedListener {
					continue
				}
				if n.Protocol != nft.TCP || n.At.Addr() != netip.MustParseAddr("192.0.2.1") {
					t.Errorf("%s: needs %+v, which is no listener of the port", name, n)
				}
				if name == "listener not open" {
					o.Answer(n, State{Missing: true, Wrong: "nginx has it"})
				}
			}
		})
		for i := range out.Ports {
			p := &out.Ports[i]
			if p.Relayed() != tt.relayed {
				t.Errorf("%s: relayed: %t, want %t", name, p.Relayed(), tt.relayed)
			}
			if has := len(p.Pools[nft.PoolCluster]); has != 0 == tt.refuses {
				t.Errorf("%s: %d endpoints", name, has)
			}
			if p.Affinity != 0 && tt.relayed {
				t.Errorf("%s: the kernel is to remember clients", name)
			}
			for _, fe := range p.Frontends {
				if tt.relayed && fe.SNAT != nft.SNATNever {
					t.Errorf("%s: the relay is to see another client: %s", name, render(fe))
				}
			}
		}
		if tt.how != nil && (out.Relay == nil || !cmp.Equal(*out.Relay, *tt.how, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}))) {
			t.Errorf("%s: %+v, want %+v", name, out.Relay, tt.how)
		}
		if tt.problem == "" && len(out.Problems) > 0 || tt.problem != "" && len(out.Problems) != 1 {
			t.Errorf("%s: problems %v, want %q", name, out.Problems, tt.problem)
			continue
		}
		reason, rest, _ := strings.Cut(tt.problem, " ")
		field, text, isField := strings.Cut(rest, " ")
		for _, p := range out.Problems {
			said := p.Field + " " + p.Message
			if p.Reason != reason || !strings.Contains(said, field) || isField && !strings.Contains(said, text) {
				t.Errorf("%s: %v, want %q", name, p, tt.problem)
			}
		}
	}
}

// Endpoints of relayed ports take turns unless the Service names another algorithm, or the box has one; weights count.
func TestRelayedBalance(t *testing.T) {
	for name, tt := range map[string]struct {
		annotations []string
		box, want   nft.Balance
		weights     map[netip.AddrPort]uint16
	}{
		"nothing":        {nil, nft.Random, nft.RoundRobin, nil},
		"random":         {[]string{"svcctl.io/balance", "random"}, nft.Maglev, nft.Random, nil},
		"the box's":      {nil, nft.LeastConnection, nft.LeastConnection, nil},
		"the Service's":  {[]string{"svcctl.io/balance", "source-hash"}, nft.LeastConnection, nft.SourceHash, nil},
		"Cilium's":       {[]string{"service.cilium.io/lb-algorithm", "maglev"}, nft.Random, nft.Maglev, nil},
		"what no one is": {[]string{"svcctl.io/balance", "fair"}, nft.Random, nft.RoundRobin, nil},
		"weights":        {[]string{"svcctl.io/weights", l1 + "=5"}, nft.Random, nft.RoundRobin, map[netip.AddrPort]uint16{netip.MustParseAddrPort(l1 + ":8080"): 5}},
	} {
		f := relayFacts()
		f.Balance = tt.box
		out := Service(Input{Service: service(annotated(append(tt.annotations, "svcctl.io/proxy-mode", "userspace")...)), Slices: []*object.EndpointSlice{slice(8080, l1, r1)}}, f)
		if len(out.Ports) == 0 || !out.Ports[0].Relayed() {
			t.Errorf("%s: no port is relayed", name)
			continue
		}
		if p := &out.Ports[0]; p.Balance != tt.want || !cmp.Equal(p.Weights[nft.PoolCluster], tt.weights, cmpopts.EquateComparable(netip.AddrPort{})) {
			t.Errorf("%s: %s, weights %v, want %s, %v", name, BalanceName(p.Balance), p.Weights, BalanceName(tt.want), tt.weights)
		}
	}
}

// A relayed Service of IPv4 alone whose endpoints are all IPv6 has them checked.
func TestEndpointsOfTheOtherFamilyAreChecked(t *testing.T) {
	svc := service(annotated("svcctl.io/proxy-mode", "userspace", "svcctl.io/health-check", "tcp"))
	list := slice(8080, "fd00:10:180::1")
	list.AddressType = object.IPv6
	out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{list}}, relayFacts())
	if len(out.Checked) != 1 || out.Checked[0].Endpoint.Addr() != netip.MustParseAddr("fd00:10:180::1") {
		t.Errorf("checked are %+v", out.Checked)
	}
	if len(out.Ports) != 1 || len(out.Ports[0].Serving) != 1 {
		t.Errorf("ports are %+v", out.Ports)
	}
	if kernel := Service(Input{Service: service(annotated("svcctl.io/health-check", "tcp")), Slices: []*object.EndpointSlice{list}}, relayFacts()); len(kernel.Checked) != 0 {
		t.Errorf("in kernel mode checked are %+v", kernel.Checked)
	}
}

// Of a Service with a relayed port and one over SCTP, whose endpoints are all of the other family, the latter alone is refused. The
// relayed port is reported by itself.
func TestTheOtherFamilyOfUnrelayedPorts(t *testing.T) {
	svc := service(annotated("svcctl.io/proxy-mode", "userspace"))
	svc.Spec.Ports = append(svc.Spec.Ports, object.ServicePort{Name: "sig", Protocol: object.ProtocolSCTP, Port: 2905})
	list := slice(8080, "fd00:10:180::1")
	list.AddressType = object.IPv6
	sig := list.Ports[0]
	sig.Name, sig.Protocol = new("sig"), new(object.ProtocolSCTP)
	list.Ports = append(list.Ports, sig)
	reported := func() (all []string) {
		out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{list}}, relayFacts())
		for _, p := range append(out.Problems, out.Unserved...) {
			if !p.Warning {
				all = append(all, p.Reason+" "+p.Message)
			}
		}
		return all
	}
	other := "OtherFamily its addresses are IPv4 and the 1 endpoint is IPv6, so every client at port 2905/SCTP, which no relay serves, is refused: "
	if got := reported(); len(got) != 1 || !strings.HasPrefix(got[0], other) {
		t.Errorf("reported is %q, want %q", got, other)
	}
	list.Endpoints[0].Conditions.Ready = new(false)
	if got := reported(); len(got) != 2 || !strings.HasPrefix(got[0], other) || !strings.HasPrefix(got[1], "NoReadyEndpoint port ") {
		t.Errorf("without a ready endpoint reported is %q", got)
	}
}
