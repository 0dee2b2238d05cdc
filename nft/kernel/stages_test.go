package kernel

import (
	"fmt"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/nft"
)

// The kernel takes a large state in stages: first tables that nothing enters, then Services
// that come to others.
func TestStages(t *testing.T) {
	state := func(services int) nft.State {
		s := nft.State{Services: map[string][]nft.ServicePort{}}
		for i := range services {
			p := nft.ServicePort{ID: fmt.Sprintf("default/s%d", i), Family: nft.IPv4, Protocol: nft.TCP,
				Frontends: []nft.Frontend{{Addr: address(nft.IPv4, i), Port: 80}}}
			for e := range 5 {
				p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.AddrPortFrom(address(nft.IPv4, 5*i+e), 8080))
			}
			s.Services[p.ID] = []nft.ServicePort{p}
		}
		return s
	}
	n := newNamespace(t)
	c := n.open()
	compiler := nft.NewCompiler()
	for _, services := range []int{10_000, 32_000} {
		_, generation := read(t, c)
		tr := compiler.Load(state(services))
		stages := tr.Stages()
		if len(stages) < 2 {
			t.Fatalf("%d Services come in %d stages", services, len(stages))
		}
		for i := range stages {
			var err error
			if generation, err = c.Commit(&stages[i], generation); err != nil {
				t.Fatalf("stage %d of %d Services: %v", i, services, err)
			}
		}
		have, _ := read(t, c)
		if tr := compiler.From(have); !tr.Empty() {
			t.Errorf("with %d Services there is something to do afterwards: %.500v", services, tr)
		}
	}
}
