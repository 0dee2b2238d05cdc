package nft_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// twoPorts are ports 80 and 443 of a Service; endpoints serve the second one at other numbers.
func twoPorts(sticky AffinityOptions, http, https []string) []ServicePort {
	one := stickyPort(addrPorts(http...), nil)
	one.ID, one.AffinityOptions = "default/web/http", sticky
	one.Frontends = []Frontend{clusterIP("10.96.0.10", 80), {Port: 30080, SNAT: SNATAlways}}
	two := one
	two.ID, two.Frontends = "default/web/https", []Frontend{clusterIP("10.96.0.10", 443)}
	two.Pools[PoolCluster] = addrPorts(https...)
	return []ServicePort{one, two}
}

func newStickyService(t *testing.T, ports []ServicePort) *sticky {
	s := newSticky(t, ports[0])
	s.host.Ruleset = Compile(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": ports}})
	return s
}

// Where one endpoint of a client is remembered for the whole Service, it is that of each port,
// whatever numbers it has, from the first packet on; but for a port that the endpoint does not serve.
func TestAffinityOfAWholeService(t *testing.T) {
	const a, b, c = "10.180.0.1", "10.180.0.2", "10.180.0.3"
	http, https := []string{a + ":80", b + ":80", c + ":80"}, []string{c + ":9443", b + ":8443"}
	for _, whole := range []bool{true, false} {
		s := newStickyService(t, twoPorts(AffinityOptions{WholeService: whole}, http, https))
		goes := func(client, to string, draw slot, answered bool, want string) {
			t.Helper()
			s.now = s.now.Add(100 * time.Millisecond)
			p, r := s.try(client, to, draw)
			if r.Dst.String() != want {
				t.Errorf("whole Service %t: %s to %s goes to %s, want %s", whole, client, to, r.Dst, want)
			}
			if answered {
				s.host.Answer(p, r)
			}
		}
		goes("203.0.113.2", "10.96.0.10:80", 1, true, b+":80")
		if !whole {
			goes("203.0.113.2", "10.96.0.10:443", 0, true, c+":9443")
			continue
		}
		goes("203.0.113.2", "10.96.0.10:443", 0, true, b+":8443")
		goes("203.0.113.2", "192.0.2.1:30080", 2, true, b+":80")
		goes("203.0.113.3", "10.96.0.10:443", 0, true, c+":9443")
		goes("203.0.113.3", "10.96.0.10:80", 0, true, c+":80")
		// Nobody answers yet.
		goes("203.0.113.4", "10.96.0.10:443", 1, false, b+":8443")
		goes("203.0.113.4", "10.96.0.10:80", 0, false, b+":80")
		// The endpoint is none of the other port's.
		goes("203.0.113.5", "10.96.0.10:80", 0, true, a+":80")
		goes("203.0.113.5", "10.96.0.10:443", 0, true, c+":9443")
		goes("203.0.113.5", "10.96.0.10:80", 2, true, a+":80")
	}
}

// All clients of a prefix are one; those of another one are not.
func TestAffinityOfAPrefix(t *testing.T) {
	s := newStickyService(t, twoPorts(AffinityOptions{PrefixLen: 24}, []string{"10.180.0.1:80", "10.180.0.2:80"}, []string{"10.180.0.1:80"}))
	for i, want := range map[uint32]string{0: "10.180.0.1:80", 1: "10.180.0.2:80"} {
		for n := range 3 {
			client := fmt.Sprintf("203.0.%d.%d", 113+i, 2+n)
			draw := slot(i)
			if n > 0 {
				draw = slot(1 - i) // it would get the other one
			}
			s.now = s.now.Add(time.Minute)
			p, r := s.try(client, "10.96.0.10:80", draw)
			if s.host.Answer(p, r); r.Dst.String() != want {
				t.Errorf("%s goes to %s, want %s", client, r.Dst, want)
			}
		}
	}
}

// However a Service came to be as it is, its ruleset is the same.
func TestAffinityOfAWholeServiceHasNoHistory(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, k := NewCompiler(), fake.New()
		box := testBox()
		mustCommit(t, k, c.Update(&box, nil))
		for range 6 {
			random := func(ports ...int) (list []string) {
				for n := range r.IntN(4) {
					list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 180, 0, byte(n + 1)}), uint16(ports[r.IntN(len(ports))])).String())
				}
				return list
			}
			ports := twoPorts(AffinityOptions{WholeService: r.IntN(4) > 0, Refresh: r.IntN(2) == 0}, random(80), random(8443, 9443))
			if r.IntN(5) == 0 {
				ports = ports[:1]
			}
			mustCommit(t, k, c.Update(nil, map[string][]ServicePort{"default/web": ports}))
			have := held(k)
			if tr := c.From(have); !tr.Empty() {
				t.Fatalf("seed %d: the kernel does not hold what is wanted: %+v", seed, tr)
			}
			fresh := NewCompiler()
			if tr := fresh.Adopt(have, State{Box: box, Services: map[string][]ServicePort{"default/web": ports}}); !tr.Empty() {
				t.Fatalf("seed %d: another process would change it: %+v", seed, tr)
			}
		}
	}
}
