package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
)

// names are the Services that were planned since the last call, in their order.
func (p *recorder) names() string {
	var names []string
	for i := range p.planned {
		names = append(names, strings.TrimPrefix(p.planned[i].Key, "default/"))
	}
	p.planned = nil
	return strings.Join(names, " ")
}

// facts has the loop hear of a host.
func (r *rig) facts(f *node.Facts) { r.observed.facts, r.observed.moved = f, true }

// asks is a Service that asks for an external IP.
func asks(name, clusterIP, externalIP, endpoint string) string {
	return strings.Replace(web(name, clusterIP, endpoint), "clusterIP:", "externalIPs: ["+externalIP+"], clusterIP:", 1)
}

// An address that comes to the host or goes plans the Services that it is about, and no others.
func TestMovedAddressesPlanTheirServices(t *testing.T) {
	r := newRig(t)
	rec := &recorder{}
	r.opts.Parts = []Part{rec}
	before := []string{"192.0.2.1/24=", "2001:db8::1/64"}
	r.facts(hostWith(before...))
	r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.1"))
	r.write("b.yaml", web("b", "10.96.0.11", "198.51.100.2"))
	r.write("c.yaml", asks("c", "10.96.0.12", "203.0.113.255", "10.1.0.3"))
	r.step()
	if got := rec.names(); got != "a b c" {
		t.Fatalf("the first plan has %s", got)
	}
	for _, step := range []struct {
		name string
		more []string
		want string
	}{
		{"link-local", []string{"fe80::1/64"}, ""},
		{"the same", []string{"fe80::1/64"}, ""},
		{"nobody's, as a VIP is bound", []string{"fe80::1/64", "203.0.113.9/32"}, ""},
		{"none of these", nil, ""},
		{"another network", []string{"198.51.100.7/24"}, ""},
		{"an endpoint's, as a VIP is bound", []string{"198.51.100.7/24", "198.51.100.2/32"}, ""}, // it was one before
		{"an endpoint's", []string{"198.51.100.7/24", "198.51.100.2/24"}, "b"},
		{"no more", []string{"198.51.100.7/24"}, "b"},
		{"a network with a broadcast address that is asked for", []string{"203.0.113.9/24"}, "c"},
		{"no more", nil, "c"},
		{"one for a relay to listen at", []string{"2001:db8:1::1/64!"}, ""},
		{"a network over service ranges", []string{"10.96.7.1/24"}, "a b c"},
	} {
		r.facts(hostWith(append(slices.Clone(before), step.more...)...))
		r.step()
		if got := rec.names(); got != step.want {
			t.Errorf("%s plans %q, want %q", step.name, got, step.want)
		}
	}
}

// Whatever comes to the host and goes, the kernel has what a plan of everything comes to.
func TestMovedAddressesComeToAWholePlan(t *testing.T) {
	pool := []string{"198.51.100.1", "198.51.100.2", "10.1.0.1", "10.96.0.11", "203.0.113.255", "fe80::1", "192.0.2.7"}
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t)
		r.cfg.Addresses.NodePortAddresses.Primary = seed%2 == 0
		r.facts(hostWith("192.0.2.1/24="))
		for i := range 8 {
			text := asks(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.0.%d", 10+i), pool[rnd.IntN(len(pool))], pool[rnd.IntN(len(pool)-2)])
			if i%3 == 0 {
				text = strings.Replace(text, "clusterIP:", "sessionAffinity: ClientIP, clusterIP:", 1)
			}
			r.write(fmt.Sprintf("%d.yaml", i), text)
		}
		r.step()
		for step := range 10 {
			texts := []string{"192.0.2.1/24="}
			for _, addr := range pool {
				if rnd.IntN(4) == 0 {
					a := netip.MustParseAddr(addr)
					texts = append(texts, netip.PrefixFrom(a, []int{a.BitLen(), 24}[rnd.IntN(2)]).String())
				}
			}
			r.facts(hostWith(texts...))
			r.step()
			fresh, problems := Plan(r.opts.Host(r.observed.facts), r.store.InForce(), r.allServices(), true)
			var want strings.Builder
			if err := fresh.WriteText(&want); err != nil {
				t.Fatal(err)
			}
			if got := r.text(); got != want.String() {
				t.Fatalf("seed %d, step %d, host %v: the kernel has\n%s\nwant\n%s", seed, step, texts, got, &want)
			}
			if got := r.planner.allProblems(); fmt.Sprint(got) != fmt.Sprint(problems) {
				t.Fatalf("seed %d, step %d, host %v: problems %v\nwant %v", seed, step, texts, got, problems)
			}
		}
	}
}
