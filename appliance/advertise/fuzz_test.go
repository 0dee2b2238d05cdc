package advertise

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// FuzzCompile: no objects that validation takes break the plan, and whatever they say, a pool has only its own
// addresses and no route is wider than its pool.
func FuzzCompile(f *testing.F) {
	document := func(kind, name, spec string) string { return document(kind, "lb", name, "", spec) }
	f.Add(document("IPAddressPool", "lan", "{addresses: [192.0.2.0/28, 2001:db8::/124], avoidBuggyIPs: true, serviceAllocation: {priority: 3, namespaces: [a]}}") +
		document("L2Advertisement", "all", "{interfaces: [eth0], nodeSelectors: [{matchLabels: {a: b}}]}") +
		document("BGPAdvertisement", "all", "{aggregationLength: 28, aggregationLengthV6: 124, communities: ['64512:1', named, 'large:1:2:3'], localPref: 7, peers: [tor]}") +
		document("Community", "names", "{communities: [{name: named, value: '64512:2'}]}") +
		document("BFDProfile", "fast", "{receiveInterval: 50, echoMode: true, minimumTtl: 254}") +
		document("BGPPeer", "tor", "{myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.254, holdTime: 3s, bfdProfile: fast, password: x}"))
	f.Add(document("IPAddressPool", "a", "{addresses: [192.0.2.5-192.0.2.9]}") + document("IPAddressPool", "b", "{addresses: [192.0.2.0/24]}") +
		document("BGPAdvertisement", "wide", "{aggregationLength: 8}") + document("BGPPeer", "odd", "{myASN: 1, dynamicASN: external, interface: eth0, vrf: red, holdTime: forever}"))
	f.Fuzz(func(t *testing.T, text string) {
		objects := Objects{Node: map[string]string{"kubernetes.io/hostname": "gw1"}}
		seen := map[object.Ref]bool{}
		for _, d := range manifest.Decode("metallb.yaml", []byte(text), manifest.Limits{}).Documents {
			o := object.DeepCopy(d.Object)
			object.Default(o)
			ref := object.RefOf(o)
			if len(object.Validate(o, object.Options{})) > 0 || seen[ref] {
				continue
			}
			seen[ref] = true // the store has one of a name
			add(&objects, o)
		}
		plan := Compile(&objects, &Box{})
		for i, p := range plan.Pools {
			if p.First.BitLen() != p.Last.BitLen() || p.Last.Less(p.First) {
				t.Errorf("a pool has the range %s-%s", p.First, p.Last)
			}
			for _, other := range plan.Pools[:i] {
				if p.Contains(other.First) || other.Contains(p.First) {
					t.Errorf("pools overlap: %s and %s", p.String(), other.String())
				}
			}
			_, _, via := plan.Advertised(p.First, nil, true)
			for _, name := range via {
				for _, a := range plan.Config.Advertisements {
					if a.Name != name {
						continue
					}
					length := a.Length4
					if p.First.Is6() {
						length = a.Length6
					}
					if route := netip.PrefixFrom(p.First, length).Masked(); length <= 0 || !p.Contains(route.Addr()) {
						t.Errorf("%s announces %s, and the pool is %s", name, route, p.String())
					}
				}
			}
		}
	})
}
