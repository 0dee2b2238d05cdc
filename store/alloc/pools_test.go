package alloc

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func pool(first, last string) Pool {
	return Pool{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func mustPools(t testing.TB, pools ...Pool) *Pools {
	t.Helper()
	p, err := NewPools(pools)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPoolGivesAllItsAddresses(t *testing.T) {
	for _, test := range []struct {
		pool Pool
		want []string
	}{
		{pool("198.51.100.4", "198.51.100.6"), []string{"198.51.100.4", "198.51.100.5", "198.51.100.6"}},
		{pool("198.51.100.0", "198.51.100.0"), []string{"198.51.100.0"}},
		{pool("2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1"), []string{"2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::", "2001:db8:0:1::1"}},
	} {
		p := mustPools(t, test.pool)
		var got []netip.Addr
		for i := 0; ; i++ {
			addr, err := p.Next(p.Serves(true, false), Request{Owner: "ns/svc-" + string(rune('a'+i))}, nil)
			if err != nil {
				break
			}
			got = append(got, addr)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		var want []netip.Addr
		for _, text := range test.want {
			want = append(want, netip.MustParseAddr(text))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s gives %v, want %v", test.pool, got, want)
		}
	}
}

func TestFirstPoolIsUsedUpFirst(t *testing.T) {
	small := pool("203.0.113.4", "203.0.113.5")
	p := mustPools(t, small, pool("198.51.100.0", "198.51.100.15"))
	for i := range 4 {
		addr, err := p.Next(true, Request{Owner: "ns/svc-" + string(rune('a'+i))}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if small.Contains(addr) != (i < 2) {
			t.Errorf("address %d is %s", i, addr)
		}
	}
}

func TestPoolsRefused(t *testing.T) {
	for name, pools := range map[string][]Pool{
		"zero":            {{}},
		"backwards":       {pool("198.51.100.9", "198.51.100.4")},
		"mixed":           {pool("198.51.100.4", "fd00::1")},
		"mapped":          {pool("::ffff:198.51.100.4", "::ffff:198.51.100.5")},
		"zone":            {pool("fe80::1%eth0", "fe80::2%eth0")},
		"larger than /64": {pool("fd00::", "fd00:0:0:1::")},
		"overlap":         {pool("198.51.100.0", "198.51.100.15"), pool("198.51.100.15", "198.51.100.20")},
		"inside":          {pool("198.51.100.7", "198.51.100.8"), pool("198.51.100.0", "198.51.100.15")},
	} {
		if _, err := NewPools(pools); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewPools([]Pool{pool("fd00::1", "fd00:0:0:1::")}); err != nil {
		t.Errorf("exactly 2^64 addresses: %v", err)
	}
}

func TestPoolErrors(t *testing.T) {
	p := mustPools(t, pool("198.51.100.0", "198.51.100.15"), pool("203.0.113.4", "203.0.113.9"))
	addr := netip.MustParseAddr("198.51.100.4")
	if err := p.Take(addr, Request{Owner: "default/web"}); err != nil {
		t.Fatal(err)
	}
	err := p.Take(addr, Request{Owner: "default/other", Requested: []netip.Addr{addr}})
	if want := "provided IP is already allocated to Service default/web: to share it"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s...", err, want)
	}
	err = p.Take(netip.MustParseAddr("10.0.0.1"), Request{Owner: "default/other"})
	want := "the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 198.51.100.0-198.51.100.15, 203.0.113.4-203.0.113.9"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := p.Next(false, Request{Owner: "default/other"}, nil); !errors.Is(err, ErrFull) {
		t.Errorf("no IPv6 pool: %v", err)
	}
}

func TestSharing(t *testing.T) {
	addr := netip.MustParseAddr("198.51.100.4")
	web := []Port{{"TCP", 80}}
	tls := []Port{{"TCP", 443}}
	quic := []Port{{"UDP", 443}, {"UDP", 80}}
	for _, test := range []struct {
		name        string
		first, next Request
		ok          bool
	}{
		{"both ask", Request{Requested: []netip.Addr{addr}, Ports: web}, Request{Requested: []netip.Addr{addr}, Ports: tls}, true},
		{"both ask, other protocol", Request{Requested: []netip.Addr{addr}, Ports: web}, Request{Requested: []netip.Addr{addr}, Ports: quic}, true},
		{"both ask, ports clash", Request{Requested: []netip.Addr{addr}, Ports: web}, Request{Requested: []netip.Addr{addr}, Ports: web}, false},
		{"only the second asks", Request{Ports: web}, Request{Requested: []netip.Addr{addr}, Ports: tls}, false},
		{"only the first asks", Request{Requested: []netip.Addr{addr}, Ports: web}, Request{Ports: tls}, false},
		{"equal keys", Request{SharingKey: "k", Ports: web}, Request{SharingKey: "k", Ports: tls}, true},
		{"equal keys, ports clash", Request{SharingKey: "k", Ports: web}, Request{SharingKey: "k", Ports: web}, false},
		{"different keys", Request{SharingKey: "k", Ports: web}, Request{SharingKey: "l", Ports: tls}, false},
		{"one key", Request{SharingKey: "k", Ports: web}, Request{Ports: tls}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := mustPools(t, pool("198.51.100.0", "198.51.100.15"))
			test.first.Owner, test.next.Owner = "default/first", "default/next"
			if err := p.Take(addr, test.first); err != nil {
				t.Fatal(err)
			}
			err := p.Take(addr, test.next)
			if ok := err == nil; ok != test.ok {
				t.Fatalf("got %v", err)
			}
			p.Release(addr, "default/first")
			if holders := p.Holders()[addr]; test.ok != slices.Equal(holders, []string{"default/next"}) {
				t.Errorf("after the first left: %v", holders)
			}
			p.Release(addr, "default/next")
			if err := p.Take(addr, Request{Owner: "default/last"}); err != nil {
				t.Errorf("after both left: %v", err)
			}
		})
	}
}

func TestKeySharesAddressesAutomatically(t *testing.T) {
	p := mustPools(t, pool("198.51.100.0", "198.51.100.15"))
	first, _ := p.Next(true, Request{Owner: "default/a", SharingKey: "k", Ports: []Port{{"TCP", 80}}}, nil)
	second, _ := p.Next(true, Request{Owner: "default/b", SharingKey: "k", Ports: []Port{{"TCP", 443}}}, nil)
	third, _ := p.Next(true, Request{Owner: "default/c", SharingKey: "k", Ports: []Port{{"TCP", 80}}}, nil)
	if first != second || third == first {
		t.Errorf("got %s, %s, %s: the first two should share, the third clashes", first, second, third)
	}
}

func TestRequestIsReplaced(t *testing.T) {
	p := mustPools(t, pool("198.51.100.0", "198.51.100.15"))
	addr := netip.MustParseAddr("198.51.100.4")
	take := func(owner string, port uint16) error {
		return p.Take(addr, Request{Owner: owner, Requested: []netip.Addr{addr}, Ports: []Port{{"TCP", port}}})
	}
	for _, step := range []struct {
		owner string
		port  uint16
		ok    bool
	}{{"ns/a", 80, true}, {"ns/b", 443, true}, {"ns/a", 443, false}, {"ns/a", 8080, true}, {"ns/b", 80, true}} {
		if err := take(step.owner, step.port); (err == nil) != step.ok {
			t.Fatalf("%s takes port %d: %v", step.owner, step.port, err)
		}
	}
	if got := p.Holders()[addr]; !slices.Equal(got, []string{"ns/a", "ns/b"}) {
		t.Errorf("holders %v", got)
	}
}
