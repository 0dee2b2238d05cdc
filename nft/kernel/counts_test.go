package kernel

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// countedPath is a path without affinity whose box counts.
func countedPath(t *testing.T) *path {
	p := newPath(t)
	p.state.Box.Counters = true
	for _, ports := range p.state.Services {
		ports[0].Affinity = 0
	}
	return p
}

// to programs what is wanted now, and its cleanup.
func (p *path) to(t *testing.T) {
	t.Helper()
	have, generation := read(t, p.kernel)
	tr := compiled(p.state).From(have)
	for _, b := range tr.Stages() {
		generation = commit(t, p.kernel, generation, b.Ops...)
	}
}

// total returns the counts of a VIP.
func (p *path) total(t *testing.T, f nft.Family) (connections, refused uint64) {
	t.Helper()
	totals, err := p.kernel.Counts()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range totals.Frontends {
		if x.Family == f && x.At == p.vips[f] && x.Protocol == nft.TCP {
			return x.Connections, x.Refused
		}
	}
	return 0, 0
}

// endpoints sets how many endpoints each VIP has.
func (p *path) endpoints(n int) {
	for f, name := range map[nft.Family]string{nft.IPv4: "10.2.0.2", nft.IPv6: "fd00:2::2"} {
		port := &p.state.Services["default/"+f.String()][0]
		port.Pools = [nft.NumPools][]netip.AddrPort{}
		for i := range n {
			port.Pools[nft.PoolCluster] = append(port.Pools[nft.PoolCluster], netip.AddrPortFrom(netip.MustParseAddr(name), uint16(8080+i)))
		}
	}
}

// A map without counters gets them in one transaction, in place: nothing else of the table is made
// anew. And they go the same way.
func TestMapsGetAndLoseCounters(t *testing.T) {
	p := newPath(t)
	for _, counters := range []bool{true, false, true} {
		p.state.Box.Counters = counters
		have, generation := read(t, p.kernel)
		tr := compiled(p.state).From(have)
		for _, op := range tr.Apply.Ops {
			if _, is := op.(nft.DeleteTable); is {
				t.Fatal("the table is made anew")
			}
		}
		commit(t, p.kernel, generation, tr.Apply.Ops...)
		for _, vip := range p.vips {
			if _, err := p.client.Ask("tcp", vip); err != nil {
				t.Errorf("counters %t: %v", counters, err)
			}
		}
		if !tr.Cleanup.Empty() {
			commit(t, p.kernel, 0, tr.Cleanup.Ops...)
		}
		have, _ = read(t, p.kernel)
		if tr := compiled(p.state).From(have); !tr.Empty() {
			t.Errorf("counters %t: what was committed is not what was wanted: %+v", counters, tr)
		}
	}
}

// Totals grow by exactly what was sent, through every change of the elements that count it.
func TestTotalsNeverGoBack(t *testing.T) {
	p := countedPath(t)
	p.to(t)
	var connections, refused uint64
	check := func(when string) {
		t.Helper()
		for f := range p.vips {
			if c, r := p.total(t, f); c != connections || r != refused {
				t.Errorf("%s: %v counts %d connections and %d refusals, want %d and %d", when, f, c, r, connections, refused)
			}
		}
	}
	ask := func(n int, refuses bool) {
		t.Helper()
		for _, vip := range p.vips {
			for range n {
				_, err := p.client.Ask("tcp", vip)
				if refuses != (netlab.RefusalOf(err) == netlab.Refused) {
					t.Fatalf("%v: %v", vip, err)
				}
			}
		}
		if refuses {
			refused += uint64(n)
		} else {
			connections += uint64(n)
		}
	}
	check("at the start")
	ask(3, false)
	check("before a change")
	ask(2, false)
	p.endpoints(1) // there was no look since
	p.to(t)
	ask(1, false)
	check("after an endpoint left")
	p.endpoints(0)
	p.to(t)
	ask(2, true)
	p.endpoints(2)
	p.to(t)
	ask(4, false)
	check("after it refused and came back")

	// Somebody flushes: what was counted since the last look is lost, and no more.
	p.box.Nft("flush", "ruleset")
	p.to(t)
	ask(20, false)
	check("after a foreign flush, with more than before")

	// Another program starts where this one ends.
	if err := p.kernel.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.kernel, err = Open(Options{NetNS: p.box.Namespace()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kernel.Close() })
	connections, refused = 0, 0
	have, _ := read(t, p.kernel)
	if len(have) != 2 {
		t.Fatal("there is nothing to start with")
	}
	ask(2, false)
	p.endpoints(1)
	p.to(t)
	ask(1, false)
	check("after a restart")
	if refusals, err := p.kernel.Refusals(); err != nil || refusals[nft.RefusedNoEndpoint] != 0 {
		t.Errorf("refusals after a restart: %v, %v", refusals, err)
	}
}

// More elements than the kernel is asked about are read before they go.
func TestManyElementsKeepTheirCounts(t *testing.T) {
	p := countedPath(t)
	for i := range maxEchoes {
		name := "default/many-" + nft.AddrKey(address(nft.IPv4, i))
		p.state.Services[name] = []nft.ServicePort{{
			ID: name, Family: nft.IPv4, Protocol: nft.UDP,
			Frontends: []nft.Frontend{{Addr: address(nft.IPv4, 1<<20+i), Port: 53}},
			Pools:     [nft.NumPools][]netip.AddrPort{nft.PoolCluster: {netip.MustParseAddrPort("10.2.0.2:53")}},
		}}
	}
	p.to(t)
	for range 3 {
		if _, err := p.client.Ask("tcp", p.vips[nft.IPv4]); err != nil {
			t.Fatal(err)
		}
	}
	for name, ports := range p.state.Services {
		if strings.Contains(name, "many") {
			ports[0].Pools[nft.PoolCluster] = append(ports[0].Pools[nft.PoolCluster], netip.MustParseAddrPort("10.2.0.2:54"))
		}
	}
	p.endpoints(1)
	p.to(t)
	if n, _ := p.total(t, nft.IPv4); n != 3 {
		t.Errorf("%d connections are counted, want 3", n)
	}
}

// What nft lists with its counts loads again, with them.
func TestCountsLoad(t *testing.T) {
	p := countedPath(t)
	p.to(t)
	for _, vip := range p.vips {
		if _, err := p.client.Ask("tcp", vip); err != nil {
			t.Fatal(err)
		}
	}
	listing := p.box.Nft("list", "table", "ip", nft.TableName)
	if !strings.Contains(listing, "counter packets 1 bytes") {
		t.Fatalf("nft lists\n%s", listing)
	}
	p.box.Nft("delete", "table", "ip", nft.TableName)
	p.box.LoadNft(listing)
	if again := p.box.Nft("list", "table", "ip", nft.TableName); !slices.Equal(lines(again), lines(listing)) {
		t.Errorf("loaded again it is\n%s\nwas\n%s", again, listing)
	}
}

func lines(s string) []string {
	l := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == ',' })
	for i := range l {
		l[i] = strings.Trim(strings.TrimPrefix(strings.TrimSpace(l[i]), "elements = { "), " }")
	}
	slices.Sort(l)
	return l
}
