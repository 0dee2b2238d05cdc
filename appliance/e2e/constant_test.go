package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mixed is how many kinds of Services there are: every policy, every kind of address.
const mixed = 10

// mixedService is the i-th of many Services, of kind i % mixed, with one to five
// endpoints, some of them of the box.
func mixedService(i int) string {
	name := fmt.Sprintf("s%d", i)
	external := fmt.Sprintf("externalIPs: [100.64.%d.%d, 'fd00:64::%x']", i>>8, i&0xff, i)
	const balancer, noNodePorts = "type: LoadBalancer", "allocateLoadBalancerNodePorts: false"
	kinds := [mixed][]string{
		{},
		{"type: NodePort"},
		{balancer, etpLocal},
		{balancer, noNodePorts, "loadBalancerSourceRanges: [203.0.113.0/25, '2001:db8:203::/65', 192.0.2.0/24]"},
		{itpLocal},
		{external},
		{balancer, noNodePorts, etpLocal, itpLocal, external},
		{"sessionAffinity: ClientIP"},
		{}, // and no endpoints
		{balancer, noNodePorts, etpLocal, "sessionAffinity: ClientIP"},
	}
	kind := i % mixed
	spec := append([]string{"ipFamilyPolicy: RequireDualStack", "ports: [{name: a, port: 80}, {name: b, port: 53, protocol: UDP}]"}, kinds[kind]...)
	docs := []string{service(name, spec...)}
	for _, f := range families {
		var endpoints []string
		for n := range kind/2 + 1 {
			node := [2]string{"gw1", "other"}[n%2]
			addr := fmt.Sprintf(f.pick("10.%d.%d.%d", "fd00:10:%d:%x::%x"), 180+n, 1+i/250, 1+i%250)
			endpoints = append(endpoints, fmt.Sprintf("{addresses: ['%s'], nodeName: %s}", addr, node))
		}
		if kind == 8 {
			endpoints = nil
		}
		docs = append(docs, replaceFirst(f.rawSlice(name, "", "a: 8080, b: 53/UDP", endpoints...),
			"labels: {}", "labels: {kubernetes.io/service-name: "+name+"}"))
	}
	return strings.Join(docs, "---\n") + "---\n"
}

// size describes a ruleset without elements: rules by chain, without those of a Service port's
// own, which are counted together with its maps.
type size struct {
	rules                       map[string]int
	sets                        []string
	ownChains, ownRules, ownMap int
}

// sizeOf counts a ruleset in nft's syntax. What is a Service port's own has a name with
// a slash in it.
func sizeOf(ruleset string) size {
	s := size{rules: map[string]int{}}
	table, chain := "", ""
	for line := range strings.Lines(ruleset) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch {
		case words[0] == "table":
			table = words[1]
		case words[0] == "chain":
			chain = table + " " + words[1]
			if strings.Contains(chain, "/") {
				s.ownChains++
			} else {
				s.rules[chain] = 0
			}
		case words[0] == "set" || words[0] == "map":
			if strings.Contains(words[1], "/") {
				s.ownMap++
			} else {
				s.sets = append(s.sets, table+" "+words[1])
			}
		case words[0] == "}":
			chain = ""
		case chain == "" || words[0] == "type":
		case strings.Contains(chain, "/"):
			s.ownRules++
		default:
			s.rules[chain]++
		}
	}
	slices.Sort(s.sets)
	return s
}

func (s size) String() string {
	rules := 0
	for _, n := range s.rules {
		rules += n
	}
	return fmt.Sprintf("%d chains, %d rules, %d sets and maps; for affinity %d chains, %d rules, %d maps",
		len(s.rules), rules, len(s.sets), s.ownChains, s.ownRules, s.ownMap)
}

// TestConstant_ruleset: 10,000 Services take the chains and rules that 10 take.
func TestConstant_ruleset(t *testing.T) {
	b := newBox(t, nil)
	plan := func(services int) size {
		t.Helper()
		dir := t.TempDir()
		for first := 0; first < services; first += 1000 {
			var docs strings.Builder
			for i := first; i < min(services, first+1000); i++ {
				docs.WriteString(mixedService(i))
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", first)), []byte(docs.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{"plan", "-f", dir, "--node-name=gw1", "--service-cluster-ip-range=172.16.0.0/16,fd00:172:30::/112",
			"--cluster-cidr=10.0.0.0/8,fd00:10::/32", "--load-balancer-pool=198.18.0.0/16", "--load-balancer-pool=2001:db8:198::/112",
			"--service-node-port-range=10000-60000", "--nodeport-addresses=192.0.2.1/32,2001:db8::1/128"}
		out, problems, err := b.GW1.Run(binary, args...)
		if err != nil || problems != "" {
			t.Fatalf("svcctl plan of %d Services: %v\n%s", services, err, problems)
		}
		s := sizeOf(out)
		t.Logf("%6d Services: %s", services, s)
		return s
	}
	few, many := plan(mixed), plan(10_000)
	for _, f := range []string{"ip ", "ip6 "} { // from 4,096 frontends on
		few.rules[f+"unsettled"], few.sets = 9, append(few.sets, f+"unsettled")
		few.rules[f+"vip"]++
	}
	slices.Sort(few.sets)
	if !maps.Equal(few.rules, many.rules) || !slices.Equal(few.sets, many.sets) {
		t.Errorf("chains, rules or sets grow with the number of Services:\n%v %v\n%v %v", few.rules, few.sets, many.rules, many.sets)
	}
	const times = 10_000 / mixed
	if many.ownChains != times*few.ownChains || many.ownRules != times*few.ownRules || many.ownMap != times*few.ownMap || few.ownMap == 0 {
		t.Errorf("what a Service port with affinity takes depends on how many there are:\n%s\n%s", few, many)
	}
}

// The kernel has what was planned.
func TestConstant_ruleset_in_the_kernel(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"198.18.0.0/16", "2001:db8:198::/112"}})
	var docs strings.Builder
	for i := range mixed {
		docs.WriteString(mixedService(i))
	}
	b.svcctl.Manifests.Write("few.yaml", docs.String())
	b.svcctl.Start()
	var few [2]size
	for i, f := range families {
		few[i] = sizeOf(b.GW1.Nft("-s", "-t", "list", "table", f.pick("ip", "ip6"), "svcctl"))
	}
	docs.Reset()
	for i := range 50 * mixed {
		docs.WriteString(mixedService(i))
	}
	b.change(func() { b.svcctl.Manifests.Write("few.yaml", docs.String()) })
	for i, f := range families {
		many := sizeOf(b.GW1.Nft("-s", "-t", "list", "table", f.pick("ip", "ip6"), "svcctl"))
		t.Logf("%s, %d Services: %s", f, mixed, few[i])
		t.Logf("%s, %d Services: %s", f, 50*mixed, many)
		if !maps.Equal(few[i].rules, many.rules) || !slices.Equal(few[i].sets, many.sets) || len(few[i].rules) == 0 {
			t.Errorf("%s: chains, rules or sets grow with the number of Services:\n%v\n%v", f, few[i].rules, many.rules)
		}
	}
}
