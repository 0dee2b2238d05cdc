package config

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
)

// A box without IPv4 is warned when the first service range is one of IPv4.
func TestFamilyProblems(t *testing.T) {
	const six, four = "fd00:10:96::/112", "10.96.0.0/16"
	for name, tc := range map[string]struct {
		addresses, ranges string
		warned            bool
	}{
		"IPv6 alone, the defaults":       {"::1/128 fe80::1/64 2001:db8::1/64", four + " " + six, true},
		"with 127.0.0.1 and 169.254":     {"127.0.0.1/8 169.254.0.5/16 2001:db8::1/64", four, true},
		"an IPv6 range first":            {"2001:db8::1/64", six + " " + four, false},
		"an IPv6 range alone":            {"2001:db8::1/64", six, false},
		"both families":                  {"192.0.2.1/24 2001:db8::1/64", four + " " + six, false},
		"IPv4 alone":                     {"192.0.2.1/24 fe80::1/64", four + " " + six, false},
		"no address yet, as during boot": {"127.0.0.1/8 ::1/128 fe80::1/64", four + " " + six, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, facts := Default(), node.Facts{}
			for _, text := range strings.Fields(tc.addresses) {
				facts.Addresses = append(facts.Addresses, node.Address{Prefix: netip.MustParsePrefix(text)})
			}
			cfg.Addresses.ClusterIPRanges = nil
			for _, text := range strings.Fields(tc.ranges) {
				cfg.Addresses.ClusterIPRanges = append(cfg.Addresses.ClusterIPRanges, netip.MustParsePrefix(text))
			}
			problems := cfg.FamilyProblems(&facts)
			if warned := len(problems) == 1 && problems[0].Warning && strings.Contains(problems[0].Message, "--service-cluster-ip-range"); warned != tc.warned || len(problems) > 1 {
				t.Errorf("%v, want a warning: %t", problems, tc.warned)
			}
		})
	}
}
