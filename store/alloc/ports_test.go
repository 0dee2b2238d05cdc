package alloc

import (
	"errors"
	"fmt"
	"testing"
)

func mustPorts(t testing.TB, first, last uint16, space Space) *Ports {
	t.Helper()
	p, err := NewPorts(first, last, space)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPortBands(t *testing.T) {
	for _, test := range []struct {
		first, last uint16
		dynamic     uint16 // first port of the upper band
	}{
		{30000, 32767, 30086},
		{30000, 30015, 30000},
		{30000, 30016, 30016},
		{30000, 30499, 30016},
		{1, 65535, 129},
		{80, 80, 80},
	} {
		t.Run(fmt.Sprint(test.first, "-", test.last), func(t *testing.T) {
			p := mustPorts(t, test.first, test.last, PerProtocol)
			upper, total := int(test.last-test.dynamic)+1, int(test.last-test.first)+1
			for i := range total {
				n, err := p.Next([]string{"TCP"}, "ns/svc", fmt.Sprint("ns/svc-", i))
				if err != nil {
					t.Fatal(err)
				}
				if inUpper := n >= test.dynamic; inUpper != (i < upper) {
					t.Fatalf("port %d is %d: upper band %t, want %t", i, n, inUpper, i < upper)
				}
			}
			if _, err := p.Next([]string{"TCP"}, "ns/svc", "x"); !errors.Is(err, ErrFull) {
				t.Errorf("after all were given: %v", err)
			}
		})
	}
	for _, bad := range [][2]uint16{{0, 10}, {10, 9}} {
		if _, err := NewPorts(bad[0], bad[1], PerProtocol); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestPortErrors(t *testing.T) {
	p := mustPorts(t, 30000, 32767, PerProtocol)
	tcp := Port{"TCP", 30007}
	if err := p.Take(tcp, "default/web"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		port Port
		want string
	}{
		{tcp, "provided port is already allocated to Service default/web"},
		{Port{"TCP", 29999}, "provided port is not in the valid range. The range of valid ports is 30000-32767"},
		{Port{"TCP", 32768}, "provided port is not in the valid range. The range of valid ports is 30000-32767"},
	} {
		if err := p.Take(test.port, "default/other"); err == nil || err.Error() != test.want {
			t.Errorf("Take(%v):\n got %v\nwant %s", test.port, err, test.want)
		}
	}
}

func TestPortSpaces(t *testing.T) {
	for _, test := range []struct {
		space    Space
		conflict bool
	}{{PerProtocol, false}, {Shared, true}} {
		p := mustPorts(t, 30000, 32767, test.space)
		if err := p.Take(Port{"TCP", 30053}, "default/a"); err != nil {
			t.Fatal(err)
		}
		if err := p.Take(Port{"SCTP", 30053}, "default/a"); err != nil {
			t.Errorf("space %d: the same Service on another protocol: %v", test.space, err)
		}
		err := p.Take(Port{"UDP", 30053}, "default/b")
		if conflict := err != nil; conflict != test.conflict {
			t.Errorf("space %d: another Service on UDP: %v", test.space, err)
		}
	}
}

// An automatic number must be free on each protocol that is asked for, and in a
// shared space on all of them.
func TestNextPortIsFreeOnAllProtocols(t *testing.T) {
	p := mustPorts(t, 30000, 30003, PerProtocol)
	for i, protocol := range []string{"TCP", "UDP", "TCP"} {
		if err := p.Take(Port{protocol, uint16(30000 + i)}, "default/holder"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := p.Next([]string{"TCP", "UDP"}, "default/dns", "default/dns"); err != nil || n != 30003 {
		t.Errorf("got %d, %v; want 30003", n, err)
	}
	if _, err := p.Next([]string{"UDP", "TCP"}, "default/dns2", "default/dns2"); !errors.Is(err, ErrFull) {
		t.Errorf("nothing is free on both: %v", err)
	}

	p = mustPorts(t, 30000, 30001, Shared)
	if err := p.Take(Port{"TCP", 30000}, "default/a"); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Next([]string{"UDP"}, "default/b", "default/b"); err != nil || n != 30001 {
		t.Errorf("got %d, %v; want 30001", n, err)
	}
}
