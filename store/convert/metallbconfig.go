package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The keys of MetalLB's ConfigMap (before 0.13) and of the objects that took its place. A node selector has the keys of
// a LabelSelector.
var (
	metallbPool    = map[string]string{"addresses": "addresses", "auto-assign": "autoAssign", "avoid-buggy-ips": "avoidBuggyIPs"}
	metallbRoute   = map[string]string{"aggregation-length": "aggregationLength", "aggregation-length-v6": "aggregationLengthV6", "localpref": "localPref", "communities": "communities"}
	metallbProfile = map[string]string{"receive-interval": "receiveInterval", "transmit-interval": "transmitInterval", "detect-multiplier": "detectMultiplier", "echo-interval": "echoInterval",
		"echo-mode": "echoMode", "passive-mode": "passiveMode", "minimum-ttl": "minimumTtl"}
	metallbPeer = map[string]string{"my-asn": "myASN", "peer-asn": "peerASN", "peer-address": "peerAddress", "source-address": "sourceAddress", "peer-port": "peerPort", "hold-time": "holdTime",
		"keepalive-time": "keepaliveTime", "router-id": "routerID", "password": "password", "ebgp-multihop": "ebgpMultiHop", "bfd-profile": "bfdProfile", "node-selectors": "nodeSelectors"}
)

// metallbConfig takes over a ConfigMap of MetalLB: pools, advertisements, peers. It reports whether there was one.
func (r *cluster) metallbConfig(text string) (found bool) {
	docs, err := lenient("cluster.yaml", text, func(int, string) {})
	if err != nil {
		return false // Decode names it
	}
	var maps []value
	for _, d := range docs {
		maps = append(maps, d)
		maps = append(maps, d.get("items").items()...)
	}
	for _, m := range maps {
		config := m.get("data").get("config")
		if m.get("kind").text() != "ConfigMap" || !strings.Contains(config.text(), "address-pools") {
			continue
		}
		inner, err := lenient("config.yaml", config.text(), func(int, string) {})
		if err != nil || len(inner) == 0 {
			r.fail(config.line(), "ConfigMap %s: its config cannot be read: %v", m.get("metadata").get("name").text(), err)
			continue
		}
		found = true
		c := &metallbMap{cluster: r, line: m.line(), namespace: m.get("metadata").get("namespace").text()}
		c.namespace = cmp.Or(c.namespace, object.MetalLBNamespace)
		if r.options.Namespace != "" {
			c.namespace = r.options.Namespace
		}
		c.read(inner[0])
	}
	return found
}

// A metallbMap is a ConfigMap that is read.
type metallbMap struct {
	*cluster
	line      int
	namespace string
}

func (c *metallbMap) read(config value) {
	c.lose(nil, c.line, "the ConfigMap of MetalLB becomes the objects that took its place in MetalLB 0.13")
	for _, key := range config.keys() {
		switch key {
		case "peers", "bgp-communities", "bfd-profiles", "address-pools":
		default:
			c.lose(nil, c.line, "%s has no counterpart and is left out", key)
		}
	}
	for _, pool := range config.get("address-pools").items() {
		name := pool.get("name").text()
		c.pools = true
		c.keep(&object.IPAddressPool{TypeMeta: metallbKind(object.KindIPAddressPool)}, name, c.renamed("pool "+name, pool, metallbPool, "name", "protocol", "bgp-advertisements"))
		only := map[string]any{"ipAddressPools": []string{name}}
		if pool.get("protocol").text() == "layer2" {
			c.keep(&object.L2Advertisement{TypeMeta: metallbKind(object.KindL2Advertisement)}, name, only)
			continue
		}
		routes := pool.get("bgp-advertisements").items()
		for i, route := range routes {
			spec := c.renamed("an advertisement of pool "+name, route, metallbRoute)
			spec["ipAddressPools"] = only["ipAddressPools"]
			c.keep(&object.BGPAdvertisement{TypeMeta: metallbKind(object.KindBGPAdvertisement)}, numbered(name, i), spec)
		}
		if len(routes) == 0 {
			c.keep(&object.BGPAdvertisement{TypeMeta: metallbKind(object.KindBGPAdvertisement)}, name, only)
		}
	}
	var named []map[string]any
	for _, key := range config.get("bgp-communities").keys() {
		named = append(named, map[string]any{"name": key, "value": config.get("bgp-communities").get(key).text()})
	}
	if len(named) > 0 {
		c.keep(&object.Community{TypeMeta: metallbKind(object.KindCommunity)}, "communities", map[string]any{"communities": named})
	}
	for _, profile := range config.get("bfd-profiles").items() {
		name := profile.get("name").text()
		c.keep(&object.BFDProfile{TypeMeta: metallbKind(object.KindBFDProfile)}, name, c.renamed("bfd-profile "+name, profile, metallbProfile, "name"))
	}
	for i, peer := range config.get("peers").items() {
		o := &object.BGPPeer{TypeMeta: object.TypeMeta{Kind: object.KindBGPPeer, APIVersion: object.APIVersionMetalLBPeer}}
		c.keep(o, numbered("peer", i), c.renamed("peer "+peer.get("peer-address").text(), peer, metallbPeer))
	}
	c.announced = true
}

func metallbKind(kind string) object.TypeMeta {
	return object.TypeMeta{Kind: kind, APIVersion: object.APIVersionMetalLB}
}

// numbered is a name, with a number from the second one on.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, i+1)
}

// renamed is a mapping with the keys of the new objects; what has none is lost, but for those that are read.
func (c *metallbMap) renamed(what string, of value, names map[string]string, read ...string) map[string]any {
	spec := map[string]any{}
	for _, key := range of.keys() {
		switch to, known := names[key]; {
		case known && to == "nodeSelectors":
			spec[to] = camel(of.get(key).data)
		case known:
			spec[to] = of.get(key).data
		case !strings.Contains(" "+strings.Join(read, " ")+" ", " "+key+" "):
			c.lose(nil, c.line, "%s of %s has no counterpart and is left out", key, what)
		}
	}
	return spec
}

// camel has the keys match-labels and match-expressions as in a LabelSelector.
func camel(data any) any {
	switch d := data.(type) {
	case []any:
		for i := range d {
			d[i] = camel(d[i])
		}
	case map[string]any:
		for _, pair := range [][2]string{{"match-labels", "matchLabels"}, {"match-expressions", "matchExpressions"}} {
			if inner, has := d[pair[0]]; has {
				delete(d, pair[0])
				d[pair[1]] = inner
			}
		}
	}
	return data
}

// keep takes over an object with a name and a spec, if it is valid.
func (c *metallbMap) keep(o object.Object, name string, spec map[string]any) {
	meta := o.GetMeta()
	meta.Name, meta.Namespace = new(reading).name(name), c.namespace
	form, err := json.Marshal(map[string]any{"spec": spec})
	if err == nil {
		err = json.Unmarshal(form, o)
	}
	if err != nil {
		c.fail(c.line, "%s %s of the ConfigMap: %v", o.GetTypeMeta().Kind, name, err)
		return
	}
	judged := object.DeepCopy(o)
	object.Default(judged)
	for _, e := range object.Validate(judged, object.Options{}) {
		c.fail(c.line, "%s %s of the ConfigMap: %v", o.GetTypeMeta().Kind, name, e)
	}
	c.out.Kept = append(c.out.Kept, &Kept{Object: o})
}
