package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
)

// What is for Services alone, as the networks of the box come and go.
func TestOwned(t *testing.T) {
	for _, test := range []struct {
		name, services, pools, addresses, connected, want string
	}{
		{"no networks", "10.96.0.0/16", "198.51.100.0/28", "", "", "10.96.0.0-10.96.255.255 198.51.100.0-198.51.100.15"},
		{"a network in the service range", "10.96.0.0/16", "", "10.96.5.1/24", "", "10.96.0.0-10.96.4.255 10.96.6.0-10.96.255.255"},
		{"an address in the service range", "10.96.0.0/24", "", "10.96.0.7/32", "", "10.96.0.0-10.96.0.6 10.96.0.8-10.96.0.255"},
		{"a network over the service range", "10.96.0.0/16", "", "10.0.0.1/8", "", ""},
		{"the box's own route to the service range", "10.96.0.0/16", "", "", "10.96.0.0/16", "10.96.0.0-10.96.255.255"},
		{"a pool on a segment", "", "192.0.2.16/28", "192.0.2.1/24", "", ""},
		{"a pool half on a segment", "", "192.0.2.250-192.0.3.5", "192.0.2.1/24", "", "192.0.3.0-192.0.3.5"},
		{"an address in a pool", "", "198.51.100.0/28", "198.51.100.4/32", "", "198.51.100.0-198.51.100.3 198.51.100.5-198.51.100.15"},
		{"a connected route to a pool", "", "198.51.100.0/28", "", "198.51.100.0/29", "198.51.100.8-198.51.100.15"},
		{"a pool that is no prefix", "", "198.51.100.3-198.51.100.9", "", "", "198.51.100.3-198.51.100.9"},
		{"the hosts of a prefix", "", "198.51.100.1-198.51.100.6", "", "", "198.51.100.0-198.51.100.7"},
		{"one address", "", "198.51.100.5/32", "", "", "198.51.100.5-198.51.100.5"},
		{"two addresses", "", "198.51.100.4/31", "", "", "198.51.100.4-198.51.100.5"},
		{"everything", "", "0.0.0.0/0", "", "", "0.0.0.0-255.255.255.255"},
		{"IPv6", "fd00:10:96::/112", "2001:db8:1::/124", "2001:db8::1/64", "fd00:10:96::8000/113",
			"fd00:10:96::-fd00:10:96::7fff 2001:db8:1::-2001:db8:1::f"},
		{"an IPv6 pool on a segment", "", "2001:db8::10-2001:db8::1f", "2001:db8::1/64", "", ""},
	} {
		var c Config
		for _, text := range strings.Fields(test.services) {
			c.Addresses.ClusterIPRanges = append(c.Addresses.ClusterIPRanges, netip.MustParsePrefix(text))
		}
		pools, err := ParseAddrRanges(strings.Fields(test.pools))
		if err != nil {
			t.Fatal(err)
		}
		c.Addresses.LoadBalancerPools = pools
		var facts node.Facts
		for _, text := range strings.Fields(test.addresses) {
			facts.Addresses = append(facts.Addresses, node.Address{Prefix: netip.MustParsePrefix(text)})
		}
		for _, text := range strings.Fields(test.connected) {
			facts.Connected = append(facts.Connected, netip.MustParsePrefix(text))
		}
		var got []string
		for _, r := range c.owned(&facts) {
			got = append(got, fmt.Sprintf("%s-%s", r.First, r.Last))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: owned are %v, want %s", test.name, got, test.want)
		}
	}
}
