package alloc

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

func mustAddresses(t testing.TB, prefix string) *Addresses {
	t.Helper()
	a, err := NewAddresses(netip.MustParsePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// drain takes all automatic addresses, in the order they are given.
func drain(t *testing.T, a *Addresses) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	for i := 0; ; i++ {
		addr, err := a.Next(fmt.Sprint("ns/svc-", i), nil)
		if errors.Is(err, ErrFull) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, addr)
	}
}

func TestAddressBands(t *testing.T) {
	for _, test := range []struct {
		prefix string
		// upper is how many automatic addresses come before the first of the lower
		// band; lowest and highest bound the upper band.
		upper           int
		lowest, highest string
		total           int
	}{
		{"172.30.0.0/24", 238, "172.30.0.17", "172.30.0.254", 254},
		{"172.30.0.0/27", 14, "172.30.0.17", "172.30.0.30", 30},
		{"172.30.0.0/28", 14, "172.30.0.1", "172.30.0.14", 14},
		{"172.30.0.0/30", 2, "172.30.0.1", "172.30.0.2", 2},
		{"172.30.0.0/20", 3838, "172.30.1.1", "172.30.15.254", 4094},
		{"172.30.0.0/22", 958, "172.30.0.65", "172.30.3.254", 1022},
		{"fd00::/120", 239, "fd00::11", "fd00::ff", 255},
		{"fd00::/124", 15, "fd00::1", "fd00::f", 15},
		{"fd00::/127", 1, "fd00::1", "fd00::1", 1},
	} {
		t.Run(test.prefix, func(t *testing.T) {
			all := drain(t, mustAddresses(t, test.prefix))
			if len(all) != test.total {
				t.Fatalf("got %d addresses, want %d", len(all), test.total)
			}
			low, high := netip.MustParseAddr(test.lowest), netip.MustParseAddr(test.highest)
			seen := map[netip.Addr]bool{}
			for i, addr := range all {
				inUpper := !addr.Less(low) && !high.Less(addr)
				if inUpper != (i < test.upper) {
					t.Fatalf("address %d is %s: upper band %t, want %t", i, addr, inUpper, i < test.upper)
				}
				if seen[addr] {
					t.Fatalf("%s was given twice", addr)
				}
				seen[addr] = true
			}
		})
	}
}

func TestAddressRangesRefused(t *testing.T) {
	for _, prefix := range []string{"10.0.0.1/32", "fd00::1/128", "fd00::/63", "::/0"} {
		if _, err := NewAddresses(netip.MustParsePrefix(prefix)); err == nil {
			t.Errorf("%s was accepted", prefix)
		}
	}
	if _, err := NewAddresses(netip.Prefix{}); err == nil {
		t.Error("the zero prefix was accepted")
	}
	if _, err := NewAddresses(netip.MustParsePrefix("10.0.0.0/31")); err == nil {
		t.Error("10.0.0.0/31 was accepted: it has a network and a broadcast address only")
	}
}

func TestAddressErrors(t *testing.T) {
	a := mustAddresses(t, "172.30.0.0/24")
	if err := a.Take(netip.MustParseAddr("172.30.0.5"), "default/web"); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"10.0.0.1":     "the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 172.30.0.0/24",
		"172.30.0.0":   "the provided IP (172.30.0.0) is not in the valid range. The range of valid IPs is 172.30.0.0/24",
		"172.30.0.255": "the provided IP (172.30.0.255) is not in the valid range. The range of valid IPs is 172.30.0.0/24",
		"fd00::1":      "the provided IP (fd00::1) is not in the valid range. The range of valid IPs is 172.30.0.0/24",
		"172.30.0.5":   "provided IP is already allocated to Service default/web",
	} {
		if err := a.Take(netip.MustParseAddr(addr), "default/other"); err == nil || err.Error() != want {
			t.Errorf("Take(%s):\n got %v\nwant %s", addr, err, want)
		}
	}
	if err := a.Take(netip.MustParseAddr("172.30.0.5"), "default/web"); err != nil {
		t.Errorf("the holder's own address: %v", err)
	}
}

func TestHoldersOutsideTheRangeKeepTheirs(t *testing.T) {
	a := mustAddresses(t, "172.30.0.0/24")
	old := netip.MustParseAddr("10.96.0.9")
	if err := a.Hold(old, "default/web"); err != nil {
		t.Fatal(err)
	}
	if err := a.Take(old, "default/web"); err != nil {
		t.Errorf("the holder asks for what it has: %v", err)
	}
	var held *HeldError
	if err := a.Take(old, "default/other"); !errors.As(err, &held) || held.Owner != "default/web" {
		t.Errorf("another Service asks for it: %v", err)
	}
	a.Release(old, "default/web")
	var outside *RangeError
	if err := a.Take(old, "default/web"); !errors.As(err, &outside) {
		t.Errorf("asked for again after its release: %v", err)
	}
}

func TestSameServiceGetsTheSameAddressAgain(t *testing.T) {
	a := mustAddresses(t, "10.96.0.0/16")
	for i := range 1000 {
		if _, err := a.Next(fmt.Sprint("ns/svc-", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	before, err := a.Next("default/web", nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Release(before, "default/web")
	if _, err := a.Next("default/other", nil); err != nil {
		t.Fatal(err)
	}
	after, err := a.Next("default/web", nil)
	if err != nil || after != before {
		t.Errorf("got %s, %v; want %s", after, err, before)
	}
}

func TestReleaseByAnotherDoesNothing(t *testing.T) {
	a := mustAddresses(t, "10.96.0.0/16")
	addr := netip.MustParseAddr("10.96.3.4")
	if err := a.Take(addr, "default/web"); err != nil {
		t.Fatal(err)
	}
	a.Release(addr, "default/other")
	if owner, held := a.Owner(addr); !held || owner != "default/web" {
		t.Errorf("owner %q, held %t", owner, held)
	}
}

func TestWholeIPv6SubnetIsCheap(t *testing.T) {
	a := mustAddresses(t, "fd00:10:96::/64")
	last := netip.MustParseAddr("fd00:10:96::ffff:ffff:ffff:ffff")
	if err := a.Take(last, "default/last"); err != nil {
		t.Fatal(err)
	}
	a.Release(last, "default/last")
	low := netip.MustParseAddr("fd00:10:96::100")
	for i := range 10_000 {
		addr, err := a.Next(fmt.Sprint("ns/svc-", i), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !low.Less(addr) {
			t.Fatalf("%s lies in the band of people's values", addr)
		}
	}
}

// A range that is full but for one address must not cost a walk over it.
func BenchmarkNextAddressNearlyFull(b *testing.B) {
	a := mustAddresses(b, "10.96.0.0/16")
	for {
		if _, err := a.Next("filler/all", nil); err != nil {
			break
		}
	}
	hole := netip.MustParseAddr("10.96.200.7")
	a.Release(hole, "filler/all")
	b.ReportAllocs()
	for b.Loop() {
		addr, err := a.Next("default/web", nil)
		if err != nil || addr != hole {
			b.Fatal(addr, err)
		}
		a.Release(addr, "default/web")
	}
}
