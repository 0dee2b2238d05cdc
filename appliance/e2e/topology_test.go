package e2e

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The box of these tests is gw1 in zone-a; L1 and L2 are on it.

// where returns an endpoint in YAML by its locality and hints: "zone-a" is its zone, "for
// zone-a zone-b" hints for zones, "node gw1" hints for nodes, "unready" that it is not ready.
func (f family) where(h *netlab.Host, says ...string) string {
	fields := []string{fmt.Sprintf("addresses: [%q]", f.of(h))}
	node, ready := "other", "true"
	if h.Name == "L1" || h.Name == "L2" {
		node = "gw1"
	}
	var hints []string
	for _, word := range says {
		kind, names, _ := strings.Cut(word, " ")
		var list []string
		for name := range strings.FieldsSeq(names) {
			list = append(list, "{name: "+name+"}")
		}
		switch kind {
		case "for":
			hints = append(hints, "forZones: ["+strings.Join(list, ", ")+"]")
		case "node":
			hints = append(hints, "forNodes: ["+strings.Join(list, ", ")+"]")
		case "unready":
			ready = "false"
		default:
			fields = append(fields, "zone: "+kind)
		}
	}
	if hints != nil {
		fields = append(fields, "hints: {"+strings.Join(hints, ", ")+"}")
	}
	fields = append(fields, "nodeName: "+node, "conditions: {ready: "+ready+"}")
	return "{" + strings.Join(fields, ", ") + "}"
}

// hinted is a slice of endpoints and which of them are used.
type hinted struct {
	name string
	// spec is a line of the Service's spec.
	spec string
	// noZone: the box has none.
	noZone    bool
	endpoints func(b *box, f family) []string
	used      func(b *box) []*netlab.Host
}

func everybody(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.L2, b.R1} }
func onlyL1(b *box) []*netlab.Host    { return []*netlab.Host{b.L1} }
func onlyR1(b *box) []*netlab.Host    { return []*netlab.Host{b.R1} }

// three are L1, L2 and R1 with what each of them says.
func three(l1, l2, r1 []string) func(b *box, f family) []string {
	return func(b *box, f family) []string {
		return []string{f.where(b.L1, l1...), f.where(b.L2, l2...), f.where(b.R1, r1...)}
	}
}

func says(words ...string) []string { return words }

// hints asserts for each of several Services of one box which endpoints are used.
func hints(t *testing.T, list []hinted) {
	t.Helper()
	zone := flags{"zone": {"zone-a"}}
	if list[0].noZone {
		zone = nil
	}
	b := newBox(t, zone)
	name := func(i int) string { return fmt.Sprintf("web%d", i) }
	b.write("web.yaml", func(f family) []string {
		var docs []string
		for i, h := range list {
			docs = append(docs,
				f.service(name(i), "clusterIP: "+f.vip(41+i), h.spec, "ports: [{name: p80, port: 80}]"),
				f.rawSlice(name(i), name(i), "p80: 80", h.endpoints(b, f)...))
		}
		return docs
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for i, h := range list {
			if err := b.tryReaches(b.IN, "tcp", f.at(f.vip(41+i), 80), plain, f.on(80, h.used(b)...)...); err != nil {
				t.Errorf("%s: %v", h.name, err)
			}
		}
	})
}

// Test070_hints has the Services of several behaviors on one box.
func Test070_hints(t *testing.T) {
	const sameZone, sameNode, prefer = "trafficDistribution: PreferSameZone", "trafficDistribution: PreferSameNode", "trafficDistribution: PreferClose"
	hints(t, []hinted{
		// Behavior 70.
		{"some are for the box's zone", "", false, three(says("for zone-a"), says("for zone-b"), says("for zone-b")), onlyL1},
		{"one is for two zones", "", false, three(says("for zone-a"), says("for zone-c"), says("for zone-b zone-a")), l1r1},
		{"hints differ from the zones that endpoints are in", "", false,
			three(says("zone-a", "for zone-b"), says("zone-a", "for zone-b"), says("zone-b", "for zone-a")), onlyR1},
		{"the one of the zone is not on the box", "", false, three(says("for zone-b"), says("for zone-b"), says("for zone-a")), onlyR1},
		// Behavior 71.
		{"a ready endpoint has none", "", false, three(says("for zone-a"), says("for zone-b"), nil), everybody},
		{"a ready endpoint has an empty list", "", false, three(says("for zone-a"), says("for zone-b"), says("for ")), everybody},
		// Behavior 72.
		{"none is for the box's zone", "", false, three(says("for zone-b"), says("for zone-c"), says("for zone-b")), everybody},
		{"an endpoint that is not ready has none", "", false, three(says("for zone-a"), says("unready"), says("for zone-b")), onlyL1},
		{"the one of the zone is not ready", "", false,
			three(says("for zone-a", "unready"), says("for zone-b"), says("for zone-b")),
			func(b *box) []*netlab.Host { return []*netlab.Host{b.L2, b.R1} }},
		// Behavior 73.
		{"one is for the box", "", false,
			three(says("for zone-a", "node gw1"), says("for zone-a", "node other"), says("for zone-a", "node other")), onlyL1},
		{"not all have one: by zone", "", false,
			three(says("for zone-a", "node gw1"), says("for zone-b"), says("for zone-a", "node other")), l1r1},
		{"none is for the box: by zone", "", false,
			three(says("for zone-b", "node n1"), says("for zone-b", "node n2"), says("for zone-a", "node n3")), onlyR1},
		{"nobody has a hint for a zone", "", false,
			three(says("node n1"), says("node n2"), says("node gw1")), onlyR1},
		// Behavior 75.
		{"PreferSameZone", sameZone, false, three(says("zone-a"), says("zone-b"), says("zone-b")), onlyL1},
		{"PreferClose is its old name", prefer, false, three(says("zone-b"), says("zone-b"), says("zone-a")), onlyR1},
		{"PreferSameZone, nobody in the zone", sameZone, false, three(says("zone-b"), says("zone-b"), says("zone-c")), everybody},
		{"PreferSameZone, an endpoint without a zone", sameZone, false, three(says("zone-a"), says("zone-b"), nil), everybody},
		{"PreferSameZone, the only one of the zone is not ready", sameZone, false,
			three(says("zone-a", "unready"), says("zone-b"), says("zone-b")),
			func(b *box) []*netlab.Host { return []*netlab.Host{b.L2, b.R1} }},
		{"PreferSameNode", sameNode, false, three(says("zone-a"), says("zone-a"), says("zone-a")), l1l2},
		{"PreferSameNode, none here: by zone", sameNode, false,
			three(says("zone-a", "unready"), says("zone-a", "unready"), says("zone-a")), onlyR1},
		{"hints win", sameZone, false, three(says("zone-a", "for zone-b"), says("zone-a", "for zone-b"), says("zone-b", "for zone-a")), onlyR1},
		{"no field, no preference", "", false, three(says("zone-a"), says("zone-b"), says("zone-b")), everybody},
	})
}

func Test072_box_without_a_zone(t *testing.T) {
	hints(t, []hinted{
		{"hints for zones", "", true, three(says("for zone-a"), says("for zone-b"), says("for zone-b")), everybody},
		{"hints for nodes count", "", true,
			three(says("for zone-a", "node gw1"), says("for zone-b", "node other"), says("for zone-b", "node other")), onlyL1},
	})
}

func Test075_traffic_distribution_on_a_live_service(t *testing.T) {
	b := newBox(t, flags{"zone": {"zone-a"}})
	docs := func(spec string) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("web", "clusterIP: "+f.vip(41), spec, "ports: [{name: p80, port: 80}]"),
				f.rawSlice("web", "web", "p80: 80", three(says("zone-a"), says("zone-b"), says("zone-a"))(b, f)...),
			}
		}
	}
	used := func(hosts []*netlab.Host) {
		t.Helper()
		for _, f := range families {
			b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, hosts...)...)
		}
	}
	b.write("web.yaml", docs(""))
	b.svcctl.Start()
	used(everybody(b))
	b.rewrite("web.yaml", docs("trafficDistribution: PreferSameZone"))
	used(l1r1(b))
	b.rewrite("web.yaml", docs("trafficDistribution: PreferSameNode"))
	used(l1l2(b))
	b.rewrite("web.yaml", docs(""))
	used(everybody(b))
}

// Topology is about who serves everybody: a policy Local has its own rule.
func Test075_traffic_distribution_and_policies(t *testing.T) {
	b := newBox(t, flags{"zone": {"zone-a"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.policyService(etpLocal, "trafficDistribution: PreferSameZone"),
			f.rawSlice("web", "web", "p80: 80", three(says("zone-b"), says("zone-b"), says("zone-a"))(b, f)...),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.external(t, f, b.EXT, plain, b.L1, b.L2)
		b.external(t, f, b.IN, plain, b.R1)
		b.reaches(t, b.EXT, "tcp", f.cluster(), masq, f.on(80, b.R1)...)
	})
}
