package appliance

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

func TestAddressCheck(t *testing.T) {
	reads, failing := 0, error(nil)
	cfg := &Config{}
	check := &addressCheck{cfg: cfg, read: func() (node.Facts, error) {
		reads++
		return node.Facts{
			Addresses: []node.Address{
				{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "eth0"},
				{Prefix: netip.MustParsePrefix("198.51.100.7/32"), Interface: "lo"},
			},
			Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.254")},
		}, failing
	}}
	purpose := map[string]string{resolve.AnnotationHostAddress: "true"}
	inRange := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for _, c := range []struct {
		addr        string
		annotations map[string]string
		ranges      []netip.Prefix
		want        string
	}{
		{"192.0.2.1", nil, nil, "it is an address of this host, on eth0"},
		{"192.0.2.254", nil, nil, "it is a gateway of this host"},
		{"192.0.2.1", purpose, nil, ""},
		{"198.51.100.7", nil, nil, ""}, // that is how a VIP is bound
		{"203.0.113.9", nil, inRange, ""},
		{"198.51.100.9", nil, inRange, "it is in no --external-ip-range [203.0.113.0/24]"},
		{"192.0.2.1", purpose, inRange, "it is in no --external-ip-range"},
	} {
		if cfg.ExternalIPRanges.Prefixes = c.ranges; len(c.ranges) > 0 {
			check.facts.ExternalIPRanges = c.ranges // as if it had been started with them
		}
		svc := &object.Service{Metadata: object.ObjectMeta{Annotations: c.annotations}}
		err := check.external(svc, netip.MustParseAddr(c.addr))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.addr, err, c.want)
		}
	}
	if reads > 2 {
		t.Errorf("looked %d times", reads)
	}
	cfg.ExternalIPRanges.Prefixes, failing, check.at = nil, errors.New("no netlink"), time.Time{}
	if err := check.external(&object.Service{}, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("refused without knowing: %v", err)
	}
}
