package suspect

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

var (
	start = time.Unix(1_000_000, 0)
	l1    = netip.MustParseAddrPort("10.180.0.1:80")
)

// Whatever clients send, an endpoint is asked once a second, and all endpoints a hundred times a second; a dead one is
// asked anyway.
func TestSuspectIsBounded(t *testing.T) {
	b := NewBook()
	asked := 0
	for i := range 10_000 { // ten seconds
		if b.Suspect(l1, start.Add(time.Duration(i)*time.Millisecond)) {
			asked++
		}
	}
	if asked != 10 {
		t.Errorf("one endpoint was asked %d times in 10 s, want 10", asked)
	}
	b, asked = NewBook(), 0
	for i := range 10_000 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
		if b.Suspect(at, start.Add(time.Duration(i)*time.Millisecond)) {
			asked++
		}
	}
	if asked < 1000 || asked > 1100 {
		t.Errorf("all endpoints together were asked %d times in 10 s, want some 1,000", asked)
	}
	b.Bury(l1, health.Dead{Refuses: true}, []string{"default/web"})
	if b.Suspect(l1, start.Add(time.Hour)) {
		t.Error("a dead endpoint is suspected")
	}
}

// A dead endpoint is forgotten with the last Service that uses it, and by an answer.
func TestDeadAndUsers(t *testing.T) {
	b := NewBook()
	b.Bury(l1, health.Dead{Why: "no answer"}, []string{"default/a", "default/b"})
	seen := b.Dead()
	for _, step := range []struct {
		service string
		uses    []netip.AddrPort
		left    string
	}{{"default/c", []netip.AddrPort{l1}, "[]"}, {"default/a", nil, "[]"}, {"default/b", nil, "[]"}, {"default/x", nil, "[]"}, {"default/c", nil, "[" + l1.String() + "]"}} {
		if left := fmt.Sprint(b.Use(step.service, step.uses)); left != step.left {
			t.Errorf("%+v: %s are not used any more", step, left)
		}
	}
	if len(b.Dead()) != 0 || len(seen) != 1 {
		t.Errorf("dead: %v; a copy from before has %v", b.Dead(), seen)
	}
	b.Bury(l1, health.Dead{}, []string{"default/a"})
	if services := b.Bury(l1, health.Dead{Why: "gone"}, nil); len(services) != 1 || b.Dead()[l1].Why != "gone" {
		t.Errorf("dead for another reason for %v: %v", services, b.Dead())
	}
	if services := b.Raise(l1); len(services) != 1 || len(b.Dead()) != 0 {
		t.Errorf("raised for %v: %v", services, b.Dead())
	}
	if services := b.Raise(l1); services != nil {
		t.Errorf("raised once more for %v", services)
	}
	if services := b.Bury(l1, health.Dead{}, nil); services != nil || len(b.Dead()) != 0 {
		t.Errorf("an endpoint that no Service uses is dead for %v: %v", services, b.Dead())
	}
}

// Failures are counted by port and endpoint, of so many endpoints.
func TestFailures(t *testing.T) {
	b := NewBook()
	for i := range mostCounts + 100 {
		b.Failed(Place{"default/web", netip.AddrPortFrom(l1.Addr(), uint16(i))})
	}
	for range 2 {
		b.Failed(Place{"default/db", l1})
	}
	all := b.Failures()
	if len(all["default/web"])+len(all["default/db"]) != mostCounts || all["default/db"][l1] != 2 {
		t.Errorf("%d and %v are counted", len(all["default/web"]), all["default/db"])
	}
}
