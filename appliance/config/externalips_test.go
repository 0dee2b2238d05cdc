package config

import (
	"net/netip"
	"slices"
	"testing"
)

func TestParseExternalIPRanges(t *testing.T) {
	for _, test := range []struct {
		list []string
		want ExternalIPRanges
		ok   bool
	}{
		{[]string{"none"}, ExternalIPRanges{None: true}, true},
		{[]string{"203.0.113.0/24"}, ExternalIPRanges{Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}, true},
		{[]string{"none", "203.0.113.0/24"}, ExternalIPRanges{}, false},
		{[]string{"some"}, ExternalIPRanges{}, false},
	} {
		got, err := ParseExternalIPRanges(test.list)
		if got.None != test.want.None || !slices.Equal(got.Prefixes, test.want.Prefixes) || (err == nil) != test.ok {
			t.Errorf("%q: %+v, %v", test.list, got, err)
		}
	}
}
