package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The clients, endpoints and VIPs of the list of behaviors, section 0.
var names = map[string]string{
	"IN": "10.0.0.2 int2", "EXT": "203.0.113.2 ext0", "BLK": "203.0.113.130 ext0", "SELF": "192.0.2.1", "NEAR": "10.180.0.77 int0",
	"L1": "10.180.0.1 int0", "L2": "10.180.0.2 int0", "R1": "10.181.1.1 int1",
	"V": "172.30.0.41", "LB": "198.51.100.4", "XIP": "198.51.100.99", "NODE": "192.0.2.1", "ALT": "192.0.3.1", "FREE": "172.30.0.50",
}

func address(name string) (addr netip.Addr, behind string) {
	text, ok := names[name]
	if !ok {
		text = name
	}
	fields := append(strings.Fields(text), "")
	return netip.MustParseAddr(fields[0]), fields[1]
}

// endpoint reads "L1" (ready, on this box), "R1" (ready, on another) or "L2/f/t/t": the
// same with ready, serving and terminating, each t, f or - for absent.
func endpoint(text string) object.Endpoint {
	parts := strings.Split(text, "/")
	addr, _ := address(parts[0])
	node := map[byte]string{'L': "gw1", 'R': "elsewhere"}[parts[0][0]]
	e := object.Endpoint{Addresses: []string{addr.String()}}
	if node != "" {
		e.NodeName = &node
	}
	if len(parts) == 4 {
		values := map[string]*bool{"t": new(true), "f": new(false), "-": nil}
		e.Conditions = object.EndpointConditions{Ready: values[parts[1]], Serving: values[parts[2]], Terminating: values[parts[3]]}
	}
	return e
}

// worldOf has one Service at V, LB, XIP and a node port, with these endpoints.
func worldOf(endpoints ...string) *World {
	created := birth
	service := &object.Service{
		TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindService},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "web", CreationTimestamp: &created, Annotations: map[string]string{}},
		Spec: object.ServiceSpec{
			Type: object.TypeLoadBalancer, ClusterIP: names["V"], ClusterIPs: []string{names["V"]}, IPFamilies: []string{object.IPv4},
			ExternalIPs: []string{names["XIP"]},
			Ports:       []object.ServicePort{{Name: "p80", Port: 80, NodePort: 30080}},
		},
	}
	service.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: names["LB"]}}
	object.Default(service)
	slice := &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{APIVersion: object.APIVersionDiscovery, Kind: object.KindEndpointSlice},
		Metadata:    object.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{object.LabelServiceName: "web"}},
		AddressType: object.IPv4, Ports: []object.EndpointPort{{Name: new("p80"), Port: new(int32(8080))}},
	}
	for _, text := range endpoints {
		slice.Endpoints = append(slice.Endpoints, endpoint(text))
	}
	object.Default(slice)
	return &World{
		Box: Box{
			NodeName: "gw1", Zone: "zone-a", Interfaces: slices.Clone(interfaces), Gateways: gateways, Primary: primary,
			ServiceRanges: serviceRanges, InternalSources: prefixes("10.0.0.0/8", "fd00:10::/32"), Ping: PingWhenReady,
			ExternalIPRanges: prefixes("198.51.100.0/24"),
		},
		Services: []*object.Service{service}, Slices: []*object.EndpointSlice{slice},
	}
}

// change is something about a world that a case needs.
type change func(*World)

func with(changes ...func(*object.ServiceSpec)) change {
	return func(w *World) {
		for _, c := range changes {
			c(&w.Services[0].Spec)
		}
	}
}

func externalLocal(s *object.ServiceSpec) { s.ExternalTrafficPolicy = object.PolicyLocal }
func internalLocal(s *object.ServiceSpec) { s.InternalTrafficPolicy = new(object.PolicyLocal) }
func ranges(texts ...string) change {
	return with(func(s *object.ServiceSpec) { s.LoadBalancerSourceRanges = texts })
}
func flag(set func(*Box)) change { return func(w *World) { set(&w.Box) } }

func zones(w *World, of ...string) {
	for i, zone := range of {
		w.Slices[0].Endpoints[i].Hints = &object.EndpointHints{ForZones: []object.ForZone{{Name: zone}}}
	}
}

// second adds a younger Service with the same external IP.
func second(w *World) {
	other := object.DeepCopy(w.Services[0])
	other.Metadata.Name, other.Metadata.CreationTimestamp = "aaa", new(birth.Add(time.Hour))
	other.Spec.ClusterIPs, other.Spec.Ports[0].NodePort, other.Status = []string{"172.30.0.42"}, 0, object.ServiceStatus{}
	w.Services = slices.Insert(w.Services, 0, other)
}

// TestBehaviors holds the oracle to the list of behaviors, whose numbers lead the
// cases. A packet is "client destination:port protocol"; an outcome is an endpoint with
// its source, or a kind.
func TestBehaviors(t *testing.T) {
	all := []string{"L1", "R1"}
	for _, test := range []struct {
		name      string
		endpoints []string
		change    change
		packets   []string
		want      string
	}{
		{"2", all, nil, []string{"IN V:80 TCP"}, "L1 plain, R1 plain"},
		{"5", all, nil, []string{"IN V:80 UDP", "IN V:81 TCP", "SELF LB:81 TCP", "EXT XIP:81 SCTP"}, "refused"},
		{"6", all, nil, []string{"IN FREE:80 TCP", "SELF FREE:80 UDP", "IN FREE:0 ping"}, "dropped"},
		{"8", all, nil, []string{"L1 V:80 TCP"}, "L1 masqueraded, R1 plain"},
		{"9", []string{"R1"}, nil, []string{"R1 V:80 TCP"}, "R1 masqueraded"},
		{"10, 11", all, nil, []string{"SELF V:80 TCP", "EXT V:80 TCP"}, "L1 masqueraded, R1 masqueraded"},
		{"12", all, flag(func(b *Box) { b.InternalSources = nil }), []string{"SELF V:80 TCP", "EXT V:80 TCP"}, "L1 plain, R1 plain"},
		{"13", all, flag(func(b *Box) { b.MasqueradeAll = true }), []string{"IN V:80 TCP"}, "L1 masqueraded, R1 masqueraded"},
		{"14 auto", all, nil, []string{"NEAR V:80 TCP"}, "L1 masqueraded, R1 plain"},
		{"14 never", all, flag(func(b *Box) { b.SNATNever = true }), []string{"NEAR V:80 TCP"}, "L1 plain, R1 plain"},
		{"5, not set aside", all, func(w *World) { w.Box.ExternalIPRanges = nil }, []string{"EXT XIP:81 SCTP", "EXT XIP:30080 TCP", "IN XIP:80 UDP"}, "untouched"},
		{"16", nil, nil, []string{"IN V:80 TCP", "EXT LB:80 TCP", "SELF XIP:80 TCP", "EXT NODE:30080 TCP"}, "refused"},
		{"17 ready", all, nil, []string{"IN V:0 ping", "EXT LB:0 ping"}, "answered"},
		{"17 not ready", nil, nil, []string{"IN V:0 ping"}, "unreachable"},
		{"17 never", all, flag(func(b *Box) { b.Ping = PingNever }), []string{"IN V:0 ping"}, "dropped"},
		{"20, 25", all, nil, []string{"EXT NODE:30080 TCP", "EXT ALT:30080 TCP", "SELF NODE:30080 TCP", "IN NODE:30080 TCP"},
			"L1 masqueraded, R1 masqueraded"},
		{"21", all, flag(func(b *Box) { b.NodePortPrimary = true }), []string{"EXT ALT:30080 TCP", "EXT NODE:30081 TCP"}, "untouched"},
		{"22", all, flag(func(b *Box) { b.NodePortAddresses = prefixes("2001:db8::/64") }), []string{"EXT ALT:30080 TCP"},
			"L1 masqueraded, R1 masqueraded"},
		{"27, 28", all, func(w *World) {
			w.Box.Interfaces = append(w.Box.Interfaces, Interface{"vip0", prefixes(names["V"]+"/32", names["LB"]+"/32")})
		}, []string{"IN V:30080 TCP", "EXT LB:30080 TCP", "EXT XIP:30080 TCP"}, "refused"},
		{"32 let in", []string{"L1"}, ranges("192.0.2.0/24", " 203.0.113.0/25"), []string{"EXT LB:80 TCP"}, "L1 masqueraded"},
		{"32, 33", []string{"L1"}, ranges("203.0.113.0/25"), []string{"BLK LB:80 TCP", "IN LB:80 TCP"}, "dropped"},
		{"34, 39", []string{"R1"}, ranges("203.0.113.0/25"), []string{"BLK NODE:30080 TCP", "BLK XIP:80 TCP", "BLK V:80 TCP"}, "R1 masqueraded"},
		{"34 all", []string{"R1"}, func(w *World) { ranges("203.0.113.0/25")(w); w.Box.SourceRangesApplyAll = true },
			[]string{"BLK NODE:30080 TCP", "BLK XIP:80 TCP"}, "dropped"},
		{"36", []string{"R1"}, ranges("203.0.113.0/25", "0.0.0.0/0"), []string{"BLK LB:80 TCP"}, "R1 masqueraded"},
		{"37", []string{"R1"}, ranges("2001:db8::/32"), []string{"EXT LB:80 TCP"}, "dropped"},
		{"44", []string{"R1"}, second, []string{"EXT XIP:80 TCP"}, "R1 masqueraded"},
		{"45", all, with(func(s *object.ServiceSpec) { s.ExternalIPs = []string{names["ALT"]} }), []string{"EXT ALT:80 TCP"}, "untouched"},
		{"47", all, nil, []string{"EXT LB:80 TCP", "IN XIP:80 TCP", "SELF LB:80 TCP"}, "L1 masqueraded, R1 masqueraded"},
		{"48", all, with(externalLocal), []string{"EXT LB:80 TCP", "EXT XIP:80 TCP", "EXT NODE:30080 TCP"}, "L1 plain"},
		{"49", all, with(externalLocal), []string{"IN LB:80 TCP", "IN NODE:30080 TCP"}, "L1 plain, R1 plain"},
		{"51", all, with(externalLocal), []string{"EXT V:80 TCP", "SELF V:80 TCP"}, "L1 masqueraded, R1 masqueraded"},
		{"52", all, func(w *World) { with(externalLocal)(w); w.Box.InternalSources = nil }, []string{"IN LB:80 TCP"}, "L1 plain"},
		{"53", []string{"R1"}, with(externalLocal), []string{"EXT LB:80 TCP", "EXT NODE:30080 TCP"}, "dropped"},
		{"53 inside", []string{"R1"}, with(externalLocal), []string{"IN LB:80 TCP", "IN V:80 TCP"}, "R1 plain"},
		{"54", nil, with(externalLocal), []string{"EXT LB:80 TCP", "IN LB:80 TCP"}, "refused"},
		{"55", all, with(internalLocal), []string{"IN V:80 TCP"}, "L1 plain"},
		{"55 outside", all, with(internalLocal), []string{"SELF V:80 TCP", "EXT V:80 TCP"}, "L1 masqueraded"},
		{"56", []string{"R1"}, with(internalLocal), []string{"IN V:80 TCP"}, "dropped"},
		{"61", []string{"L1", "L2/f/t/t", "10.180.0.4/f/f/t", "R1"}, with(externalLocal), []string{"EXT LB:80 TCP"}, "L1 plain"},
		{"61 inside", []string{"L1", "L2", "10.180.0.3/f/t/t", "R1"}, with(externalLocal), []string{"IN V:80 TCP"}, "L1 plain, L2 plain, R1 plain"},
		{"64", []string{"L1/f/f/t", "R1/f/f/t"}, nil, []string{"IN V:80 TCP", "EXT LB:80 TCP"}, "refused"},
		{"65", []string{"L1/f/t/t", "R1/f/-/t"}, nil, []string{"IN V:80 TCP"}, "L1 plain, R1 plain"},
		{"66", []string{"L1/f/t/f"}, nil, []string{"IN V:80 TCP"}, "refused"},
		{"70", all, func(w *World) { zones(w, "zone-b", "zone-a") }, []string{"IN V:80 TCP"}, "R1 plain"},
		{"72", all, func(w *World) { zones(w, "zone-b", "zone-c") }, []string{"IN V:80 TCP"}, "L1 plain, R1 plain"},
		{"75", all, func(w *World) {
			w.Slices[0].Endpoints[0].Zone, w.Slices[0].Endpoints[1].Zone = new("zone-b"), new("zone-a")
			w.Services[0].Spec.TrafficDistribution = new(object.PreferSameZone)
		}, []string{"IN V:80 TCP"}, "R1 plain"},
		{"101", []string{"L1", "R1", "L1"}, nil, []string{"IN V:80 TCP"}, "L1 plain, R1 plain"},
		{"106", all, func(w *World) { w.Slices[0].Metadata.Labels = nil }, []string{"IN V:80 TCP"}, "refused"},
		{"108", []string{"L1", "172.30.0.41"}, nil, []string{"IN V:80 TCP"}, "L1 plain"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, text := range test.packets {
				w := worldOf(test.endpoints...)
				if test.change != nil {
					test.change(w)
				}
				if got := outcomes(w.Decide(packetOf(text))); got != test.want {
					t.Errorf("%s: %s, want %s", text, got, test.want)
				}
			}
		})
	}
}

func packetOf(text string) Packet {
	var client, to, protocol string
	if _, err := fmt.Sscan(text, &client, &to, &protocol); err != nil {
		panic(err)
	}
	from, behind := address(client)
	name, port, _ := strings.Cut(to, ":")
	dst, _ := address(name)
	return Packet{
		Interface: behind, Protocol: Protocol(protocol),
		From: netip.AddrPortFrom(from, 40000), To: netip.MustParseAddrPort(dst.String() + ":" + port),
	}
}

func outcomes(all []Outcome) string {
	var texts []string
	for _, o := range all {
		text := string(o.Kind)
		if o.Kind == Delivered {
			text = fmt.Sprintf("%v %s", o.To.Addr(), o.Source)
			for name, value := range names {
				if strings.HasPrefix(value, o.To.Addr().String()+" ") && strings.ContainsAny(name[:1], "LR") {
					text = name + " " + string(o.Source)
				}
			}
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}
