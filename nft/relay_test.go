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
			Frontends: []Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, External: Route{Pool: PoolLocal, Fallback: Blackhole}}},
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
	alone := port(0, 0)
	alone.RelayAlone = true
	if got := text(alone); !strings.Contains(got, "10.96.0.10 . tcp . 80 . 0 : 192.0.2.1 . 10270") || !strings.Contains(got, "192.0.2.1 . 10271") {
		t.Errorf("a relay that needs no endpoints gets no clients:\n%s", got)
	}
	c := NewCompiler()
	c.Update(&Box{}, map[string][]ServicePort{"default/web": {port(3, 1)}})
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": {port(4, 2)}}); len(tr.Apply.Ops) > 0 {
		t.Errorf("another endpoint changes the kernel: %v", tr.Apply.Ops)
	}
}

// A relay chooses what the kernel would: at each frontend, for each client.
func TestChooserIsTheKernels(t *testing.T) {
	p := ServicePort{ID: "default/web", Family: IPv4, Protocol: TCP, Frontends: []Frontend{
		{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}, {Addr: netip.MustParseAddr("198.51.100.4"), Port: 80}, {Port: 30080, Kind: NodePort},
	}}
	for i := range 5 {
		p.Pools[PoolCluster] = append(p.Pools[PoolCluster], netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080))
	}
	p.Weights[PoolCluster] = map[netip.AddrPort]uint16{p.Pools[PoolCluster][1]: 7}
	at := func(fe *Frontend) netip.AddrPort {
		if !fe.Addr.IsValid() {
			return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), fe.Port)
		}
		return netip.AddrPortFrom(fe.Addr, fe.Port)
	}
	for balance, hashes := range map[Balance]bool{Random: false, RoundRobin: false, LeastConnection: false, Maglev: true, SourceHash: true, DestinationHash: true} {
		kernel, relayed := p, p
		kernel.Balance, relayed.Balance = balance, balance
		relayed.Relay = [NumPools]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:10270"), netip.MustParseAddrPort("192.0.2.1:10271")}
		choose := relayed.Chooser(PoolCluster)
		if choose == nil != !hashes {
			t.Errorf("balance %d: something is chosen: %t, want %t", balance, choose != nil, hashes)
		}
		if choose == nil {
			continue
		}
		seen := map[netip.AddrPort]bool{}
		for i := range p.Frontends {
			fe := &p.Frontends[i]
			for n := range 200 {
				client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), uint16(1024+n))
				got, ok := choose(client, at(fe))
				want, is := kernel.Choice(fe, PoolCluster)(client)
				if !ok || !is || got != want {
					t.Errorf("balance %d: %s at %s goes to %s, %t, by the kernel to %s, %t", balance, client, at(fe), got, ok, want, is)
				}
				seen[got] = true
			}
		}
		if len(seen) < 2 {
			t.Errorf("balance %d: one endpoint has all clients", balance)
		}
		stranger := netip.MustParseAddrPort("198.51.100.99:80") // that a balancer in front names
		first, ok := choose(netip.MustParseAddrPort("203.0.113.1:1024"), stranger)
		if again, _ := choose(netip.MustParseAddrPort("203.0.113.1:1024"), stranger); !ok || again != first {
			t.Errorf("balance %d: at another address %s, then %s", balance, first, again)
		}
	}
	few := p
	few.Balance, few.Pools[PoolCluster] = Maglev, p.Pools[PoolCluster][:1]
	if few.Chooser(PoolCluster) != nil {
		t.Error("something is chosen of one")
	}
}
