package feedback

import (
	"net/netip"
	"testing"
	"time"
)

func TestConnections(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	var c Connections
	c.See(a, 1, false)
	c.See(a, 2, false)
	c.See(a, 3, true)
	if counts := c.Done(); counts != nil {
		t.Errorf("a first look counts %v", counts)
	}
	c.See(a, 2, true)  // closed
	c.See(a, 3, true)  // closed before
	c.See(a, 4, false) // new
	c.See(a, 5, true)  // new, and over
	c.See(b, 6, false)
	c.See(b, 6, false) // met twice
	counts := c.Done() // 1 is gone
	if want := (Count{Open: 1, Began: 2, Ended: 3}); counts[a] != want {
		t.Errorf("%+v, want %+v", counts[a], want)
	}
	if want := (Count{Open: 1, Began: 1}); counts[b] != want {
		t.Errorf("%+v, want %+v", counts[b], want)
	}
	c.See(a, 7, false)
	c.Forget() // it failed
	if counts := c.Done(); counts[b] != (Count{Ended: 1}) || counts[a] != (Count{Ended: 1}) {
		t.Errorf("of an empty table: %+v", counts)
	}
}

func TestRamp(t *testing.T) {
	for _, tt := range []struct {
		age, over time.Duration
		want      uint32
	}{
		{0, 30 * time.Second, 100}, {2 * time.Second, 30 * time.Second, 100}, {15 * time.Second, 30 * time.Second, 500},
		{15*time.Second + 999*time.Millisecond, 30 * time.Second, 500}, {30 * time.Second, 30 * time.Second, 1000}, {time.Hour, time.Second, 1000},
		{500 * time.Millisecond, time.Second, 100}, {17 * time.Second, 15 * time.Minute, 100}, {450 * time.Second, 15 * time.Minute, 500}, {time.Second, 0, 1000},
	} {
		if got := Ramp(tt.age, tt.over); got != tt.want {
			t.Errorf("after %v of %v it is %d, want %d", tt.age, tt.over, got, tt.want)
		}
	}
}

// However many slots there are, each endpoint has one, all are given out, and few move.
func TestSlotsAreGivenOut(t *testing.T) {
	var endpoints []netip.AddrPort
	var weights []uint32
	p := &Pool{}
	for n := range 16 {
		endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 80))
		weights = append(weights, []uint32{1, 65535}[n%2])
		before := p.Slots()
		slots := p.Joined(endpoints, weights, 64)
		has, moved := map[netip.AddrPort]int{}, 0
		for i, at := range slots {
			has[at]++
			if before != nil && before[i] != at {
				moved++
			}
		}
		if len(has) != n+1 || len(slots) != 64 || has[netip.AddrPort{}] > 0 {
			t.Fatalf("%d endpoints have %v", n+1, has)
		}
		if most := has[endpoints[n]] + 2; n > 0 && moved > most {
			t.Errorf("%d slots move for an endpoint of %d, want at most %d", moved, has[endpoints[n]], most)
		}
		p.Set(endpoints, weights, slots)
	}
}
