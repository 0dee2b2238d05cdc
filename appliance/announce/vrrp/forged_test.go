package vrrp

import (
	"net/netip"
	"testing"
	"time"
)

// One advert with the longest interval, which anybody on the segment can forge, holds a backup up no longer than a busy
// active box with its own settings would.
func Test783_forged_interval(t *testing.T) {
	for _, own := range []time.Duration{interval, time.Second} {
		cfg := Config{VRID: 51, Priority: 100, Interval: own}
		forged := &Advert{VRID: 51, Priority: 255, Interval: MaxInterval, Source: netip.MustParseAddr("192.0.2.66")}
		m := New(start, cfg)
		now := m.Next()
		m.Tick(now)
		if state, _ := m.State(); state != Active {
			t.Fatalf("alone it is %s", state)
		}
		m.Receive(now, forged, netip.MustParseAddr("192.0.2.11"))
		if state, _ := m.State(); state != Backup {
			t.Fatalf("with a higher priority it is %s", state)
		}
		if asked, most := m.Longer(); asked != MaxInterval || most != 5*own {
			t.Errorf("an interval of %s is noted as %s, of at most %s", MaxInterval, asked, most)
		}
		if wait := m.Next().Sub(now); wait > 4*5*own {
			t.Errorf("with an interval of %s it waits for %s, want at most %s", own, wait, 20*own)
		}
		now = m.Next()
		m.Tick(now)
		if state, _ := m.State(); state != Active {
			t.Errorf("after that it is %s", state)
		}
		if asked, _ := m.Longer(); asked != 0 {
			t.Errorf("it still notes an interval of %s", asked)
		}
	}

	// The lengthened interval of a busy box is waited for as it is.
	m := New(start, Config{VRID: 51, Priority: 100, Interval: interval})
	m.Receive(start, &Advert{VRID: 51, Priority: 200, Interval: 5 * interval, Source: netip.MustParseAddr("192.0.2.12")}, netip.MustParseAddr("192.0.2.11"))
	if wait := m.Next().Sub(start); wait < 15*interval {
		t.Errorf("of five intervals it waits for %s", wait)
	}
	if asked, _ := m.Longer(); asked != 0 {
		t.Errorf("five intervals are noted as too long: %s", asked)
	}
}
