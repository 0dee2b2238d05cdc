package config

import (
	"net/netip"
	"slices"
	"testing"

	"svcctl.io/svcctl/appliance/node"
)

func TestParseInternalFrom(t *testing.T) {
	for _, test := range []struct {
		list []string
		want InternalFrom
		ok   bool
	}{
		{[]string{"10.0.0.0/8", "eth1", "fd00::/8"}, InternalFrom{[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, []string{"eth1"}}, true},
		{[]string{"vlan.100", "wg0"}, InternalFrom{Interfaces: []string{"vlan.100", "wg0"}}, true},
		{[]string{"10.0.0.1"}, InternalFrom{}, false},
		{[]string{"2001:db8::1"}, InternalFrom{}, false},
		{[]string{"10.0.0.0/33"}, InternalFrom{}, false},
		{[]string{"an-interface-of-a-long-name"}, InternalFrom{}, false},
		{[]string{""}, InternalFrom{}, false},
	} {
		got, err := ParseInternalFrom(test.list)
		if !slices.Equal(got.Prefixes, test.want.Prefixes) || !slices.Equal(got.Interfaces, test.want.Interfaces) || (err == nil) != test.ok {
			t.Errorf("%q: %+v, %v", test.list, got, err)
		}
	}
}

// The clients inside reach the box's part of the dataplane, by their interface as it is there.
func TestBoxKnowsWhoIsInside(t *testing.T) {
	c := Default()
	c.Addresses.InternalFrom = InternalFrom{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Interfaces: []string{"eth1", "gone0"}}
	box := c.Box(&node.Facts{Interfaces: []node.Interface{{Index: 2, Name: "eth0"}, {Index: 3, Name: "eth1"}}})
	if len(box.Interfaces) != 2 || box.Interfaces[0].Inside || !box.Interfaces[1].Inside || len(box.InsideSources) != 1 {
		t.Errorf("the box is %+v", box)
	}
}

// An internal pool is set aside, announced and owned as the others are.
func TestInternalPoolsAreSetAside(t *testing.T) {
	c := Default()
	var err error
	if c.Addresses.InternalPools, err = ParseAddrRanges([]string{"10.20.0.16-10.20.0.31"}); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.20.0.20")
	announced := false
	for _, r := range c.AnnouncedRanges() {
		announced = announced || r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
	}
	owned := false
	for _, r := range c.Box(nil).Owned {
		owned = owned || r.First.Compare(addr) <= 0 && addr.Compare(r.Last) <= 0
	}
	if !c.IsSetAside(addr) || !announced || !owned || c.IsSetAside(netip.MustParseAddr("10.20.0.40")) {
		t.Errorf("set aside %t, announced %t, owned %t", c.IsSetAside(addr), announced, owned)
	}
}
