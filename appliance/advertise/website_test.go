package advertise

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// system is a document in MetalLB's namespace.
func system(kind, name, spec string) string { return document(kind, "metallb-system", name, "", spec) }

// What MetalLB's website has as examples of its configuration pages does what the page says, on each box that it names, or the
// field that is not served is named.
func TestExamplesOfMetalLBsWebsite(t *testing.T) {
	const to = "myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3"
	first := system("IPAddressPool", "first-pool", "{addresses: [198.51.100.10/24]}") // the address of a host in it, as there
	pools := first + system("IPAddressPool", "second-pool", "{addresses: [203.0.113.0/24]}")
	peer := func(name, more string) string { return system("BGPPeer", name, "{"+to+more+"}") }
	selectors := "nodeSelectors: [{matchLabels: {rack: frontend}, matchExpressions: [{key: network-speed, operator: NotIn, values: [slow]}]}, {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [hostA, hostB]}]}]"
	hosts := func(names ...string) (all string) {
		for _, name := range names {
			all += "{matchLabels: {kubernetes.io/hostname: " + name + "}}, "
		}
		return "nodeSelectors: [" + all + "]"
	}
	for name, test := range map[string]struct {
		text     string
		node     string // labels of the box
		service  string // labels of the Service that has addr
		addr     string
		l2, via  string
		peers    string
		problems []string
	}{
		"layer 2":                               {first + system("L2Advertisement", "example", "{}"), "", "", "198.51.100.10", "*", "", "", nil},
		"layer 2, a pool by its name":           {pools + system("L2Advertisement", "example", "{ipAddressPools: [first-pool]}"), "", "", "203.0.113.1", "", "", "", nil},
		"layer 2, on NodeA":                     {pools + system("L2Advertisement", "a", "{ipAddressPools: [first-pool], "+hosts("NodeA", "NodeB")+"}") + system("L2Advertisement", "c", "{ipAddressPools: [second-pool], "+hosts("NodeC")+"}"), "kubernetes.io/hostname=NodeA", "", "198.51.100.10", "*", "", "", nil},
		"layer 2, not on NodeC":                 {pools + system("L2Advertisement", "a", "{ipAddressPools: [first-pool], "+hosts("NodeA", "NodeB")+"}") + system("L2Advertisement", "c", "{ipAddressPools: [second-pool], "+hosts("NodeC")+"}"), "kubernetes.io/hostname=NodeC", "", "198.51.100.10", "", "", "", nil},
		"layer 2, interfaces":                   {first + system("L2Advertisement", "example", "{ipAddressPools: [first-pool], interfaces: [eth0, eth1]}"), "", "", "198.51.100.10", "eth0 eth1", "", "", nil},
		"layer 2, eth3 of NodeA":                {first + system("L2Advertisement", "example", "{ipAddressPools: [first-pool], "+hosts("NodeA")+", interfaces: [eth3]}"), "kubernetes.io/hostname=NodeA", "", "198.51.100.10", "eth3", "", "", nil},
		"layer 2, several on hostB":             {first + system("L2Advertisement", "all", "{interfaces: [eno1]}") + system("L2Advertisement", "b", "{ipAddressPools: [first-pool], "+hosts("hostB")+", interfaces: [ens18]}"), "kubernetes.io/hostname=hostB", "", "198.51.100.10", "eno1 ens18", "", "", nil},
		"layer 2, several elsewhere":            {first + system("L2Advertisement", "all", "{interfaces: [eno1]}") + system("L2Advertisement", "b", "{ipAddressPools: [first-pool], "+hosts("hostB")+", interfaces: [ens18]}"), "", "", "198.51.100.10", "eno1", "", "", nil},
		"layer 2, Services of the tier":         {first + system("L2Advertisement", "front", "{ipAddressPools: [first-pool], interfaces: [eth0], serviceSelectors: [{matchLabels: {tier: frontend}}]}") + system("L2Advertisement", "back", "{ipAddressPools: [first-pool], interfaces: [eth1], serviceSelectors: [{matchLabels: {tier: backend}}]}"), "", "tier=backend", "198.51.100.10", "eth1", "", "", nil},
		"layer 2, preferred nodes":              {first + system("L2Advertisement", "tiered", "{ipAddressPools: [first-pool], preferredNodeSelectors: [{weight: 100, preference: {matchLabels: {zone: primary}}}, {weight: 50, preference: {matchLabels: {zone: secondary}}}]}"), "", "", "198.51.100.10", "*", "", "", []string{"L2Advertisement tiered spec.preferredNodeSelectors: it has no effect: which box answers is decided by the election, with --priority"}},
		"BGP":                                   {first + system("BGPAdvertisement", "example", "{}") + system("BGPPeer", "sample", "{myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.1}"), "", "", "198.51.100.10", "", "metallb-system/example", "sample", nil},
		"BGP, BFD":                              {system("BFDProfile", "testbfdprofile", "{receiveInterval: 380, transmitInterval: 270}") + peer("peersample", ", bfdProfile: testbfdprofile"), "", "", "198.51.100.10", "", "", "peersample", nil},
		"BGP, peers of hostA":                   {peer("example", ", peerPort: 180, "+selectors), "kubernetes.io/hostname=hostA", "", "198.51.100.10", "", "", "example", nil},
		"BGP, peers of the rack":                {peer("example", ", peerPort: 180, "+selectors), "rack=frontend", "", "198.51.100.10", "", "", "example", nil},
		"BGP, not of a slow box of the rack":    {peer("example", ", peerPort: 180, "+selectors), "rack=frontend network-speed=slow", "", "198.51.100.10", "", "", "", nil},
		"BGP, announced by NodeA":               {first + system("BGPAdvertisement", "example", "{ipAddressPools: [first-pool], "+hosts("NodeA", "NodeB")+"}"), "kubernetes.io/hostname=NodeA", "", "198.51.100.10", "", "metallb-system/example", "", nil},
		"BGP, not announced by NodeC":           {first + system("BGPAdvertisement", "example", "{ipAddressPools: [first-pool], "+hosts("NodeA", "NodeB")+"}"), "kubernetes.io/hostname=NodeC", "", "198.51.100.10", "", "", "", nil},
		"BGP, production":                       {first + peer("tor", "") + system("BGPAdvertisement", "production-services", "{ipAddressPools: [first-pool], localPref: 200, serviceSelectors: [{matchLabels: {environment: production}}]}") + system("BGPAdvertisement", "staging-services", "{ipAddressPools: [first-pool], localPref: 100, serviceSelectors: [{matchLabels: {environment: staging}}]}"), "", "environment=production", "198.51.100.10", "", "metallb-system/production-services", "tor", nil},
		"BGP, a source address":                 {peer("example", ", peerPort: 179, sourceAddress: 172.30.0.2, "+hosts("node-1")), "kubernetes.io/hostname=node-1", "", "198.51.100.10", "", "", "example", nil},
		"BGP, a VRF":                            {peer("example", ", peerPort: 179, vrf: red"), "", "", "198.51.100.10", "", "", "", []string{"BGPPeer example spec.vrf: the peer gets no session: routes of a VRF are not read here; leave it out, or run"}},
		"BGP, graceful restart":                 {peer("example", ", enableGracefulRestart: true"), "", "", "198.51.100.10", "", "", "example", nil},
		"BGP, another AS for a peer":            {system("BGPPeer", "example", "{myASN: 64512, peerASN: 64520, peerAddress: 172.30.0.3, localASN: 65410}"), "", "", "198.51.100.10", "", "", "example", nil},
		"BGP, unnumbered":                       {system("BGPPeer", "example", "{myASN: 64512, dynamicASN: external, interface: net0}"), "", "", "198.51.100.10", "", "", "example", nil},
		"both":                                  {pools + system("BGPAdvertisement", "bgp", "{}") + system("L2Advertisement", "l2", "{}"), "", "", "203.0.113.1", "*", "metallb-system/bgp", "", nil},
		"an advertisement without namespace":    {first + document("BGPAdvertisement", "default", "local", "", "{ipAddressPools: [first-pool], aggregationLength: 24}"), "", "", "198.51.100.10", "", "", "", []string{"BGPAdvertisement local spec.ipAddressPools[0]: there is no IPAddressPool first-pool in use in the namespace default: nothing is announced for that name; one of the namespace metallb-system is"}},
		"localPref that no peer can be told of": {first + system("BGPPeer", "sample", "{myASN: 64500, peerASN: 64501, peerAddress: 10.0.0.1}") + system("BGPAdvertisement", "local", "{localPref: 100}"), "", "", "198.51.100.10", "", "metallb-system/local", "sample", []string{"BGPAdvertisement local spec.localPref: it has no effect: BGP sends it to routers of the same AS alone, and sample is of another"}},
	} {
		labels := func(text string) map[string]string {
			all := map[string]string{}
			for _, pair := range strings.Fields(text) {
				key, value, _ := strings.Cut(pair, "=")
				all[key] = value
			}
			return all
		}
		p := compileOn(t, labels(test.node), test.text)
		_, l2, via := p.Advertised(netip.MustParseAddr(test.addr), labels(test.service), true)
		var peers []string
		for _, c := range p.Config.Peers {
			peers = append(peers, c.Name)
		}
		if strings.Join(l2, " ") != test.l2 || strings.Join(via, " ") != test.via || strings.Join(peers, " ") != test.peers {
			t.Errorf("%s: on %q, via %q, peers %q, want %q, %q, %q", name, l2, via, peers, test.l2, test.via, test.peers)
		}
		if says(t, p, test.problems...); t.Failed() {
			t.Fatalf("that was %s", name)
		}
	}
}

// The example of routes of two lengths: the one to the address is for the router alone, the one to all of the pool has nothing
// to it; and each is for the peers that are named, or for all.
func TestRoutesOfMetalLBsWebsite(t *testing.T) {
	text := system("IPAddressPool", "first-pool", "{addresses: [198.51.100.10/24]}") +
		system("BGPPeer", "peer-a", "{myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3}") + system("BGPPeer", "peer-b", "{myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.4}") +
		system("Community", "communities", "{communities: [{name: vpn-only, value: '1234:1'}, {name: NO_ADVERTISE, value: '65535:65282'}]}") +
		system("BGPAdvertisement", "local", "{ipAddressPools: [first-pool], aggregationLength: 32, localPref: 100, communities: ['65535:65282', vpn-only]}") +
		system("BGPAdvertisement", "external", "{ipAddressPools: [first-pool], aggregationLength: 24, peers: [peer-a]}")
	p := compileOn(t, nil, text)
	says(t, p)
	want := []wire.Advertisement{
		{Name: "metallb-system/local", Peers: []string{"peer-a", "peer-b"}, Length4: 32, Length6: 128, LocalPref: 100, Communities: []uint32{65535<<16 | 65282, 1234<<16 | 1}},
		{Name: "metallb-system/external", Peers: []string{"peer-a"}, Length4: 24, Length6: 128},
	}
	if !reflect.DeepEqual(p.Config.Advertisements, want) {
		t.Errorf("advertisements are\n%+v\nwant\n%+v", p.Config.Advertisements, want)
	}
	if _, _, via := p.Advertised(netip.MustParseAddr("198.51.100.10"), nil, true); !slices.Equal(slices.Sorted(slices.Values(via)), []string{"metallb-system/external", "metallb-system/local"}) {
		t.Errorf("it is announced via %q", via)
	}
}
