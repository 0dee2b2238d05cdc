package advertise

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// compile makes a Plan of documents, each "Kind ns/name annotation=value: spec", as files have them.
func compile(t *testing.T, documents ...string) *Plan {
	t.Helper()
	var text strings.Builder
	for _, d := range documents {
		head, spec, _ := strings.Cut(d, ": ")
		kind, key, _ := strings.Cut(head, " ")
		namespace, name, _ := strings.Cut(key, "/")
		name, annotations, _ := strings.Cut(name, " ")
		text.WriteString(document(kind, namespace, name, annotationOf(annotations), spec))
	}
	return compileText(t, text.String())
}

// document is one of a file. Its name is its label, too.
func document(kind, namespace, name, annotations, spec string) string {
	version := object.APIVersionMetalLB
	if kind == object.KindBGPPeer {
		version = object.APIVersionMetalLBPeer
	}
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {namespace: %s, name: %s, labels: {name: %s}, annotations: {%s}}\nspec: %s\n",
		version, kind, namespace, name, name, annotations, spec)
}

// annotationOf is "key=value" as YAML.
func annotationOf(text string) string {
	key, value, is := strings.Cut(text, "=")
	if !is {
		return ""
	}
	return fmt.Sprintf("%s: %q", key, value)
}

func compileText(t *testing.T, text string) *Plan {
	t.Helper()
	return compileOn(t, map[string]string{"kubernetes.io/hostname": "gw1"}, text, alloc.Pool{First: netip.MustParseAddr("198.51.100.0"), Last: netip.MustParseAddr("198.51.100.15")})
}

// compileOn is that for a box whose Node has labels, with pools of flags.
func compileOn(t *testing.T, node map[string]string, text string, pools ...alloc.Pool) *Plan {
	t.Helper()
	f := manifest.Decode("metallb.yaml", []byte(text), manifest.Limits{})
	for _, p := range f.Problems {
		if p.Reason != manifest.ReasonNotServed {
			t.Fatalf("%+v", p)
		}
	}
	objects := Objects{
		Node:       node,
		Namespaces: []*object.Namespace{{Metadata: object.ObjectMeta{Name: "blue", Labels: map[string]string{"color": "blue"}}}, {Metadata: object.ObjectMeta{Name: "red"}}},
		Secrets:    []*object.Secret{{Metadata: object.ObjectMeta{Namespace: "metallb-system", Name: "secretname"}, Data: map[string][]byte{"password": []byte("between us")}}},
	}
	for _, d := range f.Documents {
		o := object.DeepCopy(d.Object)
		object.Default(o)
		if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
			t.Fatalf("%s: %v", object.RefOf(o), errs)
		}
		add(&objects, o)
	}
	return Compile(&objects, &Box{Pools: pools, ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
}

// add puts an object among those of its kind.
func add(objects *Objects, o object.Object) {
	switch o := o.(type) {
	case *object.IPAddressPool:
		objects.Pools = append(objects.Pools, o)
	case *object.L2Advertisement:
		objects.L2 = append(objects.L2, o)
	case *object.BGPAdvertisement:
		objects.BGP = append(objects.BGP, o)
	case *object.Community:
		objects.Communities = append(objects.Communities, o)
	case *object.BFDProfile:
		objects.Profiles = append(objects.Profiles, o)
	case *object.BGPPeer:
		objects.Peers = append(objects.Peers, o)
	}
}

// said are the problems as "Kind name field: message".
func said(p *Plan) (all []string) {
	for _, problem := range p.Problems {
		all = append(all, fmt.Sprintf("%s %s %s: %s", problem.Object.Kind, problem.Object.Name, problem.Field, problem.Message))
	}
	return all
}

// says asserts that there is one problem for each beginning.
func says(t *testing.T, p *Plan, want ...string) {
	t.Helper()
	got := said(p)
	if len(got) != len(want) {
		t.Errorf("problems are %q, want %q", got, want)
		return
	}
	for i := range want {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, want[i]) }) {
			t.Errorf("problems are %q, want one that begins with %q", got, want[i])
		}
	}
}

const lan = "IPAddressPool m/lan: {addresses: [192.0.2.0/28, 192.0.2.32-192.0.2.40, '2001:db8::/124']}"

// Advertisements announce the addresses of the pools and Services that they select, on the boxes that they select.
func TestAdvertised(t *testing.T) {
	other := "IPAddressPool m/other: {addresses: [203.0.113.0/28]}"
	for name, test := range map[string]struct {
		documents []string
		labels    map[string]string
		idle      bool
		addr      string
		l2, via   string
	}{
		"no advertisement":         {[]string{lan}, nil, false, "192.0.2.1", "", ""},
		"all pools":                {[]string{lan, other, "L2Advertisement m/all: {}", "BGPAdvertisement m/all: {}"}, nil, false, "203.0.113.1", "*", "m/all"},
		"IPv6":                     {[]string{lan, "L2Advertisement m/all: {}"}, nil, false, "2001:db8::1", "*", ""},
		"another namespace":        {[]string{lan, "L2Advertisement other/all: {}"}, nil, false, "192.0.2.1", "", ""},
		"another pool":             {[]string{lan, other, "L2Advertisement m/one: {ipAddressPools: [other]}"}, nil, false, "192.0.2.1", "", ""},
		"a pool by label":          {[]string{lan, other, "L2Advertisement m/one: {ipAddressPoolSelectors: [{matchLabels: {name: lan}}]}"}, nil, false, "192.0.2.1", "*", ""},
		"another by label":         {[]string{lan, other, "L2Advertisement m/one: {ipAddressPoolSelectors: [{matchLabels: {name: lan}}]}"}, nil, false, "203.0.113.1", "", ""},
		"interfaces":               {[]string{lan, "L2Advertisement m/a: {interfaces: [eth1, eth0]}", "L2Advertisement m/b: {interfaces: [eth1]}"}, nil, false, "192.0.2.1", "eth0 eth1", ""},
		"this box":                 {[]string{lan, "L2Advertisement m/a: {nodeSelectors: [{matchLabels: {kubernetes.io/hostname: gw1}}]}"}, nil, false, "192.0.2.1", "*", ""},
		"another box":              {[]string{lan, "L2Advertisement m/a: {nodeSelectors: [{matchLabels: {kubernetes.io/hostname: gw2}}]}", "BGPAdvertisement m/a: {nodeSelectors: [{matchLabels: {kubernetes.io/hostname: gw2}}]}"}, nil, false, "192.0.2.1", "", ""},
		"a Service":                {[]string{lan, "BGPAdvertisement m/a: {serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [web]}]}]}"}, map[string]string{"app": "web"}, false, "192.0.2.1", "", "m/a"},
		"another Service":          {[]string{lan, "BGPAdvertisement m/a: {serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [web]}]}]}"}, nil, false, "192.0.2.1", "", ""},
		"nobody is served":         {[]string{lan, "L2Advertisement m/a: {}"}, nil, true, "192.0.2.1", "", ""},
		"nobody is served, always": {[]string{lan, "L2Advertisement m/a svcctl.io/announce=always: {}"}, nil, true, "192.0.2.1", "*", ""},
		"in no pool":               {[]string{lan, "L2Advertisement m/a: {}"}, nil, false, "192.0.2.50", "", ""},
	} {
		p := compile(t, test.documents...)
		flags, l2, via := p.Advertised(netip.MustParseAddr(test.addr), test.labels, !test.idle)
		if flags || strings.Join(l2, " ") != test.l2 || strings.Join(via, " ") != test.via {
			t.Errorf("%s: flags %t, on %q, via %q, want %q, %q", name, flags, l2, via, test.l2, test.via)
		}
		says(t, p)
	}
	p := compile(t)
	if flags, l2, via := p.Advertised(netip.MustParseAddr("198.51.100.3"), nil, true); !flags || l2 != nil || via != nil {
		t.Errorf("of a pool of flags: %t %q %q", flags, l2, via)
	}
}

// A pool that comes later and overlaps one that is in use is refused, whatever its name; pools stay ordered by their names.
func Test1172_older_pool_stays_in_use(t *testing.T) {
	var objects Objects
	for i, name := range []string{"aaa", "aab", "lan"} { // as the store lists them
		born := time.Unix(1000-int64(i), 0)
		objects.Pools = append(objects.Pools, &object.IPAddressPool{
			TypeMeta: object.TypeMeta{Kind: object.KindIPAddressPool}, Metadata: object.ObjectMeta{Namespace: "m", Name: name, CreationTimestamp: &born},
			Spec: object.IPAddressPoolSpec{Addresses: []string{[]string{"192.0.2.8/30", "198.51.100.0/30", "192.0.2.0/28"}[i]}},
		})
	}
	p := Compile(&objects, &Box{})
	says(t, p, "IPAddressPool aaa spec.addresses[0]: 192.0.2.8/30 overlaps the IPAddressPool m/lan")
	if len(p.Pools) != 2 || p.Pools[0].Name != "m/aab" || p.Pools[1].Name != "m/lan" {
		t.Errorf("the pools are %v", p.Pools)
	}
}

// Test1144_pools_of_addresses_that_cannot_be_VIPs: they are refused when they are written, in words; one that an earlier version accepted is used on, with
// a warning.
func Test1144_pools_of_addresses_that_cannot_be_VIPs(t *testing.T) {
	for addresses, want := range map[string]string{
		"127.0.0.0/30": "loopback addresses", "0.0.0.1-0.0.0.9": "addresses of this network", "169.254.7.0/24": "link-local addresses", "224.0.0.0/24": "multicast and reserved addresses",
		"223.255.255.0-224.0.0.9": "multicast and reserved addresses", "126.255.255.255-128.0.0.0": "loopback addresses", "240.0.0.0/28": "multicast and reserved addresses",
		"::1/128": "the unspecified and the loopback address", "fe80::/120": "link-local addresses", "ff02::/120": "multicast addresses",
		"198.51.100.0/28": "", "223.255.255.0/24": "", "2001:db8::/120": "", "fd00::1-fd00::9": "",
	} {
		o := &object.IPAddressPool{TypeMeta: object.TypeMeta{Kind: object.KindIPAddressPool}, Metadata: object.ObjectMeta{Namespace: "m", Name: "lan"}, Spec: object.IPAddressPoolSpec{Addresses: []string{addresses}}}
		p, text := Compile(&Objects{Pools: []*object.IPAddressPool{o}}, &Box{}), ""
		if want != "" {
			text = want + " cannot be load balancer IPs: give a range of unicast addresses"
		}
		if errs := object.Validate(o, object.Options{}); (len(errs) > 0) != (want != "") || !strings.Contains(fmt.Sprint(errs), text) {
			t.Errorf("%s: %v, want %q", addresses, errs, text)
		}
		if len(p.Pools) != 1 || (len(p.Problems) > 0) != (want != "") || want != "" && (p.Problems[0].Message != text || !p.Problems[0].Warning) {
			t.Errorf("%s: %v %v, want %q", addresses, p.Pools, p.Problems, text)
		}
	}
}

// What a pool cannot be is named, and the others are used.
func TestPools(t *testing.T) {
	p := compile(t, lan, "IPAddressPool m/twice: {addresses: [10.0.0.0/24, 192.0.2.40/32]}", "IPAddressPool m/own: {addresses: [10.0.0.0/24, 10.0.0.7-10.0.0.8]}",
		"IPAddressPool m/cluster: {addresses: [10.96.3.0/24]}", "IPAddressPool m/flags: {addresses: [198.51.100.0/24]}", "IPAddressPool m/large: {addresses: ['2001:db8:1::/48']}",
		"IPAddressPool m/asked: {addresses: [203.0.113.0/28], autoAssign: false, avoidBuggyIPs: true}",
		"IPAddressPool m/later: {addresses: [203.0.113.16/28], serviceAllocation: {priority: 50, namespaces: [red], namespaceSelectors: [{matchLabels: {color: blue}}]}}",
		"IPAddressPool m/first: {addresses: [203.0.113.32/28], serviceAllocation: {priority: 20, serviceSelectors: [{matchLabels: {app: web}}]}}")
	says(t, p, "IPAddressPool twice spec.addresses[1]: 192.0.2.40/32 overlaps the IPAddressPool m/lan", "IPAddressPool own spec.addresses[1]: 10.0.0.7-10.0.0.8 overlaps the IPAddressPool m/own",
		"IPAddressPool cluster spec.addresses[0]: 10.96.3.0/24 overlaps the range of cluster IPs", "IPAddressPool flags spec.addresses[0]: 198.51.100.0/24 overlaps the pool 198.51.100.0-198.51.100.15 of",
		"IPAddressPool large spec.addresses[0]: load balancer pool")
	var order []string
	for _, pool := range p.Pools {
		order = append(order, fmt.Sprintf("%s %s %t", pool.Name, pool, pool.OnRequest && pool.AvoidEnds))
	}
	want := []string{
		"m/first 203.0.113.32-203.0.113.47 false", "m/later 203.0.113.16-203.0.113.31 false", " 198.51.100.0-198.51.100.15 false", "m/asked 203.0.113.0-203.0.113.15 true",
		"m/lan 192.0.2.0-192.0.2.15 false", "m/lan 192.0.2.32-192.0.2.40 false", "m/lan 2001:db8::-2001:db8::f false",
	}
	if !slices.Equal(order, want) {
		t.Errorf("pools are\n%s\nwant\n%s", strings.Join(order, "\n"), strings.Join(want, "\n"))
	}
	for request, want := range map[*alloc.Request][2]bool{
		{Owner: "red/x"}: {false, true}, {Owner: "blue/x"}: {false, true}, {Owner: "green/x"}: {false, false}, {Owner: "green/x", Labels: map[string]string{"app": "web"}}: {true, false},
	} {
		if got := [2]bool{p.Pools[0].For.Includes(request), p.Pools[1].For.Includes(request)}; got != want {
			t.Errorf("%+v may have addresses of the first two: %t, want %t", request, got, want)
		}
	}
}

// A pool for the namespaces of a label is for no Service while no namespace has it, and that is another pool than one for all.
func TestPoolOfNoNamespace(t *testing.T) {
	pool := func(allocation string) alloc.Pool {
		p := compile(t, "IPAddressPool m/lan: {addresses: [203.0.113.0/28], serviceAllocation: "+allocation+"}")
		says(t, p)
		return p.Pools[slices.IndexFunc(p.Pools, func(pool alloc.Pool) bool { return pool.Name == "m/lan" })]
	}
	web := &alloc.Request{Owner: "green/x", Labels: map[string]string{"app": "web"}}
	none := pool("{namespaceSelectors: [{matchLabels: {color: green}}], serviceSelectors: [{matchLabels: {app: web}}]}")
	all := pool("{serviceSelectors: [{matchLabels: {app: web}}]}")
	if none.For.Includes(web) || !all.For.Includes(web) {
		t.Errorf("a Service has addresses of a pool for no namespace: %t, of one for all: %t", none.For.Includes(web), all.For.Includes(web))
	}
	if reflect.DeepEqual(none.For, all.For) {
		t.Errorf("a pool for no namespace and one for all are both for %+v", all.For)
	}
}

// Routes have what an advertisement says, and an aggregate does not leave its pool.
func TestRoutes(t *testing.T) {
	p := compile(t, lan, "BGPPeer m/tor: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.1}",
		"Community m/names: {communities: [{name: quiet, value: '65535:65282'}, {name: far, value: 'large:64512:1:2'}]}",
		"BGPAdvertisement m/a svcctl.io/med=7: {localPref: 150, communities: ['64512:7', quiet, far, loud, '1:2:3']}",
		"BGPAdvertisement m/b svcctl.io/prepend=11: {aggregationLength: 30, aggregationLengthV6: 124, ipAddressPools: [lan, none], peers: [tor, nobody]}")
	says(t, p, "BGPAdvertisement a spec.localPref: it has no effect", "BGPAdvertisement a spec.communities[3]: no Community", "BGPAdvertisement a spec.communities[4]: \"1:2:3\" is no community",
		"BGPAdvertisement b spec.ipAddressPools[1]: there is no IPAddressPool none", "BGPAdvertisement b spec.peers[1]: there is no BGPPeer nobody",
		"BGPAdvertisement b metadata.annotations[svcctl.io/prepend]: \"11\"", "BGPAdvertisement b spec.aggregationLength: prefixes of that length are larger than 192.0.2.32-192.0.2.40")
	want := []wire.Advertisement{
		{Name: "m/a", Peers: []string{"tor"}, Length4: 32, Length6: 128, LocalPref: 150, MED: 7, Communities: []uint32{64512<<16 | 7, 65535<<16 | 65282}, Large: [][3]uint32{{64512, 1, 2}}},
		{Name: "m/b", Peers: []string{"tor"}, Length4: 30, Length6: 124},
	}
	if !reflect.DeepEqual(p.Config.Advertisements, want) {
		t.Errorf("advertisements are\n%+v\nwant\n%+v", p.Config.Advertisements, want)
	}
	if _, _, via := p.Advertised(netip.MustParseAddr("192.0.2.1"), nil, true); !slices.Equal(via, []string{"m/a"}) {
		t.Errorf("it is announced via %q, and the aggregate is too large", via)
	}
}

// Peers have what their objects say, or no session and the field that is why.
func TestPeers(t *testing.T) {
	p := compile(t,
		"BFDProfile m/fast: {receiveInterval: 100, detectMultiplier: 5, passiveMode: true, echoMode: true}",
		"BGPPeer m/a svcctl.io/ttl-security=1: {myASN: 64512, localASN: 64999, peerASN: 64513, peerAddress: '2001:db8::1', peerPort: 1790, holdTime: 9m0s, keepaliveTime: 0s, connectTime: 120s, bfdProfile: fast, disableMP: true, enableGracefulRestart: true, routerID: 10.0.0.1, sourceAddress: '2001:db8::2'}",
		"BGPPeer m/b: {myASN: 64512, dynamicASN: external, interface: eth0, holdTime: 0s, ebgpMultiHop: true, password: secret}",
		"BGPPeer metallb-system/secret: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, passwordSecret: {name: secretname}}",
		"BGPPeer m/vrf: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, vrf: red}",
		"BGPPeer m/noprofile: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, bfdProfile: none}",
		"BGPPeer m/nosecret: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, passwordSecret: {name: secretname}}",
		"BGPPeer other/a: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3}",
		"BGPPeer m/short: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, holdTime: 2s}",
		"BGPPeer m/elsewhere: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, nodeSelectors: [{matchLabels: {kubernetes.io/hostname: gw2}}]}")
	says(t, p, "BGPPeer vrf spec.vrf: the peer gets no session", "BGPPeer noprofile spec.bfdProfile: there is no BFDProfile none", "BGPPeer nosecret spec.passwordSecret: there is no Secret secretname",
		"BGPPeer a metadata.name: another namespace", "BGPPeer short spec.holdTime: 2s", "BFDProfile fast spec.echoMode: there is no echo mode")
	want := []wire.PeerConfig{
		{Name: "a", Address: "[2001:db8::1]:1790", Source: "2001:db8::2", RouterID: "10.0.0.1", LocalAS: 64999, RemoteAS: 64513, IPv6: true, Hold: 9 * time.Minute, Connect: 2 * time.Minute,
			Restart: 2 * time.Minute, TTLSecurity: 1, BFD: &wire.BFDConfig{Transmit: 300 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 5, Passive: true, MinTTL: 254}},
		{Name: "b", Interface: "eth0", LocalAS: 64512, Dynamic: "external", IPv4: true, IPv6: true, Hold: -1, MultiHop: true, Password: "secret"},
		{Name: "secret", Address: "172.30.0.3:179", LocalAS: 64512, RemoteAS: 64512, IPv4: true, IPv6: true, Password: "between us"},
	}
	if !reflect.DeepEqual(p.Config.Peers, want) {
		t.Errorf("peers are\n%+v\nwant\n%+v", p.Config.Peers, want)
	}
}

// The configurations that MetalLB gives as examples load, and what of them is not served is named.
func TestConfigurationsOfMetalLB(t *testing.T) {
	const pool = "IPAddressPool metallb-system/example: {addresses: [192.168.10.0/24, 192.168.9.1-192.168.9.5, 'fc00:f853:0ccd:e799::/124']}"
	const peer = "BGPPeer metallb-system/peer: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3"
	for name, test := range map[string]struct {
		documents []string
		problems  []string
		via       string // of 192.168.10.1
		l2        string
		peers     int
	}{
		"simple_pool_adv_l2":  {[]string{pool, "L2Advertisement metallb-system/empty: {}"}, nil, "", "*", 0},
		"simple_pool_adv_bgp": {[]string{pool, "BGPAdvertisement metallb-system/empty: {}"}, nil, "metallb-system/empty", "", 0},
		"deployment_bgp": {[]string{pool, "BGPAdvertisement metallb-system/empty: {}", peer + "}",
			"BGPPeer metallb-system/peerv6: {myASN: 64512, peerASN: 64512, peerAddress: 'fc00:f853:ccd:e793::5'}"}, nil, "metallb-system/empty", "", 2},
		"bgpadv_selectspool_by_label": {[]string{pool, "BGPAdvertisement metallb-system/advertisement: {ipAddressPoolSelectors: [{matchLabels: {test: bgp-with-advertisement}}]}"}, nil, "", "", 0},
		"bgpadvertisement_community_alias": {[]string{pool, "BGPAdvertisement metallb-system/advertisement: {communities: [NO_ADVERTISE], ipAddressPools: [example], localPref: 150}",
			"Community metallb-system/community1: {communities: [{name: NO_ADVERTISE, value: '65535:65282'}]}"}, nil, "metallb-system/advertisement", "", 0},
		"bgpadvertisement_with_node_selector": {[]string{pool, "BGPAdvertisement metallb-system/advertisement: {aggregationLength: 32, aggregationLengthV6: 128, ipAddressPools: [example], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: kind-control-plane}}, {matchLabels: {kubernetes.io/hostname: gw1}}]}"},
			nil, "metallb-system/advertisement", "", 0},
		"bgppeer_with_bfdprofile":      {[]string{"BFDProfile metallb-system/testbfdprofile: {receiveInterval: 380, transmitInterval: 270}", peer + ", bfdProfile: testbfdprofile}"}, nil, "", "", 1},
		"bgppeer_with_session_options": {[]string{peer + ", connectTime: 120s}"}, nil, "", "", 1},
		"bgppeer_with_vrf":             {[]string{peer + ", vrf: red}"}, []string{"BGPPeer peer spec.vrf"}, "", "", 0},
		"bgppeer_withsecret":           {[]string{peer + ", holdTime: 9m0s, keepaliveTime: 0s, peerPort: 179, passwordSecret: {name: secretname}}"}, nil, "", "", 1},
		"l2adv_selects_pools_by_list":  {[]string{pool, "L2Advertisement metallb-system/example: {ipAddressPools: [first-pool]}"}, []string{"L2Advertisement example spec.ipAddressPools[0]: there is no IPAddressPool first-pool"}, "", "", 0},
		"ipaddresspool_with_selector": {[]string{"IPAddressPool metallb-system/ippool-ns-service-alloc-sample: {addresses: [192.168.20.0/24], avoidBuggyIPs: true, serviceAllocation: {priority: 50, namespaces: [namespace-a, namespace-b], namespaceSelectors: [{matchLabels: {foo: bar}}], serviceSelectors: [{matchExpressions: [{key: app, operator: In, values: [bar]}]}]}}"},
			nil, "", "", 0},
	} {
		p := compile(t, test.documents...)
		_, l2, via := p.Advertised(netip.MustParseAddr("192.168.10.1"), nil, true)
		if strings.Join(l2, " ") != test.l2 || strings.Join(via, " ") != test.via || len(p.Config.Peers) != test.peers {
			t.Errorf("%s: on %q, via %q, %d peers, want %q, %q, %d", name, l2, via, len(p.Config.Peers), test.l2, test.via, test.peers)
		}
		if says(t, p, test.problems...); t.Failed() {
			t.Fatalf("that was %s", name)
		}
	}
	v1 := compileText(t, "apiVersion: metallb.io/v1beta1\nkind: BGPPeer\nmetadata: {name: old, namespace: metallb-system}\nspec: {myASN: 64512, peerASN: 64512, peerAddress: 172.30.0.3, holdTime: 90s}\n")
	if len(v1.Config.Peers) != 1 {
		t.Error("a BGPPeer of v1beta1 is not read")
	}
}

// Test1120_plan_of_many_pools bounds the memory of a Plan, which stands for its time, by the number of pools.
func Test1120_plan_of_many_pools(t *testing.T) {
	allocated := func(pools int) uint64 {
		objects := &Objects{}
		for i := range pools {
			name := object.ObjectMeta{Namespace: "metallb-system", Name: fmt.Sprintf("p%04d", i)}
			pool, l2 := &object.IPAddressPool{Metadata: name}, &object.L2Advertisement{Metadata: name}
			pool.Spec.Addresses, l2.Spec.IPAddressPools = []string{fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}, []string{name.Name}
			objects.Pools, objects.L2 = append(objects.Pools, pool), append(objects.L2, l2)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		plan := Compile(objects, &Box{})
		runtime.ReadMemStats(&after)
		if len(plan.Pools) != pools || len(plan.Problems) > 0 {
			t.Fatalf("%d pools, and problems %v", len(plan.Pools), plan.Problems)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(100), allocated(2_000)
	if many > 40*few { // 20 times the pools
		t.Errorf("2,000 pools take %d KiB, 100 of them %d", many>>10, few>>10)
	}
}
