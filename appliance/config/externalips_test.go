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

// The ports at which the appliance listens are no Service's; those on loopback addresses are in nobody's way.
func TestOwnPorts(t *testing.T) {
	cfg := Default()
	cfg.API.Listen, cfg.API.MetricsListen = "192.0.2.1:6443", "127.0.0.1:9753"
	cfg.DNS.Listen = []string{":53", "[2001:db8::1]:5353"}
	facts := cfg.ResolveFacts(nil, nil)
	for _, c := range []struct{ protocol, at, want string }{
		{"TCP", "192.0.2.1:6443", "the API of svcctl (--listen) listens there"},
		{"UDP", "192.0.2.1:6443", ""},
		{"TCP", "192.0.2.2:6443", ""},
		{"TCP", "192.0.2.1:9753", ""},
		{"TCP", "192.0.2.1:53", "the DNS server of svcctl (--dns-listen) listens there"},
		{"UDP", "192.0.2.2:53", "the DNS server of svcctl (--dns-listen) listens there"},
		{"UDP", "[2001:db8::1]:5353", "the DNS server of svcctl (--dns-listen) listens there"},
		{"UDP", "192.0.2.1:5353", ""},
		{"TCP", "192.0.2.1:10270", "the relay of svcctl (--relay-ports) listens there"},
		{"UDP", "192.0.2.1:3784", "BFD of svcctl announce listens there"},
	} {
		if got := facts.Own(c.protocol, netip.MustParseAddrPort(c.at)); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.protocol, c.at, got, c.want)
		}
	}
	if got := facts.Own("TCP", netip.AddrPortFrom(netip.Addr{}, 6443)); got == "" { // a node port answers on all addresses
		t.Error("a node port is given the port of the API")
	}
}
