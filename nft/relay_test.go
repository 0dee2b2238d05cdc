package nft

import (
	"net/netip"
	"strings"
	"testing"
)

// A relayed port has the elements of a port with one endpoint in each pool, which is its listener,
// as long as the pool has endpoints; another endpoint of it changes nothing in the kernel.
func TestRelayed(t *testing.T) {
	port := func(cluster, local int) ServicePort {
		p := ServicePort{
			ID: "default/web", Family: IPv4, Protocol: TCP,
			Frontends: []Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Outside: Route{Pool: PoolLocal, Otherwise: Blackhole}}},
			Relay:     [NumPools]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:10270"), netip.MustParseAddrPort("192.0.2.1:10271")},
		}
		for pool, n := range map[Pool]int{PoolCluster: cluster, PoolLocal: local} {
			for i := range n {
				p.Pools[pool] = append(p.Pools[pool], netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080))
			}
		}
		return p
	}
	text := func(p ServicePort) string {
		var b strings.Builder
		if err := Compile(State{Services: map[string][]ServicePort{"default/web": {p}}}).WriteText(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	got := text(port(3, 1))
	for _, want := range []string{"10.96.0.10 . tcp . 80 . 0 : 192.0.2.1 . 10270", "10.96.0.10 . tcp . 80 . 0 : 192.0.2.1 . 10271"} {
		if !strings.Contains(got, want) {
			t.Errorf("no element %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "10.0.0.") {
		t.Errorf("the kernel knows endpoints of a relayed port:\n%s", got)
	}
	if got := text(port(3, 0)); strings.Contains(got, "10271") || !strings.Contains(got, "10.96.0.10 . tcp . 80 : drop") {
		t.Errorf("without local endpoints outside clients are to be dropped:\n%s", got)
	}
	c := NewCompiler()
	c.Update(&Box{}, map[string][]ServicePort{"default/web": {port(3, 1)}})
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": {port(4, 2)}}); len(tr.Apply.Ops) > 0 {
		t.Errorf("another endpoint changes the kernel: %v", tr.Apply.Ops)
	}
}
