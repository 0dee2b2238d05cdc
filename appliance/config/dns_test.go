package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestValidateDNS(t *testing.T) {
	upstreams := func(list ...string) []netip.AddrPort {
		out, err := ParseAddrPorts(list)
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
		{"everywhere", func(c *Config) { c.DNS.Listen = []string{":53", "[::1]:0", "192.0.2.1:5353"} }, nil},
		{"no port", func(c *Config) { c.DNS.Listen = []string{"192.0.2.1", ":x"} },
			[]string{`--dns-listen "192.0.2.1": not a host and port`, `--dns-listen ":x": not a host and port`}},
		{"a dot at the end", func(c *Config) { c.DNS.Domain = "cluster.local." }, []string{`--cluster-domain "cluster.local.": not a domain`}},
		{"no domain", func(c *Config) { c.DNS.Domain = "" }, []string{`--cluster-domain "": not a domain`}},
		{"the longest domain", func(c *Config) { c.DNS.Domain = strings.Repeat("a", 28) + "." + strings.Repeat("b", 28) }, nil},
		{"a longer one", func(c *Config) { c.DNS.Domain = strings.Repeat("a", 28) + "." + strings.Repeat("b", 29) }, []string{`--cluster-domain "aaa`}},
		{"upstream", func(c *Config) {
			c.DNS.Listen, c.DNS.Upstreams = []string{":53"}, upstreams("192.0.2.53:53", "127.0.0.1:5353")
		}, nil},
		{"itself", func(c *Config) {
			c.DNS.Listen, c.DNS.Upstreams = []string{"192.0.2.1:53"}, upstreams("192.0.2.1:53")
		}, []string{`--dns-upstream "192.0.2.1:53": is --dns-listen 192.0.2.1:53 itself`}},
		{"itself, by another name", func(c *Config) { c.DNS.Listen, c.DNS.Upstreams = []string{"[::]:53"}, upstreams("127.0.0.53:53") },
			[]string{`--dns-upstream "127.0.0.53:53": is --dns-listen [::]:53 itself`}},
		{"namespaces", func(c *Config) {
			c.DNS.ClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=a", "10.1.1.0/24=b"})
		}, nil},
		{"no namespace", func(c *Config) {
			c.DNS.ClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=A", "10.2.0.0/16="})
		},
			[]string{`--dns-client-namespaces "10.1.0.0/16=A": "A" is not a namespace`, `--dns-client-namespaces "10.2.0.0/16=": "" is not`}},
		{"two namespaces", func(c *Config) {
			c.DNS.ClientNamespaces, _ = ParseClientNamespaces([]string{"10.1.0.0/16=a", "10.1.2.0/16=b"})
		},
			[]string{`--dns-client-namespaces "10.1.0.0/16=b": the prefix has a namespace already`}},
	} {
		c := goodConfig()
		tt.change(&c)
		var got []string
		for _, p := range problems(t, &c) {
			got = append(got, p.Error())
		}
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestParseDNS(t *testing.T) {
	if _, err := ParseAddrPorts([]string{"192.0.2.53", "192.0.2.53:0", "a:53", "[::1]:53"}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
	got, err := ParseClientNamespaces([]string{"10.1.2.3/16 = a", "10.1.0.0/16", "10.1.0.1=b"})
	if err == nil || strings.Count(err.Error(), "\n") != 1 || len(got) != 1 || got[0].Namespace != "a" || got[0].Prefix.String() != "10.1.0.0/16" {
		t.Errorf("%v, %v", got, err)
	}
}
