package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
)

// goodConfig is a Config that Validate likes on every machine.
func goodConfig() Config {
	c := Default()
	c.NodeName = "gw1"
	return c
}

func TestDefaultConfigIsGood(t *testing.T) {
	c := goodConfig()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// TestZeroConfig proves that everything that has no zero default is asked for, and at once.
func TestZeroConfig(t *testing.T) {
	var flags []string
	for _, err := range problems(t, &Config{}) {
		flags = append(flags, err.Flag)
	}
	want := []string{"data-dir", "socket", "node-name", "service-cluster-ip-range", "relay-ports", "service-node-port-range",
		"nodeless-endpoints", "balance", "snat", "vip-ping", "source-ranges-apply", "service-names", "node-port-space", "cluster-ip-clients", "allocate", "legacy-ip", "fast-path", "traffic", "log-format", "cluster-domain"}
	if !slices.Equal(flags, want) {
		t.Errorf("problems with %q, want %q", flags, want)
	}
}

// problems returns the errors of Validate.
func problems(t *testing.T, c *Config) []*Error {
	t.Helper()
	err := c.Validate()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("Validate returns a %T, want joined errors", err)
	}
	var out []*Error
	for _, err := range joined.Unwrap() {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("%T is no *Error: %v", err, err)
		}
		out = append(out, e)
	}
	return out
}

func TestValidate(t *testing.T) {
	prefixes := func(list ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	pool := func(list ...string) []nft.Range {
		out, err := ParseAddrRanges(list)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string // the start of each problem
	}{
		{"directories side by side", func(c *Config) { c.Manifests = []string{"/a", "/ab", "b"} }, nil},
		{"directory twice", func(c *Config) { c.Manifests = []string{"/a", "/a/"} }, []string{`--manifests "/a/": every file of /a`}},
		{"directory in another", func(c *Config) { c.Manifests = []string{"/a/b/c", "/a/b"} }, []string{`--manifests "/a/b": every file of /a/b/c`}},
		{"directory without a name", func(c *Config) { c.Manifests = []string{""} }, []string{`--manifests "": no directory`}},
		{"socket path of 107", func(c *Config) { c.API.Socket = "/" + strings.Repeat("s", 106) }, nil},
		{"socket path of 108", func(c *Config) { c.API.Socket = "/" + strings.Repeat("s", 107) }, []string{`--socket "/sss`}},
		{"metrics everywhere", func(c *Config) { c.API.MetricsListen = ":9753" }, nil},
		{"metrics on IPv6", func(c *Config) { c.API.MetricsListen = "[::1]:0" }, nil},
		{"metrics without port", func(c *Config) { c.API.MetricsListen = "127.0.0.1" }, []string{`--metrics-listen "127.0.0.1": not a host and port`}},
		{"metrics with a bad port", func(c *Config) { c.API.MetricsListen = ":65536" }, []string{`--metrics-listen ":65536": not a host and port`}},
		{"metrics with a named port", func(c *Config) { c.API.MetricsListen = ":http" }, []string{`--metrics-listen ":http": not a host and port`}},
		{"API on a port", func(c *Config) { c.API.Listen = "127.0.0.1:0" }, nil},
		{"API without port", func(c *Config) { c.API.Listen = "localhost" }, []string{`--listen "localhost": not a host and port`}},
		{"API where metrics are", func(c *Config) { c.API.Listen, c.API.MetricsListen = ":1", ":1" }, []string{`--listen ":1": is --metrics-listen too`}},
		{"own certificate", func(c *Config) { c.API.Listen, c.API.TLSCert, c.API.TLSKey = ":1", "c", "k" }, nil},
		{"certificate without key", func(c *Config) { c.API.Listen, c.API.TLSCert = ":1", "c" }, []string{`--tls-cert "c": has no key`}},
		{"key without certificate", func(c *Config) { c.API.Listen, c.API.TLSKey = ":1", "k" }, []string{`--tls-key "k": is the key of no certificate`}},
		{"certificate for nothing", func(c *Config) { c.API.TLSCert, c.API.TLSKey = "c", "k" }, []string{`--tls-cert "c": is shown nowhere`}},
		{"node name", func(c *Config) { c.NodeName = "gw1.example.com" }, nil},
		{"node name in capitals", func(c *Config) { c.NodeName = "GW1" }, []string{`--node-name "GW1"`}},
		{"node name of 254", func(c *Config) { c.NodeName = strings.Repeat("a", 254) }, []string{`--node-name "aaa`}},
		{"zone", func(c *Config) { c.Zone = "Zone_A.1" }, nil},
		{"zone of 64", func(c *Config) { c.Zone = strings.Repeat("z", 64) }, []string{`--zone "zzz`}},
		{"zone that ends in a dash", func(c *Config) { c.Zone = "z-" }, []string{`--zone "z-"`}},
		{"IPv6 first", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("fd00::/64", "10.0.0.0/29") }, nil},
		{"two of a family", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("10.0.0.0/24", "10.1.0.0/24") },
			[]string{`--service-cluster-ip-range "10.1.0.0/24": there is already one of this family, 10.0.0.0/24`}},
		{"range of 4", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("10.0.0.0/30") },
			[]string{`--service-cluster-ip-range "10.0.0.0/30": holds 4 addresses, at least 8 are needed: give a shorter prefix, as /29`}},
		{"range of 4, IPv6", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("fd00::/126") },
			[]string{`--service-cluster-ip-range "fd00::/126": holds 4 addresses, at least 8 are needed: give a shorter prefix, as /125`}},
		{"huge range", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("fd00::/63") },
			[]string{`--service-cluster-ip-range "fd00::/63": is larger`}},
		{"loopback range", func(c *Config) { c.Addresses.ClusterIPRanges = prefixes("127.0.0.0/16") },
			[]string{`--service-cluster-ip-range "127.0.0.0/16": loopback addresses cannot be cluster IPs`}},
		{"one relay port", func(c *Config) { c.Services.RelayPorts = PortRange{10270, 10270} }, []string{`--relay-ports "10270-10270": not two ports`}},
		{"three relay ports", func(c *Config) { c.Services.RelayPorts = PortRange{10270, 10272} }, []string{`--relay-ports "10270-10272": not two ports`}},
		{"one node port", func(c *Config) { c.Addresses.NodePortRange = PortRange{1, 1} }, nil},
		{"node ports backwards", func(c *Config) { c.Addresses.NodePortRange = PortRange{2, 1} }, []string{`--service-node-port-range "2-1"`}},
		{"node port 0", func(c *Config) { c.Addresses.NodePortRange = PortRange{0, 1} }, []string{`--service-node-port-range "0-1"`}},
		{"node ports at links", func(c *Config) { c.Addresses.NodePortAddresses.Prefixes = prefixes("169.254.0.0/16") }, nil},
		{"node ports at links of IPv6", func(c *Config) { c.Addresses.NodePortAddresses.Prefixes = prefixes("fe80::/64") },
			[]string{`--nodeport-addresses "fe80::/64": node ports cannot answer at link-local addresses of IPv6`}},
		{"internal pool", func(c *Config) {
			c.Addresses.InternalPools, c.Addresses.InternalFrom.Interfaces = pool("10.20.0.0/28"), []string{"eth1"}
		}, nil},
		{"internal pool, nobody inside", func(c *Config) { c.Addresses.InternalPools = pool("10.20.0.0/28") },
			[]string{`--load-balancer-internal-pool "10.20.0.1-10.20.0.14": no client is inside`}},
		{"internal pool in another", func(c *Config) {
			c.Addresses.LoadBalancerPools, c.Addresses.InternalPools, c.Addresses.ClusterCIDRs = pool("10.20.0.0/24"), pool("10.20.0.16/28"), prefixes("10.0.0.0/8")
		}, []string{`--load-balancer-internal-pool "10.20.0.17-10.20.0.30": overlaps the pool 10.20.0.1-10.20.0.254`}},
		{"pools", func(c *Config) {
			c.Addresses.LoadBalancerPools = pool("198.51.100.0/28", "198.51.100.16-198.51.100.20", "2001:db8::/64")
		}, nil},
		{"pools that overlap", func(c *Config) {
			c.Addresses.LoadBalancerPools = pool("198.51.100.0/28", "198.51.100.14-198.51.100.20")
		},
			[]string{`--load-balancer-pool "198.51.100.14-198.51.100.20": overlaps the pool 198.51.100.1-198.51.100.14`}},
		{"pool in the cluster IPs", func(c *Config) { c.Addresses.LoadBalancerPools = pool("10.96.255.255-10.97.0.5") },
			[]string{`--load-balancer-pool "10.96.255.255-10.97.0.5": overlaps the range of cluster IPs, 10.96.0.0/16`}},
		{"pool over IPv4's end", func(c *Config) { c.Addresses.LoadBalancerPools = pool("223.255.255.255-224.0.0.1") },
			[]string{`--load-balancer-pool "223.255.255.255-224.0.0.1": multicast and reserved addresses`}},
		{"link-local pool", func(c *Config) { c.Addresses.LoadBalancerPools = pool("fe80::1-fe80::9") }, []string{`--load-balancer-pool "fe80::1-fe80::9": link-local`}},
		{"unknown word", func(c *Config) { c.Services.SNAT = "sometimes" }, []string{`--snat "sometimes": not a choice: give one of auto, never`}},
	} {
		c := goodConfig()
		tt.change(&c)
		got := problems(t, &c)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v, want %d problems", tt.name, got, len(tt.want))
			continue
		}
		for i, e := range got {
			if !strings.HasPrefix(e.Error(), tt.want[i]) {
				t.Errorf("%s: %s, want %s", tt.name, e, tt.want[i])
			}
		}
	}
}

func TestParse(t *testing.T) {
	one := func(v any, err error) string {
		if err != nil {
			return "error: " + err.Error()
		}
		if s, ok := v.(interface{ String() string }); ok {
			return s.String()
		}
		return v.(string)
	}
	prefix := func(s string) string { p, err := parsePrefix(s); return one(p, err) }
	ports := func(s string) string { p, err := ParsePortRange(s); return one(p, err) }
	addrs := func(s string) string { p, err := ParseAddrRange(s); return one(p, err) }
	for _, tt := range []struct {
		parse    func(string) string
		in, want string
	}{
		{prefix, "10.1.2.3/16", "10.1.0.0/16"},
		{prefix, "fd00::1/64", "fd00::/64"},
		{prefix, "10.0.0.1", `error: "10.0.0.1" is an address, not a CIDR: write 10.0.0.1/32`},
		{prefix, "fd00::1", `error: "fd00::1" is an address, not a CIDR: write fd00::1/128`},
		{prefix, "::ffff:10.0.0.0/104", `error: "::ffff:10.0.0.0/104" is an IPv4 prefix in IPv6 form: write it as IPv4`},
		{prefix, "10.0.0.0/33", `error: "10.0.0.0/33" is not a CIDR: write it as 192.0.2.0/24 or 2001:db8::/64`},
		{prefix, "010.0.0.0/8", `error: "010.0.0.0/8" is not a CIDR: write it as 192.0.2.0/24 or 2001:db8::/64`},
		{prefix, "fe80::%eth0/64", `error: "fe80::%eth0/64" is not a CIDR: write it as 192.0.2.0/24 or 2001:db8::/64`},
		{prefix, "", `error: "" is not a CIDR: write it as 192.0.2.0/24 or 2001:db8::/64`},
		{ports, "30000-32767", "30000-32767"},
		{ports, " 1 - 2 ", "1-2"},
		{ports, "80", "80-80"},
		{ports, "1-65536", `error: "1-65536" is not a range of ports: write it as 30000-32767`},
		{ports, "-1-5", `error: "-1-5" is not a range of ports: write it as 30000-32767`},
		{ports, "a-b", `error: "a-b" is not a range of ports: write it as 30000-32767`},
		{addrs, "198.51.100.0/28", "198.51.100.1-198.51.100.14"},
		{addrs, "198.51.100.7/28", "198.51.100.1-198.51.100.14"},
		{addrs, "2001:db8::/127", "2001:db8::-2001:db8::1"},
		{addrs, "198.51.100.8/31", "198.51.100.8-198.51.100.9"},
		{addrs, "198.51.100.8/32", "198.51.100.8-198.51.100.8"},
		{addrs, "198.51.100.8/30", "198.51.100.9-198.51.100.10"},
		{addrs, "2001:db8::/64", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff"},
		{addrs, "198.51.100.0-198.51.100.15", "198.51.100.0-198.51.100.15"}, // every one is named
		{addrs, "0.0.0.0/0", "0.0.0.1-255.255.255.254"},
		{addrs, "198.51.100.4 - 198.51.100.5", "198.51.100.4-198.51.100.5"},
		{addrs, "198.51.100.4", "198.51.100.4-198.51.100.4"},
		{addrs, "198.51.100.5-198.51.100.4", `error: "198.51.100.5-198.51.100.4" ends before it starts: write 198.51.100.4-198.51.100.5`},
		{addrs, "198.51.100.5-::1", `error: "198.51.100.5-::1" goes from one family to the other: give one range for each`},
		{addrs, "a-b", `error: "a-b" is neither a CIDR nor a range: write it as 198.51.100.0/28 or 198.51.100.10-198.51.100.20`},
		{addrs, "fe80::1%a-fe80::2%a", `error: "fe80::1%a-fe80::2%a" is neither a CIDR nor a range: write it as 198.51.100.0/28 or 198.51.100.10-198.51.100.20`},
	} {
		if got := tt.parse(tt.in); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestParseListsTellEveryProblem(t *testing.T) {
	good, err := ParsePrefixes([]string{"x", "10.0.0.0/8", "y"})
	if err == nil || strings.Count(err.Error(), "\n") != 1 || len(good) != 1 {
		t.Errorf("%v, %v", good, err)
	}
	pools, err := ParseAddrRanges([]string{"x", "10.0.0.0/8", "y"})
	if err == nil || strings.Count(err.Error(), "\n") != 1 || len(pools) != 1 {
		t.Errorf("%v, %v", pools, err)
	}
}

// Node ports answer at a link-local address of IPv4 that a prefix of such addresses names, and at none of IPv6.
func TestNodePortsAtLinks(t *testing.T) {
	facts := &node.Facts{Addresses: []node.Address{
		{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "eth0"}, {Prefix: netip.MustParsePrefix("169.254.7.1/24"), Interface: "eth1"},
		{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Interface: "eth0"}, {Prefix: netip.MustParsePrefix("fe80::1/64"), Interface: "eth1"},
	}}
	for list, want := range map[string]string{
		"":                            "[192.0.2.1 2001:db8::1]",
		"0.0.0.0/0,::/0":              "[192.0.2.1 2001:db8::1]",
		"169.254.0.0/16":              "[169.254.7.1 2001:db8::1]",
		"192.0.2.0/24,169.254.7.1/32": "[169.254.7.1 192.0.2.1 2001:db8::1]",
		"169.254.8.0/24,fe80::/10":    "[]",
		"eth0":                        "[192.0.2.1 2001:db8::1]",
		"eth1":                        "[]", // addresses of links take a prefix
		"eth1,192.0.2.0/24":           "[192.0.2.1]",
		"ppp0":                        "[]",
	} {
		c := Default()
		if list != "" {
			var err error
			if c.Addresses.NodePortAddresses, err = ParseNodePortAddresses(strings.Split(list, ",")); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(c.HostNodePortAddresses(facts)); got != want {
			t.Errorf("--nodeport-addresses %q: node ports answer at %s, want %s", list, got, want)
		}
	}
}

func TestParseNodePortAddresses(t *testing.T) {
	if a, err := ParseNodePortAddresses([]string{"primary"}); err != nil || !a.Primary || a.Prefixes != nil {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := ParseNodePortAddresses([]string{"192.0.2.1/24"}); err != nil || a.Primary || len(a.Prefixes) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := ParseNodePortAddresses([]string{"192.0.2.0/24", "primary"}); err == nil || !strings.Contains(err.Error(), "give the one or the others") {
		t.Errorf("%v", err)
	}
	if a, err := ParseNodePortAddresses(nil); err != nil || a.Primary || len(a.Prefixes) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "a-b", "1-2", "::/0", "fe80::%x-fe80::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseAddrRange(s); err == nil && (!r.Contains(r.First) || !r.Contains(r.Last) || r.First.Compare(r.Last) > 0) {
			t.Errorf("%q is the range %s", s, r)
		}
		if r, err := ParsePortRange(s); err == nil && strings.ContainsAny(s, "abcdefg:/") {
			t.Errorf("%q is the ports %s", s, r)
		}
		if p, err := parsePrefix(s); err == nil && p != p.Masked() {
			t.Errorf("%q is %s", s, p)
		}
	})
}

// TestSourcesOfAFleet refuses directories of manifests that no source of a fleet can be.
func TestSourcesOfAFleet(t *testing.T) {
	for manifests, want := range map[string]string{
		"lb=/m shop=/n":          "",
		"/m":                     "in a fleet a directory has a name",
		"LB=/m":                  "in a fleet a directory has a name",
		"lb=/m lb=/n":            "two directories of this box are named lb",
		"lb=/m,rollout=gw1:100%": "the files of a source come to all boxes at once",
	} {
		c := goodConfig()
		c.Fleet.Name, c.Fleet.Etcd, c.Manifests = "pop1", []string{"https://etcd1:2379"}, strings.Fields(manifests)
		var got string
		for _, err := range problems(t, &c) {
			got += err.Error()
		}
		if got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", manifests, got, want)
		}
	}
}
