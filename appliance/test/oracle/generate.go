package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The places of every generated world: the network of the list of behaviors, section
// 0, in both families, as package netlab builds it. Index 0 is IPv4, 1 is IPv6.
var (
	families = []string{object.IPv4, object.IPv6}

	serviceRanges = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172:30::/112")}

	interfaces = []Interface{
		{"lo", prefixes("127.0.0.1/8", "::1/128")},
		{"ext0", prefixes("192.0.2.1/24", "2001:db8::1/64")},
		{"alt0", prefixes("192.0.3.1/24", "2001:db8:1::2/64")},
		{"int0", prefixes("10.180.255.254/16", "fd00:10:180::ffff/64")},
		{"int1", prefixes("10.181.255.254/16", "fd00:10:181::ffff/64")},
		{"int2", prefixes("10.0.0.1/24", "fd00:10::1/64")},
	}
	gateways = addrs("192.0.2.254", "2001:db8::fe")
	primary  = addrs("192.0.2.1", "2001:db8::1")

	// clusterIPs lists the addresses of the service range that worlds ask about, more than are
	// allocated.
	clusterIPs = [][]netip.Addr{
		addrs("172.30.0.1", "172.30.0.2", "172.30.0.3", "172.30.0.4", "172.30.0.5", "172.30.0.6"),
		addrs("fd00:172:30::1", "fd00:172:30::2", "fd00:172:30::3", "fd00:172:30::4", "fd00:172:30::5", "fd00:172:30::6"),
	}
	poolIPs = [][]netip.Addr{
		addrs("198.51.100.4", "198.51.100.5", "198.51.100.6"),
		addrs("2001:db8:198::4", "2001:db8:198::5", "2001:db8:198::6"),
	}
	externalIPs = [][]netip.Addr{
		addrs("198.51.100.98", "198.51.100.99", "198.51.100.5", "192.0.3.1", "192.0.2.254", "172.30.0.2"),
		addrs("2001:db8:198::98", "2001:db8:198::99", "2001:db8:198::5", "2001:db8:1::2", "2001:db8::fe", "fd00:172:30::2"),
	}
	endpointIPs = [][]netip.Addr{
		addrs("10.180.0.1", "10.180.0.2", "10.181.1.1", "10.181.1.2", "10.0.0.2", "10.180.255.254", "172.30.0.3"),
		addrs("fd00:10:180::1", "fd00:10:180::2", "fd00:10:181::1", "fd00:10:181::2", "fd00:10::2", "fd00:10:180::ffff", "fd00:172:30::3"),
	}
	// clients lists the senders: IN, the external ones, neighbors of every segment, endpoints.
	clients = []client{
		{"int2", addrs("10.0.0.2", "fd00:10::2")},
		{"ext0", addrs("203.0.113.2", "2001:db8:203::2")},
		{"ext0", addrs("203.0.113.130", "2001:db8:203:0:8000::2")},
		{"ext0", addrs("192.0.2.254", "2001:db8::fe")},
		{"alt0", addrs("192.0.3.254", "2001:db8:1::fe")},
		{"int0", addrs("10.180.0.1", "fd00:10:180::1")},
		{"int0", addrs("10.180.0.77", "fd00:10:180::77")},
		{"int1", addrs("10.181.1.1", "fd00:10:181::1")},
		{"", addrs("192.0.2.1", "2001:db8::1")},
		{"", addrs("10.180.255.254", "fd00:10:180::ffff")},
		{"", addrs("10.0.0.1", "fd00:10::1")},
	}

	protocols   = []string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}
	ports       = []int32{53, 80, 443, 30002}
	targetPorts = []int32{80, 5353, 8080}
	nodePorts   = []int32{30001, 30002, 30003, 30004}
	portNames   = []string{"a", "b", "c"}
	nodeNames   = []string{"gw1", "gw1", "n2", ""}
	zoneNames   = []string{"zone-a", "zone-b", ""}
)

// client is an address of each family and the interface that it is behind; none: the
// box itself.
type client struct {
	behind    string
	addresses []netip.Addr
}

// boundVIPs is the interface that has VIPs for addresses.
const boundVIPs = "vip0"

// birth is the creation time of the oldest Service of a world.
var birth = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// generator generates a random World.
type generator struct {
	*rand.Rand
	world     *World
	nodePorts map[string][]int32 // those that are free, by protocol
	clusterIP [][]netip.Addr     // those that are free, by family
	poolIP    [][]netip.Addr
	plain     bool // the endpoints of this Service have neither zones nor hints
}

// Generate returns a random World whose few Services, addresses and ports collide. Its
// objects are defaulted and valid.
func Generate(r *rand.Rand) *World {
	g := newGenerator(r, generateBox(r))
	g.fill()
	g.world.bindVIPs(r)
	return g.world
}

// Next returns a random World on the same host: some Services stay the same, some get
// other endpoints, some are removed and some added. Mostly the same servers answer.
func (w *World) Next(r *rand.Rand) *World {
	g := newGenerator(r, w.Box)
	g.fill()
	for _, service := range w.Services {
		if oneIn(r, 3) || !g.world.take(service) {
			continue
		}
		if oneIn(r, 2) {
			g.endpointsOf(service)
		} else {
			g.world.takeEndpoints(w, service)
		}
	}
	if !oneIn(r, 3) {
		g.world.Down = w.Down
	}
	g.world.unbind()
	return g.world
}

func newGenerator(r *rand.Rand, box Box) *generator {
	g := &generator{Rand: r, world: &World{Box: box}, nodePorts: map[string][]int32{}}
	for _, protocol := range protocols {
		g.nodePorts[protocol] = shuffled(r, nodePorts)
	}
	for i := range families {
		g.clusterIP = append(g.clusterIP, shuffled(r, clusterIPs[i]))
		g.poolIP = append(g.poolIP, shuffled(r, poolIPs[i]))
	}
	return g
}

// fill generates the objects.
func (g *generator) fill() {
	for i := range 1 + g.IntN(5) {
		service := g.service(i)
		g.world.Services = append(g.world.Services, service)
		g.endpointsOf(service)
	}
	g.strays()
	g.servers()
}

func generateBox(r *rand.Rand) Box {
	box := Box{
		NodeName:   "gw1",
		Zone:       pick(r, []string{"zone-a", "zone-a", ""}),
		Interfaces: slices.Clone(interfaces),
		Gateways:   gateways,
		Primary:    primary,

		ServiceRanges: serviceRanges,
		InternalSources: pick(r, [][]netip.Prefix{
			prefixes("10.0.0.0/8", "fd00:10::/32"),
			prefixes("10.0.0.0/24", "fd00:10::/64"),
			prefixes("10.180.0.0/16", "192.0.2.0/24", "fd00:10:180::/64"),
			prefixes("10.0.0.0/8"),
			nil,
		}),
		NodePortPrimary: oneIn(r, 6),

		NodelessRemote:       oneIn(r, 3),
		SNATNever:            oneIn(r, 4),
		MasqueradeAll:        oneIn(r, 5),
		SourceRangesApplyAll: oneIn(r, 3),
		Ping:                 pick(r, []PingPolicy{PingWhenReady, PingWhenReady, PingAlways, PingNever}),
		SourceSets:           pick(r, SourceSets),
	}
	if !box.NodePortPrimary && oneIn(r, 2) {
		box.NodePortAddresses = pick(r, [][]netip.Prefix{
			prefixes("192.0.2.0/24", "192.0.3.0/24"),
			prefixes("2001:db8::/64"),
			prefixes("10.0.0.0/8", "fd00:10::/32"),
			prefixes("0.0.0.0/0", "2001:db8:1::/64"),
		})
	}
	if oneIn(r, 5) {
		box.ExternalIPRanges = pick(r, [][]netip.Prefix{
			prefixes("198.51.100.96/27"),
			prefixes("198.51.100.0/24", "2001:db8:198::/64", "192.0.3.0/24"),
		})
	}
	if oneIn(r, 2) {
		box.Pools = prefixes("198.51.100.4/30", "2001:db8:198::4/126")
	} else if oneIn(r, 2) {
		generateInternal(&box, r)
	}
	return box
}

func (g *generator) service(i int) *object.Service {
	created := birth.Add(time.Duration(g.IntN(3)) * time.Hour) // equal ones are wanted
	service := &object.Service{
		TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindService},
		Metadata: object.ObjectMeta{
			Namespace:         pick(g.Rand, []string{"default", "other"}),
			Name:              fmt.Sprintf("%c%d", 'a'+rune(g.IntN(4)), i),
			CreationTimestamp: &created,
			Annotations:       map[string]string{},
		},
	}
	spec := &service.Spec
	spec.Type = pick(g.Rand, []string{
		object.TypeClusterIP, object.TypeClusterIP, object.TypeNodePort,
		object.TypeLoadBalancer, object.TypeLoadBalancer, object.TypeExternalName,
	})
	if oneIn(g.Rand, 4) {
		spec.Selector = map[string]string{"app": "x"}
	}
	if oneIn(g.Rand, 3) {
		service.Metadata.Annotations[allowHostAddress] = "true"
	}
	if spec.Type == object.TypeExternalName {
		spec.ExternalName = "db.example.com"
		g.externalIPs(service, []int{0, 1})
		object.Default(service)
		return service
	}
	g.ports(service)
	g.addresses(service)
	g.policies(service)
	g.checks(service)
	object.Default(service)
	return service
}

func (g *generator) ports(service *object.Service) {
	spec := &service.Spec
	n := 1 + g.IntN(len(portNames))
	for i := range n {
		port := object.ServicePort{Name: portNames[i], Protocol: pick(g.Rand, protocols), Port: pick(g.Rand, ports)}
		if n == 1 && oneIn(g.Rand, 2) {
			port.Name = "" // the only one may have no name
		}
		if slices.ContainsFunc(spec.Ports, func(other object.ServicePort) bool {
			return other.Protocol == port.Protocol && other.Port == port.Port
		}) {
			continue
		}
		free := g.nodePorts[port.Protocol]
		wanted := spec.Type == object.TypeNodePort || spec.Type == object.TypeLoadBalancer && !oneIn(g.Rand, 4)
		if wanted && len(free) > 0 {
			port.NodePort, g.nodePorts[port.Protocol] = free[0], free[1:]
		}
		spec.Ports = append(spec.Ports, port)
	}
	if len(spec.Ports) == 1 && n > 1 && oneIn(g.Rand, 2) {
		spec.Ports[0].Name = ""
	}
}

func (g *generator) addresses(service *object.Service) {
	spec := &service.Spec
	if spec.Type == object.TypeClusterIP && oneIn(g.Rand, 8) {
		spec.ClusterIP, spec.ClusterIPs = object.ClusterIPNone, []string{object.ClusterIPNone}
		spec.IPFamilies = families[:1]
		g.externalIPs(service, []int{0, 1})
		return
	}
	indexes := pick(g.Rand, [][]int{{0}, {0}, {1}, {0, 1}, {0, 1}, {1, 0}})
	policy := object.SingleStack
	if len(indexes) == 2 {
		policy = object.PreferDualStack
	}
	spec.IPFamilyPolicy = &policy
	for _, i := range indexes {
		spec.IPFamilies = append(spec.IPFamilies, families[i])
		spec.ClusterIPs = append(spec.ClusterIPs, g.clusterIP[i][0].String())
		g.clusterIP[i] = g.clusterIP[i][1:]
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if spec.Type == object.TypeLoadBalancer {
		g.ingress(service, indexes)
	}
	g.externalIPs(service, []int{0, 1}) // of a family that the Service has not, too
}

func (g *generator) ingress(service *object.Service, indexes []int) {
	for _, i := range indexes {
		if len(g.poolIP[i]) == 0 || oneIn(g.Rand, 6) {
			continue // waits for an address
		}
		ingress := object.LoadBalancerIngress{IP: g.poolIP[i][0].String()}
		g.poolIP[i] = g.poolIP[i][1:]
		if oneIn(g.Rand, 6) {
			mode := object.IPModeProxy
			ingress.IPMode = &mode
		}
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, ingress)
	}
}

func (g *generator) externalIPs(service *object.Service, indexes []int) {
	if !oneIn(g.Rand, 2) {
		return
	}
	for range 1 + g.IntN(3) {
		text := pick(g.Rand, externalIPs[pick(g.Rand, indexes)]).String()
		// One address in two fields of a Service says two things at once: of a cluster IP
		// the specification does not say which holds.
		if !slices.Contains(service.Spec.ClusterIPs, text) && !slices.Contains(service.Spec.ExternalIPs, text) {
			service.Spec.ExternalIPs = append(service.Spec.ExternalIPs, text)
		}
	}
}

func (g *generator) policies(service *object.Service) {
	spec := &service.Spec
	local := object.PolicyLocal
	if oneIn(g.Rand, 3) {
		spec.InternalTrafficPolicy = &local
	}
	if service.ExternallyAccessible() && oneIn(g.Rand, 2) {
		spec.ExternalTrafficPolicy = local
	}
	if oneIn(g.Rand, 4) {
		service.Metadata.Annotations[annotationBalance] = pick(g.Rand, object.BalanceNames())
	}
	if oneIn(g.Rand, 8) {
		addrs := pick(g.Rand, endpointIPs)
		service.Metadata.Annotations[annotationWeights] = fmt.Sprintf("%s=%d, %s=3", addrs[0], g.IntN(3), addrs[1])
	}
	if oneIn(g.Rand, 6) {
		service.Metadata.Annotations[annotationNoLocal] = pick(g.Rand, []string{"reject", "reject", "drop"})
	}
	if oneIn(g.Rand, 6) {
		distribution := pick(g.Rand, []string{object.PreferSameZone, object.PreferClose, object.PreferSameNode})
		spec.TrafficDistribution = &distribution
	}
	if oneIn(g.Rand, 4) {
		spec.SessionAffinity = object.AffinityClientIP
	}
	if oneIn(g.Rand, 3) {
		service.Metadata.Annotations[annotationAffinityScope] = pick(g.Rand, []string{"service", "service", "port"})
	}
	if oneIn(g.Rand, 4) {
		service.Metadata.Annotations[annotationAffinityPrefix] = pick(g.Rand, []string{"24", "24,64", "31,120"})
	}
	g.ranges(service)
	g.annotations(service)
	g.clients(service)
	g.idle(service)
	if spec.Type != object.TypeLoadBalancer || !oneIn(g.Rand, 3) {
		return
	}
	ranges := pick(g.Rand, []string{
		"192.0.2.0/24, 203.0.113.0/25", "203.0.113.0/25,203.0.113.0/26,2001:db8:203::/65",
		"10.0.0.0/8,10.180.0.0/16", "0.0.0.0/0", "192.0.3.0/24,::/0",
	})
	if oneIn(g.Rand, 3) {
		service.Metadata.Annotations[annotationSourceRanges] = ranges
		return
	}
	spec.LoadBalancerSourceRanges = splitRanges(ranges)
}

// strays adds slices without a Service: without the label, or with one of a missing
// Service (behavior 106).
func (g *generator) strays() {
	if oneIn(g.Rand, 2) {
		slice := g.slice(g.world.Services[0], 0, "stray")
		slice.Metadata.Labels = nil
		g.world.Slices = append(g.world.Slices, slice)
	}
	if oneIn(g.Rand, 4) {
		slice := g.slice(g.world.Services[0], 0, "elsewhere")
		slice.Metadata.Namespace = "third"
		g.world.Slices = append(g.world.Slices, slice)
	}
}

// bindVIPs assigns some VIPs to an interface, as host prefixes.
func (w *World) bindVIPs(r *rand.Rand) {
	bound := Interface{Name: boundVIPs}
	for _, f := range w.frontends() {
		if f.place == atNodePort || w.isHosts(f.address) {
			continue
		}
		prefix := netip.PrefixFrom(f.address, f.address.BitLen())
		if oneIn(r, 4) && !slices.Contains(bound.Addresses, prefix) {
			bound.Addresses = append(bound.Addresses, prefix)
		}
	}
	if len(bound.Addresses) > 0 {
		w.Box.Interfaces = append(w.Box.Interfaces, bound)
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func shuffled[T any](r *rand.Rand, values []T) []T {
	values = slices.Clone(values)
	r.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	return values
}

// StandardBox is a box with default flags in the network of generated worlds.
func StandardBox() Box {
	return Box{NodeName: "gw1", Interfaces: slices.Clone(interfaces), Gateways: gateways, Primary: primary, ServiceRanges: serviceRanges, Ping: PingWhenReady}
}

// GenerateOn is Generate on a box.
func GenerateOn(box Box, r *rand.Rand) *World {
	g := newGenerator(r, box)
	g.fill()
	return g.world
}
